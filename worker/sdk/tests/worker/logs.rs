//! Log lines, progress and starts that are reported while an attempt runs.

use std::time::Duration;

use cueline_model::{AttemptEvent, Block, RunId};
use cueline_worker::{Context, Failure};

use crate::fixture::{Fixture, run, trigger};

#[tokio::test]
async fn log_lines_are_reported_live_and_before_the_outcome() {
    let fixture = Fixture::new().await;
    let gate = std::sync::Arc::clone(&fixture.gate);
    let worker = run(fixture.builder().handler("talk", move |cx: Context| {
        let gate = std::sync::Arc::clone(&gate);
        async move {
            cx.log("first\nsecond");
            cx.progress(0.5);
            gate.acquire().await?.forget();
            cx.log("last");
            Ok::<(), Failure>(())
        }
    }));
    fixture.publish(&[trigger(1, "talk", Block::Serial)]).await;
    let has =
        |wanted: fn(&AttemptEvent) -> bool| fixture.reports().iter().any(|e| wanted(&e.event));
    fixture
        .wait("log, start and progress of a running attempt", || {
            let log = has(|b| matches!(b, AttemptEvent::Log { lines } if lines.len() == 2));
            let started = has(|b| matches!(b, AttemptEvent::Started { .. }));
            let progress = has(
                |b| matches!(b, AttemptEvent::Progress { fraction } if (*fraction - 0.5).abs() < 0.01),
            );
            (log && started && progress).then_some(())
        })
        .await;
    assert_eq!(fixture.outcomes(1).len(), 0);
    fixture.gate.add_permits(1);
    fixture.outcome(1).await;
    let events: Vec<AttemptEvent> = fixture.reports().into_iter().map(|e| e.event).collect();
    let [.., AttemptEvent::Log { lines }, AttemptEvent::Ended { .. }] = &events[..] else {
        panic!("the last line comes right before the outcome: {events:#?}");
    };
    assert_eq!((lines[0].seq, lines[0].text.as_str()), (2, "last"));
    worker.drain().await;
}

#[tokio::test]
async fn a_quick_attempt_is_reported_with_one_event() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
    fixture.outcome(1).await;
    worker.drain().await;
    assert_eq!(fixture.reports().len(), 1);
}

#[tokio::test]
async fn a_flood_of_lines_is_bounded_and_a_note_counts_the_dropped_ones() {
    let fixture = Fixture::new().await;
    let worker =
        run(fixture
            .builder()
            .log_bytes(64 * 1024)
            .handler("flood", |cx: Context| async move {
                for n in 0..20_000 {
                    cx.log(format!("line {n}"));
                    if n % 1_000 == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
                Ok::<(), Failure>(())
            }));
    fixture.publish(&[trigger(1, "flood", Block::Serial)]).await;
    fixture.outcome(1).await;
    let mut lines = Vec::new();
    for event in fixture.reports() {
        assert_eq!(event.run, RunId(1));
        if let AttemptEvent::Log { lines: more } = event.event {
            assert!(more.len() <= 200);
            lines.extend(more);
        }
    }
    let bytes: usize = lines.iter().map(|l| l.text.len()).sum();
    assert!(bytes <= 64 * 1024, "{bytes}");
    assert!(
        lines.is_sorted_by(|a, b| a.seq < b.seq),
        "in order, no seq twice"
    );
    assert_eq!(lines.first().expect("a line").text, "line 0");
    assert_eq!(lines.last().expect("a line").text, "line 19999");
    let note = lines.iter().find(|l| l.text.contains("lines dropped here"));
    let note = &note.expect("a note").text;
    let dropped = 20_000 - (lines.len() - 1);
    assert!(
        note.starts_with(&format!("[{dropped} lines dropped")),
        "{note}"
    );
    worker.drain().await;
}
