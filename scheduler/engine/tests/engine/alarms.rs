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

use crate::fixture::{FakeExecutor, Fixture, actor, tick};

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
    engine.check_alarms().await.expect("checks");
    fixture.trigger("a").await;
    fixture.set(130_000);
    engine.check_alarms().await.expect("checks");
    fixture.set(200_000);
    engine.send_alarms().await.expect("sends");
    assert_eq!(transport.take().len(), 1);
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
