//! G16: what a worker says counts if it is sealed with the enrolled key of the executor that it is about.

use bytes::Bytes;
use cueline_broker::conformance::{Fault, Operation};
use cueline_broker::{Channel, DeadLetter, QueueId};
use cueline_engine::ManualEngine;
use cueline_model::{AttemptEvent, LogLine, LogStream, Outcome, OutcomeKind, RunId, RunState};
use cueline_protocol::origin::{Purpose, Sealer, WorkerKey};
use cueline_protocol::{HoldingsReply, Trigger, VERSION, encode};
use cueline_store::WorkerKeyState;
use cueline_store::admin::SinceStart;
use serde_json::{Value, json};

use crate::fixture::{FakeExecutor, Fixture, actor, tick};
use crate::refused_triggers::letter;

/// A run that was given to the first executor. The second one is enrolled, and has rights on the broker.
struct Attack {
    fixture: Fixture,
    engine: ManualEngine,
    victim: FakeExecutor,
    attacker: FakeExecutor,
    run: RunId,
    trigger: Trigger,
}

impl Attack {
    async fn new() -> Self {
        let fixture = Fixture::new().await;
        let victim = fixture.enrolled_executor("victim", 1).await;
        let attacker = fixture.enrolled_executor("attacker", 2).await;
        let mut engine = fixture.verifying_engine("one").await;
        victim.heartbeat().await;
        fixture.apply("job", json!({})).await;
        let run = fixture.trigger("job").await;
        assert_eq!(tick(&mut engine).await, 1);
        let trigger = victim.accept().await.remove(0);
        Self {
            fixture,
            engine,
            victim,
            attacker,
            run,
            trigger,
        }
    }

    /// A report of the victim, without a seal.
    fn report(&self, event: AttemptEvent) -> Vec<u8> {
        self.victim.encoded_report(self.trigger.attempt_id(), event)
    }

    fn success(&self) -> AttemptEvent {
        let outcome = Outcome::new(OutcomeKind::Succeeded, self.fixture.now());
        AttemptEvent::Ended { outcome }
    }

    fn counts(&self) -> SinceStart {
        self.engine.admin().since_start()
    }

    async fn state(&self) -> RunState {
        self.fixture.state(self.run).await
    }
}

#[tokio::test]
async fn results_count_with_the_seal_of_the_executor_that_has_the_attempt() {
    let mut attack = Attack::new().await;
    let genuine = attack.report(attack.success());
    let own = attack
        .attacker
        .encoded_report(attack.trigger.attempt_id(), attack.success());
    let unknown = Sealer::new(attack.victim.id(), WorkerKey::from_seed([9; 32]));
    let stolen_name = Sealer::new(attack.victim.id(), WorkerKey::from_seed([2; 32]));
    let mut changed = attack.victim.seal(Purpose::Reports, genuine.clone());
    changed[3] ^= 1;
    let forged = [
        (genuine.clone(), "is not sealed"),
        (
            unknown.seal(Purpose::Reports, genuine.clone()),
            "not enrolled",
        ),
        (
            stolen_name.seal(Purpose::Reports, genuine.clone()),
            "not enrolled",
        ),
        (
            attack.victim.seal(Purpose::DeadLetter, genuine.clone()),
            "was not made by",
        ),
        (changed, "was not made by"),
    ];
    let count = forged.len() as u64;
    for (payload, why) in forged {
        attack.fixture.put(&QueueId::Results, payload.clone()).await;
        tick(&mut attack.engine).await;
        assert_eq!(attack.state().await, RunState::Queued);
        let letter = attack.fixture.dead_letters().await.pop();
        let letter = letter.expect("a dead letter");
        assert!(letter.reason.contains(why), "{}", letter.reason);
        assert_eq!((letter.origin, letter.payload), (None, payload));
    }
    assert_eq!(attack.counts().forged_reports, count);

    // Nothing can replay it, so its beginning is enough.
    let large = vec![b'x'; 100_000];
    attack.fixture.put(&QueueId::Results, large).await;
    tick(&mut attack.engine).await;
    let letter = attack.fixture.dead_letters().await.pop();
    let letter = letter.expect("a dead letter");
    assert_eq!(letter.payload, vec![b'x'; 4_096]);
    assert!(
        letter.reason.contains("the first 4096 of 100000 bytes"),
        "{}",
        letter.reason
    );
    assert_eq!(attack.counts().forged_reports, count + 1);

    // The attacker's own seal: on a report in the name of the victim, and on one in its own name.
    for (report, why) in [
        (
            genuine.clone(),
            "sealed a message of executor default/victim",
        ),
        (own, "was not given to executor default/attacker"),
    ] {
        let payload = attack.attacker.seal(Purpose::Reports, report);
        attack.fixture.put(&QueueId::Results, payload).await;
        tick(&mut attack.engine).await;
        assert_eq!(attack.state().await, RunState::Queued);
        let letter = attack.fixture.dead_letters().await.pop();
        let letter = letter.expect("a dead letter");
        assert!(letter.reason.contains(why), "{}", letter.reason);
        let origin = letter.origin.as_deref();
        assert_eq!(origin, Some("executor default/attacker"));
    }
    assert_eq!(attack.counts().foreign_reports, 1);
    let timeline = attack.fixture.timeline(attack.run).await;
    assert!(!timeline.contains(&"refused".to_owned()), "{timeline:?}");

    let sealed = attack.victim.seal(Purpose::Reports, genuine);
    attack.fixture.put(&QueueId::Results, sealed).await;
    tick(&mut attack.engine).await;
    assert_eq!(attack.state().await, RunState::Succeeded);
}

#[tokio::test]
async fn a_message_past_the_bounds_is_a_dead_letter() {
    let mut attack = Attack::new().await;
    let lines = (0..2_001).map(|seq| LogLine {
        seq,
        at: attack.fixture.now(),
        stream: LogStream::Out,
        text: String::new(),
    });
    let log = AttemptEvent::Log {
        lines: lines.collect(),
    };
    let reports = [attack.report(attack.success()), attack.report(log)].join(&b'\n');
    let payload = attack.victim.seal(Purpose::Reports, reports);
    attack.fixture.put(&QueueId::Results, payload).await;
    tick(&mut attack.engine).await;
    assert_eq!(attack.state().await, RunState::Queued, "none is applied");
    let letters = attack.fixture.dead_letters().await;
    assert!(letters[0].reason.contains("2000 log lines"), "{letters:?}");
}

#[tokio::test]
async fn a_revoked_key_counts_for_nothing_until_it_is_allowed() {
    let mut attack = Attack::new().await;
    let key = WorkerKey::from_seed([1; 32]).public().id().to_string();
    let set = async |state| {
        let store = attack.fixture.real();
        let victim = attack.victim.id();
        let set = store
            .set_worker_key(&victim, &key, state, &actor("ann"))
            .await;
        assert!(set.expect("sets"));
    };
    set(WorkerKeyState::Revoked).await;
    attack.engine.refresh_keys().await.expect("reads");
    let at = attack.fixture.now();
    attack.victim.heartbeat().await;
    attack
        .victim
        .ended(&attack.trigger, OutcomeKind::Succeeded, at)
        .await;
    tick(&mut attack.engine).await;
    assert_eq!(attack.state().await, RunState::Queued);
    let counts = attack.counts();
    assert_eq!((counts.forged_heartbeats, counts.forged_reports), (1, 1));
    let letters = attack.fixture.dead_letters().await;
    assert!(letters[0].reason.contains("is revoked"), "{letters:?}");

    set(WorkerKeyState::Allowed).await;
    attack.engine.refresh_keys().await.expect("reads");
    attack
        .victim
        .ended(&attack.trigger, OutcomeKind::Succeeded, at)
        .await;
    tick(&mut attack.engine).await;
    assert_eq!(attack.state().await, RunState::Succeeded);
}

/// A heartbeat that says that the victim is gone would end its attempts.
#[tokio::test]
async fn a_heartbeat_counts_once_and_from_its_executor_alone() {
    let mut attack = Attack::new().await;
    let gone = |executor: &FakeExecutor, victim: &FakeExecutor| {
        let victim = victim.id();
        executor.encoded_heartbeat(|message| {
            message.heartbeat.executor = victim;
            message.heartbeat.gone = true;
        })
    };
    let mut unsealed = attack.fixture.silent_executor("victim").await;
    let by_unsealed = gone(&unsealed, &attack.victim);
    unsealed.seal_with(&WorkerKey::from_seed([9; 32]));
    let by_unknown_key = gone(&unsealed, &attack.victim);
    let by_attacker = gone(&attack.attacker, &attack.victim);
    // The victim itself has sent these: before, and long ago by an earlier process.
    let replayed = gone(&attack.victim, &attack.victim);
    let later = attack.victim.encoded_heartbeat(|_| {});
    let old = attack.victim.encoded_heartbeat(|message| {
        message.heartbeat.gone = true;
        message.heartbeat.incarnation = "an earlier process".to_owned();
        let sender = message.sender.as_mut().expect("it is sealed");
        sender.sent_at = sender.sent_at.minus_ms(120_001);
    });
    let forged = [by_unsealed, by_unknown_key, by_attacker, old];
    let count = forged.len() as u64;
    for payload in [vec![later], forged.to_vec(), vec![replayed]].concat() {
        let sent = attack
            .fixture
            .broker
            .announce(&Channel::Heartbeats, payload);
        sent.await.expect("announces");
        let received = attack.engine.receive_heartbeats().await;
        received.expect("stores heartbeats");
    }
    assert_eq!(attack.counts().forged_heartbeats, count);
    attack.fixture.trigger("job").await;
    assert_eq!(tick(&mut attack.engine).await, 1, "the victim is alive");
    assert_eq!(attack.victim.take().await.len(), 1);
}

/// An executor that says that it does not hold an attempt has it published again.
#[tokio::test]
async fn a_forged_answer_does_not_stand_for_the_true_one() {
    let mut attack = Attack::new().await;
    attack.fixture.set(10);
    let held = [attack.trigger.attempt_id()];
    let channel = Channel::Control {
        group: "default".to_owned(),
        executor: "victim".to_owned(),
    };
    let broker = attack.fixture.broker.clone();
    let mut tap = broker.listen(&channel).await.expect("listens");
    let reply = encode(&HoldingsReply {
        v: VERSION,
        nonce: "0000000000000000".to_owned(),
        held: Vec::new(),
        fetched_until: None,
        forgotten_until: None,
        behind: false,
    });
    let forged = [
        reply.clone(),
        attack.attacker.seal(Purpose::Holdings, reply.clone()),
        // An answer of the victim to an earlier question.
        attack.victim.seal(Purpose::Holdings, reply),
    ];
    let (id, admin) = (attack.victim.id(), attack.engine.admin());
    let answers = async {
        let question = tap.recv().await.expect("a question");
        let to = question.reply_to.expect("a reply is expected");
        for payload in forged {
            let sent = broker.announce(&to, Bytes::from(payload)).await;
            sent.expect("announces");
        }
        attack.victim.answer_holdings(&held).await
    };
    let by = actor("a test");
    let (replayed, _) = tokio::join!(admin.replay(&id, &by), answers);
    assert_eq!(replayed.expect("replays"), 0);
    assert_eq!(attack.counts().forged_answers, 3);
}

#[tokio::test]
async fn a_dead_letter_counts_with_the_seal_of_its_queues_executor() {
    let mut attack = Attack::new().await;
    let request = br#"{"v":1,"job":"job"}"#;
    let refused = letter(&attack.victim.queue(), encode(&attack.trigger));
    let from_requests = letter(&QueueId::Requests, &request[..]);
    let encoded = |letter: &DeadLetter| letter.encode().expect("encodes").to_vec();
    let attacker = &attack.attacker;
    let forged = [
        encoded(&refused),
        attacker.seal(Purpose::DeadLetter, encoded(&refused)),
        attacker.seal(Purpose::Reports, encoded(&refused)),
        encoded(&from_requests),
        attacker.seal(Purpose::DeadLetter, encoded(&from_requests)),
    ];
    let count = forged.len();
    for payload in forged {
        attack.fixture.put(&QueueId::Dead, payload).await;
    }
    let stored = attack.engine.store_dead_letters().await;
    assert_eq!(stored.expect("stores"), count);
    assert_eq!(attack.counts().forged_letters, count as u64);
    assert_eq!(attack.state().await, RunState::Queued);
    let letters = attack.fixture.dead_letters().await;
    assert!(letters.iter().all(|l| l.origin.is_none()), "{letters:?}");
    let ids: Vec<i64> = letters.iter().map(|l| l.id).collect();
    let admin = attack.engine.admin();
    let replayed = admin
        .replay_dead_letters(None, &ids, &actor("a test"))
        .await
        .expect("answers");
    for one in replayed {
        let why = one.refused.expect("refused");
        assert!(why.contains("not verified"), "{why}");
    }
    let carried_out = attack.engine.carry_out_requests().await;
    assert_eq!(carried_out.expect("looks"), 0);

    // The victim refuses its trigger.
    let payload = attack.victim.seal(Purpose::DeadLetter, encoded(&refused));
    attack.fixture.put(&QueueId::Dead, payload).await;
    tokio::select! {
        stored = attack.engine.store_dead_letters() => assert_eq!(stored.expect("stores"), 1),
        never = attack.victim.keep_answering(&[]) => match never {},
    }
    assert_eq!(attack.fixture.state(attack.run).await, RunState::Failed);
    let letter = attack.fixture.dead_letters().await.pop();
    let origin = letter.expect("a dead letter").origin;
    assert_eq!(origin.as_deref(), Some("executor default/victim"));
}

/// The broker seals nothing. What a worker has sealed is known even then.
#[tokio::test]
async fn a_message_that_the_broker_moved_has_the_origin_of_its_own_seal() {
    let mut attack = Attack::new().await;
    let sealed = attack
        .victim
        .seal(Purpose::Reports, attack.report(attack.success()));
    let letters = [
        letter(&QueueId::Results, sealed),
        letter(&QueueId::Results, attack.report(attack.success())),
        // This scheduler has no signing key, so nothing shows who has written it.
        letter(&attack.victim.queue(), encode(&attack.trigger)),
    ];
    for letter in &letters {
        let payload = letter.encode().expect("encodes");
        attack.fixture.put(&QueueId::Dead, payload).await;
    }
    let faults = &attack.fixture.broker_faults;
    faults.next(Operation::Fetch, Fault::MovedByBroker, 1);
    let stored = attack.engine.store_dead_letters().await;
    assert_eq!(stored.expect("stores"), letters.len());
    assert_eq!(attack.counts().forged_letters, 0);
    let stored = attack.fixture.dead_letters().await;
    let origins: Vec<_> = stored.iter().map(|l| l.origin.as_deref()).collect();
    assert_eq!(origins, [Some("executor default/victim"), None, None]);
    let admin = attack.engine.admin();
    let replayed = admin
        .replay_dead_letters(None, &[stored[0].id], &actor("a test"))
        .await;
    assert_eq!(replayed.expect("replays")[0].refused, None);
    tick(&mut attack.engine).await;
    assert_eq!(attack.state().await, RunState::Succeeded);
}

/// Whether the broker has moved a message, its driver says. A sender could say it too.
#[tokio::test]
async fn a_letter_that_claims_to_be_moved_by_the_broker_is_forged() {
    let mut attack = Attack::new().await;
    let report = attack.report(attack.success());
    let sealed = attack.victim.seal(Purpose::Reports, report);
    let encoded = letter(&QueueId::Results, sealed).encode().expect("encodes");
    let mut claim: Value = serde_json::from_slice(&encoded).expect("readable");
    claim["by_broker"] = json!(true);
    let claim = claim.to_string();
    attack.fixture.put(&QueueId::Dead, claim).await;
    let stored = attack.engine.store_dead_letters().await;
    assert_eq!(stored.expect("stores"), 1);
    assert_eq!(attack.counts().forged_letters, 1);
    let stored = attack.fixture.dead_letters().await.remove(0);
    assert_eq!(stored.origin, None);
}

/// G18: the verified origin decides whose letter it is, and never what the letter says.
#[tokio::test]
async fn a_letter_belongs_to_the_namespace_of_its_verified_origin() {
    let mut attack = Attack::new().await;
    let of_team = QueueId::Executor {
        group: "team-b/default".to_owned(),
        executor: "attacker".to_owned(),
    };
    let named = |queue: &QueueId| {
        let letter = DeadLetter {
            topic: "team-b/job".to_owned(),
            ..letter(queue, br#"{"v":1,"job":"team-b/job"}"#.to_vec())
        };
        letter.encode().expect("encodes")
    };
    let seal = |letter: Vec<u8>| attack.attacker.seal(Purpose::DeadLetter, letter);
    let letters = [
        // From its own queue, about a job of another namespace.
        seal(named(&attack.attacker.queue()).into()),
        // As if it came from an executor of another namespace: sealed, and without a seal.
        seal(named(&of_team).into()),
        named(&of_team).into(),
    ];
    let count = letters.len();
    for payload in letters {
        attack.fixture.put(&QueueId::Dead, payload).await;
    }
    let stored = attack.engine.store_dead_letters().await;
    assert_eq!(stored.expect("stores"), count);
    let stored = attack.fixture.dead_letters().await;
    let namespaces: Vec<_> = stored
        .iter()
        .map(|letter| {
            letter
                .namespace
                .as_ref()
                .map(cueline_model::Namespace::as_str)
        })
        .collect();
    assert_eq!(namespaces, [Some("default"), None, None]);
}
