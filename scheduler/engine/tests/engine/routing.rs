//! Which executor gets a run.

use std::collections::BTreeMap;

use cueline_model::RunState;
use serde_json::json;

use crate::fixture::{Fixture, tick};

/// The position is in the store, so the nodes share it.
#[tokio::test]
async fn round_is_exact_over_two_nodes() {
    let fixture = Fixture::new().await;
    let mut nodes = [fixture.engine("one").await, fixture.engine("two").await];
    let mut executors = Vec::new();
    for name in ["e1", "e2", "e3"] {
        executors.push(fixture.executor(name).await);
    }
    let rest = json!({ "scope": "executor", "schedule": { "every": "2s" }, "route": "round" });
    fixture.apply("job", rest).await;
    let mut fired = [0; 2];
    for n in 1..=12_i64 {
        fixture.set(n * 2_000);
        for executor in &executors {
            executor.heartbeat().await;
        }
        // Each node is first at some of the fire times.
        let first = usize::from(n % 3 == 0);
        for at in [first, 1 - first] {
            fired[at] += tick(&mut nodes[at]).await;
        }
    }
    assert_eq!(fired, [8, 4]);
    let by: Vec<_> = fixture
        .runs("job")
        .await
        .iter()
        .map(|r| r.executor.as_ref().expect("was routed").to_string())
        .collect();
    let turns: Vec<_> = ["e1", "e2", "e3"].into_iter().cycle().take(12).collect();
    assert_eq!(by, turns);
    for executor in &executors {
        assert_eq!(executor.take().await.len(), 4);
    }
}

#[tokio::test]
async fn broadcast_makes_a_pinned_run_for_each_live_executor() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut executors = Vec::new();
    for name in ["e1", "e2", "e3"] {
        executors.push(fixture.executor(name).await);
    }
    let other = fixture.executor("e4").await;
    let other_work = |heartbeat: &mut cueline_model::Heartbeat| {
        heartbeat.capabilities = vec!["native:other".to_owned()];
    };
    other.heartbeat_with(other_work).await;
    tick(&mut engine).await;
    let rest = json!({ "schedule": { "every": "1s" }, "route": "broadcast" });
    fixture.apply("job", rest).await;
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 3);
    for (index, executor) in executors.iter().enumerate() {
        let trigger = executor.take_one().await;
        assert_eq!(trigger.executor.as_str(), executor.name);
        assert_eq!(trigger.shard.index as usize, index);
        assert_eq!(trigger.shard.total, 3);
    }
    assert!(other.take().await.is_empty(), "it cannot run the handler");
}

/// A broadcast shard belongs to one executor; no other runs it.
#[tokio::test]
async fn a_broadcast_run_waits_for_the_executor_that_it_is_pinned_to() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let e2 = fixture.executor("e2").await;
    tick(&mut engine).await;
    let rest = json!({ "schedule": { "every": "2s" }, "route": "broadcast" });
    fixture.apply("job", rest).await;
    fixture.set(1_000);
    engine.claim().await.expect("claims ahead");
    e2.leave().await;
    fixture.set(2_000);
    assert_eq!(tick(&mut engine).await, 1);
    assert_eq!(e1.take_one().await.shard.total, 2);
    assert!(e2.take().await.is_empty());
    let states = fixture.states("job").await;
    assert_eq!(states[..2], [RunState::Queued, RunState::Scheduled]);
    e2.heartbeat().await;
    engine
        .receive_heartbeats()
        .await
        .expect("stores heartbeats");
    engine.prepare().await.expect("prepares");
    assert_eq!(engine.publish().await.expect("publishes"), 1);
    assert_eq!(e2.take_one().await.shard.index, 1);
}

#[tokio::test]
async fn shards_are_spread_evenly_with_their_items() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let e2 = fixture.executor("e2").await;
    let route = json!({ "sharded": ["Beijing", "", "Shanghai", ""] });
    let rest = json!({ "schedule": { "every": "1s" }, "route": route });
    fixture.apply("job", rest).await;
    fixture.set(1_000);
    assert_eq!(tick(&mut engine).await, 4);
    let (mine, others) = (e1.take().await, e2.take().await);
    assert_eq!((mine.len(), others.len()), (2, 2));
    let mut shards: Vec<_> = mine
        .iter()
        .chain(&others)
        .map(|t| t.shard.clone())
        .collect();
    shards.sort();
    let items: Vec<_> = shards.iter().map(|s| s.item.as_deref()).collect();
    assert_eq!(items, [Some("Beijing"), None, Some("Shanghai"), None]);
    assert!(
        shards
            .iter()
            .zip(0..)
            .all(|(s, n)| s.index == n && s.total == 4)
    );
}

#[tokio::test]
async fn consistent_hash_keeps_its_executor_when_another_leaves() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut executors = Vec::new();
    for name in ["e1", "e2", "e3", "e4"] {
        executors.push(fixture.executor(name).await);
    }
    for n in 0..20 {
        let rest = json!({ "scope": "executor", "schedule": { "every": "1s" }, "route": "consistent_hash" });
        fixture.apply(&format!("job-{n}"), rest).await;
    }
    let mut seen: Vec<BTreeMap<String, &str>> = Vec::new();
    for (second, leaver) in [(1, None), (2, None), (3, Some(1)), (4, None)] {
        if let Some(at) = leaver {
            executors[at].leave().await;
        }
        fixture.set(second * 1_000);
        assert_eq!(tick(&mut engine).await, 20);
        let mut owner = BTreeMap::new();
        for executor in &executors {
            for job in executor.take_names().await {
                owner.insert(job, executor.name);
            }
        }
        seen.push(owner);
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].values().any(|e| *e == "e2"), "{:?}", seen[0]);
    for (job, before) in &seen[1] {
        let after = seen[2][job];
        assert_ne!(after, "e2");
        if *before != "e2" {
            assert_eq!(after, *before, "{job} had no reason to move");
        }
    }
    assert_eq!(seen[2], seen[3]);
}

#[tokio::test]
async fn a_draining_executor_gets_no_triggers() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let e2 = fixture.executor("e2").await;
    let rest = json!({ "scope": "executor", "schedule": { "every": "1s" }, "route": "round" });
    fixture.apply("job", rest).await;
    fixture.set(1_000);
    tick(&mut engine).await;
    assert_eq!(e1.take().await.len(), 1, "the first turn is e1's");
    e1.drain().await;
    for second in 2..=5 {
        fixture.set(second * 1_000);
        assert_eq!(tick(&mut engine).await, 1);
    }
    assert!(e1.take().await.is_empty());
    assert_eq!(e2.take().await.len(), 4);
    e1.heartbeat().await;
    for second in 6..=7 {
        fixture.set(second * 1_000);
        tick(&mut engine).await;
    }
    assert_eq!(e1.take().await.len(), 1, "it is back");
}

#[tokio::test]
async fn a_silent_executor_gets_no_more_triggers() {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let e1 = fixture.executor("e1").await;
    let e2 = fixture.executor("e2").await;
    let rest = json!({ "scope": "executor", "schedule": { "every": "5s" }, "route": "first" });
    fixture.apply("job", rest).await;
    tick(&mut engine).await;
    for ms in [5_000, 10_000, 15_000] {
        fixture.set(ms);
        e2.heartbeat().await;
        tick(&mut engine).await;
    }
    assert_eq!(e1.take().await.len(), 3, "15 s are not too long yet");
    fixture.set(20_000);
    e2.heartbeat().await;
    tick(&mut engine).await;
    assert!(e1.take().await.is_empty());
    assert_eq!(e2.take().await.len(), 1);
}
