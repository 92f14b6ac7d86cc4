//! Cancelling, in each state.

use cueline_model::{AttemptEvent, OutcomeKind, RunId, RunState};

use super::fixture::{Fixture, actor, attempt, each_second, executor, mark, refused, report};
use crate::{CancelOutcome, ErrorKind};

/// A run that was not published is cancelled at once.
pub async fn scheduled_run_is_cancelled(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    let done = fixture
        .store
        .cancel_run(run.id, &actor("ann"))
        .await
        .expect("cancels");
    assert_eq!(done, CancelOutcome::Cancelled);
    let seen = fixture.run(run.id).await;
    assert_eq!(seen.state, RunState::Cancelled);
    assert_eq!(seen.ended_at, Some(fixture.now()));
    assert!(seen.message.expect("says why").contains("ann"));
    assert_eq!(fixture.timeline(run.id).await, ["cancel"]);
    let taken = fixture
        .store
        .begin_dispatch(node, &[mark(&run, "e1")])
        .await;
    assert_eq!(taken.expect("answers"), [], "it is never published");
    let pending = fixture
        .store
        .pending_cancellations(10)
        .await
        .expect("lists");
    assert!(pending.is_empty());
}

/// The cancellation stays pending until the executor ends the run.
pub async fn published_run_is_cancelled_by_its_executor(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a"), each_second("b")]).await;
    fixture.clock.advance(1_000);
    let runs = fixture.fire(node).await.runs;
    fixture.begin(node, &runs[0]).await;
    fixture.publish(node, &runs[1]).await;
    for run in &runs {
        let asked = fixture
            .store
            .cancel_run(run.id, &actor("ann"))
            .await
            .expect("asks");
        assert_eq!(asked, CancelOutcome::Requested);
        let again = fixture
            .store
            .cancel_run(run.id, &actor("ann"))
            .await
            .expect("asks");
        assert_eq!(again, CancelOutcome::Requested);
        assert!(fixture.run(run.id).await.cancel_requested);
        assert_eq!(fixture.timeline(run.id).await, ["cancel"]);
    }
    fixture.expect(runs[0].id, RunState::Dispatching).await;
    fixture.expect(runs[1].id, RunState::Queued).await;
    let pending = fixture
        .store
        .pending_cancellations(10)
        .await
        .expect("lists");
    assert_eq!(pending.len(), 2);
    assert_eq!(pending[0].run, runs[0].id);
    assert_eq!(pending[0].executor, executor("default", "e1"));
    assert_eq!(
        fixture
            .store
            .pending_cancellations(1)
            .await
            .expect("lists")
            .len(),
        1
    );
    for run in &runs {
        fixture.end(attempt(run), OutcomeKind::Cancelled).await;
        fixture.expect(run.id, RunState::Cancelled).await;
    }
    let pending = fixture
        .store
        .pending_cancellations(10)
        .await
        .expect("lists");
    assert!(pending.is_empty());
}

/// A run that ends before the cancellation reaches it keeps its outcome.
pub async fn running_run_may_end_before_its_cancellation(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    let started = AttemptEvent::Started { at: fixture.now() };
    fixture.ingest(&[report(attempt(&run), started)]).await;
    let asked = fixture
        .store
        .cancel_run(run.id, &actor("ann"))
        .await
        .expect("asks");
    assert_eq!(asked, CancelOutcome::Requested);
    fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    fixture.expect(run.id, RunState::Succeeded).await;
}

/// The answer names the state in which it ended.
pub async fn ended_run_cannot_be_cancelled(fixture: &Fixture) {
    let node = fixture.node().await;
    fixture.apply(&[each_second("a")]).await;
    let run = fixture.fire_one(node).await;
    fixture.succeed(node, &run).await;
    let ended = fixture
        .store
        .cancel_run(run.id, &actor("ann"))
        .await
        .expect("answers");
    assert_eq!(ended, CancelOutcome::AlreadyEnded(RunState::Succeeded));
    assert!(!fixture.run(run.id).await.cancel_requested);
    assert!(fixture.timeline(run.id).await.is_empty());
}

/// The error names the run.
pub async fn missing_run_is_named(fixture: &Fixture) {
    let missing = RunId(4_711);
    let answer = fixture.store.cancel_run(missing, &actor("ann")).await;
    refused(answer, ErrorKind::NotFound, "4711");
    refused(
        fixture.store.run(missing).await,
        ErrorKind::NotFound,
        "4711",
    );
    refused(
        fixture.store.log_lines(missing, 0, 10).await,
        ErrorKind::NotFound,
        "4711",
    );
}
