//! Batches of plain successes and other reports.

use std::collections::{BTreeMap, BTreeSet};

use cueline_model::{AttemptEvent, JobId, Outcome, OutcomeKind, RunState, Timestamp};

use super::fixture::{Fixture, actor, attempt, child, each_second, executor, name, report};
use crate::{AttemptReport, ClaimedRun};

fn ended(run: &ClaimedRun, kind: OutcomeKind, at: Timestamp) -> AttemptReport {
    let outcome = Outcome::new(kind, at);
    report(attempt(run), AttemptEvent::Ended { outcome })
}

/// An adapter may apply successes on which nothing depends before the other reports. The answer counts all, and names
/// foreign reports by their places in the batch.
pub async fn plain_successes_are_applied_with_the_others_of_their_batch(fixture: &Fixture) {
    let node = fixture.node().await;
    let jobs = ["plain", "parent", "started", "foreign", "moved", "deleted"];
    let mut specs = jobs.map(each_second).to_vec();
    specs.push(child("child", "parent"));
    fixture.apply(&specs).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    let of: BTreeMap<&str, &ClaimedRun> =
        runs.iter().map(|r| (r.job.spec.name.as_str(), r)).collect();
    for run in &runs {
        fixture.publish(node, run).await;
    }
    let mut moved = each_second("moved");
    moved.group = name("other");
    fixture.apply(&[moved]).await;
    let (deleted, by) = (name("deleted"), actor("test"));
    let delete = fixture.store.delete_job(&deleted, &by);
    delete.await.expect("deletes");

    let now = fixture.now();
    let by_other = AttemptReport {
        executor: Some(executor("default", "e2")),
        ..ended(of["foreign"], OutcomeKind::Succeeded, now)
    };
    let started = report(attempt(of["started"]), AttemptEvent::Started { at: now });
    let batch = [
        started,
        ended(of["plain"], OutcomeKind::Succeeded, now),
        by_other,
        ended(of["parent"], OutcomeKind::Succeeded, now),
        ended(of["moved"], OutcomeKind::Succeeded, now),
        ended(of["deleted"], OutcomeKind::Succeeded, now),
    ];
    let done = fixture.ingest(&batch).await;
    assert_eq!(done.foreign, [2]);
    assert_eq!((done.ended, done.rescheduled, done.ignored), (4, 0, 0));
    assert_eq!(done.ended_in, BTreeMap::from([(RunState::Succeeded, 4)]));
    assert_eq!(done.child_runs, 1);
    let jobs_of = |names: &[&str]| names.iter().map(|name| of[name].job.id).collect();
    let expected: BTreeSet<JobId> = jobs_of(&["plain", "parent", "moved", "deleted"]);
    assert_eq!(BTreeSet::from_iter(done.ended_jobs), expected);
    for (job, run) in &of {
        let state = match *job {
            "started" => RunState::Running,
            "foreign" => RunState::Queued,
            _ => RunState::Succeeded,
        };
        fixture.expect(run.id, state).await;
    }

    let again = fixture.ingest(&batch).await;
    assert_eq!((again.ended, again.ignored, again.child_runs), (0, 5, 0));
    assert_eq!(again.foreign, [2]);
}
