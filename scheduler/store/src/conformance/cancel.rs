//! Cancelling, in each state.

use cueline_model::{AttemptEvent, OutcomeKind, RunId, RunState};

use super::world::{World, attempt, each_second, executor, mark, refused, report};
use crate::{CancelOutcome, ErrorKind};

/// It had not been published: done.
pub async fn scheduled_run_is_cancelled(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    let done = w.store.cancel_run(run.id, "ann").await.expect("cancels");
    assert_eq!(done, CancelOutcome::Cancelled);
    let seen = w.run(run.id).await;
    assert_eq!(seen.state, RunState::Cancelled);
    assert_eq!(seen.ended_at, Some(w.now()));
    assert!(seen.message.expect("says why").contains("ann"));
    assert_eq!(w.timeline(run.id).await, ["cancel"]);
    let taken = w.store.begin_dispatch(node, &[mark(&run, "e1")]).await;
    assert_eq!(taken.expect("answers"), [], "it is never published");
    let pending = w.store.pending_cancellations(10).await.expect("lists");
    assert!(pending.is_empty());
}

/// Its executor has to be told, until the run ends.
pub async fn published_run_is_asked(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a"), each_second("b")]).await;
    w.clock.advance(1_000);
    let runs = w.fire(node).await.runs;
    w.begin(node, &runs[0]).await;
    w.publish(node, &runs[1]).await;
    for run in &runs {
        let asked = w.store.cancel_run(run.id, "ann").await.expect("asks");
        assert_eq!(asked, CancelOutcome::Requested);
        let again = w.store.cancel_run(run.id, "ann").await.expect("asks");
        assert_eq!(again, CancelOutcome::Requested);
        assert!(w.run(run.id).await.cancel_requested);
        assert_eq!(w.timeline(run.id).await, ["cancel"]);
    }
    w.expect(runs[0].id, RunState::Dispatching).await;
    w.expect(runs[1].id, RunState::Queued).await;
    let pending = w.store.pending_cancellations(10).await.expect("lists");
    assert_eq!(pending.len(), 2);
    assert_eq!(pending[0].run, runs[0].id);
    assert_eq!(pending[0].executor, executor("default", "e1"));
    assert_eq!(
        w.store.pending_cancellations(1).await.expect("lists").len(),
        1
    );
    for run in &runs {
        w.end(attempt(run), OutcomeKind::Cancelled).await;
        w.expect(run.id, RunState::Cancelled).await;
    }
    let pending = w.store.pending_cancellations(10).await.expect("lists");
    assert!(pending.is_empty());
}

/// A run may still succeed before the wish reaches it: then it has succeeded.
pub async fn running_run_is_asked(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    w.publish(node, &run).await;
    let started = AttemptEvent::Started { at: w.now() };
    w.ingest(&[report(attempt(&run), started)]).await;
    let asked = w.store.cancel_run(run.id, "ann").await.expect("asks");
    assert_eq!(asked, CancelOutcome::Requested);
    w.end(attempt(&run), OutcomeKind::Succeeded).await;
    w.expect(run.id, RunState::Succeeded).await;
}

/// Too late.
pub async fn ended_run_says_so(w: &World) {
    let node = w.node().await;
    w.apply(&[each_second("a")]).await;
    let run = w.fire_one(node).await;
    w.succeed(node, &run).await;
    let ended = w.store.cancel_run(run.id, "ann").await.expect("answers");
    assert_eq!(ended, CancelOutcome::AlreadyEnded(RunState::Succeeded));
    assert!(!w.run(run.id).await.cancel_requested);
    assert!(w.timeline(run.id).await.is_empty());
}

/// There is none.
pub async fn missing_run_is_named(w: &World) {
    let missing = RunId(4_711);
    let answer = w.store.cancel_run(missing, "ann").await;
    refused(answer, ErrorKind::NotFound, "4711");
    refused(w.store.run(missing).await, ErrorKind::NotFound, "4711");
    refused(
        w.store.log_lines(missing, 0, 10).await,
        ErrorKind::NotFound,
        "4711",
    );
}
