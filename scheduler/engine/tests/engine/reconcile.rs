//! Attempts that were lost on the way to their executor are published again. Those that may have started there end
//! `lost`.

use std::pin::pin;
use std::time::Duration;

use cueline_broker::conformance::{Fault, Operation};
use cueline_broker::{Coverage, ErrorKind, QueueId, Settlement};
use cueline_engine::{EngineOptions, ManualEngine};
use cueline_model::{AttemptEvent, AttemptId, ExecutorId, OutcomeKind, RunState, Session};
use cueline_protocol::{StartRecord, Trigger, VERSION, encode};
use cueline_store::AttemptReport;
use serde_json::json;

use crate::fixture::{FakeExecutor, Fixture, eventually, tick};

/// Three triggers that the executor has taken from its queue. They wait in its lanes.
async fn taken() -> (Fixture, ManualEngine, FakeExecutor, Vec<Trigger>) {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({ "params": "old" })).await;
    for _ in 0..3 {
        fixture.trigger("job").await;
    }
    assert_eq!(tick(&mut engine).await, 3);
    let triggers = e1.accept().await;
    fixture.set(10_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    (fixture, engine, e1, triggers)
}

/// The executor has lost its state directory and is compared at this time. Returns the number published again.
async fn compare_at(
    ms: i64,
    fixture: &Fixture,
    engine: &mut ManualEngine,
    e1: &mut FakeExecutor,
) -> usize {
    fixture.set(ms);
    e1.heartbeat().await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    let (again, _) = tokio::join!(engine.reconcile(5_000), e1.answer_holdings(&[]));
    again.expect("compares")
}

/// If the executor were asked, it would answer that it holds nothing.
async fn assert_not_asked(
    engine: &mut ManualEngine,
    executor: &mut FakeExecutor,
    older_than_ms: u64,
) {
    tokio::select! {
        again = engine.reconcile(older_than_ms) => assert_eq!(again.expect("compares"), 0),
        asked = executor.answer_holdings(&[]) => panic!("it was asked about {asked:?}"),
    }
}

#[tokio::test]
async fn a_missing_attempt_is_published_again_to_the_same_executor() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    // Another executor would be the first candidate now.
    let e0 = fixture.executor("e0").await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    let held = [triggers[0].attempt_id()];
    let (again, asked) = tokio::join!(engine.reconcile(5_000), e1.answer_holdings(&held));
    assert_eq!(again.expect("compares"), 2);
    assert_eq!(
        asked,
        triggers.iter().map(Trigger::attempt_id).collect::<Vec<_>>()
    );
    assert_eq!(tick(&mut engine).await, 2);
    let sent = e1.take().await;
    assert_eq!(
        sent.iter().map(Trigger::attempt_id).collect::<Vec<_>>(),
        triggers[1..]
            .iter()
            .map(Trigger::attempt_id)
            .collect::<Vec<_>>()
    );
    assert!(e0.take().await.is_empty());
    let timeline = fixture.timeline(triggers[2].run).await;
    assert_eq!(timeline.last().unwrap(), "republished");
    e1.ended(&sent[0], OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(fixture.state(sent[0].run).await, RunState::Succeeded);
}

/// It ended there, and its result waits in the results queue for so long that the executor has forgotten it. The start log
/// has dropped the record of its start.
#[tokio::test]
async fn an_attempt_that_its_executor_may_have_forgotten_is_not_published_again() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    let (log, store) = (e1.start_log(), fixture.real().store_id().await);
    let store = store.expect("reads");
    for number in [0, 2] {
        let record = StartRecord::Starts {
            v: VERSION,
            incarnation: "1".to_owned(),
            session: Session(1),
            number,
            at: fixture.now(),
            store,
            attempts: Vec::new(),
        };
        let appended = fixture.broker.append(&log, encode(&record).into()).await;
        appended.expect("appends");
    }
    let forgotten_until = Some(fixture.now());
    let answer = e1.answer_holdings_with(&[], |reply| reply.forgotten_until = forgotten_until);
    let (again, asked) = tokio::join!(engine.reconcile(5_000), answer);
    assert_eq!((again.expect("compares"), asked.len()), (0, 3));
    e1.ended(&triggers[0], OutcomeKind::Succeeded, fixture.now())
        .await;
    tick(&mut engine).await;
    assert_eq!(
        fixture.state(triggers[0].run).await,
        RunState::Succeeded,
        "its result counts"
    );
    // An executor that has forgotten nothing has never had the others.
    let (again, asked) = tokio::join!(engine.reconcile(5_000), e1.answer_holdings(&[]));
    assert_eq!((again.expect("compares"), asked.len()), (2, 2));
}

/// The executor refuses it, or loses its journal again and again.
#[tokio::test]
async fn an_attempt_is_published_again_ten_times_at_most() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    for n in 1..=10 {
        let again = compare_at(n * 10_000, &fixture, &mut engine, &mut e1).await;
        assert_eq!(again, 3, "time {n}");
        assert_eq!(tick(&mut engine).await, 3);
        assert_eq!(e1.accept().await.len(), 3);
    }
    assert_eq!(compare_at(110_000, &fixture, &mut engine, &mut e1).await, 0);
    for trigger in &triggers {
        let ended = fixture.run(trigger.run).await;
        assert_eq!((ended.state, ended.attempt), (RunState::Failed, 1));
        let message = ended.message.expect("a reason");
        assert!(message.contains("published 11 times"), "{message}");
    }
    assert_eq!(tick(&mut engine).await, 0);
    assert!(e1.take().await.is_empty());
}

/// This node has published it again once. The timeline has the publications of the others.
#[tokio::test]
async fn the_publications_of_other_nodes_count() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    let attempts: Vec<AttemptId> = triggers.iter().map(Trigger::attempt_id).collect();
    let store = fixture.real();
    let two = store.register_node("two", 60_000).await.expect("registers");
    for _ in 0..9 {
        let again = store.reclaim_attempts(two.node, &attempts, "a test").await;
        assert_eq!(again.expect("reclaims").len(), 3);
        store.confirm_dispatch(&attempts).await.expect("confirms");
    }
    assert_eq!(compare_at(20_000, &fixture, &mut engine, &mut e1).await, 3);
    assert_eq!(tick(&mut engine).await, 3);
    e1.accept().await;
    assert_eq!(compare_at(30_000, &fixture, &mut engine, &mut e1).await, 0);
    assert_eq!(fixture.states("job").await, [RunState::Failed; 3]);
}

/// Another scheduler has published them again first. They have started when this one writes, and their job is deleted.
#[tokio::test]
async fn an_attempt_that_has_started_meanwhile_goes_on() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    let reports: Vec<AttemptReport> = triggers
        .iter()
        .map(|trigger| AttemptReport {
            attempt: trigger.attempt_id(),
            executor: Some(ExecutorId {
                group: trigger.group.clone(),
                name: trigger.executor.clone(),
            }),
            event: AttemptEvent::Started { at: fixture.now() },
        })
        .collect();
    fixture.store.hold("reclaim_attempts");
    let answer = e1.answer_holdings(&[]);
    let (again, _, ()) = tokio::join!(engine.reconcile(5_000), answer, async {
        let is_called = async || fixture.store.calls("reclaim_attempts") == 1;
        eventually("it wants to publish them again", is_called).await;
        let started = fixture.real().ingest_reports(&reports).await;
        started.expect("ingests");
        fixture.delete("job").await;
        fixture.store.release("reclaim_attempts");
    });
    assert_eq!(again.expect("compares"), 0);
    for trigger in &triggers {
        assert_eq!(fixture.state(trigger.run).await, RunState::Running);
        e1.ended(trigger, OutcomeKind::Succeeded, fixture.now())
            .await;
    }
    tick(&mut engine).await;
    for trigger in &triggers {
        assert_eq!(fixture.state(trigger.run).await, RunState::Succeeded);
    }
}

#[tokio::test]
async fn a_held_attempt_is_not_published_again() {
    let (_scene, mut engine, mut e1, triggers) = taken().await;
    let held: Vec<_> = triggers.iter().map(Trigger::attempt_id).collect();
    let (again, _) = tokio::join!(engine.reconcile(5_000), e1.answer_holdings(&held));
    assert_eq!(again.expect("compares"), 0);
    assert_eq!(tick(&mut engine).await, 0);
}

/// A recent trigger may still be on its way.
#[tokio::test]
async fn a_recently_queued_attempt_is_not_compared() {
    let (_scene, mut engine, mut e1, _) = taken().await;
    assert_not_asked(&mut engine, &mut e1, 10_000).await;
}

#[tokio::test]
async fn a_trigger_that_may_be_in_the_queue_is_not_published_again() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    tick(&mut engine).await;
    let read = e1.accept().await.remove(0);
    fixture.trigger("job").await;
    tick(&mut engine).await;
    fixture.set(10_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    // It does not say how far it has read, or it has not read beyond either trigger.
    for fetched_until in [None, Some(read.deadline)] {
        let answer = e1.answer_holdings_at(&[], fetched_until);
        let (again, asked) = tokio::join!(engine.reconcile(5_000), answer);
        assert_eq!(again.expect("compares"), 0);
        assert_eq!(asked, []);
    }
    assert_eq!(e1.take().await.len(), 1);
}

/// RabbitMQ counts no messages that a consumer has received. After its disk was full, a worker may have many.
#[tokio::test]
async fn a_trigger_that_its_executor_may_have_received_is_not_published_again() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    tick(&mut engine).await;
    let received = e1.accept().await.remove(0);
    fixture.set(10_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    for (behind, expected) in [(true, 0), (false, 1)] {
        let answer = e1.answer_holdings_with(&[], |reply| reply.behind = behind);
        let (again, asked) = tokio::join!(engine.reconcile(5_000), answer);
        assert_eq!(again.expect("compares"), expected, "behind: {behind}");
        assert_eq!(asked, [received.attempt_id()]);
    }
}

/// Under load, the queue holds triggers whenever it is counted.
#[tokio::test]
async fn a_lost_trigger_is_published_again_while_others_are_in_the_queue() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    tick(&mut engine).await;
    let lost = e1.accept().await.remove(0);
    fixture.set(60_001);
    e1.heartbeat().await;
    fixture.trigger("job").await;
    tick(&mut engine).await;
    let newest = e1.accept().await.remove(0);
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1, "it stays in the queue");
    fixture.set(70_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    let at = Some(newest.deadline);
    let (again, asked) = tokio::join!(engine.reconcile(5_000), async {
        [
            e1.answer_holdings_at(&[], at).await,
            e1.answer_holdings_at(&[], at).await,
        ]
    });
    assert_eq!(again.expect("compares"), 1);
    assert_eq!(asked, [vec![], vec![lost.attempt_id()]]);
    assert_eq!(tick(&mut engine).await, 1);
    let sent = e1.take().await;
    assert_eq!(sent.last().expect("sent").attempt_id(), lost.attempt_id());
}

/// Its queue looks empty, because the broker counts no deliveries to others. What it missed is about to be delivered.
#[tokio::test]
async fn an_executor_that_has_just_returned_is_not_asked() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    let partial = Fault::Coverage(Coverage::OwnDeliveries);
    fixture.broker_faults.always(Operation::Stats, partial);
    // After a silence of more than 15 s.
    fixture.set(25_001);
    e1.heartbeat().await;
    tick(&mut engine).await;
    stay_alive(25_001, 30_001, &fixture, &mut engine, &mut e1).await;
    fixture.set(30_000);
    tokio::select! {
        again = engine.reconcile(5_000) => assert_eq!(again.expect("compares"), 0),
        asked = e1.answer_holdings(&[]) => panic!("asked about {asked:?}"),
    }
    fixture.set(30_001);
    let (again, asked) = tokio::join!(engine.reconcile(5_000), e1.answer_holdings(&[]));
    assert_eq!(again.expect("compares"), 3);
    assert_eq!(asked.len(), triggers.len());
}

/// The attempt was missing before the absence. That says nothing about the time after it.
#[tokio::test]
async fn an_attempt_that_was_missing_before_an_absence_is_waited_for_anew() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    for trigger in &triggers {
        e1.started(trigger, fixture.now()).await;
    }
    tick(&mut engine).await;
    assert_eq!(compare_at(10_000, &fixture, &mut engine, &mut e1).await, 0);
    // After a silence of more than 15 s.
    fixture.set(25_001);
    e1.heartbeat().await;
    tick(&mut engine).await;
    assert_eq!(engine.reconcile(5_000).await.expect("compares"), 0);
    for (ms, state) in [(30_001, RunState::Running), (35_001, RunState::Lost)] {
        stay_alive(25_001, ms, &fixture, &mut engine, &mut e1).await;
        assert_eq!(compare_at(ms, &fixture, &mut engine, &mut e1).await, 0);
        assert_eq!(fixture.state(triggers[0].run).await, state, "at {ms}");
    }
}

/// Its delivery was lost, and the broker delivers it again 30 s later. Meanwhile the executor reads newer triggers. A short
/// time before failover does not change that.
#[tokio::test]
async fn a_trigger_that_the_broker_will_deliver_again_is_not_published_again() {
    let fixture = Fixture::new().await;
    let options = EngineOptions::default().failing_over_after(5_000);
    let mut engine = fixture.engine_with(options).await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    fixture.trigger("job").await;
    tick(&mut engine).await;
    stay_alive(23_000, 31_000, &fixture, &mut engine, &mut e1).await;
    fixture.set(31_000);
    e1.heartbeat().await;
    fixture.trigger("job").await;
    tick(&mut engine).await;
    let mut fetched = e1.accept().await;
    let newest = fetched.pop().expect("was fetched");
    fixture.trigger("job").await;
    assert_eq!(tick(&mut engine).await, 1, "it stays in the queue");
    let at = Some(newest.deadline);
    let mut asked = Vec::new();
    let mut reconcile = pin!(engine.reconcile(5_000));
    let again = loop {
        tokio::select! {
            again = &mut reconcile => break again,
            attempts = e1.answer_holdings_at(&[], at) => asked.push(attempts),
        }
    };
    assert_eq!(again.expect("compares"), 0);
    assert_eq!(asked, [vec![]]);
}

/// The executor has lost its state directory. Started again, the attempt would run twice.
#[tokio::test]
async fn a_running_attempt_that_its_executor_does_not_know_ends_lost() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    e1.started(&triggers[1], fixture.now()).await;
    tick(&mut engine).await;
    let others = [triggers[0].attempt_id(), triggers[2].attempt_id()];
    for (ms, state) in [
        (10_000, RunState::Running),
        (14_999, RunState::Running),
        (15_000, RunState::Lost),
    ] {
        fixture.set(ms);
        e1.heartbeat().await;
        tick(&mut engine).await;
        let (again, _) = tokio::join!(engine.reconcile(5_000), e1.answer_holdings(&others));
        assert_eq!(again.expect("compares"), 0);
        assert_eq!(fixture.state(triggers[1].run).await, state, "at {ms}");
    }
    let message = fixture.run(triggers[1].run).await.message;
    assert!(message.is_some_and(|m| m.contains("its state directory was lost")));
    assert_eq!(tick(&mut engine).await, 0);
    assert!(e1.take().await.is_empty());
    assert_eq!(fixture.state(triggers[0].run).await, RunState::Queued);
}

/// The report of the start was lost with the state directory. The start log has the start.
#[tokio::test]
async fn a_queued_attempt_with_a_recorded_start_ends_lost() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    e1.record_starts(&triggers[..1]).await.expect("records");
    assert_eq!(compare_at(10_000, &fixture, &mut engine, &mut e1).await, 2);
    assert_eq!(fixture.state(triggers[0].run).await, RunState::Queued);
    assert_eq!(tick(&mut engine).await, 2, "the others have not started");
    let sent: Vec<AttemptId> = e1.accept().await.iter().map(Trigger::attempt_id).collect();
    assert_eq!(sent, [triggers[1].attempt_id(), triggers[2].attempt_id()]);
    assert_eq!(compare_at(15_000, &fixture, &mut engine, &mut e1).await, 0);
    assert_eq!(fixture.state(triggers[0].run).await, RunState::Lost);
}

/// The results were published before the state directory was lost, and are slow to arrive.
#[tokio::test]
async fn an_attempt_whose_result_is_on_its_way_does_not_end_lost() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    e1.record_starts(&triggers).await.expect("records");
    e1.ended(&triggers[0], OutcomeKind::Succeeded, fixture.now())
        .await;
    for ms in [10_000, 15_000, 20_000] {
        assert_eq!(compare_at(ms, &fixture, &mut engine, &mut e1).await, 0);
    }
    for trigger in &triggers {
        assert_eq!(fixture.state(trigger.run).await, RunState::Queued);
    }
    engine.ingest().await.expect("ingests");
    assert_eq!(compare_at(25_000, &fixture, &mut engine, &mut e1).await, 0);
    assert_eq!(
        fixture.states("job").await,
        [RunState::Succeeded, RunState::Lost, RunState::Lost]
    );
}

/// Heartbeats between two times.
async fn stay_alive(
    from: i64,
    to: i64,
    fixture: &Fixture,
    engine: &mut ManualEngine,
    executor: &mut FakeExecutor,
) {
    for ms in (from..to).step_by(2_000) {
        fixture.set(ms);
        executor.heartbeat().await;
        tick(engine).await;
    }
}

/// Another scheduler has fetched the result and then died. The broker does not count what it held.
#[tokio::test]
async fn a_result_that_another_node_may_hold_is_waited_for() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    e1.record_starts(&triggers).await.expect("records");
    e1.ended(&triggers[0], OutcomeKind::Succeeded, fixture.now())
        .await;
    let results = QueueId::Results;
    let held = fixture.broker.fetch(&results, 10, Duration::ZERO).await;
    let held = held.expect("fetches");
    assert_eq!(held.len(), 1);
    let partial = Fault::Coverage(Coverage::OwnDeliveries);
    fixture.broker_faults.always(Operation::Stats, partial);
    for (silent_from, ms) in [
        (10_000, 10_000),
        (10_000, 15_000),
        (15_000, 40_000),
        (40_000, 74_999),
    ] {
        stay_alive(silent_from, ms, &fixture, &mut engine, &mut e1).await;
        assert_eq!(compare_at(ms, &fixture, &mut engine, &mut e1).await, 0);
        for trigger in &triggers {
            assert_eq!(fixture.state(trigger.run).await, RunState::Queued);
        }
    }
    let again = [(held[0].receipt, Settlement::Retry(Duration::ZERO))];
    let settled = fixture.broker.settle(&results, &again).await;
    settled.expect("settles");
    assert_eq!(engine.ingest().await.expect("ingests"), 1);
    assert_eq!(compare_at(75_000, &fixture, &mut engine, &mut e1).await, 0);
    assert_eq!(
        fixture.states("job").await,
        [RunState::Succeeded, RunState::Lost, RunState::Lost]
    );
}

/// The broker gives the same counts for an empty queue.
#[tokio::test]
async fn queues_that_may_not_answer_do_not_count_as_empty() {
    let (fixture, mut engine, mut e1, triggers) = taken().await;
    e1.started(&triggers[0], fixture.now()).await;
    tick(&mut engine).await;
    let unsure = Fault::Coverage(Coverage::Unsure);
    fixture.broker_faults.always(Operation::Stats, unsure);
    for ms in [10_000, 13_000, 16_000] {
        assert_eq!(compare_at(ms, &fixture, &mut engine, &mut e1).await, 0);
        assert_eq!(fixture.state(triggers[0].run).await, RunState::Running);
    }
    fixture.broker_faults.clear();
    assert_eq!(compare_at(19_000, &fixture, &mut engine, &mut e1).await, 2);
    assert_eq!(fixture.state(triggers[0].run).await, RunState::Lost);
}

#[tokio::test]
async fn a_job_that_is_rerun_when_lost_gets_a_new_attempt() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({ "on_lost": "rerun" })).await;
    let run = fixture.trigger("job").await;
    tick(&mut engine).await;
    let first = e1.take_one().await;
    e1.started(&first, fixture.now()).await;
    tick(&mut engine).await;
    for ms in [10_000, 15_000] {
        assert_eq!(compare_at(ms, &fixture, &mut engine, &mut e1).await, 0);
    }
    assert_eq!(tick(&mut engine).await, 1);
    let second = e1.take_one().await;
    assert_eq!((second.run, second.attempt), (run, 2));
}

/// Whether the attempts have started is not known.
#[tokio::test]
async fn nothing_is_published_again_while_the_start_log_cannot_be_read() {
    let (fixture, mut engine, mut e1, _) = taken().await;
    let fault = Fault::Before(ErrorKind::Transient);
    fixture.broker_faults.next(Operation::ReadLog, fault, 1);
    assert_eq!(compare_at(10_000, &fixture, &mut engine, &mut e1).await, 0);
    assert_eq!(compare_at(11_000, &fixture, &mut engine, &mut e1).await, 3);
}

#[tokio::test]
async fn a_silent_executor_is_not_asked() {
    let (fixture, mut engine, mut e1, _) = taken().await;
    for ms in [20_000, 30_000] {
        fixture.set(ms);
        tick(&mut engine).await;
    }
    assert_not_asked(&mut engine, &mut e1, 5_000).await;
}

/// The queue was lost with its broker before the executor had read it.
#[tokio::test]
async fn a_lost_queue_is_declared_and_filled_again() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut e1 = fixture.executor("e1").await;
    fixture.apply("job", json!({})).await;
    let run = fixture.trigger("job").await;
    tick(&mut engine).await;
    let lost = fixture.broker.delete(&e1.queue(), false).await;
    assert!(lost.expect("deletes"));
    fixture.set(10_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    let (again, _) = tokio::join!(engine.reconcile(5_000), e1.answer_holdings(&[]));
    assert_eq!(again.expect("compares"), 1);
    assert_eq!(tick(&mut engine).await, 1, "into a queue that is made anew");
    assert_eq!(e1.take_one().await.run, run);
}
