//! The limits of an attempt's log, and attempts that are due to stop after a pause of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cueline_model::{
    AttemptEvent, AttemptId, DurationMs, Fence, HandlerSpec, LogLine, LogStream, Outcome,
    OutcomeKind, RunId, StoreId,
};
use cueline_runtime::{ManualBootClock, ManualClock};
use proptest::prelude::*;

use super::buffer::{MAX_LINE_BYTES, cut};
use super::log::{AttemptLog, LogSink};
use super::task::Attempt;
use crate::context::{AttemptInfo, Context, StopReason};
use crate::handler::from_fn;
use crate::identity::AttemptKey;
use crate::lease::BrokerLease;
use crate::lease::tests::{proven, unproven};
use crate::report::{Report, ReportQueue};
use crate::returned::Failure;
use crate::testing::attempt_info;

fn log(limit_bytes: usize, reports: &Arc<ReportQueue>) -> AttemptLog {
    let id = AttemptId {
        run: RunId(1),
        attempt: 1,
    };
    let key = AttemptKey::new(StoreId(1), id);
    let job = "report".parse().expect("a name");
    let clock = Arc::new(ManualClock::at(5));
    AttemptLog::new(key, job, limit_bytes, clock, Arc::clone(reports))
}

fn info(fence: Fence) -> AttemptInfo {
    AttemptInfo {
        fence,
        ..attempt_info(HandlerSpec::Native("work".to_owned()))
    }
}

fn lines_of(reports: impl IntoIterator<Item = Report>) -> Vec<LogLine> {
    let lines = reports.into_iter().map(|report| match report.event {
        AttemptEvent::Log { lines } => lines,
        other => panic!("expected log lines, not {other:?}"),
    });
    lines.flatten().collect()
}

#[test]
fn a_line_that_is_too_long_is_cut_and_says_so() {
    let text = "ä".repeat(MAX_LINE_BYTES);
    let cut = cut(text, MAX_LINE_BYTES);
    assert!(cut.len() <= MAX_LINE_BYTES);
    assert!(cut.ends_with("ä… [cut, 131072 bytes in all]"));
}

#[test]
fn a_closed_log_accepts_no_lines() {
    let reports = Arc::default();
    let log = log(10_000, &reports);
    log.write(LogStream::Out, "before".to_owned());
    assert_eq!(lines_of(log.close()).len(), 1);
    log.write(LogStream::Out, "after".to_owned());
    assert!(log.close().is_empty());
    assert!(!log.tick());
}

#[test]
fn a_handler_that_asks_after_a_pause_is_stopped_at_once() {
    let clock = ManualBootClock::default();
    let lease = Arc::new(proven(&clock));
    let sink = Box::new(LogSink(Arc::new(log(10_000, &Arc::default()))));
    let cx = Context::new(info(Fence::Stop), sink, Some(lease));
    assert_eq!(cx.stop_reason(), None);
    // No task has checked the clock meanwhile.
    clock.advance(Duration::from_mins(1));
    assert_eq!(cx.stop_reason(), Some(StopReason::Fenced));
    assert!(cx.cancelled().is_err());
    let grace = cx.kill_grace();
    assert_eq!(grace, DurationMs::millis(0), "it must have ended long ago");
}

/// Runs an attempt that was asked to stop before. Returns its outcome and how often its handler was called.
async fn run_stopped(lease: BrokerLease, reason: Option<StopReason>) -> (Outcome, usize) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let handler = from_fn(move |_cx| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<(), Failure>(()) }
    });
    let log = Arc::new(log(10_000, &Arc::default()));
    let sink = Box::new(LogSink(Arc::clone(&log)));
    let cx = Context::new(info(Fence::Keep), sink, None);
    if let Some(reason) = reason {
        cx.stop(reason);
    }
    let attempt = Attempt {
        handler: Arc::new(handler),
        cx,
        log,
        ticker: Arc::default(),
        lease: Arc::new(lease),
    };
    let ended = attempt.run().await;
    (ended.outcome, calls.load(Ordering::SeqCst))
}

#[tokio::test]
async fn an_attempt_whose_start_was_overtaken_by_a_pause_is_returned() {
    let lease = unproven(&ManualBootClock::default());
    let (outcome, calls) = run_stopped(lease, None).await;
    assert_eq!(outcome.kind, OutcomeKind::Returned);
    assert_eq!(outcome.started_at, None);
    assert_eq!(calls, 0, "it was not started");
}

/// An order may come between the decision to start an attempt and its start.
#[tokio::test]
async fn an_attempt_whose_start_was_overtaken_by_an_order_does_not_run() {
    for (reason, kind) in [
        (StopReason::Cancelled, OutcomeKind::Cancelled),
        (StopReason::Covered, OutcomeKind::Covered),
        (StopReason::Drained, OutcomeKind::Returned),
    ] {
        let lease = proven(&ManualBootClock::default());
        let (outcome, calls) = run_stopped(lease, Some(reason)).await;
        assert_eq!((outcome.kind, calls), (kind, 0), "{reason:?}");
        assert_eq!(outcome.started_at, None);
    }
    let lease = proven(&ManualBootClock::default());
    let (outcome, calls) = run_stopped(lease, None).await;
    assert_eq!((outcome.kind, calls), (OutcomeKind::Succeeded, 1));
}

proptest! {
    #[test]
    fn the_first_and_the_last_lines_are_kept(
        lengths in prop::collection::vec(0..300_usize, 1..400),
        ticks in 0..5_usize,
    ) {
        let limit = 8 * 1024;
        let queue: Arc<ReportQueue> = Arc::default();
        let log = log(limit, &queue);
        for (i, length) in lengths.iter().enumerate() {
            log.write(LogStream::Out, "x".repeat(*length));
            if ticks > 0 && i % ticks == 0 {
                log.tick();
            }
        }
        queue.push(log.close());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        let reports = runtime.block_on(queue.take(usize::MAX, usize::MAX)).into_iter();
        let lines = lines_of(reports.filter(|r| matches!(r.event, AttemptEvent::Log { .. })));
        let (notes, kept): (Vec<_>, Vec<_>) = lines.iter().partition(|l| l.stream == LogStream::Log);
        let bytes: usize = kept.iter().map(|l| l.text.len()).sum();
        prop_assert!(bytes <= limit);
        prop_assert!(lines.is_sorted_by(|a, b| a.seq < b.seq));
        prop_assert_eq!(kept.first().map(|l| l.seq), Some(0));
        prop_assert_eq!(kept.last().map(|l| l.seq), Some(lengths.len() as u64 - 1));
        let dropped = lengths.len() - kept.len();
        prop_assert_eq!(notes.len(), usize::from(dropped > 0));
        if let Some(note) = notes.first() {
            let start = format!("[{dropped} lines dropped");
            prop_assert!(note.text.starts_with(&start));
        }
    }
}
