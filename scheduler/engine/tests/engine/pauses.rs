//! Pauses of several jobs, and backfills, moved by hand.

use std::collections::BTreeSet;

use cueline_model::{Actor, ActorKind, OutcomeKind, RunState, WindowSpec};
use cueline_store::{BackfillState, NewBackfill, Precondition};
use serde_json::json;

use crate::fixture::{Fixture, name, tick};

async fn pause(fixture: &Fixture, until_ms: i64) -> i64 {
    let spec: WindowSpec = serde_json::from_value(json!({
        "paused_at": fixture.now().to_string(), "until": Fixture::at(until_ms).to_string(), "reason": "incident",
    }))
    .expect("a pause");
    let by = Actor::new(ActorKind::User, "ann");
    let store = fixture.real();
    let id = store.add_window(&spec, &by).await.expect("adds");
    let replanned = store.replan_window(Some(id), 1_000).await.expect("plans");
    assert!(replanned.is_done);
    id
}

/// G3: what a node has prepared and not published is published by no node once the pause has returned.
#[tokio::test]
async fn nothing_that_was_prepared_is_published_in_a_pause() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    fixture
        .apply("job", json!({ "schedule": { "every": "10s" } }))
        .await;
    tick(&mut engine).await;
    fixture.set(9_000);
    e1.heartbeat().await;
    tick(&mut engine).await;
    let claimed = fixture.only_run("job").await;
    assert_eq!(
        claimed.state,
        RunState::Scheduled,
        "claimed ahead of its time"
    );
    fixture.set(10_000);
    engine.claim().await.expect("claims");
    pause(&fixture, 40_000).await;
    for second in [10, 20, 30, 39] {
        fixture.set(second * 1_000);
        e1.heartbeat().await;
        assert_eq!(tick(&mut engine).await, 0, "at {second} s");
    }
    assert_eq!(fixture.state(claimed.id).await, RunState::Skipped);
    // It ends by itself.
    fixture.set(40_000);
    e1.heartbeat().await;
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.fire_at, Fixture::at(40_000));
    let (from, to) = (Fixture::at(1), Fixture::at(40_001));
    let ledger = fixture.real().ledger(&name("job"), from, to, 100).await;
    let ledger = ledger.expect("reads");
    assert_eq!(ledger.len(), 4);
    assert!(
        ledger.iter().all(|entry| entry.run.is_some()),
        "{ledger:#?}"
    );
}

/// Each fire time of the window runs once, although the node that has created its run is gone, and the schedule goes on.
#[tokio::test]
async fn a_backfill_outlives_its_scheduler_and_the_schedule_goes_first() {
    let fixture = Fixture::new().await;
    let mut dead = fixture.engine("dead").await;
    fixture
        .apply("job", json!({ "schedule": { "every": "10s" } }))
        .await;
    tick(&mut dead).await;
    fixture.set(100_000);
    let new = NewBackfill {
        job: name("job"),
        condition: Precondition::None,
        from: Fixture::at(10_000),
        to: Fixture::at(60_000),
        parallel: 2,
        include_excluded: false,
        total: 5,
        by: Actor::new(ActorKind::User, "ann"),
    };
    let started = fixture.real().start_backfill(&new).await.expect("starts");
    dead.advance_backfills().await.expect("advances");
    dead.claim().await.expect("claims");
    drop(dead);
    let mut engine = fixture.engine("dead").await;
    let e1 = fixture.executor("e1").await;
    let (mut old, mut present) = (Vec::new(), BTreeSet::new());
    for step in 0..40 {
        fixture.set(100_000 + step * 1_000);
        e1.heartbeat().await;
        engine.advance_backfills().await.expect("advances");
        tick(&mut engine).await;
        for trigger in e1.take().await {
            if trigger.fire_at < Fixture::at(60_000) {
                old.push(trigger.fire_at);
            } else {
                present.insert(trigger.fire_at);
            }
            e1.ended(&trigger, OutcomeKind::Succeeded, fixture.now())
                .await;
        }
        tick(&mut engine).await;
    }
    let expected: Vec<_> = (1..6).map(|n| Fixture::at(n * 10_000)).collect();
    assert_eq!(old, expected, "oldest first, each once");
    let ended = fixture.real().backfill(started.id).await.expect("reads");
    assert_eq!(ended.backfill.state, BackfillState::Finished);
    for at in [110_000, 120_000, 130_000] {
        assert!(present.contains(&Fixture::at(at)), "{present:?}");
    }
}
