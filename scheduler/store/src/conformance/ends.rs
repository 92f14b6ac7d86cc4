//! Reports: guarded, each applied once.

use cueline_model::{
    AttemptEvent, AttemptId, Backoff, DurationMs, OnLost, Outcome, OutcomeKind, RunId, RunState,
};

use super::world::{World, attempt, each_second, log_line, mark, report};
use crate::{ClaimedRun, IngestSummary};

/// The times and words of a normal run.
pub async fn started_and_ended_are_kept(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    w.publish(node, &run).await;
    w.clock.advance(10);
    let started = w.now();
    let done = w
        .ingest(&[report(attempt(&run), AttemptEvent::Started { at: started })])
        .await;
    assert_eq!(done, IngestSummary::default());
    w.expect(run.id, RunState::Running).await;
    w.clock.advance(10);
    let outcome = Outcome {
        kind: OutcomeKind::Succeeded,
        started_at: Some(started),
        ended_at: w.now(),
        exit_status: Some(0),
        message: None,
        output: Some("42".to_owned()),
    };
    let done = w
        .ingest(&[report(attempt(&run), AttemptEvent::Ended { outcome })])
        .await;
    assert_eq!((done.ended, done.rescheduled, done.ignored), (1, 0, 0));
    let seen = w.run(run.id).await;
    assert_eq!(seen.state, RunState::Succeeded);
    assert_eq!(seen.started_at, Some(started));
    assert_eq!(seen.ended_at, Some(w.now()));
    assert_eq!(seen.exit_status, Some(0));
    assert_eq!(seen.output.as_deref(), Some("42"));
    assert_eq!(seen.message, None);
}

/// An executor may be faster than the broker's confirmation.
pub async fn end_may_come_before_the_confirmation(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    w.begin(node, &run).await;
    assert_eq!(w.end(attempt(&run), OutcomeKind::Succeeded).await.ended, 1);
    w.expect(run.id, RunState::Succeeded).await;
    assert!(w.claim(node).await.is_empty());
}

/// At-least-once delivery.
pub async fn repeated_reports_change_nothing(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    w.publish(node, &run).await;
    let started = report(attempt(&run), AttemptEvent::Started { at: w.now() });
    let ended = Outcome::new(OutcomeKind::Failed, w.now()).because("broke");
    let ended = report(attempt(&run), AttemptEvent::Ended { outcome: ended });
    let batch = [
        started.clone(),
        started.clone(),
        ended.clone(),
        ended.clone(),
        started,
    ];
    let done = w.ingest(&batch).await;
    assert_eq!((done.ended, done.ignored), (1, 3));
    let before = w.store.run(run.id).await.expect("exists");
    w.clock.advance(1_000);
    let done = w.ingest(&batch).await;
    assert_eq!((done.ended, done.rescheduled, done.ignored), (0, 0, 5));
    let after = w.store.run(run.id).await.expect("exists");
    assert_eq!(before.run, after.run);
    assert_eq!(after.run.message.as_deref(), Some("broke"));
}

async fn failed_once(w: &World) -> (crate::NodeId, ClaimedRun) {
    let node = w.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 2;
    spec.retry.jitter_percent = 0;
    w.apply(&[spec]).await;
    let run = w.fire_one(node).await;
    w.publish(node, &run).await;
    let done = w.end(attempt(&run), OutcomeKind::Failed).await;
    assert_eq!((done.ended, done.rescheduled), (0, 1));
    (node, run)
}

/// What an attempt says after the next one was ordered is noted, and changes nothing.
pub async fn older_attempts_are_refused(w: &World) {
    let (node, run) = failed_once(w).await;
    let done = w.end(attempt(&run), OutcomeKind::Succeeded).await;
    assert_eq!((done.ended, done.ignored), (0, 1));
    w.end(attempt(&run), OutcomeKind::Succeeded).await;
    w.clock.advance(10_000);
    let again = w.claim(node).await.remove(0);
    assert_eq!(again.attempt, 2);
    w.publish(node, &again).await;
    let done = w
        .ingest(&[
            report(attempt(&run), AttemptEvent::Started { at: w.now() }),
            report(attempt(&run), AttemptEvent::Progress { fraction: 0.5 }),
        ])
        .await;
    assert_eq!(done.ignored, 2);
    for kind in [
        OutcomeKind::Succeeded,
        OutcomeKind::Succeeded,
        OutcomeKind::Returned,
    ] {
        assert_eq!(w.end(attempt(&run), kind).await.ignored, 1);
    }
    w.expect(run.id, RunState::Queued).await;
    assert_eq!(
        w.timeline(run.id).await,
        ["retry", "refused", "refused"],
        "a repeated late report is noted once"
    );
}

/// Terminal is terminal.
pub async fn ended_runs_stay_ended(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    w.succeed(node, &run).await;
    for kind in [
        OutcomeKind::Failed,
        OutcomeKind::Returned,
        OutcomeKind::Lost,
        OutcomeKind::Cancelled,
    ] {
        assert_eq!(w.end(attempt(&run), kind).await.ignored, 1);
        w.expect(run.id, RunState::Succeeded).await;
    }
    let ids = [attempt(&run)];
    w.store.confirm_dispatch(&ids).await.expect("does nothing");
    w.store
        .release_claims(node, &ids, None)
        .await
        .expect("does nothing");
    w.expect(run.id, RunState::Succeeded).await;
}

/// The wait is the policy's.
pub async fn failure_is_retried_with_backoff(w: &World) {
    let node = w.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 2;
    spec.retry.first = DurationMs::secs(10);
    spec.retry.backoff = Backoff::Exponential;
    spec.retry.jitter_percent = 0;
    w.apply(&[spec]).await;
    let run = w.fire_one(node).await;
    w.publish(node, &run).await;
    for (number, wait_ms) in [(1, 10_000), (2, 20_000)] {
        let id = AttemptId {
            run: run.id,
            attempt: number,
        };
        let outcome = Outcome::new(OutcomeKind::Failed, w.now()).because("no luck");
        let done = w
            .ingest(&[report(id, AttemptEvent::Ended { outcome })])
            .await;
        let due = w.now().plus_ms(wait_ms);
        assert_eq!((done.ended, done.rescheduled), (0, 1));
        assert_eq!(done.next_due_at, Some(due));
        let seen = w.run(run.id).await;
        assert_eq!(seen.state, RunState::Scheduled);
        assert_eq!((seen.attempt, seen.retries), (number + 1, number));
        assert_eq!(seen.due_at, due);
        assert_eq!(seen.ended_at, None);
        assert_eq!(seen.message.as_deref(), Some("no luck"));
        w.clock.advance(wait_ms - 1);
        assert!(w.claim(node).await.is_empty());
        w.clock.advance(1);
        let again = w.claim(node).await.remove(0);
        assert_eq!((again.id, again.attempt), (run.id, number + 1));
        assert_eq!(again.fire_at, run.fire_at);
        assert_eq!(again.executor, None, "it may be routed elsewhere");
        w.publish(node, &again).await;
    }
    let last = AttemptId {
        run: run.id,
        attempt: 3,
    };
    assert_eq!(w.end(last, OutcomeKind::Succeeded).await.ended, 1);
    assert_eq!(w.timeline(run.id).await, ["retry", "retry"]);
    assert_eq!(w.run(run.id).await.message, None);
}

/// Publishes the next attempt and ends it.
async fn next_attempt(w: &World, node: crate::NodeId, kind: OutcomeKind) -> IngestSummary {
    let run = w.claim(node).await.remove(0);
    w.publish(node, &run).await;
    w.end(attempt(&run), kind).await
}

/// After the last retry the run ends as its last attempt did.
pub async fn retries_are_bounded(w: &World) {
    let (node, run) = failed_once(w).await;
    w.clock.advance(10_000);
    let done = next_attempt(w, node, OutcomeKind::TimedOut).await;
    assert_eq!((done.ended, done.rescheduled), (0, 1));
    w.clock.advance(10_000);
    let done = next_attempt(w, node, OutcomeKind::TimedOut).await;
    assert_eq!((done.ended, done.rescheduled), (1, 0));
    w.expect(run.id, RunState::TimedOut).await;
}

/// `on_lost: rerun` comes to rest.
pub async fn lost_is_rerun_three_times(w: &World) {
    let node = w.node().await;
    let mut spec = each_second("a");
    spec.on_lost = OnLost::Rerun;
    w.apply(&[spec]).await;
    let run = w.fire_one(node).await;
    w.publish(node, &run).await;
    let mut done = w.end(attempt(&run), OutcomeKind::Lost).await;
    for _ in 0..2 {
        assert_eq!(done.rescheduled, 1);
        done = next_attempt(w, node, OutcomeKind::Lost).await;
    }
    assert_eq!(done.rescheduled, 1);
    done = next_attempt(w, node, OutcomeKind::Lost).await;
    assert_eq!((done.ended, done.rescheduled), (1, 0));
    let seen = w.run(run.id).await;
    assert_eq!(seen.state, RunState::Lost);
    assert_eq!((seen.attempt, seen.retries), (4, 0));
    assert_eq!(w.timeline(run.id).await, ["rerun"; 3]);
}

/// Given back unstarted: another attempt, and no retry is used up.
pub async fn returned_goes_on_at_once(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    w.publish(node, &run).await;
    let done = w.end(attempt(&run), OutcomeKind::Returned).await;
    assert_eq!((done.ended, done.rescheduled), (0, 1));
    assert_eq!(done.next_due_at, Some(w.now()));
    let again = w.claim(node).await.remove(0);
    assert_eq!(again.attempt, 2);
    assert_eq!(w.run(run.id).await.retries, 0);
    assert_eq!(w.timeline(run.id).await, ["returned"]);
}

/// The scheduler itself ends what nobody could be found for.
pub async fn unroutable_ends_a_scheduled_run(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    let refused = w.end(attempt(&run), OutcomeKind::Succeeded).await.ignored;
    assert_eq!(refused, 1, "it was never published");
    assert_eq!(w.end(attempt(&run), OutcomeKind::Unroutable).await.ended, 1);
    w.expect(run.id, RunState::Unroutable).await;
    let taken = w.store.begin_dispatch(node, &[mark(&run, "e1")]).await;
    assert_eq!(taken.expect("answers"), []);
}

/// Cancel overrules retry.
pub async fn cancelled_runs_are_not_retried(w: &World) {
    let (node, run) = failed_once(w).await;
    w.clock.advance(10_000);
    let again = w.claim(node).await.remove(0);
    w.publish(node, &again).await;
    w.store.cancel_run(run.id, "me").await.expect("is asked");
    let done = w.end(attempt(&again), OutcomeKind::Failed).await;
    assert_eq!((done.ended, done.rescheduled), (1, 0));
    w.expect(run.id, RunState::Failed).await;
}

/// A paused job starts nothing any more, retries included; neither does a deleted one.
pub async fn stopped_jobs_are_not_retried(w: &World) {
    let node = w.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 5;
    w.apply(&[spec]).await;
    let failed = w.fire_one(node).await;
    w.publish(node, &failed).await;
    let returned = w.fire_one(node).await;
    w.publish(node, &returned).await;
    let late = w.fire_one(node).await;
    w.publish(node, &late).await;
    let job = failed.job.spec.name.clone();
    w.store
        .set_job_enabled(&job, false, "me")
        .await
        .expect("pauses");
    assert_eq!(w.end(attempt(&failed), OutcomeKind::Failed).await.ended, 1);
    w.expect(failed.id, RunState::Failed).await;
    let done = w.end(attempt(&returned), OutcomeKind::Returned).await;
    assert_eq!(done.ended, 1);
    w.expect(returned.id, RunState::Cancelled).await;
    w.store.delete_job(&job, "me").await.expect("deletes");
    assert_eq!(w.end(attempt(&late), OutcomeKind::Failed).await.ended, 1);
}

/// Progress is kept while the attempt is out.
pub async fn progress_is_kept(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    let part = |p| report(attempt(&run), AttemptEvent::Progress { fraction: p });
    assert_eq!(w.ingest(&[part(0.1)]).await.ignored, 1, "not published");
    w.publish(node, &run).await;
    assert_eq!(w.ingest(&[part(0.25), part(0.5)]).await.ignored, 0);
    assert_eq!(w.run(run.id).await.progress, Some(0.5));
    assert_eq!(w.ingest(&[part(f64::NAN)]).await.ignored, 1);
    w.ingest(&[part(7.0)]).await;
    assert_eq!(w.run(run.id).await.progress, Some(1.0));
    w.end(attempt(&run), OutcomeKind::Succeeded).await;
    assert_eq!(w.ingest(&[part(0.9)]).await.ignored, 1);
}

/// A message about a run that does not exist is no error.
pub async fn unknown_runs_are_refused(w: &World) {
    let id = AttemptId {
        run: RunId(4_711),
        attempt: 1,
    };
    let line = log_line(0, w.now(), "hello");
    let done = w
        .ingest(&[
            report(id, AttemptEvent::Started { at: w.now() }),
            report(id, AttemptEvent::Progress { fraction: 0.5 }),
            report(id, AttemptEvent::Log { lines: vec![line] }),
            report(
                id,
                AttemptEvent::Ended {
                    outcome: Outcome::new(OutcomeKind::Lost, w.now()),
                },
            ),
        ])
        .await;
    assert_eq!(done.ignored, 4);
    assert_eq!(w.ingest(&[]).await, IngestSummary::default());
}

/// Reports of one batch build on each other, in their order, also over the border of an attempt.
pub async fn one_batch_with_everything(w: &World) {
    let node = w.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 1;
    w.apply(&[spec, each_second("b")]).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    for run in &runs {
        w.begin(node, run).await;
    }
    let (a, b) = (attempt(&runs[0]), attempt(&runs[1]));
    let a2 = AttemptId {
        run: a.run,
        attempt: 2,
    };
    let ended = |id, kind| {
        report(
            id,
            AttemptEvent::Ended {
                outcome: Outcome::new(kind, w.now()),
            },
        )
    };
    let done = w
        .ingest(&[
            report(a, AttemptEvent::Started { at: w.now() }),
            report(a, AttemptEvent::Progress { fraction: 0.5 }),
            ended(a, OutcomeKind::Failed),
            report(a, AttemptEvent::Progress { fraction: 0.6 }),
            ended(b, OutcomeKind::Succeeded),
            report(b, AttemptEvent::Started { at: w.now() }),
            ended(a2, OutcomeKind::Succeeded),
            ended(a2, OutcomeKind::Unroutable),
        ])
        .await;
    assert_eq!((done.ended, done.rescheduled, done.ignored), (2, 1, 3));
    let seen = w.run(a.run).await;
    assert_eq!(seen.state, RunState::Unroutable);
    assert_eq!((seen.attempt, seen.retries), (2, 1));
    w.expect(b.run, RunState::Succeeded).await;
    assert!(w.claim(node).await.is_empty());
}
