//! The runs of a job that wait, as alarms count them.

use cueline_model::{AttemptEvent, DurationMs, JobId, OutcomeKind, Route};

use super::fixture::{Fixture, ask, attempt, by_hand, name, report};
use crate::{CountedJob, MAX_COUNTED_WAITING};

fn counted_job(id: JobId, jitter_ms: u64) -> CountedJob {
    CountedJob {
        id,
        jitter: DurationMs::millis(jitter_ms),
    }
}

/// What waits of a job is counted from its due time, until it starts.
pub async fn the_load_of_jobs_is_what_waits(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[by_hand("a"), by_hand("b")]).await;
    let first = fixture.trigger("a").await.remove(0);
    fixture.clock.advance(1_000);
    fixture.trigger("a").await;
    let mut later = ask("b");
    later.run_at = Some(fixture.now().plus_ms(60_000));
    fixture.store.trigger(&later).await.expect("triggers");
    let mut ids = Vec::new();
    let mut counted = Vec::new();
    for job in ["a", "b"] {
        let id = fixture.store.job(&name(job)).await.expect("exists").job.id;
        ids.push(id);
        counted.push(counted_job(id, 0));
    }
    let loads = fixture.store.job_loads(&counted).await.expect("reads");
    assert_eq!(loads.len(), 1, "{loads:?}");
    let load = loads[&ids[0].0];
    assert_eq!((load.waiting, load.oldest_run), (2, first));
    assert_eq!(load.oldest_due_at, fixture.now().minus_ms(1_000));
    let run = fixture.claim(node).await.remove(0);
    fixture.publish(node, &run).await;
    let at = fixture.now();
    let started = report(attempt(&run), AttemptEvent::Started { at });
    fixture.ingest(&[started]).await;
    let loads = fixture.store.job_loads(&counted).await.expect("reads");
    assert_eq!(loads[&ids[0].0].waiting, 1);
}

/// A queue that refuses triggers postpones the due time again and again. The run waits since its fire time, or since the end
/// of its jitter. A retry waits since its own due time.
pub async fn a_postponed_run_waits_since_its_fire_time(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut retried = by_hand("a");
    retried.retry.max = 1;
    fixture.apply(&[retried]).await;
    let fire_at = fixture.now();
    let run = fixture.trigger("a").await.remove(0);
    let id = fixture.store.job(&name("a")).await.expect("exists").job.id;
    let load = async |jitter_ms| {
        let counted = [counted_job(id, jitter_ms)];
        let loads = fixture.store.job_loads(&counted).await.expect("reads");
        loads.get(&id.0).copied()
    };
    for step in 0..3 {
        let claimed = fixture.claim(node).await.remove(0);
        let later = fixture.now().plus_ms(1_000);
        let ids = [attempt(&claimed)];
        let released = fixture.store.release_claims(node, &ids, Some(later)).await;
        released.expect("releases");
        let found = load(0).await.expect("waits");
        assert_eq!((found.waiting, found.oldest_run), (1, run));
        assert_eq!(found.oldest_due_at, fire_at);
        let with_jitter = load(1_500).await.map(|load| load.oldest_due_at);
        assert_eq!(
            with_jitter,
            (step == 2).then_some(fire_at.plus_ms(1_500)),
            "{step}"
        );
        fixture.clock.advance(1_000);
    }
    let claimed = fixture.claim(node).await.remove(0);
    fixture.publish(node, &claimed).await;
    fixture.end(attempt(&claimed), OutcomeKind::Failed).await;
    assert_eq!(load(0).await, None, "its retry is not due yet");
}

/// A job with a long backlog is counted up to the bound. The other jobs of the call are counted in full.
pub async fn a_long_backlog_is_counted_up_to_a_bound(fixture: &Fixture) {
    let mut long = by_hand("long");
    long.route = Route::Sharded(vec![String::new(); Route::MAX_SHARDS]);
    fixture.apply(&[long, by_hand("short")]).await;
    let bound = u64::try_from(MAX_COUNTED_WAITING).expect("not negative");
    for _ in 0..=bound / Route::MAX_SHARDS as u64 {
        fixture.trigger("long").await;
    }
    fixture.trigger("short").await;
    let mut counted = Vec::new();
    for job in ["long", "short"] {
        let job = fixture.store.job(&name(job)).await.expect("exists").job;
        counted.push(counted_job(job.id, 0));
    }
    fixture.clock.advance(1_000);
    let loads = fixture.store.job_loads(&counted).await.expect("reads");
    let waiting: Vec<u64> = counted.iter().map(|job| loads[&job.id.0].waiting).collect();
    assert_eq!(waiting, [bound, 1]);
    for load in loads.values() {
        assert_eq!(load.oldest_due_at, fixture.now().minus_ms(1_000));
    }
}
