//! Concurrent callers.

use std::collections::BTreeSet;
use std::sync::Arc;

use cueline_model::{OutcomeKind, RunId};

use super::fixture::{EachFireTime, Fixture, ask, attempt, by_hand, each_second, mark};
use crate::{FireDueRequest, RunFilter};

const NODES: usize = 6;

/// Claims of concurrent nodes never overlap.
pub async fn no_run_is_claimed_twice(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    for _ in 0..60 {
        fixture.trigger("a").await;
    }
    let mut tasks = Vec::new();
    for _ in 0..NODES {
        let store = fixture.harness.open().await;
        let node = fixture.node().await;
        tasks.push(tokio::spawn(async move {
            let mut mine: Vec<RunId> = Vec::new();
            loop {
                let claimed = store.claim_waiting(node, 0, 4).await.expect("claims");
                if claimed.is_empty() {
                    return mine;
                }
                mine.extend(claimed.iter().map(|r| r.id));
            }
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("no panic"));
    }
    let distinct: BTreeSet<RunId> = all.iter().copied().collect();
    assert_eq!((all.len(), distinct.len()), (60, 60));
}

/// Nodes that fire at the same time share the jobs.
pub async fn no_job_fires_twice(fixture: &Fixture) {
    let specs: Vec<_> = (0..60).map(|n| each_second(&format!("j{n}"))).collect();
    fixture.apply(&specs).await;
    fixture.clock.advance(1_000);
    let mut tasks = Vec::new();
    for _ in 0..NODES {
        let store = fixture.harness.open().await;
        let node = fixture.node().await;
        tasks.push(tokio::spawn(async move {
            let request = FireDueRequest {
                node,
                horizon_ms: 0,
                limit: 7,
                max_runs: usize::MAX,
            };
            let mut fired = 0;
            loop {
                let some = store.fire_due(request, &EachFireTime).await.expect("fires");
                if some.due_jobs == 0 {
                    return fired;
                }
                let marks: Vec<_> = some.runs.iter().map(|r| mark(r, "e1")).collect();
                let taken = store.begin_dispatch(node, &marks).await.expect("begins");
                assert_eq!(taken.len(), some.runs.len());
                store.confirm_dispatch(&taken).await.expect("confirms");
                fired += some.runs.len();
            }
        }));
    }
    let mut fired = 0;
    for task in tasks {
        fired += task.await.expect("no panic");
    }
    assert_eq!(fired, 60);
    let all = RunFilter {
        limit: 1_000,
        ..RunFilter::default()
    };
    assert_eq!(fixture.store.runs(&all).await.expect("lists").len(), 60);
}

/// The same request comes from several callers at once.
pub async fn triggers_with_one_key_make_one_run(fixture: &Fixture) {
    fixture.apply(&[by_hand("a")]).await;
    let mut request = ask("a");
    request.idempotency_key = Some("k".to_owned());
    let mut tasks = Vec::new();
    for _ in 0..NODES {
        let store = fixture.harness.open().await;
        let request = request.clone();
        tasks.push(tokio::spawn(async move {
            store.trigger(&request).await.expect("triggers")
        }));
    }
    let mut runs = BTreeSet::new();
    let mut made = 0;
    for task in tasks {
        let triggered = task.await.expect("no panic");
        made += usize::from(!triggered.duplicate);
        runs.extend(triggered.runs);
    }
    assert_eq!((made, runs.len()), (1, 1));
}

/// A reader sees each concurrent transaction whole or not at all.
pub async fn readers_see_whole_transactions(fixture: &Fixture) {
    const JOBS: usize = 20;
    let node = fixture.node().await;
    let specs: Vec<_> = (0..JOBS).map(|n| each_second(&format!("j{n}"))).collect();
    fixture.apply(&specs).await;
    let reader = Arc::clone(&fixture.store);
    let watch = tokio::spawn(async move {
        let mut most = 0;
        while most < 10 * JOBS {
            let all = RunFilter {
                limit: 10_000,
                ..RunFilter::default()
            };
            let seen = reader.runs(&all).await.expect("lists").len();
            assert_eq!(seen % JOBS, 0, "a part of a batch");
            assert!(seen >= most, "time goes on");
            most = seen;
        }
    });
    for _ in 0..10 {
        fixture.clock.advance(1_000);
        for run in fixture.fire(node).await.runs {
            if run.job.spec.name.as_str() == "j0" {
                fixture.publish(node, &run).await;
                fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
            }
        }
    }
    watch.await.expect("the reader was content");
}
