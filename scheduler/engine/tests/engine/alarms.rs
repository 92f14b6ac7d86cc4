//! Alarms: messages that are grouped, sent by one node, and never in the way of runs.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cueline_engine::{AlarmTransport, EngineOptions, ManualEngine, SendFailure};
use cueline_model::alarm::ConditionKind;
use cueline_model::{AlarmChannel, Namespace, OutcomeKind, RunState, decode};
use cueline_store::{
    AlarmDefinition, AlarmDelivery, AlarmFilter, AlarmStore as _, ClaimedDelivery, DeliveryState,
    Precondition,
};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::fixture::{FakeExecutor, Fault, Fixture, actor, tick};

/// How a channel answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    Accepts,
    RefusesForNow,
    RefusesForGood,
    /// It never answers.
    Hangs,
}

/// Records what is sent.
#[derive(Debug)]
struct Recorder {
    behaviour: Mutex<Behaviour>,
    sent: Mutex<Vec<(String, u64, Vec<ConditionKind>)>>,
    /// Notified when a send has begun.
    began: Notify,
}

impl Recorder {
    fn new(behaviour: Behaviour) -> Arc<Self> {
        Arc::new(Self {
            behaviour: Mutex::new(behaviour),
            sent: Mutex::default(),
            began: Notify::new(),
        })
    }

    fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().expect("is whole") = behaviour;
    }

    /// What was sent since the last call: channel, number of events, kinds.
    fn take(&self) -> Vec<(String, u64, Vec<ConditionKind>)> {
        std::mem::take(&mut *self.sent.lock().expect("is whole"))
    }
}

#[async_trait]
impl AlarmTransport for Recorder {
    async fn send(
        &self,
        channel: &AlarmChannel,
        delivery: &ClaimedDelivery,
    ) -> Result<String, SendFailure> {
        let kinds = delivery.events.iter().map(|event| event.kind).collect();
        let sent = (channel.name.to_string(), delivery.count, kinds);
        self.sent.lock().expect("is whole").push(sent);
        self.began.notify_one();
        let behaviour = *self.behaviour.lock().expect("is whole");
        let failure = |is_permanent| SendFailure {
            answer: "503 busy".to_owned(),
            is_permanent,
        };
        match behaviour {
            Behaviour::Accepts => Ok("200 ok".to_owned()),
            Behaviour::RefusesForNow => Err(failure(false)),
            Behaviour::RefusesForGood => Err(failure(true)),
            Behaviour::Hangs => std::future::pending().await,
        }
    }
}

async fn engine(fixture: &Fixture, node: &str, transport: &Arc<Recorder>) -> ManualEngine {
    let options = EngineOptions {
        node_name: node.to_owned(),
        alarm_transport: Some(transport.clone()),
        ..EngineOptions::default()
    };
    fixture.engine_with(options).await
}

/// A channel and a rule with these conditions.
async fn watch(fixture: &Fixture, on: Value) {
    let namespace = Namespace::default();
    let hook = json!({ "name": "ops", "webhook": { "url": "https://example.com" } });
    let channel = decode::alarm_channel(&decode::Node::from(hook), &namespace).expect("a channel");
    let rule = json!({ "name": "r", "on": on, "channels": ["ops"] });
    let rule = decode::alarm_rule(&decode::Node::from(rule), &namespace).expect("a rule");
    for definition in [
        AlarmDefinition::Channel(channel),
        AlarmDefinition::Rule(rule),
    ] {
        let (store, by) = (&fixture.store, actor("ann"));
        let put = store.put_alarm(&definition, &Precondition::None, &by);
        put.await.expect("is written");
    }
}

/// Writes a rule.
async fn put_rule(fixture: &Fixture, rule: Value) {
    let rule = decode::alarm_rule(&decode::Node::from(rule), &Namespace::default());
    let rule = AlarmDefinition::Rule(rule.expect("a rule"));
    let (store, by) = (&fixture.store, actor("ann"));
    let put = store.put_alarm(&rule, &Precondition::None, &by);
    put.await.expect("is written");
}

/// Runs a job by hand, and ends the run.
async fn end_one(
    fixture: &Fixture,
    engine: &mut ManualEngine,
    executor: &FakeExecutor,
    kind: OutcomeKind,
) {
    fixture.trigger("a").await;
    tick(engine).await;
    let trigger = executor.take_one().await;
    executor.ended(&trigger, kind, fixture.now()).await;
    tick(engine).await;
}

async fn deliveries(fixture: &Fixture) -> Vec<AlarmDelivery> {
    let filter = AlarmFilter {
        limit: 100,
        ..AlarmFilter::default()
    };
    fixture
        .store
        .alarm_deliveries(&filter)
        .await
        .expect("lists")
}

#[tokio::test]
async fn failures_of_an_interval_are_one_message_whatever_node_sends_it() {
    let fixture = Fixture::new().await;
    let transport = Recorder::new(Behaviour::Accepts);
    let mut one = engine(&fixture, "one", &transport).await;
    let mut two = engine(&fixture, "two", &transport).await;
    let executor = fixture.executor("e1").await;
    tick(&mut one).await;
    fixture.apply("a", json!({})).await;
    watch(&fixture, json!(["failed"])).await;
    for _ in 0..3 {
        end_one(&fixture, &mut one, &executor, OutcomeKind::Failed).await;
    }
    one.send_alarms().await.expect("sends");
    assert_eq!(transport.take(), [], "more may follow");
    fixture.set(31_000);
    one.send_alarms().await.expect("sends");
    two.send_alarms().await.expect("sends");
    let kinds = vec![ConditionKind::Failed; 3];
    assert_eq!(transport.take(), [("ops".to_owned(), 3, kinds)]);
    let delivery = deliveries(&fixture).await.remove(0);
    assert_eq!(
        (delivery.state, delivery.attempts),
        (DeliveryState::Delivered, 1)
    );
    assert_eq!(delivery.answer, "200 ok");
    fixture.set(600_000);
    two.send_alarms().await.expect("sends");
    assert_eq!(transport.take(), []);
}

/// The alarm is in the store with the outcome. A node that starts later sends it.
#[tokio::test]
async fn a_message_outlives_the_node_that_has_ingested_the_outcome() {
    let fixture = Fixture::new().await;
    let hanging = Recorder::new(Behaviour::Hangs);
    let mut one = engine(&fixture, "one", &hanging).await;
    let executor = fixture.executor("e1").await;
    tick(&mut one).await;
    fixture.apply("a", json!({})).await;
    watch(&fixture, json!(["failed"])).await;
    end_one(&fixture, &mut one, &executor, OutcomeKind::Failed).await;
    fixture.set(31_000);
    // The send begins, and the node dies while the channel does not answer.
    tokio::select! {
        _ = one.send_alarms() => panic!("the channel answers nothing"),
        () = hanging.began.notified() => {}
    }
    drop(one);
    let transport = Recorder::new(Behaviour::Accepts);
    let mut two = engine(&fixture, "two", &transport).await;
    two.send_alarms().await.expect("sends");
    assert_eq!(
        transport.take(),
        [],
        "the lease of the other node has not passed"
    );
    fixture.set(31_000 + 60_000);
    two.send_alarms().await.expect("sends");
    assert_eq!(transport.take().len(), 1);
    let delivery = deliveries(&fixture).await.remove(0);
    assert_eq!(
        (delivery.state, delivery.attempts),
        (DeliveryState::Delivered, 2)
    );
}

/// A channel that is down delays no run, and its message is sent again until it is given up.
#[tokio::test]
async fn a_dead_channel_delays_no_run_and_is_given_up_at_the_bound() {
    let fixture = Fixture::new().await;
    let transport = Recorder::new(Behaviour::RefusesForNow);
    let mut engine = engine(&fixture, "one", &transport).await;
    let executor = fixture.executor("e1").await;
    tick(&mut engine).await;
    fixture.apply("a", json!({})).await;
    watch(&fixture, json!(["failed"])).await;
    end_one(&fixture, &mut engine, &executor, OutcomeKind::Failed).await;
    let mut now = 31_000;
    for attempt in 1..=12 {
        fixture.set(now);
        engine.send_alarms().await.expect("sends");
        assert_eq!(transport.take().len(), 1, "attempt {attempt}");
        let delivery = deliveries(&fixture).await.remove(0);
        assert_eq!(delivery.attempts, attempt);
        assert_eq!(delivery.answer, "503 busy");
        if attempt < 12 {
            let next = delivery.next_at.expect("is sent again");
            now = next.since_ms(Fixture::at(0));
        } else {
            assert_eq!(
                (delivery.state, delivery.next_at),
                (DeliveryState::Failed, None)
            );
        }
        if attempt == 3 {
            executor.heartbeat().await;
            end_one(&fixture, &mut engine, &executor, OutcomeKind::Succeeded).await;
            assert_eq!(fixture.states("a").await.last(), Some(&RunState::Succeeded));
        }
    }
    fixture.set(now + 10_000_000);
    engine.send_alarms().await.expect("sends");
    assert_eq!(transport.take(), []);
}

/// Nodes that end during each attempt leave no answer. The bound of attempts holds for their message too.
#[tokio::test]
async fn a_message_whose_senders_end_is_given_up_at_the_bound() {
    let fixture = Fixture::new().await;
    let transport = Recorder::new(Behaviour::Accepts);
    let mut engine = engine(&fixture, "one", &transport).await;
    let executor = fixture.executor("e1").await;
    tick(&mut engine).await;
    fixture.apply("a", json!({})).await;
    watch(&fixture, json!(["failed"])).await;
    end_one(&fixture, &mut engine, &executor, OutcomeKind::Failed).await;
    fixture.set(31_000);
    fixture.store.collect_alarms(10).await.expect("collects");
    for attempt in 1..=12 {
        let claimed = fixture.store.claim_alarm_deliveries(1_000, &[], 10).await;
        assert_eq!(claimed.expect("claims").len(), 1, "attempt {attempt}");
        fixture.set(31_000 + 1_000 * attempt);
    }
    engine.send_alarms().await.expect("gives up");
    assert_eq!(transport.take(), []);
    let delivery = deliveries(&fixture).await.remove(0);
    assert_eq!(
        (delivery.state, delivery.next_at),
        (DeliveryState::Failed, None)
    );
    assert_eq!(
        delivery.answer,
        "12 attempts, and no answer of the last one"
    );
}

#[tokio::test]
async fn a_refusal_for_good_is_not_repeated_and_neither_is_a_test() {
    let fixture = Fixture::new().await;
    let transport = Recorder::new(Behaviour::RefusesForNow);
    let mut engine = engine(&fixture, "one", &transport).await;
    watch(&fixture, json!(["failed"])).await;
    let ops = "ops".parse().expect("a name");
    let tested = fixture.store.test_channel(&ops, &actor("ann")).await;
    let id = tested.expect("is written");
    engine.send_alarms().await.expect("sends");
    assert_eq!(
        transport.take(),
        [("ops".to_owned(), 1, vec![ConditionKind::Test])]
    );
    let delivery = deliveries(&fixture).await.remove(0);
    assert_eq!((delivery.id, delivery.state), (id, DeliveryState::Failed));
    transport.behave(Behaviour::RefusesForGood);
    fixture
        .store
        .test_channel(&ops, &actor("ann"))
        .await
        .expect("is written");
    engine.send_alarms().await.expect("sends");
    assert_eq!(deliveries(&fixture).await[0].state, DeliveryState::Failed);
    assert_eq!(transport.take().len(), 1);
}

/// A scheduler looks at its start, when the most runs are due.
#[tokio::test]
async fn without_a_rule_for_conditions_no_job_is_read() {
    let fixture = Fixture::new().await;
    let transport = Recorder::new(Behaviour::Accepts);
    let mut engine = engine(&fixture, "one", &transport).await;
    fixture.apply("a", json!({})).await;
    fixture.store.fail_next("job_briefs", Fault::Before);
    engine.check_alarms().await.expect("reads no job");
    watch(&fixture, json!([{ "late": "5s" }])).await;
    engine.check_alarms().await.expect_err("reads the jobs");
    engine.check_alarms().await.expect("checks");
}

/// The conditions that hold for a time: each raises one alarm when it begins.
#[tokio::test]
async fn late_runs_backlogs_and_groups_without_executors_raise_alarms() {
    let fixture = Fixture::new().await;
    let transport = Recorder::new(Behaviour::Accepts);
    let mut engine = engine(&fixture, "one", &transport).await;
    fixture.apply("a", json!({})).await;
    watch(&fixture, json!([{ "late": "5s" }, { "backlog": 1 }])).await;
    fixture.trigger("a").await;
    tick(&mut engine).await;
    engine.check_alarms().await.expect("checks");
    fixture.set(6_000);
    engine.check_alarms().await.expect("checks");
    engine.check_alarms().await.expect("checks");
    fixture.trigger("a").await;
    fixture.set(7_000);
    engine.check_alarms().await.expect("checks");
    fixture.set(60_000);
    engine.send_alarms().await.expect("sends");
    let kinds = vec![ConditionKind::Late, ConditionKind::Backlog];
    assert_eq!(transport.take(), [("ops".to_owned(), 2, kinds)]);
    // An executor comes: nothing waits any more, and the same may be raised again.
    let executor = fixture.executor("e1").await;
    tick(&mut engine).await;
    for trigger in executor.take().await {
        executor
            .ended(&trigger, OutcomeKind::Succeeded, fixture.now())
            .await;
        tick(&mut engine).await;
    }
    fixture.set(120_000);
    tick(&mut engine).await;
    for trigger in executor.take().await {
        executor
            .ended(&trigger, OutcomeKind::Succeeded, fixture.now())
            .await;
    }
    tick(&mut engine).await;
    for _ in 0..3 {
        engine.check_alarms().await.expect("checks");
    }
    fixture.trigger("a").await;
    fixture.set(130_000);
    engine.check_alarms().await.expect("checks");
    fixture.set(200_000);
    engine.send_alarms().await.expect("sends");
    assert_eq!(transport.take().len(), 1);
}

/// The events of the namespace `default`, oldest first: condition, job and group.
async fn raised(fixture: &Fixture) -> Vec<(ConditionKind, Option<String>, Option<String>)> {
    let filter = AlarmFilter {
        limit: 100,
        ..AlarmFilter::default()
    };
    let events = fixture.store.alarm_events(&filter).await.expect("lists");
    let fields = |event: cueline_store::AlarmEvent| {
        let facts = event.facts;
        let job = facts.job.map(|job| job.to_string());
        (event.kind, job, facts.group.map(|group| group.to_string()))
    };
    events.into_iter().rev().map(fields).collect()
}

/// A run that was written ahead and found too late after its node was lost is a missed fire time.
#[tokio::test]
async fn a_misfire_that_a_takeover_finds_raises_an_alarm() {
    let fixture = Fixture::new().await;
    let transport = Recorder::new(Behaviour::Accepts);
    let mut dead = engine(&fixture, "dead", &transport).await;
    let rest = json!({ "schedule": { "every": "10s" }, "misfire": { "policy": "skip" } });
    fixture.apply("a", rest).await;
    watch(&fixture, json!(["missed"])).await;
    fixture.set(9_000);
    tick(&mut dead).await;
    drop(dead);
    fixture.set(26_000);
    let mut two = engine(&fixture, "two", &transport).await;
    tick(&mut two).await;
    let runs = fixture.runs("a").await;
    assert!(
        runs.iter().all(|run| run.state == RunState::Skipped),
        "{runs:?}"
    );
    // The fire time at 10 s was written ahead, that at 20 s was not.
    let a = (
        ConditionKind::Missed,
        Some("a".to_owned()),
        Some("default".to_owned()),
    );
    assert_eq!(raised(&fixture).await, [a.clone(), a]);
}

/// Jobs in the scope of a pause raise nothing for as long as it lasts.
#[tokio::test]
async fn a_pause_of_several_jobs_quiets_their_conditions() {
    let fixture = Fixture::new().await;
    let transport = Recorder::new(Behaviour::Accepts);
    let mut engine = engine(&fixture, "one", &transport).await;
    fixture.apply("a", json!({ "group": "quiet" })).await;
    fixture.apply("b", json!({ "group": "loud" })).await;
    watch(&fixture, json!([{ "late": "5s" }, { "no_executor": "5s" }])).await;
    fixture.trigger("a").await;
    fixture.trigger("b").await;
    tick(&mut engine).await;
    engine.check_alarms().await.expect("checks");
    // The pause comes after the jobs were found.
    let pause: cueline_model::WindowSpec = serde_json::from_value(json!({
        "group": "quiet", "paused_at": fixture.now().to_string(),
        "until": Fixture::at(60_000).to_string(), "reason": "incident",
    }))
    .expect("a pause");
    let id = fixture.real().add_window(&pause, &actor("ann")).await;
    let id = id.expect("adds");
    let replanned = fixture.real().replan_window(Some(id), 1_000).await;
    assert!(replanned.expect("plans").is_done);
    // The pause has ended the run that waited. This one waits for an executor.
    fixture.trigger("a").await;
    for second in 1..=30 {
        fixture.set(second * 1_000);
        // Silence counts only while the scheduler receives its own heartbeats.
        engine.receive_loopback_heartbeat();
        tick(&mut engine).await;
        engine.check_alarms().await.expect("checks");
    }
    let of = |name: &str| Some(name.to_owned());
    let both = [
        (ConditionKind::Late, of("b"), of("loud")),
        (ConditionKind::NoExecutor, None, of("loud")),
    ];
    assert_eq!(raised(&fixture).await, both);
    for second in [61, 62] {
        fixture.set(second * 1_000);
        tick(&mut engine).await;
        engine.check_alarms().await.expect("checks");
    }
    let after = raised(&fixture).await;
    assert!(
        after.contains(&(ConditionKind::Late, of("a"), of("quiet"))),
        "{after:?}"
    );
}

/// A scheduler that does not hold the lease leaves the conditions that are noted to the one that gets it.
#[tokio::test]
async fn a_condition_that_was_noted_by_a_lost_scheduler_ends() {
    let fixture = Fixture::new().await;
    let transport = Recorder::new(Behaviour::Accepts);
    let mut one = engine(&fixture, "one", &transport).await;
    let mut two = engine(&fixture, "two", &transport).await;
    fixture.apply("a", json!({})).await;
    watch(&fixture, json!([{ "late": "5s" }])).await;
    fixture.trigger("a").await;
    fixture.set(6_000);
    one.check_alarms().await.expect("checks");
    assert_eq!(raised(&fixture).await.len(), 1);
    let rule =
        json!({ "name": "r", "on": [{ "late": "5s" }], "channels": ["ops"], "enabled": false });
    put_rule(&fixture, rule).await;
    two.check_alarms().await.expect("checks");
    drop(one);
    for second in [60, 65, 70, 75] {
        fixture.set(second * 1_000);
        two.check_alarms().await.expect("checks");
    }
    watch(&fixture, json!([{ "late": "5s" }])).await;
    fixture.set(80_000);
    two.check_alarms().await.expect("checks");
    assert_eq!(raised(&fixture).await.len(), 2, "it began to hold again");
}

/// A rule about one job costs nothing for the others.
#[tokio::test]
async fn only_jobs_that_rules_name_are_read() {
    let fixture = Fixture::new().await;
    let transport = Recorder::new(Behaviour::Accepts);
    let mut engine = engine(&fixture, "one", &transport).await;
    fixture.apply("a", json!({})).await;
    watch(&fixture, json!(["failed"])).await;
    let rule =
        json!({ "name": "other", "jobs": ["b"], "on": [{ "late": "5s" }], "channels": ["ops"] });
    put_rule(&fixture, rule).await;
    let before = fixture.store.calls("definitions");
    engine.check_alarms().await.expect("checks");
    assert_eq!(fixture.store.calls("definitions"), before);
    fixture.apply("b", json!({})).await;
    fixture.trigger("b").await;
    fixture.set(40_000);
    engine.check_alarms().await.expect("checks");
    assert_eq!(fixture.store.calls("definitions"), before + 1);
    assert_eq!(raised(&fixture).await.len(), 1);
}

#[tokio::test]
async fn alarms_are_deleted_after_their_retention() {
    let fixture = Fixture::new().await;
    let transport = Recorder::new(Behaviour::Accepts);
    let mut engine = engine(&fixture, "one", &transport).await;
    watch(&fixture, json!(["failed"])).await;
    let ops = "ops".parse().expect("a name");
    fixture
        .store
        .test_channel(&ops, &actor("ann"))
        .await
        .expect("is written");
    engine.send_alarms().await.expect("sends");
    fixture.set(89 * 24 * 3_600_000);
    engine.delete_expired().await.expect("deletes");
    assert_eq!(deliveries(&fixture).await.len(), 1);
    fixture.set(91 * 24 * 3_600_000);
    engine.delete_expired().await.expect("deletes");
    assert_eq!(deliveries(&fixture).await, []);
}
