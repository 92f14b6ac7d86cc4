//! Rate limits and concurrency limits: what exceeds them waits, in order, over all nodes and executors.

use cueline_engine::ManualEngine;
use cueline_model::{OutcomeKind, RunId, RunState};
use cueline_protocol::Trigger;
use serde_json::{Value, json};

use crate::fixture::{FakeExecutor, Fault, Fixture, actor, tick};

const NAMES: [&str; 3] = ["e1", "e2", "e3"];

async fn given(jobs: &[(&str, Value)]) -> (Fixture, ManualEngine, Vec<FakeExecutor>) {
    let fixture = Fixture::new().await;
    let mut engine = fixture.engine("one").await;
    let mut executors = Vec::new();
    for name in NAMES {
        executors.push(fixture.executor(name).await);
    }
    for (name, rest) in jobs {
        let mut rest = rest.clone();
        if rest.get("block").is_none() {
            rest["block"] = json!({ "parallel": 100 });
        }
        fixture.apply(name, rest).await;
    }
    tick(&mut engine).await;
    (fixture, engine, executors)
}

fn key(limit: u32) -> Value {
    json!({ "concurrency": { "key": "db", "limit": limit } })
}

fn rate(count: u32, per: &str) -> Value {
    json!({ "rate_limit": { "count": count, "per": per } })
}

/// Lets the engine publish what it may.
async fn settle(engine: &mut ManualEngine) -> usize {
    let (mut published, mut idle) = (0, 0);
    while idle < 2 {
        match tick(engine).await {
            0 => idle += 1,
            some => {
                published += some;
                idle = 0;
            }
        }
    }
    published
}

/// Triggers the jobs one after the other, a millisecond apart.
async fn trigger(
    fixture: &Fixture,
    engine: &mut ManualEngine,
    from_ms: i64,
    jobs: &[&str],
) -> (usize, Vec<RunId>) {
    let (mut published, mut runs) = (0, Vec::new());
    for (n, job) in (0_i64..).zip(jobs) {
        fixture.set(from_ms + n);
        runs.push(fixture.trigger(job).await);
        published += settle(engine).await;
    }
    (published, runs)
}

/// All triggers in the queues, with the position of their executor.
async fn take(executors: &[FakeExecutor]) -> Vec<(usize, Trigger)> {
    let mut taken = Vec::new();
    for (at, executor) in executors.iter().enumerate() {
        let triggers = executor.take().await.into_iter();
        taken.extend(triggers.map(|trigger| (at, trigger)));
    }
    taken.sort_by_key(|(_, trigger)| trigger.run);
    taken
}

async fn end(
    fixture: &Fixture,
    executors: &[FakeExecutor],
    (at, trigger): &(usize, Trigger),
    kind: OutcomeKind,
) {
    executors[*at].ended(trigger, kind, fixture.now()).await;
}

#[tokio::test]
async fn jobs_of_one_key_share_its_places_in_the_order_of_their_fire_times() {
    let (fixture, mut engine, executors) = given(&[("a", key(2)), ("b", key(2))]).await;
    let (published, runs) = trigger(&fixture, &mut engine, 1_000, &["a", "b", "b", "a", "b"]).await;
    assert_eq!(published, 2);
    let mut at_work = take(&executors).await;
    let mut order: Vec<RunId> = at_work.iter().map(|(_, trigger)| trigger.run).collect();
    assert_eq!(order, runs[..2]);
    for _ in 0..3 {
        let first = at_work.remove(0);
        end(&fixture, &executors, &first, OutcomeKind::Succeeded).await;
        assert_eq!(settle(&mut engine).await, 1, "the end makes room at once");
        let next = take(&executors).await;
        order.push(next[0].1.run);
        at_work.extend(next);
    }
    assert_eq!(order, runs);
}

#[tokio::test]
async fn two_nodes_share_the_places_of_a_key() {
    let (fixture, one, executors) = given(&[("a", key(2))]).await;
    let mut nodes = [one, fixture.engine("two").await];
    let mut at_work: Vec<(usize, Trigger)> = Vec::new();
    let mut done = 0;
    for step in 0..40_i64 {
        fixture.set(1_000 + 300 * step);
        for executor in &executors {
            executor.heartbeat().await;
        }
        if step < 12 {
            fixture.trigger("a").await;
        }
        for node in &mut nodes {
            settle(node).await;
        }
        at_work.extend(take(&executors).await);
        assert!(at_work.len() <= 2, "step {step}: {at_work:#?}");
        if step % 2 == 1 && !at_work.is_empty() {
            let first = at_work.remove(0);
            end(&fixture, &executors, &first, OutcomeKind::Succeeded).await;
            done += 1;
        }
    }
    assert_eq!(done, 12, "all have run");
    assert_eq!(fixture.states("a").await, [RunState::Succeeded; 12]);
}

#[tokio::test]
async fn a_rate_lets_pass_what_it_allows_in_any_interval() {
    let (fixture, mut engine, executors) = given(&[("a", rate(2, "second"))]).await;
    let (published, _) = trigger(&fixture, &mut engine, 1_000, &["a"; 5]).await;
    assert_eq!(published, 2);
    for one in take(&executors).await {
        end(&fixture, &executors, &one, OutcomeKind::Succeeded).await;
    }
    fixture.set(1_999);
    assert_eq!(settle(&mut engine).await, 0, "ends free nothing");
    fixture.set(2_001);
    assert_eq!(settle(&mut engine).await, 2);
    fixture.set(3_000);
    assert_eq!(settle(&mut engine).await, 0);
    fixture.set(3_001);
    assert_eq!(settle(&mut engine).await, 1);
    assert_eq!(engine.admin().counts().held_claims.waiting, 0);
}

#[tokio::test]
async fn a_retry_counts_for_the_rate_again() {
    let mut rest = rate(1, "minute");
    rest["retry"] = json!({ "max": 1, "first": "1s", "backoff": "fixed", "jitter_percent": 0 });
    let (fixture, mut engine, executors) = given(&[("a", rest)]).await;
    let (published, _) = trigger(&fixture, &mut engine, 1_000, &["a"]).await;
    assert_eq!(published, 1);
    let first = take(&executors).await.remove(0);
    end(&fixture, &executors, &first, OutcomeKind::Failed).await;
    for at in (2_000..61_000).step_by(3_000) {
        fixture.set(at);
        for executor in &executors {
            executor.heartbeat().await;
        }
        assert_eq!(settle(&mut engine).await, 0, "at {at}");
    }
    fixture.set(61_000);
    assert_eq!(settle(&mut engine).await, 1);
}

#[tokio::test]
async fn the_backlog_of_a_limited_job_holds_up_no_other() {
    let (fixture, mut engine, executors) = given(&[
        ("slow", rate(1, "hour")),
        ("keyed", key(1)),
        ("other", json!({})),
    ])
    .await;
    for _ in 0..300 {
        fixture.trigger("slow").await;
        fixture.trigger("keyed").await;
    }
    fixture.set(1_000);
    assert_eq!(settle(&mut engine).await, 2);
    assert_eq!(engine.admin().counts().held_claims.waiting, 598);
    take(&executors).await;
    for step in 0..5_i64 {
        fixture.set(2_000 + 700 * step);
        let run = fixture.trigger("other").await;
        assert_eq!(settle(&mut engine).await, 1);
        assert_eq!(take(&executors).await[0].1.run, run);
    }
}

#[tokio::test]
async fn waiting_runs_that_were_cancelled_paused_or_edited_take_no_place() {
    let (fixture, mut engine, executors) =
        given(&[("a", key(1)), ("b", key(1)), ("c", key(1))]).await;
    let jobs = ["a", "a", "b", "c", "a"];
    let (_, runs) = trigger(&fixture, &mut engine, 1_000, &jobs).await;
    let at_work = take(&executors).await.remove(0);
    let cancelled = fixture.real().cancel_run(runs[1], &actor("me")).await;
    cancelled.expect("cancels");
    fixture.delete("b").await;
    // Without its limit, it waits no longer.
    fixture.apply("c", json!({})).await;
    fixture.set(1_600);
    assert_eq!(settle(&mut engine).await, 1);
    assert_eq!(take(&executors).await[0].1.run, runs[3]);
    end(&fixture, &executors, &at_work, OutcomeKind::Succeeded).await;
    let mut published = 0;
    for at in [1_900, 1_950, 2_000, 2_300] {
        fixture.set(at);
        published += settle(&mut engine).await;
    }
    assert_eq!(published, 1);
    assert_eq!(take(&executors).await[0].1.run, runs[4]);
    assert_eq!(fixture.state(runs[1]).await, RunState::Cancelled);
    assert_eq!(fixture.state(runs[2]).await, RunState::Skipped);
}

#[tokio::test]
async fn each_run_of_a_broadcast_takes_a_place() {
    let mut rest = key(2);
    rest["route"] = json!("broadcast");
    let (fixture, mut engine, executors) = given(&[("a", rest)]).await;
    let (published, _) = trigger(&fixture, &mut engine, 1_000, &["a"]).await;
    assert_eq!(published, 2);
    let first = take(&executors).await.remove(0);
    end(&fixture, &executors, &first, OutcomeKind::Succeeded).await;
    assert_eq!(settle(&mut engine).await, 1);
    let last = take(&executors).await;
    assert_eq!(last.len(), 1, "the third executor gets its own run");
    assert_ne!(last[0].0, first.0);
}

/// A serial job with a limit keeps its order, and what waits for its lane takes no place.
#[tokio::test]
async fn a_limit_goes_together_with_a_lane() {
    let mut serial = key(2);
    serial["block"] = json!("serial");
    let (fixture, mut engine, executors) = given(&[("a", serial), ("b", key(2))]).await;
    let (_, runs) = trigger(&fixture, &mut engine, 1_000, &["b", "b", "a", "a", "b"]).await;
    let mut at_work = take(&executors).await;
    assert_eq!(at_work.len(), 2);
    let mut order = Vec::new();
    for step in 0..10_i64 {
        fixture.set(1_500 + 300 * step);
        let Some(first) = (!at_work.is_empty()).then(|| at_work.remove(0)) else {
            break;
        };
        order.push(first.1.run);
        end(&fixture, &executors, &first, OutcomeKind::Succeeded).await;
        settle(&mut engine).await;
        at_work.extend(take(&executors).await);
        assert!(at_work.len() <= 2);
    }
    assert_eq!(order.len(), 5, "{order:?}");
    let of_serial: Vec<_> = order
        .iter()
        .filter(|run| runs[2..4].contains(run))
        .collect();
    assert_eq!(of_serial, [&runs[2], &runs[3]]);
}

/// The attempts of a silent executor count until the failover has returned them.
#[tokio::test]
async fn a_failover_gives_places_back() {
    let (fixture, mut engine, executors) = given(&[("a", key(2))]).await;
    engine.receive_loopback_heartbeat();
    let (published, runs) = trigger(&fixture, &mut engine, 1_000, &["a"; 4]).await;
    assert_eq!(published, 2);
    let holders: Vec<String> = fixture.runs("a").await[..2]
        .iter()
        .filter_map(|run| run.executor.as_ref().map(ToString::to_string))
        .collect();
    let alive = executors
        .iter()
        .find(|e| !holders.iter().any(|holder| holder == e.name))
        .expect("one is idle");
    for at in (2_000..=34_000).step_by(1_000) {
        fixture.set(at);
        engine.receive_loopback_heartbeat();
        alive.heartbeat().await;
        assert_eq!(tick(&mut engine).await, 0, "at {at}");
    }
    fixture.set(34_100);
    assert_eq!(engine.fail_over().await.expect("fails over"), 2);
    for at in [34_500, 35_000, 35_600] {
        fixture.set(at);
        settle(&mut engine).await;
    }
    let sent: Vec<RunId> = alive
        .take()
        .await
        .iter()
        .map(|trigger| trigger.run)
        .collect();
    assert_eq!(sent, runs[..2], "the oldest first");
}

#[tokio::test]
async fn the_backlog_counts_runs_that_wait_for_a_limit() {
    let mut rest = key(1);
    rest["backlog"] = json!(2);
    let (fixture, mut engine, _executors) = given(&[("a", rest)]).await;
    let (published, runs) = trigger(&fixture, &mut engine, 1_000, &["a"; 4]).await;
    assert_eq!(published, 1);
    let last = fixture.run(runs[3]).await;
    assert_eq!(last.state, RunState::Discarded);
    assert_eq!(last.message.as_deref(), Some("the backlog of 2 is full"));
    assert_eq!(fixture.states("a").await[1..3], [RunState::Scheduled; 2]);
}

#[tokio::test]
async fn the_rate_of_a_group_is_shared_by_its_jobs() {
    let jobs = [
        ("a", json!({})),
        ("b", json!({})),
        ("elsewhere", json!({ "group": "other" })),
    ];
    let (fixture, mut engine, executors) = given(&jobs).await;
    let rate = cueline_model::Rate {
        count: 2,
        per: cueline_model::RatePer::Second,
    };
    let (group, by) = (crate::fixture::name("default"), actor("me"));
    let set = fixture.real().set_group_rate(&group, Some(rate), &by);
    assert!(set.await.expect("sets"));
    engine.refresh_quotas().await.expect("reads");
    let (published, runs) = trigger(&fixture, &mut engine, 1_000, &["a", "b", "b", "a"]).await;
    assert_eq!(published, 2);
    take(&executors).await;
    fixture.set(2_002);
    assert_eq!(settle(&mut engine).await, 2);
    let later: Vec<RunId> = take(&executors).await.iter().map(|(_, t)| t.run).collect();
    assert_eq!(later, runs[2..]);
    let removed = fixture.real().set_group_rate(&group, None, &by);
    assert!(removed.await.expect("removes"));
    engine.refresh_quotas().await.expect("reads");
    let (published, _) = trigger(&fixture, &mut engine, 2_100, &["a", "b", "b", "a"]).await;
    assert_eq!(published, 4);
}

/// What waits for a limit is claimed again after an edit, also if its new priority gives it another place.
#[tokio::test]
async fn after_an_edit_no_waiting_run_is_dispatched_as_it_was() {
    for priority in [1, 9] {
        let job = |params: &str, priority: i32| {
            let mut job = rate(10, "second");
            job["params"] = json!(params);
            job["priority"] = json!(priority);
            job
        };
        let (fixture, mut engine, executors) = given(&[("a", job("before", 5))]).await;
        let (published, runs) = trigger(&fixture, &mut engine, 1_000, &["a"; 25]).await;
        assert_eq!(published, 10);
        take(&executors).await;
        let mut edited = job("after", priority);
        edited["block"] = json!({ "parallel": 100 });
        fixture.apply("a", edited).await;
        let mut later = Vec::new();
        for second in 2..6 {
            fixture.set(second * 1_000 + 100);
            for executor in &executors {
                executor.heartbeat().await;
            }
            settle(&mut engine).await;
            later.extend(take(&executors).await);
        }
        let texts = later.iter().map(|(_, trigger)| trigger.params.as_deref());
        let texts: Vec<_> = texts.collect();
        assert_eq!(texts, [Some("after"); 15], "priority {priority}");
        let mut published: Vec<RunId> = later.iter().map(|(_, trigger)| trigger.run).collect();
        published.sort_unstable();
        assert_eq!(published, runs[10..], "each once");
    }
}

/// Their executors are not chosen yet, so the scheduler counts them by job.
#[tokio::test]
async fn runs_of_lanes_of_executors_wait_for_a_limit_up_to_the_backlog() {
    let mut job = rate(1, "hour");
    job["scope"] = json!("executor");
    job["block"] = json!("serial");
    job["backlog"] = json!(3);
    let (fixture, mut engine, executors) = given(&[("a", job)]).await;
    let (published, _) = trigger(&fixture, &mut engine, 1_000, &["a"; 8]).await;
    assert_eq!((published, take(&executors).await.len()), (1, 1));
    let states = fixture.states("a").await;
    let count = |state| states.iter().filter(|s| **s == state).count();
    assert_eq!(count(RunState::Scheduled), 3, "{states:?}");
    assert_eq!(count(RunState::Discarded), 4, "{states:?}");
}

/// The store fails while a run beyond the backlog ends. Another run of the same batch waits for its lane, and goes on.
#[tokio::test]
async fn a_failed_discard_strands_no_other_run_of_its_batch() {
    let mut limited = rate(1, "hour");
    limited["scope"] = json!("executor");
    limited["block"] = json!("serial");
    limited["backlog"] = json!(1);
    let serial = json!({ "block": "serial" });
    let (fixture, mut engine, executors) = given(&[("a", limited), ("b", serial)]).await;
    let (published, _) = trigger(&fixture, &mut engine, 1_000, &["a", "a", "b"]).await;
    assert_eq!(published, 2);
    take(&executors).await;
    fixture.set(1_010);
    fixture.trigger("a").await;
    let waits = fixture.trigger("b").await;
    fixture.store.fail_next("ingest_reports", Fault::Before);
    engine.claim().await.expect("claims");
    engine.prepare().await.expect_err("the discard fails");
    assert_eq!(settle(&mut engine).await, 1);
    let taken = take(&executors).await;
    assert_eq!(taken[0].1.run, waits);
    let states = fixture.states("a").await;
    assert!(states.contains(&RunState::Discarded), "{states:?}");
}
