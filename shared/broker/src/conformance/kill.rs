//! SIGKILL of a publishing process. A child of the test program opens the broker, publishes, and prints how many
//! messages were confirmed until it is killed.

use std::io::Write as _;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::fixture::{DEADLINE, Fixture, ack, executor, messages, numbers, publish, take};
use super::{Harness, Limits};

super::cases![
    Durable: a_killed_publisher_loses_nothing_that_was_confirmed,
];

/// The environment variable that turns the test program into the child. Its value is the place to publish at.
const PLACE: &str = "CUELINE_CONFORMANCE_PUBLISH_AT";

const BATCH: usize = 20;

/// The place to publish at, if this process is the child.
pub(super) fn place_for_child() -> Option<String> {
    std::env::var(PLACE).ok()
}

/// The child publishes batches until it is killed. After each batch it prints the number of confirmed messages.
pub(super) async fn publish_until_killed(harness: Arc<dyn Harness>, place: &str) -> ExitCode {
    let queue = executor("one");
    let driver = harness.open(place, Limits::default()).await;
    driver.declare(&queue).await.unwrap();
    // The bound is never reached before the kill. It ends a child whose parent has died.
    for start in (0..1_000_000).step_by(BATCH) {
        publish(&*driver, &messages(&queue, start..start + BATCH)).await;
        let mut out = std::io::stdout().lock();
        let said = writeln!(out, "confirmed {}", start + BATCH).and_then(|()| out.flush());
        if said.is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Kills a child some time after it has confirmed `at_least` messages. Returns the number of confirmed messages.
async fn killed_child(place: &str, at_least: usize) -> usize {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program)
        .env(PLACE, place)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut confirmed, mut killed) = (0, false);
    // Read on after the kill: the pipe may still hold earlier lines.
    while let Some(line) = timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap() {
        if let Some(count) = line.strip_prefix("confirmed ") {
            confirmed = count.parse().unwrap();
        }
        if confirmed >= at_least && !killed {
            child.start_kill().unwrap();
            killed = true;
        }
    }
    let status = child.wait().await.unwrap();
    assert!(
        killed && !status.success(),
        "the child ended by itself: {status}"
    );
    confirmed
}

async fn a_killed_publisher_loses_nothing_that_was_confirmed(fixture: Fixture) {
    for at_least in [BATCH, 500, 3_000] {
        let confirmed = killed_child(&fixture.place, at_least).await;
        let queue = executor("one");
        let driver = fixture.open(&[]).await;
        let came = take(&*driver, &queue, confirmed).await;
        assert_eq!(
            numbers(&came),
            (0..confirmed).collect::<Vec<_>>(),
            "of {confirmed} confirmed messages"
        );
        ack(&*driver, &queue, &came).await;
        // Messages that were being published at the kill may have been stored too.
        driver.delete(&queue, false).await.unwrap();
        fixture.harness.crash(&fixture.place, driver).await;
    }
}
