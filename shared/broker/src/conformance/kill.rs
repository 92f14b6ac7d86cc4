//! SIGKILL of a process that publishes: a child of the test program opens the broker, publishes, and says on its
//! standard output what was confirmed, until it is killed.

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

/// Set to a place, it makes the test program the child.
const PLACE: &str = "CUELINE_CONFORMANCE_PUBLISH_AT";

const BATCH: usize = 20;

/// Where the child is to publish, if this process is the child.
pub(super) fn place_for_child() -> Option<String> {
    std::env::var(PLACE).ok()
}

/// The child: publishes batches until it is killed, and after each prints how many messages were confirmed so far.
pub(super) async fn publish_until_killed(harness: Arc<dyn Harness>, place: &str) -> ExitCode {
    let queue = executor("one");
    let driver = harness.open(place, Limits::default()).await;
    driver.declare(&queue).await.unwrap();
    // Far more than come before the kill; a child whose parent is gone ends by itself.
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

/// How many messages the child confirmed before it was killed, which is some time after it has confirmed `at_least`.
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
    // After the kill as well: what it said before may still be in the pipe.
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
        // What was on its way may have been written too.
        driver.delete(&queue, false).await.unwrap();
        fixture.harness.crash(&fixture.place, driver).await;
    }
}
