//! SIGKILL of a process that publishes or appends. A child of the test program opens the broker, works, and prints how
//! many messages or records were confirmed until it is killed.

use std::io::Write as _;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::fixture::{DEADLINE, Fixture, ack, executor, messages, numbers, publish, take};
use super::{Harness, Limits};
use crate::broker::{Broker, BrokerOptions};
use crate::start_log::StartLog;

super::cases![
    Durable: a_killed_publisher_loses_nothing_that_was_confirmed,
];

/// The environment variables that turn the test program into a child. The value is the place to work at.
const PUBLISH_AT: &str = "CUELINE_CONFORMANCE_PUBLISH_AT";
const APPEND_AT: &str = "CUELINE_CONFORMANCE_APPEND_AT";

/// The executor to whose start log a child appends.
pub(super) const APPENDER: &str = "appender";

const BATCH: usize = 20;

/// The work of a child at a place.
pub(super) enum Child {
    Publish(String),
    Append(String),
}

/// The work of this process, if it is a child.
pub(super) fn child() -> Option<Child> {
    let publish = std::env::var(PUBLISH_AT).map(Child::Publish);
    let append = || std::env::var(APPEND_AT).map(Child::Append);
    publish.or_else(|_| append()).ok()
}

impl Child {
    /// Works until this process is killed.
    pub(super) async fn run(self, harness: Arc<dyn Harness>) -> ExitCode {
        match self {
            Self::Publish(place) => publish_until_killed(harness, &place).await,
            Self::Append(place) => append_until_killed(harness, &place).await,
        }
    }
}

/// The child publishes batches until it is killed. After each batch it prints the number of confirmed messages.
async fn publish_until_killed(harness: Arc<dyn Harness>, place: &str) -> ExitCode {
    let queue = executor("one");
    let driver = harness.open(place, Limits::default()).await;
    driver.declare(&queue).await.unwrap();
    // The bound is never reached before the kill. It ends a child whose parent has died.
    for start in (0..1_000_000).step_by(BATCH) {
        publish(&*driver, &messages(&queue, start..start + BATCH)).await;
        if say_confirmed(start + BATCH).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The child appends records until it is killed. After each it prints the number of confirmed records.
async fn append_until_killed(harness: Arc<dyn Harness>, place: &str) -> ExitCode {
    let log = StartLog {
        group: "billing".into(),
        executor: APPENDER.into(),
    };
    let driver = harness.open(place, Limits::default()).await;
    // After an earlier kill of the broker, a product may need some time for its logs.
    let options = BrokerOptions {
        retry_for: DEADLINE,
        ..BrokerOptions::default()
    };
    let broker = Broker::from_arc(driver, options);
    broker.declare_log(&log).await.unwrap();
    // The bound ends a child whose parent has died.
    for number in 0..1_000_000 {
        let record = number.to_string().into();
        broker.append(&log, record).await.unwrap();
        if say_confirmed(number + 1).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn say_confirmed(count: usize) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "confirmed {count}")?;
    out.flush()
}

/// Kills a child that appends, some time after `at_least` records were confirmed. Returns the number of confirmed
/// records.
pub(super) async fn killed_appender(place: &str, at_least: usize) -> usize {
    killed_child(APPEND_AT, place, at_least).await
}

/// Kills a child some time after it has confirmed `at_least`. Returns the number of confirmed messages or records.
async fn killed_child(work_at: &str, place: &str, at_least: usize) -> usize {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program)
        .env(work_at, place)
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
        let confirmed = killed_child(PUBLISH_AT, &fixture.place, at_least).await;
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
