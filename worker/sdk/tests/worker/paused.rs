//! A worker whose process is really paused, with SIGSTOP, on the machine's own clock (G10).

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use cueline_model::{Block, OutcomeKind};

use crate::world::{World, run, trigger};

/// Set for the process that is paused: this test again, as a child of itself.
const CHILD: &str = "CUELINE_TEST_PAUSED";
const NAME: &str = "paused::a_process_that_was_paused_for_too_long_starts_nothing_of_what_it_had";
const READY: &str = "ready to be paused";
const FENCE: Duration = Duration::from_millis(1_500);
/// A fifteenth before, what waits is given back.
const FAILOVER: Duration = Duration::from_secs(2);

#[test]
fn a_process_that_was_paused_for_too_long_starts_nothing_of_what_it_had() {
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
    // The pause itself is what is tested.
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
    let world = World::new().await;
    let builder = world.builder().fence_after(FENCE).failover_after(FAILOVER);
    let live = run(builder.beat_every(Duration::from_millis(200)));
    let triggers: Vec<_> = (1..=3).map(|n| trigger(n, "gate", Block::Serial)).collect();
    world.publish(&triggers).await;
    world.wait_entered(&[1]).await;
    world.wait_settled().await;
    // The first that goes on after the pause could let the next one start.
    println!("{READY}");
    let kinds = world.kinds([1, 2, 3]).await;
    assert_eq!(kinds[0], OutcomeKind::Lost);
    assert_eq!(kinds[1..], [OutcomeKind::Returned; 2]);
    assert_eq!(world.entered(), [1]);
    live.drain().await;
}
