//! Routes that depend on what a node knows of executors and of earlier runs.

use std::collections::BTreeMap;

use cueline_model::{OutcomeKind, RunState, Weight};
use cueline_protocol::Trigger;
use serde_json::{Value, json};

use crate::fixture::{FakeExecutor, Fault, Fixture, tick};

const NAMES: [&str; 3] = ["e1", "e2", "e3"];

async fn executors(fixture: &Fixture) -> Vec<FakeExecutor> {
    let mut executors = Vec::new();
    for name in NAMES {
        executors.push(fixture.executor(name).await);
    }
    executors
}

async fn every_second(fixture: &Fixture, route: Value) {
    let rest = json!({ "schedule": { "every": "1s" }, "route": route, "scope": "executor" });
    fixture.apply("job", rest).await;
}

/// The executors of the job's due runs, oldest first.
async fn given(fixture: &Fixture) -> Vec<String> {
    let runs = fixture.runs("job").await;
    runs.iter()
        .filter(|run| run.due_at <= fixture.now())
        .map(|run| {
            run.executor
                .as_ref()
                .map_or("-".to_owned(), ToString::to_string)
        })
        .collect()
}

/// Takes all triggers and reports that they have succeeded.
async fn end_all(fixture: &Fixture, executors: &[FakeExecutor]) {
    for executor in executors {
        for trigger in executor.take().await {
            let now = fixture.now();
            executor.ended(&trigger, OutcomeKind::Succeeded, now).await;
        }
    }
}

#[tokio::test]
async fn last_and_named_executors_get_the_run_while_they_are_alive() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let executors = executors(&fixture).await;
    let rest = |route: Value| json!({ "schedule": { "manual": true }, "route": route, "scope": "executor" });
    fixture.apply("last", rest("last".into())).await;
    fixture
        .apply("named", rest(json!({ "executor": "e2" })))
        .await;
    fixture.set(1_000);
    let mut runs = [
        fixture.trigger("last").await,
        fixture.trigger("named").await,
    ];
    tick(&mut engine).await;
    let of = async |id| fixture.run(id).await.executor.map(|e| e.to_string());
    assert_eq!(of(runs[0]).await.as_deref(), Some("e3"));
    assert_eq!(of(runs[1]).await.as_deref(), Some("e2"));
    executors[1].leave().await;
    executors[2].leave().await;
    runs = [
        fixture.trigger("last").await,
        fixture.trigger("named").await,
    ];
    tick(&mut engine).await;
    assert_eq!(of(runs[0]).await.as_deref(), Some("e1"));
    assert_eq!(fixture.state(runs[1]).await, RunState::Scheduled);
    executors[1].heartbeat().await;
    tick(&mut engine).await;
    assert_eq!(of(runs[1]).await.as_deref(), Some("e2"));
}

#[tokio::test]
async fn a_run_without_its_named_executor_says_which_one_is_missing() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    executors(&fixture).await;
    let named = json!({ "schedule": { "manual": true }, "route": { "executor": "e9" }, "dispatch_deadline": "0s" });
    fixture.apply("named", named).await;
    let selected =
        json!({ "schedule": { "manual": true }, "selector": "zone=z", "dispatch_deadline": "0s" });
    fixture.apply("selected", selected).await;
    tick(&mut engine).await;
    fixture.set(1_000);
    let runs = [
        fixture.trigger("named").await,
        fixture.trigger("selected").await,
    ];
    tick(&mut engine).await;
    let mut messages = Vec::new();
    for run in runs {
        let run = fixture.run(run).await;
        assert_eq!(run.state, RunState::Unroutable);
        messages.push(run.message.expect("a message"));
    }
    assert_eq!(
        messages,
        [
            "executor e9 of group default was not alive or could not run native:work within 0s",
            "no live executor of group default that can run native:work with the labels zone=z within 0s"
        ]
    );
}

/// Labels may change from one heartbeat to the next.
#[tokio::test]
async fn a_selector_limits_every_route_to_executors_with_its_labels() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let executors = executors(&fixture).await;
    let label = async |n: usize, zone: &str| {
        let zone = zone.to_owned();
        let labels = |heartbeat: &mut cueline_model::Heartbeat| {
            heartbeat.labels = [("zone".to_owned(), zone)].into();
        };
        executors[n].heartbeat_with(labels).await;
    };
    label(0, "a").await;
    label(1, "b").await;
    label(2, "a").await;
    tick(&mut engine).await;
    let rest = json!({ "schedule": { "every": "1s" }, "selector": "zone=a", "scope": "executor" });
    fixture.apply("job", rest).await;
    for second in 1..=4 {
        fixture.set(second * 1_000);
        tick(&mut engine).await;
    }
    assert_eq!(given(&fixture).await, ["e1", "e3", "e1", "e3"]);
    label(0, "b").await;
    for second in 5..=6 {
        fixture.set(second * 1_000);
        tick(&mut engine).await;
    }
    assert_eq!(given(&fixture).await[4..], ["e3", "e3"]);
}

#[tokio::test]
async fn weighted_is_exact_over_two_nodes() {
    let fixture = Fixture::new().await;
    let mut nodes = [fixture.engine("one").await, fixture.engine("two").await];
    let executors = executors(&fixture).await;
    let heartbeats = async || {
        for (executor, weight) in executors.iter().zip([1, 2, 5]) {
            let weigh = |heartbeat: &mut cueline_model::Heartbeat| {
                heartbeat.weight = Weight::clamped(weight);
            };
            executor.heartbeat_with(weigh).await;
        }
    };
    every_second(&fixture, "weighted".into()).await;
    for second in 1..=16_i64 {
        fixture.set(second * 1_000);
        heartbeats().await;
        let first = usize::from(second % 3 == 0);
        tick(&mut nodes[first]).await;
        tick(&mut nodes[1 - first]).await;
    }
    let given = given(&fixture).await;
    for cycle in given.chunks(8) {
        let mut counts = BTreeMap::<_, u32>::new();
        for executor in cycle {
            *counts.entry(executor.as_str()).or_default() += 1;
        }
        assert_eq!(
            counts,
            BTreeMap::from([("e1", 1), ("e2", 2), ("e3", 5)]),
            "{given:?}"
        );
    }
}

/// A node that starts reads the last runs, in one call for all jobs.
#[tokio::test]
async fn lfu_and_lru_go_on_at_another_node_where_the_history_ends() {
    for route in ["lfu", "lru"] {
        let fixture = Fixture::new().await;
        let mut first = fixture.engine("one").await;
        let executors = executors(&fixture).await;
        every_second(&fixture, route.into()).await;
        for second in 1..=4 {
            fixture.set(second * 1_000);
            tick(&mut first).await;
            end_all(&fixture, &executors).await;
            tick(&mut first).await;
        }
        assert_eq!(given(&fixture).await, ["e1", "e2", "e3", "e1"], "{route}");
        drop(first);
        let mut second = fixture.engine("one").await;
        for n in 5..=6 {
            fixture.set(n * 1_000);
            tick(&mut second).await;
        }
        assert_eq!(given(&fixture).await[4..], ["e2", "e3"], "{route}");
    }
}

/// The confirmations of a burst are written late, when short runs have ended.
#[tokio::test]
async fn runs_that_ended_before_their_confirmation_count_for_lfu_and_lru() {
    for route in ["lfu", "lru"] {
        let fixture = Fixture::new().await;
        let mut first = fixture.engine("one").await;
        let executors = executors(&fixture).await;
        every_second(&fixture, route.into()).await;
        for second in 1..=4 {
            fixture.set(second * 1_000);
            fixture.store.fail_next("confirm_dispatch", Fault::Before);
            first.tick().await.expect_err("the confirmation fails");
            end_all(&fixture, &executors).await;
            assert_eq!(first.ingest().await.expect("ingests"), 1, "{route}");
        }
        drop(first);
        let mut second = fixture.engine("one").await;
        fixture.set(5_000);
        tick(&mut second).await;
        assert_eq!(given(&fixture).await[3..], ["e1", "e2"], "{route}");
    }
}

#[tokio::test]
async fn without_a_readable_history_runs_are_routed_all_the_same() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    executors(&fixture).await;
    every_second(&fixture, "lru".into()).await;
    let busy = json!({ "schedule": { "every": "1s" }, "route": "busyover", "scope": "executor" });
    fixture.apply("busy", busy).await;
    fixture.set(1_000);
    fixture.store.fail_next("list_runs", Fault::Broken);
    fixture.store.fail_next("attempts_of_jobs", Fault::Broken);
    assert_eq!(tick(&mut engine).await, 2);
    fixture.set(2_000);
    assert_eq!(tick(&mut engine).await, 2);
    assert_eq!(given(&fixture).await, ["e1", "e2"]);
}

#[tokio::test]
async fn busyover_takes_the_first_executor_without_a_run_of_the_job() {
    let fixture = Fixture::new().await;
    let mut nodes = [fixture.engine("one").await, fixture.engine("two").await];
    let executors = executors(&fixture).await;
    let rest = json!({ "schedule": { "manual": true }, "route": "busyover", "scope": "executor" });
    fixture.apply("job", rest).await;
    fixture.set(1_000);
    for node in &mut nodes {
        tick(node).await;
    }
    let mut fire = async |node: usize| {
        fixture.trigger("job").await;
        tick(&mut nodes[node]).await;
        nodes[1 - node].refresh_outstanding().await.expect("reads");
    };
    fire(0).await;
    fire(0).await;
    // The second node has read what the first one has dispatched.
    fire(1).await;
    assert_eq!(given(&fixture).await, NAMES);
    let held = executors[1].take_one().await;
    let ended = executors[1].ended(&held, OutcomeKind::Succeeded, fixture.now());
    ended.await;
    // The second node ingests it, and the first one reads it.
    fire(1).await;
    assert_eq!(given(&fixture).await[3..], ["e2"]);
    fire(0).await;
    assert_eq!(given(&fixture).await[4..], ["e1"], "all are busy");
}

#[tokio::test]
async fn least_loaded_counts_what_was_given_since_the_last_heartbeat() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let executors = executors(&fixture).await;
    let loaded = async |n: usize, held, capacity| {
        let load = |heartbeat: &mut cueline_model::Heartbeat| {
            heartbeat.held = held;
            heartbeat.capacity = capacity;
        };
        executors[n].heartbeat_with(load).await;
    };
    loaded(0, 4, 8).await;
    loaded(1, 0, 2).await;
    loaded(2, 2, 8).await;
    tick(&mut engine).await;
    every_second(&fixture, "least_loaded".into()).await;
    let run = async |engine: &mut _, second: i64| {
        fixture.set(second * 1_000);
        tick(engine).await;
    };
    for second in 1..=3 {
        run(&mut engine, second).await;
    }
    // Parts of capacity: 4/8, 0/2, 2/8; then 4/8, 1/2, 2/8; then 4/8, 1/2, 3/8.
    assert_eq!(given(&fixture).await, ["e2", "e3", "e3"]);
    // An end that this node ingests makes room.
    let taken: Vec<Trigger> = executors[1].take().await;
    executors[1]
        .ended(&taken[0], OutcomeKind::Succeeded, fixture.now())
        .await;
    run(&mut engine, 4).await;
    assert_eq!(given(&fixture).await[3..], ["e2"]);
    loaded(0, 0, 8).await;
    run(&mut engine, 5).await;
    assert_eq!(given(&fixture).await[4..], ["e1"]);
}

/// The dead executor delays the first run by one question, and no other.
#[tokio::test]
async fn failover_asks_once_and_passes_over_an_executor_that_does_not_answer() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut executors = executors(&fixture).await;
    tick(&mut engine).await;
    let rest = json!({ "schedule": { "manual": true }, "route": "failover", "scope": "executor" });
    fixture.apply("job", rest).await;
    fixture.set(1_000);
    fixture.trigger("job").await;
    tick(&mut engine).await;
    assert_eq!(given(&fixture).await, ["e1"], "its heartbeat is recent");
    fixture.set(8_000);
    fixture.trigger("job").await;
    tick(&mut engine).await;
    assert_eq!(given(&fixture).await[1..], ["-"], "it waits for answers");
    let other = json!({ "schedule": { "manual": true } });
    fixture.apply("other", other).await;
    fixture.trigger("other").await;
    assert_eq!(tick(&mut engine).await, 1, "other jobs do not wait");
    let (_dead, alive) = executors.split_at_mut(1);
    let (second, third) = alive.split_at_mut(1);
    tokio::join!(
        engine.ping(),
        second[0].answer_holdings(&[]),
        third[0].answer_holdings(&[]),
    );
    tick(&mut engine).await;
    assert_eq!(given(&fixture).await[1..], ["e2"]);
    fixture.trigger("job").await;
    tick(&mut engine).await;
    assert_eq!(given(&fixture).await[2..], ["e2"], "nobody is asked");
    executors[0].heartbeat().await;
    fixture.trigger("job").await;
    tick(&mut engine).await;
    assert_eq!(given(&fixture).await[3..], ["e1"]);
}
