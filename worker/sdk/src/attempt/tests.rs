//! The bounds of an attempt's log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cueline_model::{
    AttemptEvent, DurationMs, Fence, HandlerSpec, JobId, LogLine, LogStream, OutcomeKind, RunId,
    Shard, Timestamp,
};
use cueline_runtime::{ManualBootClock, ManualClock};
use proptest::prelude::*;

use super::log::{LogSink, MAX_LINE_BYTES, cut};
use super::{Attempt, AttemptLog};
use crate::contact::tests::{contact, live};
use crate::context::{Context, Facts, StopReason};
use crate::outbox::{Outbox, Report};
use crate::returned::Failure;
use crate::stores::{AttemptKey, RunKey};

fn log(limit_bytes: usize, outbox: &Arc<Outbox>) -> AttemptLog {
    let id = AttemptKey {
        run: RunKey::from_number(1),
        attempt: 1,
    };
    let job = "report".parse().expect("name");
    let clock = Arc::new(ManualClock::at(5));
    AttemptLog::new(id, job, limit_bytes, clock, Arc::clone(outbox))
}

fn lines_of(reports: impl IntoIterator<Item = Report>) -> Vec<LogLine> {
    let lines = reports.into_iter().map(|report| match report.body {
        AttemptEvent::Log { lines } => lines,
        other => panic!("a log was expected, not {other:?}"),
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
fn nothing_is_taken_after_the_end() {
    let outbox = Arc::default();
    let log = log(10_000, &outbox);
    log.write(LogStream::Out, "before".to_owned());
    assert_eq!(lines_of(log.close()).len(), 1);
    log.write(LogStream::Out, "after".to_owned());
    assert!(log.close().is_empty());
    assert!(!log.look());
}

fn facts() -> Facts {
    Facts {
        run: RunId(1),
        attempt: 1,
        job_id: JobId(1),
        job: "report".parse().expect("name"),
        executor: "worker-1".parse().expect("name"),
        fire_at: Timestamp::from_millis(1),
        shard: Shard::whole(),
        params: None,
        handler: HandlerSpec::Native("work".to_owned()),
        timeout: None,
        kill_grace: DurationMs::secs(5),
        fence: Fence::Stop,
    }
}

#[test]
fn a_handler_that_asks_after_a_pause_is_told_at_once() {
    let boot = ManualBootClock::default();
    let contact = Arc::new(live(&boot));
    let sink = || Box::new(LogSink(Arc::new(log(10_000, &Arc::default()))));
    let stops = Context::new(facts(), sink(), Some(Arc::clone(&contact)));
    assert_eq!(stops.stop_reason(), None);
    boot.advance(Duration::from_mins(1));
    // Nobody has looked at the clock meanwhile.
    assert_eq!(stops.stop_reason(), Some(StopReason::Fenced));
    assert!(stops.cancelled().is_err());
    assert_eq!(
        stops.kill_grace(),
        DurationMs::millis(0),
        "it should have ended long ago"
    );
}

#[tokio::test]
async fn an_attempt_whose_start_was_overtaken_by_a_pause_is_given_back() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let handler = crate::from_fn(move |_cx| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<(), Failure>(()) }
    });
    let log = Arc::new(log(10_000, &Arc::default()));
    let attempt = Attempt {
        handler: Arc::new(handler),
        cx: Context::new(facts(), Box::new(LogSink(Arc::clone(&log))), None),
        log,
        watch: Arc::default(),
        contact: Arc::new(contact(&ManualBootClock::default())),
        keep: true,
    };
    let ended = attempt.make().await;
    assert_eq!(ended.outcome.kind, OutcomeKind::Returned);
    assert_eq!(ended.outcome.started_at, None);
    assert_eq!(calls.load(Ordering::SeqCst), 0, "it was not started");
}

proptest! {
    #[test]
    fn the_first_and_the_last_lines_are_kept(lengths in prop::collection::vec(0..300_usize, 1..400), looks in 0..5_usize) {
        let limit = 8 * 1024;
        let outbox: Arc<Outbox> = Arc::default();
        let log = log(limit, &outbox);
        for (i, length) in lengths.iter().enumerate() {
            log.write(LogStream::Out, "x".repeat(*length));
            if looks > 0 && i % looks == 0 {
                log.look();
            }
        }
        let rest = log.close();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        outbox.push(rest);
        let reports = runtime.block_on(outbox.take(usize::MAX, usize::MAX));
        let reports = reports.into_iter().filter(|r| matches!(r.body, AttemptEvent::Log { .. }));
        let lines = lines_of(reports);
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
