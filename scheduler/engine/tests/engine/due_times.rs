//! When triggers are published, and in which order.

use cueline_engine::EngineOptions;
use cueline_model::RunState;
use serde_json::json;

use crate::fixture::{Fixture, tick};

#[tokio::test]
async fn a_trigger_is_published_at_its_due_time_and_not_before() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture
        .apply("job", json!({ "schedule": { "every": "10s" } }))
        .await;
    for ms in [0, 8_499, 8_500, 9_999] {
        fixture.set(ms);
        assert_eq!(tick(&mut engine).await, 0, "at {ms} ms");
    }
    let ahead = fixture.only_run("job").await;
    assert_eq!(ahead.state, RunState::Scheduled, "written ahead");
    fixture.set(10_000);
    assert_eq!(tick(&mut engine).await, 1);
    let run = fixture.only_run("job").await;
    assert_eq!(run.state, RunState::Queued);
    assert_eq!(run.fire_at, Fixture::at(10_000));
    let trigger = e1.take_one().await;
    assert_eq!((trigger.run, trigger.attempt), (run.id, 1));
    assert_eq!(trigger.fire_at, run.fire_at);
    assert_eq!(tick(&mut engine).await, 0, "and only once");
}

/// Runs are written only within the lookahead, so that an edit finds few to withdraw.
#[tokio::test]
async fn runs_are_written_no_earlier_than_the_lookahead() {
    let fixture = Fixture::new().await;
    let mut engine = fixture
        .engine_with(EngineOptions {
            lookahead_ms: 3_000,
            ..EngineOptions::default()
        })
        .await;
    fixture
        .apply("job", json!({ "schedule": { "every": "10s" } }))
        .await;
    fixture.set(6_999);
    tick(&mut engine).await;
    assert!(fixture.runs("job").await.is_empty());
    fixture.set(7_000);
    tick(&mut engine).await;
    assert_eq!(fixture.states("job").await, [RunState::Scheduled]);
}

/// Preparing a run takes time. The first runs of a burst are prepared early, so that the last ones are not late.
#[tokio::test]
async fn a_burst_is_prepared_early_and_published_when_it_is_due() {
    let fixture = Fixture::new().await;
    let options = EngineOptions {
        lookahead_ms: 3_000,
        ..EngineOptions::default()
    };
    let mut engine = fixture.engine_with(options).await;
    let e1 = fixture.executor("e1").await;
    let at = |schedule: &str| json!({ "schedule": { "every": schedule } });
    fixture.apply("alone", at("10s")).await;
    for n in 0..100 {
        fixture.apply(&format!("job-{n}"), at("15s")).await;
    }
    let states = async || {
        let of_all = fixture.states("job-0").await.into_iter();
        of_all
            .chain(fixture.states("alone").await)
            .collect::<Vec<_>>()
    };
    fixture.set(9_990);
    tick(&mut engine).await;
    assert_eq!(states().await, [RunState::Scheduled], "one run is no burst");
    fixture.set(10_000);
    assert_eq!(tick(&mut engine).await, 1);
    fixture.set(14_994);
    tick(&mut engine).await;
    assert_eq!(fixture.states("job-0").await, [RunState::Scheduled]);
    // One millisecond for every 20 runs.
    fixture.set(14_995);
    assert_eq!(tick(&mut engine).await, 0, "it is not due");
    assert_eq!(fixture.states("job-0").await, [RunState::Dispatching]);
    e1.take().await;
    fixture.set(15_000);
    assert_eq!(tick(&mut engine).await, 100);
    assert_eq!(e1.take().await.len(), 100);
}

#[tokio::test]
async fn triggers_are_published_by_fire_time_then_priority() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    for (name, every, priority) in [
        ("low", "2s", 1),
        ("high", "2s", 9),
        ("middle", "2s", 5),
        ("early-and-low", "1s", 0),
    ] {
        let rest = json!({ "schedule": { "every": every }, "priority": priority });
        fixture.apply(name, rest).await;
    }
    // All are claimed together, a little late.
    fixture.set(2_000);
    assert_eq!(tick(&mut engine).await, 5);
    let order = e1.take_names().await;
    assert_eq!(
        order,
        ["early-and-low", "high", "middle", "low", "early-and-low"]
    );
}

/// Runs claimed in several batches are published in the order of their due times.
#[tokio::test]
async fn small_batches_keep_the_order_and_lose_nothing() {
    let fixture = Fixture::new().await;
    let mut engine = fixture
        .engine_with(EngineOptions {
            claim_batch: 3,
            dispatch_batch: 2,
            publish_batch: 2,
            ingest_batch: 2,
            ..EngineOptions::default()
        })
        .await;
    let e1 = fixture.executor("e1").await;
    for n in 0..10 {
        let rest = json!({ "schedule": { "every": "1s" }, "priority": n % 10 });
        fixture.apply(&format!("job-{n}"), rest).await;
    }
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 10);
    let expected: Vec<_> = (0..10).rev().map(|n| format!("job-{n}")).collect();
    assert_eq!(e1.take_names().await, expected);
}

#[tokio::test]
async fn jitter_delays_the_due_time_and_keeps_the_fire_time() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let mut shares = std::collections::BTreeSet::new();
    for n in 0..5 {
        let rest = json!({ "schedule": { "every": "1m" }, "jitter": "10s" });
        fixture.apply(&format!("job-{n}"), rest).await;
    }
    for second in 1..60 {
        fixture.set(second * 1_000);
        e1.heartbeat().await;
        tick(&mut engine).await;
    }
    let mut runs = Vec::new();
    for n in 0..5 {
        runs.push(fixture.only_run(&format!("job-{n}")).await);
    }
    for run in &runs {
        assert_eq!(run.fire_at, Fixture::at(60_000));
        let share = run.due_at.since_ms(run.fire_at);
        assert!((0..=10_000).contains(&share), "{share}");
        shares.insert(share);
    }
    assert!(shares.len() > 1, "spread: {shares:?}");
    runs.sort_by_key(|run| run.due_at);
    for run in &runs {
        let due = run.due_at.since_ms(Fixture::at(0));
        fixture.set(due - 1);
        e1.heartbeat().await;
        tick(&mut engine).await;
        assert!(e1.take().await.iter().all(|t| t.run != run.id), "early");
        fixture.set(due);
        tick(&mut engine).await;
        assert!(e1.take().await.iter().any(|t| t.run == run.id), "due");
    }
}

/// The lookahead of 1.5 s covers many fire times of this job; each is published at its own time.
#[tokio::test]
async fn a_short_period_does_not_fire_in_batches() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    fixture.executor("e1").await;
    fixture
        .apply("job", json!({ "schedule": { "every": "100ms" } }))
        .await;
    for tenth in 1..=30 {
        fixture.set(tenth * 100 - 1);
        assert_eq!(tick(&mut engine).await, 0, "before tenth {tenth}");
        fixture.set(tenth * 100);
        assert_eq!(tick(&mut engine).await, 1, "at tenth {tenth}");
    }
}
