//! Seals, enrolment and the replacement of keys.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, Channel, Listener, QueueId, Settlement};
use cueline_model::{Block, ExecutorId};
use cueline_protocol::origin::{
    EnrolmentToken, Purpose, SealError, Sealed, Sealer, WorkerKey, WorkerKeyId,
};
use cueline_protocol::{Control, HeartbeatMessage, HoldingsReply, VERSION, decode, encode};
use cueline_test_support::SOON;
use cueline_worker::{Builder, KeyFile, WorkerIdentity};
use tokio::time::timeout;

use crate::fixture::{Fixture, STORE, control_channel, run, run_with_readiness, trigger};

fn executor() -> ExecutorId {
    ExecutorId {
        group: "default".parse().expect("a name"),
        name: "worker-1".parse().expect("a name"),
    }
}

fn sealer() -> Sealer {
    Sealer::new(executor(), WorkerKey::from_seed([1; 32]))
}

fn identity() -> WorkerIdentity {
    WorkerIdentity::new(executor(), WorkerKey::from_seed([1; 32]))
}

fn token() -> EnrolmentToken {
    EnrolmentToken::new([1; 8], [2; 32])
}

/// Heartbeats follow each other soon.
fn sealing(fixture: &Fixture, identity: WorkerIdentity) -> Builder {
    let builder = fixture.builder().heartbeat_every(Duration::from_millis(50));
    builder.identity(identity)
}

/// The body of a message that has the seal of this key.
fn verified<'a>(payload: &'a [u8], purpose: Purpose, key: &Sealer) -> Result<&'a [u8], SealError> {
    let sealed = Sealed::parse(payload)?;
    assert_eq!(sealed.executor, executor());
    sealed.verify(purpose, &key.public_key())?;
    Ok(sealed.body)
}

async fn listen_to_heartbeats(broker: &Broker) -> Listener {
    broker.listen(&Channel::Heartbeats).await.expect("listen")
}

/// The next heartbeat with the seal of this key.
async fn heartbeat(listener: &mut Listener, key: &Sealer) -> HeartbeatMessage {
    let found = async {
        loop {
            let message = listener.recv().await.expect("an open channel");
            if let Ok(body) = verified(&message.payload, Purpose::Heartbeat, key) {
                return decode::<HeartbeatMessage>(body).expect("readable");
            }
        }
    };
    timeout(SOON, found).await.expect("a heartbeat")
}

async fn answer(broker: &Broker, answer: &Control) {
    let channel = control_channel();
    let sent = broker.announce(&channel, encode(answer).into()).await;
    sent.expect("announce");
}

async fn accept(broker: &Broker, key: &WorkerKeyId) {
    let (v, key) = (VERSION, key.clone());
    answer(broker, &Control::Enrolled { v, key }).await;
}

/// Takes the payloads of the results queue, until there is one.
async fn take_results(broker: &Broker) -> Vec<Bytes> {
    let taken = async {
        loop {
            let queue = QueueId::Results;
            let deliveries = broker.fetch(&queue, 100, Duration::from_secs(1)).await;
            let deliveries = deliveries.expect("fetch");
            if !deliveries.is_empty() {
                let acks: Vec<_> = deliveries
                    .iter()
                    .map(|delivery| (delivery.receipt, Settlement::Ack))
                    .collect();
                broker.settle(&queue, &acks).await.expect("settle");
                return deliveries
                    .into_iter()
                    .map(|delivery| delivery.payload)
                    .collect();
            }
        }
    };
    timeout(SOON, taken).await.expect("a report")
}

#[tokio::test]
async fn reports_wait_until_schedulers_have_enrolled_the_key() {
    let fixture = Fixture::new().await;
    fixture.stop_collecting();
    let broker = fixture.broker.clone();
    let mut heartbeats = listen_to_heartbeats(&broker).await;
    let builder = sealing(&fixture, identity().enrolment(Some(token())));
    let (worker, readiness) = run_with_readiness(builder);
    fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
    let has_run = || (fixture.calls.load(Ordering::SeqCst) == 1).then_some(());
    fixture.wait("the run", has_run).await;
    let (mut last, key) = (0, sealer());
    for _ in 0..3 {
        let message = heartbeat(&mut heartbeats, &key).await;
        let claim = message.enrolment.expect("a claim");
        assert!(claim.verify(&executor(), &token().verifier()));
        assert_eq!(claim.key, key.public_key());
        let number = message.sender.expect("a sender").number;
        assert!(number > last, "{number} after {last}");
        last = number;
    }
    fixture
        .wait("the worker to wait for its enrolment", || {
            readiness.problem().filter(|text| text.contains("enrolled"))
        })
        .await;
    let results = broker.stats(&[QueueId::Results]).await.expect("stats");
    let waiting = results.of(&QueueId::Results).map(|results| results.ready);
    assert_eq!(waiting, Some(0), "nothing is reported yet");

    accept(&broker, key.key_id()).await;
    for payload in take_results(&broker).await {
        assert!(verified(&payload, Purpose::Reports, &key).is_ok());
    }
    while heartbeat(&mut heartbeats, &key).await.enrolment.is_some() {}
    let ready = || readiness.problem().is_none().then_some(());
    fixture.wait("the worker to be ready", ready).await;
    worker.kill().await;
}

#[tokio::test]
async fn a_refused_key_is_shown_on_the_health_page() {
    let fixture = Fixture::new().await;
    let broker = fixture.broker.clone();
    let (worker, readiness) = run_with_readiness(sealing(&fixture, identity()));
    let ready = || readiness.problem().is_none().then_some(());
    fixture.wait("the worker to be ready", ready).await;
    let refusal = Control::NotEnrolled {
        v: VERSION,
        key: sealer().key_id().clone(),
        reason: "it was revoked".to_owned(),
    };
    answer(&broker, &refusal).await;
    fixture
        .wait("the worker to say that its key was revoked", || {
            readiness
                .problem()
                .filter(|text| text.contains("it was revoked"))
        })
        .await;
    accept(&broker, sealer().key_id()).await;
    fixture.wait("the worker to be ready", ready).await;
    worker.kill().await;
}

/// A restored store has lost the key.
#[tokio::test]
async fn reports_wait_again_while_schedulers_refuse_a_key_that_they_had_accepted() {
    for token in [Some(token()), None] {
        let fixture = Fixture::new().await;
        fixture.stop_collecting();
        let broker = fixture.broker.clone();
        let mut heartbeats = listen_to_heartbeats(&broker).await;
        let has_token = token.is_some();
        let identity = identity().enrolment(token);
        let (worker, readiness) = run_with_readiness(sealing(&fixture, identity));
        let key = sealer();
        heartbeat(&mut heartbeats, &key).await;
        accept(&broker, key.key_id()).await;
        let ready = || readiness.problem().is_none().then_some(());
        fixture.wait("the worker to be ready", ready).await;
        let refusal = Control::NotEnrolled {
            v: VERSION,
            key: key.key_id().clone(),
            reason: "it is not enrolled".to_owned(),
        };
        answer(&broker, &refusal).await;
        let is_refused = || readiness.problem().filter(|text| text.contains("refuse"));
        fixture.wait("the worker to be refused", is_refused).await;
        fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
        let has_run = || (fixture.calls.load(Ordering::SeqCst) == 1).then_some(());
        fixture.wait("the run", has_run).await;
        // Heartbeats from before the refusal come first.
        let asks = async {
            loop {
                let message = heartbeat(&mut heartbeats, &key).await;
                if message.enrolment.is_some() || message.confirm_key {
                    return message;
                }
            }
        };
        let message = timeout(SOON, asks).await.expect("asks for its key");
        assert_eq!(message.enrolment.is_some(), has_token);
        let results = broker.stats(&[QueueId::Results]).await.expect("stats");
        let waiting = results.of(&QueueId::Results).map(|results| results.ready);
        assert_eq!(waiting, Some(0), "nothing is reported yet");
        accept(&broker, key.key_id()).await;
        for payload in take_results(&broker).await {
            assert!(verified(&payload, Purpose::Reports, &key).is_ok());
        }
        fixture.wait("the worker to be ready", ready).await;
        worker.kill().await;
    }
}

#[tokio::test]
async fn the_answer_about_holdings_repeats_the_nonce_and_is_sealed() {
    let fixture = Fixture::new().await;
    let mut heartbeats = listen_to_heartbeats(&fixture.broker).await;
    let worker = run(sealing(&fixture, identity()));
    // It listens before its first heartbeat.
    heartbeat(&mut heartbeats, &sealer()).await;
    let question = Control::Holdings {
        v: VERSION,
        store: STORE,
        nonce: "0123456789abcdef".to_owned(),
        attempts: Vec::new(),
    };
    let asked = fixture
        .broker
        .ask(&control_channel(), encode(&question).into(), SOON)
        .await;
    let payload = asked.expect("ask").expect("an answer");
    let body = verified(&payload, Purpose::Holdings, &sealer()).expect("sealed");
    let reply: HoldingsReply = decode(body).expect("readable");
    assert_eq!(reply.nonce, "0123456789abcdef");
    worker.kill().await;
}

#[tokio::test]
async fn a_replaced_key_seals_from_its_acceptance_on() {
    let fixture = Fixture::new().await;
    fixture.stop_collecting();
    let broker = fixture.broker.clone();
    let mut heartbeats = listen_to_heartbeats(&broker).await;
    let file = KeyFile::in_state_dir(fixture.directory.path());
    let old = Sealer::new(executor(), file.read_or_create().expect("a key"));
    let new = Sealer::new(executor(), file.create_next().expect("a next key"));
    let identity = WorkerIdentity::with_key_file(executor(), &file).expect("opens");
    let letters = identity.dead_letter_seal();
    assert!(verified(&letters.seal(b"{}"), Purpose::DeadLetter, &old).is_ok());
    let worker = run(sealing(&fixture, identity));
    let message = heartbeat(&mut heartbeats, &old).await;
    let claim = message.rotation.expect("a claim");
    assert_eq!(claim.verify(&executor(), &old.public_key()), Ok(()));
    // A scheduler that has replaced the key, and whose answer was lost, recognises the new one.
    let message = heartbeat(&mut heartbeats, &new).await;
    assert_eq!(message.rotation, Some(claim));

    accept(&broker, new.key_id()).await;
    fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
    for payload in take_results(&broker).await {
        assert!(verified(&payload, Purpose::Reports, &new).is_ok());
    }
    while heartbeat(&mut heartbeats, &new).await.rotation.is_some() {}
    assert!(verified(&letters.seal(b"{}"), Purpose::DeadLetter, &new).is_ok());
    assert_eq!(file.read().expect("a key").public(), new.public_key());
    assert!(file.read_next().expect("readable").is_none());
    worker.kill().await;
}
