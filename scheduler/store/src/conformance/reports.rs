//! Ingesting reports: guarded, each applied once.

use cueline_model::{
    AttemptEvent, AttemptId, Backoff, DurationMs, ExecutorId, OnLost, Outcome, OutcomeKind, RunId,
    RunState, Timestamp,
};

use super::fixture::{
    Fixture, actor, attempt, each_second, executor, log_line, mark, name, report,
};
use crate::{AttemptReport, ClaimedRun, IngestSummary};

/// The times and texts of a normal run.
pub async fn times_and_texts_of_a_run_are_kept(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    fixture.clock.advance(10);
    let started = fixture.now();
    let done = fixture
        .ingest(&[report(attempt(&run), AttemptEvent::Started { at: started })])
        .await;
    assert_eq!(done, IngestSummary::default());
    fixture.expect(run.id, RunState::Running).await;
    fixture.clock.advance(10);
    let outcome = Outcome {
        kind: OutcomeKind::Succeeded,
        started_at: Some(started),
        ended_at: fixture.now(),
        exit_status: Some(0),
        message: None,
        output: Some("42".to_owned()),
    };
    let done = fixture
        .ingest(&[report(attempt(&run), AttemptEvent::Ended { outcome })])
        .await;
    assert_eq!((done.ended, done.rescheduled, done.ignored), (1, 0, 0));
    let seen = fixture.run(run.id).await;
    assert_eq!(seen.state, RunState::Succeeded);
    assert_eq!(seen.started_at, Some(started));
    assert_eq!(seen.ended_at, Some(fixture.now()));
    assert_eq!(seen.exit_status, Some(0));
    assert_eq!(seen.output.as_deref(), Some("42"));
    assert_eq!(seen.message, None);
}

/// A worker's clock may be wrong by any time, and handlers return any number and text. One report that the store could
/// not keep would become a dead letter.
pub async fn extreme_values_are_kept(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    for (started, ended, status) in [
        (i64::MIN, i64::MAX, i32::MIN),
        (i64::MAX, i64::MIN, i32::MAX),
    ] {
        let run = fixture.fire_one(node).await;
        fixture.publish(node, &run).await;
        let [started, ended] = [started, ended].map(Timestamp::from_millis);
        let text = "\0\u{1}\u{7f}\u{fffe}\u{10ffff} 你好";
        let outcome = Outcome {
            kind: OutcomeKind::Failed,
            started_at: Some(started),
            ended_at: ended,
            exit_status: Some(status),
            message: Some(text.to_owned()),
            output: None,
        };
        let id = attempt(&run);
        let unknown = AttemptId {
            attempt: u32::MAX,
            ..id
        };
        let lines = vec![log_line(u64::from(u32::MAX), ended, text)];
        let end = |id| {
            let outcome = outcome.clone();
            report(id, AttemptEvent::Ended { outcome })
        };
        let done = fixture
            .ingest(&[
                report(id, AttemptEvent::Started { at: started }),
                report(id, AttemptEvent::Log { lines }),
                end(unknown),
                end(id),
            ])
            .await;
        assert_eq!((done.ended, done.ignored), (1, 0));
        assert_eq!(done.foreign, [2], "there is no such attempt");
        let seen = fixture.run(run.id).await;
        assert_eq!(seen.state, RunState::Failed);
        assert_eq!(
            (seen.started_at, seen.ended_at),
            (Some(started), Some(ended))
        );
        assert_eq!(seen.exit_status, Some(status));
        assert_eq!(seen.message, Some(text.replace('\0', "\u{fffd}")));
    }
}

/// An executor may be faster than the broker's confirmation.
pub async fn end_may_come_before_the_confirmation(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    fixture.begin(node, &run).await;
    assert_eq!(
        fixture
            .end(attempt(&run), OutcomeKind::Succeeded)
            .await
            .ended,
        1
    );
    fixture.expect(run.id, RunState::Succeeded).await;
    assert!(fixture.claim(node).await.is_empty());
}

/// Delivery is at least once.
pub async fn repeated_reports_change_nothing(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    let started = report(attempt(&run), AttemptEvent::Started { at: fixture.now() });
    let ended = Outcome::new(OutcomeKind::Failed, fixture.now()).because("broke");
    let ended = report(attempt(&run), AttemptEvent::Ended { outcome: ended });
    let batch = [
        started.clone(),
        started.clone(),
        ended.clone(),
        ended.clone(),
        started,
    ];
    let done = fixture.ingest(&batch).await;
    assert_eq!((done.ended, done.ignored), (1, 3));
    let before = fixture.store.run(run.id).await.expect("exists");
    fixture.clock.advance(1_000);
    let done = fixture.ingest(&batch).await;
    assert_eq!((done.ended, done.rescheduled, done.ignored), (0, 0, 5));
    let after = fixture.store.run(run.id).await.expect("exists");
    assert_eq!(before.run, after.run);
    assert_eq!(after.run.message.as_deref(), Some("broke"));
}

async fn failed_once(fixture: &Fixture) -> (crate::NodeId, ClaimedRun) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 2;
    spec.retry.jitter_percent = 0;
    fixture.apply(&[spec]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    let done = fixture.end(attempt(&run), OutcomeKind::Failed).await;
    assert_eq!((done.ended, done.rescheduled), (0, 1));
    (node, run)
}

/// A report of an older attempt is noted in the timeline and changes nothing.
pub async fn older_attempts_are_refused(fixture: &Fixture) {
    let (node, run) = failed_once(fixture).await;
    let done = fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    assert_eq!((done.ended, done.ignored), (0, 1));
    fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    fixture.clock.advance(10_000);
    let again = fixture.claim(node).await.remove(0);
    assert_eq!(again.attempt, 2);
    fixture.publish(node, &again).await;
    let done = fixture
        .ingest(&[
            report(attempt(&run), AttemptEvent::Started { at: fixture.now() }),
            report(attempt(&run), AttemptEvent::Progress { fraction: 0.5 }),
        ])
        .await;
    assert_eq!(done.ignored, 2);
    for kind in [
        OutcomeKind::Succeeded,
        OutcomeKind::Succeeded,
        OutcomeKind::Returned,
    ] {
        assert_eq!(fixture.end(attempt(&run), kind).await.ignored, 1);
    }
    fixture.expect(run.id, RunState::Queued).await;
    assert_eq!(
        fixture.timeline(run.id).await,
        ["retry", "refused", "refused"],
        "a repeated late report is noted once"
    );
}

/// A scheduler has found that an executor refuses the trigger (G17). Meanwhile the executor may have accepted a copy.
pub async fn a_scheduler_fails_only_attempts_that_wait(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let by_scheduler = |run: &ClaimedRun| {
        let outcome = Outcome::new(OutcomeKind::Failed, fixture.now()).because("refused");
        AttemptReport {
            executor: None,
            ..report(attempt(run), AttemptEvent::Ended { outcome })
        }
    };
    let running = fixture.fire_one(node).await;
    fixture.publish(node, &running).await;
    let started = AttemptEvent::Started { at: fixture.now() };
    fixture.ingest(&[report(attempt(&running), started)]).await;
    let done = fixture.ingest(&[by_scheduler(&running)]).await;
    assert_eq!((done.ended, done.rescheduled, done.ignored), (0, 0, 1));
    fixture.expect(running.id, RunState::Running).await;
    fixture.end(attempt(&running), OutcomeKind::Succeeded).await;
    fixture.ingest(&[by_scheduler(&running)]).await;
    fixture.expect(running.id, RunState::Succeeded).await;

    let waiting = fixture.fire_one(node).await;
    fixture.publish(node, &waiting).await;
    let unconfirmed = fixture.fire_one(node).await;
    fixture.begin(node, &unconfirmed).await;
    for run in [waiting, unconfirmed] {
        let done = fixture.ingest(&[by_scheduler(&run)]).await;
        assert_eq!((done.ended, done.ignored), (1, 0));
        let seen = fixture.run(run.id).await;
        assert_eq!(seen.state, RunState::Failed);
        assert_eq!(seen.message.as_deref(), Some("refused"));
    }
}

/// No report changes a terminal state.
pub async fn ended_runs_stay_ended(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    fixture.succeed(node, &run).await;
    for kind in [
        OutcomeKind::Failed,
        OutcomeKind::Returned,
        OutcomeKind::Lost,
        OutcomeKind::Cancelled,
    ] {
        assert_eq!(fixture.end(attempt(&run), kind).await.ignored, 1);
        fixture.expect(run.id, RunState::Succeeded).await;
    }
    let ids = [attempt(&run)];
    fixture
        .store
        .confirm_dispatch(&ids)
        .await
        .expect("does nothing");
    fixture
        .store
        .release_claims(node, &ids, None)
        .await
        .expect("does nothing");
    fixture.expect(run.id, RunState::Succeeded).await;
}

/// The wait is that of the job's retry policy.
pub async fn failure_is_retried_with_backoff(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 2;
    spec.retry.first = DurationMs::secs(10);
    spec.retry.backoff = Backoff::Exponential;
    spec.retry.jitter_percent = 0;
    fixture.apply(&[spec]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    for (number, wait_ms) in [(1, 10_000), (2, 20_000)] {
        let id = AttemptId {
            run: run.id,
            attempt: number,
        };
        let outcome = Outcome::new(OutcomeKind::Failed, fixture.now()).because("no luck");
        let done = fixture
            .ingest(&[report(id, AttemptEvent::Ended { outcome })])
            .await;
        let due = fixture.now().plus_ms(wait_ms);
        assert_eq!((done.ended, done.rescheduled), (0, 1));
        assert_eq!(done.next_due_at, Some(due));
        let seen = fixture.run(run.id).await;
        assert_eq!(seen.state, RunState::Scheduled);
        assert_eq!((seen.attempt, seen.retries), (number + 1, number));
        assert_eq!(seen.due_at, due);
        assert_eq!(seen.ended_at, None);
        assert_eq!(seen.message.as_deref(), Some("no luck"));
        fixture.clock.advance(wait_ms - 1);
        assert!(fixture.claim(node).await.is_empty());
        fixture.clock.advance(1);
        let again = fixture.claim(node).await.remove(0);
        assert_eq!((again.id, again.attempt), (run.id, number + 1));
        assert_eq!(again.fire_at, run.fire_at);
        assert_eq!(again.executor, None, "it may be routed elsewhere");
        fixture.publish(node, &again).await;
    }
    let last = AttemptId {
        run: run.id,
        attempt: 3,
    };
    assert_eq!(fixture.end(last, OutcomeKind::Succeeded).await.ended, 1);
    assert_eq!(fixture.timeline(run.id).await, ["retry", "retry"]);
    assert_eq!(fixture.run(run.id).await.message, None);
}

/// Publishes the next attempt and ends it.
async fn next_attempt(fixture: &Fixture, node: crate::NodeId, kind: OutcomeKind) -> IngestSummary {
    let run = fixture.claim(node).await.remove(0);
    fixture.publish(node, &run).await;
    fixture.end(attempt(&run), kind).await
}

/// After the last retry the run ends as its last attempt did.
pub async fn retries_are_bounded(fixture: &Fixture) {
    let (node, run) = failed_once(fixture).await;
    fixture.clock.advance(10_000);
    let done = next_attempt(fixture, node, OutcomeKind::TimedOut).await;
    assert_eq!((done.ended, done.rescheduled), (0, 1));
    fixture.clock.advance(10_000);
    let done = next_attempt(fixture, node, OutcomeKind::TimedOut).await;
    assert_eq!((done.ended, done.rescheduled), (1, 0));
    let ended_in: Vec<_> = done.ended_in.into_iter().collect();
    assert_eq!(ended_in, [(RunState::TimedOut, 1)]);
    fixture.expect(run.id, RunState::TimedOut).await;
}

/// `on_lost: rerun` has a bound.
pub async fn lost_is_rerun_three_times(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.on_lost = OnLost::Rerun;
    fixture.apply(&[spec]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    let mut done = fixture.end(attempt(&run), OutcomeKind::Lost).await;
    for _ in 0..2 {
        assert_eq!(done.rescheduled, 1);
        done = next_attempt(fixture, node, OutcomeKind::Lost).await;
    }
    assert_eq!(done.rescheduled, 1);
    done = next_attempt(fixture, node, OutcomeKind::Lost).await;
    assert_eq!((done.ended, done.rescheduled), (1, 0));
    let seen = fixture.run(run.id).await;
    assert_eq!(seen.state, RunState::Lost);
    assert_eq!((seen.attempt, seen.retries), (4, 0));
    assert_eq!(fixture.timeline(run.id).await, ["rerun"; 3]);
}

/// An unstarted attempt is followed by another one and uses up no retry.
pub async fn returned_attempt_is_followed_at_once(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    let done = fixture.end(attempt(&run), OutcomeKind::Returned).await;
    assert_eq!((done.ended, done.rescheduled), (0, 1));
    assert_eq!(done.next_due_at, Some(fixture.now()));
    let again = fixture.claim(node).await.remove(0);
    assert_eq!(again.attempt, 2);
    assert_eq!(fixture.run(run.id).await.retries, 0);
    assert_eq!(fixture.timeline(run.id).await, ["returned"]);
}

/// The scheduler itself ends a run for which it found no executor.
pub async fn unroutable_ends_a_scheduled_run(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    let refused = fixture
        .end_by_scheduler(attempt(&run), OutcomeKind::Succeeded)
        .await
        .ignored;
    assert_eq!(refused, 1, "it was never published");
    assert_eq!(
        fixture
            .end_by_scheduler(attempt(&run), OutcomeKind::Unroutable)
            .await
            .ended,
        1
    );
    fixture.expect(run.id, RunState::Unroutable).await;
    let taken = fixture
        .store
        .begin_dispatch(node, &[mark(&run, "e1")])
        .await;
    assert_eq!(taken.expect("answers"), []);
}

/// A cancellation has priority over a retry.
pub async fn cancelled_runs_are_not_retried(fixture: &Fixture) {
    let (node, run) = failed_once(fixture).await;
    fixture.clock.advance(10_000);
    let again = fixture.claim(node).await.remove(0);
    fixture.publish(node, &again).await;
    fixture
        .store
        .cancel_run(run.id, &actor("me"))
        .await
        .expect("is asked");
    let done = fixture.end(attempt(&again), OutcomeKind::Failed).await;
    assert_eq!((done.ended, done.rescheduled), (1, 0));
    fixture.expect(run.id, RunState::Failed).await;
}

/// A paused or deleted job starts nothing, retries included.
pub async fn stopped_jobs_are_not_retried(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 5;
    fixture.apply(&[spec]).await;
    let failed = fixture.fire_one(node).await;
    fixture.publish(node, &failed).await;
    let returned = fixture.fire_one(node).await;
    fixture.publish(node, &returned).await;
    let late = fixture.fire_one(node).await;
    fixture.publish(node, &late).await;
    let job = failed.job.spec.name.clone();
    fixture
        .store
        .set_job_enabled(&job, false, &actor("me"))
        .await
        .expect("pauses");
    assert_eq!(
        fixture
            .end(attempt(&failed), OutcomeKind::Failed)
            .await
            .ended,
        1
    );
    fixture.expect(failed.id, RunState::Failed).await;
    let done = fixture.end(attempt(&returned), OutcomeKind::Returned).await;
    assert_eq!(done.ended, 1);
    fixture.expect(returned.id, RunState::Cancelled).await;
    fixture
        .store
        .delete_job(&job, &actor("me"))
        .await
        .expect("deletes");
    assert_eq!(
        fixture.end(attempt(&late), OutcomeKind::Failed).await.ended,
        1
    );
}

/// Progress is kept until the attempt ends.
pub async fn progress_is_kept(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    let part = |p| report(attempt(&run), AttemptEvent::Progress { fraction: p });
    assert_eq!(
        fixture.ingest(&[part(0.1)]).await.foreign,
        [0],
        "not published"
    );
    fixture.publish(node, &run).await;
    assert_eq!(fixture.ingest(&[part(0.25), part(0.5)]).await.ignored, 0);
    assert_eq!(fixture.run(run.id).await.progress, Some(0.5));
    assert_eq!(fixture.ingest(&[part(f64::NAN)]).await.ignored, 1);
    fixture.ingest(&[part(7.0)]).await;
    assert_eq!(fixture.run(run.id).await.progress, Some(1.0));
    fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    assert_eq!(fixture.ingest(&[part(0.9)]).await.ignored, 1);
}

/// A report about an unknown run is counted and is no error.
pub async fn unknown_runs_are_refused(fixture: &Fixture) {
    let id = AttemptId {
        run: RunId(4_711),
        attempt: 1,
    };
    let line = log_line(0, fixture.now(), "hello");
    let done = fixture
        .ingest(&[
            report(id, AttemptEvent::Started { at: fixture.now() }),
            report(id, AttemptEvent::Progress { fraction: 0.5 }),
            report(id, AttemptEvent::Log { lines: vec![line] }),
            report(
                id,
                AttemptEvent::Ended {
                    outcome: Outcome::new(OutcomeKind::Lost, fixture.now()),
                },
            ),
        ])
        .await;
    assert_eq!(done.ignored, 4);
    assert_eq!(fixture.ingest(&[]).await, IngestSummary::default());
}

/// An executor reports about an attempt of another one (G16). Its reports leave no trace in the run.
pub async fn reports_of_other_executors_are_refused(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 5;
    fixture.apply(&[spec]).await;
    let run = fixture.fire_one(node).await;
    let id = attempt(&run);
    let forged = || {
        let outcome = Outcome::new(OutcomeKind::Failed, fixture.now());
        let started = report(id, AttemptEvent::Started { at: fixture.now() });
        let progress = report(id, AttemptEvent::Progress { fraction: 0.5 });
        [
            started,
            progress,
            report(id, AttemptEvent::Ended { outcome }),
        ]
    };
    let by = |of: &ExecutorId, reports: [AttemptReport; 3]| {
        reports.map(|report| AttemptReport {
            executor: Some(of.clone()),
            ..report
        })
    };
    let done = fixture.ingest(&forged()).await;
    assert_eq!(done.foreign, [0, 1, 2], "no executor has it yet");
    for step in 0..3 {
        match step {
            0 => fixture.begin(node, &run).await,
            1 => fixture.publish(node, &run).await,
            _ => {
                let started = AttemptEvent::Started { at: fixture.now() };
                let done = fixture.ingest(&[report(id, started)]).await;
                assert_eq!((done.foreign.len(), done.ignored), (0, 0));
            }
        }
        let before = fixture.store.run(id.run).await.expect("exists");
        let others = [("default", "e2"), ("other", "e1"), ("team/default", "e1")];
        for of in others.map(|(group, name)| executor(group, name)) {
            let done = fixture.ingest(&by(&of, forged())).await;
            assert_eq!(done.foreign, [0, 1, 2], "step {step}, {of}");
            assert_eq!((done.ended, done.rescheduled, done.ignored), (0, 0, 0));
        }
        let after = fixture.store.run(id.run).await.expect("exists");
        assert_eq!(before, after, "step {step}");
    }
    assert_eq!(fixture.end(id, OutcomeKind::Succeeded).await.ended, 1);
    let ended = fixture.store.run(id.run).await.expect("exists");
    let done = fixture
        .ingest(&by(&executor("default", "e2"), forged()))
        .await;
    assert_eq!(done.foreign, [0, 1, 2], "the run has ended");
    assert_eq!(fixture.store.run(id.run).await.expect("exists"), ended);
}

/// After a failover the earlier executor may come back. Each attempt keeps its own executor.
pub async fn earlier_attempts_keep_their_executor(fixture: &Fixture) {
    let (node, run) = failed_once(fixture).await;
    fixture.clock.advance(10_000);
    let again = fixture.claim(node).await.remove(0);
    let begun = fixture
        .store
        .begin_dispatch(node, &[mark(&again, "e2")])
        .await;
    assert_eq!(begun.expect("begins"), [attempt(&again)]);
    let ended = |id, by: &str| AttemptReport {
        executor: Some(executor("default", by)),
        ..report(
            id,
            AttemptEvent::Ended {
                outcome: Outcome::new(OutcomeKind::Succeeded, fixture.now()),
            },
        )
    };
    let (first, second) = (attempt(&run), attempt(&again));
    let done = fixture
        .ingest(&[
            ended(first, "e2"),
            ended(second, "e1"),
            ended(first, "e1"),
            ended(second, "e2"),
        ])
        .await;
    assert_eq!(done.foreign, [0, 1]);
    assert_eq!((done.ended, done.ignored), (1, 1));
    fixture.expect(run.id, RunState::Succeeded).await;
    assert_eq!(fixture.timeline(run.id).await, ["retry", "refused"]);
}

/// An edit may move the job to another group after the publication. The attempt stays with its executor.
pub async fn an_attempt_stays_with_the_group_of_its_publication(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    let mut moved = each_second("a");
    moved.group = name("other");
    fixture.apply(&[moved]).await;
    let outcome = Outcome::new(OutcomeKind::Failed, fixture.now());
    let forged = AttemptReport {
        executor: Some(executor("other", "e1")),
        ..report(attempt(&run), AttemptEvent::Ended { outcome })
    };
    let done = fixture.ingest(std::slice::from_ref(&forged)).await;
    assert_eq!(done.foreign, [0]);
    let done = fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    assert_eq!(done.ended, 1);
    let done = fixture.ingest(&[forged]).await;
    assert_eq!(done.foreign, [0], "the run has ended");
    let done = fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    assert_eq!((done.ignored, done.foreign.len()), (1, 0));
}

/// An executor repeats a report whose confirmation was lost, and sends late log lines. Its job may have moved meanwhile.
pub async fn reports_about_ended_runs_are_known_after_their_job_has_moved(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    let id = attempt(&run);
    assert_eq!(fixture.succeed(node, &run).await.ended, 1);
    let mut moved = each_second("a");
    moved.group = name("other");
    fixture.apply(&[moved]).await;
    let late = log_line(0, fixture.now(), "late");
    let log = report(id, AttemptEvent::Log { lines: vec![late] });
    let outcome = Outcome::new(OutcomeKind::Succeeded, fixture.now());
    let end = report(id, AttemptEvent::Ended { outcome });
    let other = AttemptReport {
        executor: Some(executor("default", "e2")),
        ..end.clone()
    };
    let done = fixture.ingest(&[end, log, other]).await;
    assert_eq!(done.foreign, [2]);
    assert_eq!((done.ended, done.ignored), (0, 1), "the line is new");
    fixture.expect(run.id, RunState::Succeeded).await;
}

/// Later reports in a batch see the effect of earlier ones, even across attempts.
pub async fn reports_of_a_batch_apply_in_order(fixture: &Fixture) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 1;
    fixture.apply(&[spec, each_second("b")]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    for run in &runs {
        fixture.begin(node, run).await;
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
                outcome: Outcome::new(kind, fixture.now()),
            },
        )
    };
    let done = fixture
        .ingest(&[
            report(a, AttemptEvent::Started { at: fixture.now() }),
            report(a, AttemptEvent::Progress { fraction: 0.5 }),
            ended(a, OutcomeKind::Failed),
            report(a, AttemptEvent::Progress { fraction: 0.6 }),
            ended(b, OutcomeKind::Succeeded),
            report(b, AttemptEvent::Started { at: fixture.now() }),
            ended(a2, OutcomeKind::Succeeded),
            AttemptReport {
                executor: None,
                ..ended(a2, OutcomeKind::Unroutable)
            },
        ])
        .await;
    assert_eq!((done.ended, done.rescheduled, done.ignored), (2, 1, 2));
    assert_eq!(done.foreign, [6], "the second attempt waits");
    let seen = fixture.run(a.run).await;
    assert_eq!(seen.state, RunState::Unroutable);
    assert_eq!((seen.attempt, seen.retries), (2, 1));
    fixture.expect(b.run, RunState::Succeeded).await;
    assert!(fixture.claim(node).await.is_empty());
}
