//! A worker whose process is paused by SIGSTOP, on the machine's own clock (G10).

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use cueline_model::{Block, OutcomeKind};

use crate::fixture::{Fixture, run, trigger};

/// Set for the process that is paused: the same test, started as a child of itself.
const CHILD: &str = "CUELINE_TEST_PAUSED";
const NAME: &str =
    "paused_process::a_process_that_was_paused_for_too_long_starts_none_of_its_waiting_attempts";
const READY: &str = "ready to be paused";
/// Longer than a busy machine stands still, because the worker must keep its lease until it is paused.
const FENCE: Duration = Duration::from_secs(10);
/// Waiting attempts are returned a fifteenth before.
const FAILOVER: Duration = Duration::from_secs(13);

#[test]
fn a_process_that_was_paused_for_too_long_starts_none_of_its_waiting_attempts() {
    if std::env::var_os(CHILD).is_some() {
        let runtime = tokio::runtime::Runtime::new().expect("runtime");
        runtime.block_on(paused());
        return;
    }
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args([NAME, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let pid = child.id().to_string();
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let ready = lines.any(|line| line.expect("text").contains(READY));
    assert!(ready, "it ended early");
    signal("-STOP", &pid);
    // The pause itself is the subject of the test.
    std::thread::sleep(FAILOVER + Duration::from_secs(1));
    signal("-CONT", &pid);
    let said: Vec<String> = lines.map(|line| line.expect("text")).collect();
    let ended = child.wait().expect("its end");
    assert!(ended.success(), "{said:#?}");
}

fn signal(which: &str, pid: &str) {
    let done = Command::new("kill").args([which, pid]).status();
    assert!(done.expect("kill").success(), "kill {which} {pid}");
}

async fn paused() {
    let fixture = Fixture::new().await;
    let builder = fixture
        .builder()
        .fence_after(FENCE)
        .failover_after(FAILOVER);
    let worker = run(builder.heartbeat_every(Duration::from_millis(200)));
    let triggers: Vec<_> = (1..=3).map(|n| trigger(n, "gate", Block::Serial)).collect();
    fixture.publish(&triggers).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    // The end of the first attempt after the pause must not let the next one start.
    println!("{READY}");
    let kinds = fixture.kinds([1, 2, 3]).await;
    assert_eq!(kinds[0], OutcomeKind::Lost);
    assert_eq!(kinds[1..], [OutcomeKind::Returned; 2]);
    assert_eq!(fixture.started(), [1]);
    worker.drain().await;
}
