//! Log lines.

use cueline_model::{AttemptEvent, AttemptId, LogStream, OutcomeKind, RunId};

use super::fixture::{Fixture, attempt, each_second, executor, log_line, mark, report};
use crate::{AttemptReport, StoredLogLine};

fn lines(fixture: &Fixture, id: AttemptId, lines: &[(u64, &str)]) -> AttemptReport {
    let rows = lines
        .iter()
        .map(|(seq, text)| log_line(*seq, fixture.now(), text))
        .collect();
    report(id, AttemptEvent::Log { lines: rows })
}

async fn read(fixture: &Fixture, run: RunId, after: i64, limit: usize) -> Vec<StoredLogLine> {
    fixture
        .store
        .log_lines(run, after, limit)
        .await
        .expect("reads")
}

fn texts(rows: &[StoredLogLine]) -> Vec<&str> {
    rows.iter().map(|r| r.line.text.as_str()).collect()
}

async fn one_out(fixture: &Fixture) -> (crate::NodeId, crate::ClaimedRun) {
    let node = fixture.node().await;
    let mut spec = each_second("a");
    spec.retry.max = 1;
    fixture.apply(&[spec]).await;
    let run = fixture.fire_one(node).await;
    fixture.publish(node, &run).await;
    (node, run)
}

/// Lines are sorted by attempt and number, not by arrival.
pub async fn lines_are_ordered(fixture: &Fixture) {
    let (_, run) = one_out(fixture).await;
    let id = attempt(&run);
    let batch = [
        lines(fixture, id, &[(2, "c"), (0, "a")]),
        lines(fixture, id, &[(1, "b")]),
    ];
    assert_eq!(fixture.ingest(&batch).await.ignored, 0);
    let rows = read(fixture, run.id, 0, 10).await;
    assert_eq!(texts(&rows), ["a", "b", "c"]);
    assert_eq!(rows[1].attempt, 1);
    assert_eq!(rows[1].line.seq, 1);
    assert_eq!(rows[1].line.at, fixture.now());
    assert_eq!(rows[1].line.stream, LogStream::Out);
}

/// A line that is delivered twice is stored once; the first text stays.
pub async fn repeated_lines_are_ignored(fixture: &Fixture) {
    let (_, run) = one_out(fixture).await;
    let id = attempt(&run);
    fixture
        .ingest(&[lines(fixture, id, &[(0, "a"), (1, "b")])])
        .await;
    let done = fixture
        .ingest(&[
            lines(fixture, id, &[(0, "other"), (1, "b")]),
            lines(fixture, id, &[(1, "b"), (2, "c")]),
            lines(fixture, id, &[(2, "c")]),
        ])
        .await;
    assert_eq!(done.ignored, 2, "those that brought nothing new");
    assert_eq!(texts(&read(fixture, run.id, 0, 10).await), ["a", "b", "c"]);
}

/// A reader asks for the lines after the last one that it has.
pub async fn the_cursor_continues_after_the_last_line(fixture: &Fixture) {
    let (node, run) = one_out(fixture).await;
    fixture
        .ingest(&[lines(
            fixture,
            attempt(&run),
            &[(0, "a"), (1, "b"), (2, "c")],
        )])
        .await;
    fixture.end(attempt(&run), OutcomeKind::Failed).await;
    fixture.clock.advance(60_000);
    let again = fixture.claim(node).await.remove(0);
    fixture.publish(node, &again).await;
    fixture
        .ingest(&[lines(fixture, attempt(&again), &[(0, "d")])])
        .await;
    let page = read(fixture, run.id, 0, 2).await;
    assert_eq!(texts(&page), ["a", "b"]);
    let page = read(fixture, run.id, page[1].cursor, 2).await;
    assert_eq!(texts(&page), ["c", "d"]);
    assert_eq!(page[1].attempt, 2);
    assert!(read(fixture, run.id, page[1].cursor, 2).await.is_empty());
}

/// Lines may come after the end of their attempt, but an attempt that does not exist has none.
pub async fn late_lines_are_kept(fixture: &Fixture) {
    let (_, run) = one_out(fixture).await;
    fixture.end(attempt(&run), OutcomeKind::Succeeded).await;
    let late = lines(fixture, attempt(&run), &[(0, "late")]);
    assert_eq!(fixture.ingest(&[late]).await.ignored, 0);
    let mut early = attempt(&run);
    early.attempt = 2;
    let early = lines(fixture, early, &[(0, "early")]);
    let done = fixture.ingest(&[early]).await;
    assert_eq!((done.ignored, done.foreign), (0, vec![0]));
    assert_eq!(texts(&read(fixture, run.id, 0, 10).await), ["late"]);
}

/// Lines count only from the executor that had their attempt, however late.
pub async fn lines_of_other_executors_are_refused(fixture: &Fixture) {
    let (node, run) = one_out(fixture).await;
    let by = |name: &str, report: AttemptReport| AttemptReport {
        executor: Some(executor("default", name)),
        ..report
    };
    let first = attempt(&run);
    let done = fixture
        .ingest(&[
            by("e2", lines(fixture, first, &[(0, "forged")])),
            lines(fixture, first, &[(0, "a")]),
        ])
        .await;
    assert_eq!((done.ignored, done.foreign), (0, vec![0]));
    fixture.end(first, OutcomeKind::Failed).await;
    fixture.clock.advance(60_000);
    let again = fixture.claim(node).await.remove(0);
    let marks = [mark(&again, "e2")];
    let begun = fixture.store.begin_dispatch(node, &marks).await;
    let second = attempt(&again);
    assert_eq!(begun.expect("begins"), [second]);
    let done = fixture
        .ingest(&[
            by("e2", lines(fixture, first, &[(1, "forged")])),
            lines(fixture, second, &[(0, "forged")]),
            lines(fixture, first, &[(1, "late")]),
            by("e2", lines(fixture, second, &[(0, "b")])),
        ])
        .await;
    assert_eq!((done.ignored, done.foreign), (0, vec![0, 1]));
    let rows = read(fixture, run.id, 0, 10).await;
    assert_eq!(texts(&rows), ["a", "late", "b"]);
}

/// Quotes, other alphabets, empty text, and characters that databases refuse.
pub async fn odd_text_survives(fixture: &Fixture) {
    let (_, run) = one_out(fixture).await;
    let id = attempt(&run);
    let odd = [
        "\"'\\ \u{1} \u{1b}[0m",
        "你好 🦀",
        "",
        "a\0b",
        "{\"x\":[1]}",
    ];
    let numbered: Vec<(u64, &str)> = (0..).zip(odd).collect();
    fixture.ingest(&[lines(fixture, id, &numbered)]).await;
    let rows = read(fixture, run.id, 0, 10).await;
    assert_eq!(texts(&rows), [odd[0], odd[1], odd[2], "a\u{fffd}b", odd[4]]);
}
