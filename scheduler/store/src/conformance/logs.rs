//! Lines of runs' logs.

use cueline_model::{AttemptEvent, AttemptId, LogStream, OutcomeKind, RunId};

use super::world::{World, attempt, each_second, log_line, report};
use crate::{AttemptReport, StoredLogLine};

fn lines(w: &World, id: AttemptId, lines: &[(u64, &str)]) -> AttemptReport {
    let rows = lines
        .iter()
        .map(|(seq, text)| log_line(*seq, w.now(), text))
        .collect();
    report(id, AttemptEvent::Log { lines: rows })
}

async fn read(w: &World, run: RunId, after: i64, limit: usize) -> Vec<StoredLogLine> {
    w.store.log_lines(run, after, limit).await.expect("reads")
}

fn texts(rows: &[StoredLogLine]) -> Vec<&str> {
    rows.iter().map(|r| r.line.text.as_str()).collect()
}

async fn one_out(w: &World) -> (crate::NodeId, crate::ClaimedRun) {
    let node = w.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 1;
    w.apply(&[spec]).await;
    let run = w.fire_one(node).await;
    w.publish(node, &run).await;
    (node, run)
}

/// By attempt and number, whatever the order of arrival.
pub async fn lines_come_in_order(w: &World) {
    let (_, run) = one_out(w).await;
    let id = attempt(&run);
    let batch = [
        lines(w, id, &[(2, "c"), (0, "a")]),
        lines(w, id, &[(1, "b")]),
    ];
    assert_eq!(w.ingest(&batch).await.ignored, 0);
    let rows = read(w, run.id, 0, 10).await;
    assert_eq!(texts(&rows), ["a", "b", "c"]);
    assert_eq!(rows[1].attempt, 1);
    assert_eq!(rows[1].line.seq, 1);
    assert_eq!(rows[1].line.at, w.now());
    assert_eq!(rows[1].line.stream, LogStream::Out);
}

/// Delivered twice, written once; the text that came first stays.
pub async fn repeated_lines_are_ignored(w: &World) {
    let (_, run) = one_out(w).await;
    let id = attempt(&run);
    w.ingest(&[lines(w, id, &[(0, "a"), (1, "b")])]).await;
    let done = w
        .ingest(&[
            lines(w, id, &[(0, "other"), (1, "b")]),
            lines(w, id, &[(1, "b"), (2, "c")]),
            lines(w, id, &[(2, "c")]),
        ])
        .await;
    assert_eq!(done.ignored, 2, "those that brought nothing new");
    assert_eq!(texts(&read(w, run.id, 0, 10).await), ["a", "b", "c"]);
}

/// A reader asks for what comes after what it has.
pub async fn cursor_goes_on(w: &World) {
    let (node, run) = one_out(w).await;
    w.ingest(&[lines(w, attempt(&run), &[(0, "a"), (1, "b"), (2, "c")])])
        .await;
    w.end(attempt(&run), OutcomeKind::Failed).await;
    w.clock.advance(60_000);
    let again = w.claim(node).await.remove(0);
    w.publish(node, &again).await;
    w.ingest(&[lines(w, attempt(&again), &[(0, "d")])]).await;
    let page = read(w, run.id, 0, 2).await;
    assert_eq!(texts(&page), ["a", "b"]);
    let page = read(w, run.id, page[1].cursor, 2).await;
    assert_eq!(texts(&page), ["c", "d"]);
    assert_eq!(page[1].attempt, 2);
    assert!(read(w, run.id, page[1].cursor, 2).await.is_empty());
}

/// Lines may come after the end of their attempt, not before its beginning.
pub async fn late_lines_are_kept(w: &World) {
    let (_, run) = one_out(w).await;
    w.end(attempt(&run), OutcomeKind::Succeeded).await;
    let late = lines(w, attempt(&run), &[(0, "late")]);
    assert_eq!(w.ingest(&[late]).await.ignored, 0);
    let mut early = attempt(&run);
    early.attempt = 2;
    let early = lines(w, early, &[(0, "early")]);
    assert_eq!(w.ingest(&[early]).await.ignored, 1);
    assert_eq!(texts(&read(w, run.id, 0, 10).await), ["late"]);
}

/// Quotes, other alphabets, nothing at all, and what databases cannot keep.
pub async fn odd_text_survives(w: &World) {
    let (_, run) = one_out(w).await;
    let id = attempt(&run);
    let odd = [
        "\"'\\ \u{1} \u{1b}[0m",
        "你好 🦀",
        "",
        "a\0b",
        "{\"x\":[1]}",
    ];
    let numbered: Vec<(u64, &str)> = (0..).zip(odd).collect();
    w.ingest(&[lines(w, id, &numbered)]).await;
    let rows = read(w, run.id, 0, 10).await;
    assert_eq!(texts(&rows), [odd[0], odd[1], odd[2], "a\u{fffd}b", odd[4]]);
}
