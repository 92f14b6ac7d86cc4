//! Processes of a killed worker are ended before its next start begins.
#![cfg(target_os = "linux")]

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cueline_handlers::guard::watch;
use cueline_handlers::{GuardId, ShellHandler, kill_orphans};
use cueline_worker::ManualBootClock;
use cueline_worker::model::HandlerSpec;
use cueline_worker::testing;
use support::{alive, end, eventually, info, sh};
use tokio::io::AsyncWriteExt as _;

const VARIABLE: &str = "CUELINE_WORKER_STATE";

/// Starts a tree of processes with the marker; its last line is "ready", those before are process ids.
fn tree(marker: &str, script: &str) -> (Child, Vec<i32>) {
    let mut child = Command::new("sh")
        .args(["-c", script])
        .env(VARIABLE, marker)
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let pids = pids(&mut child);
    (child, pids)
}

fn pids(child: &mut Child) -> Vec<i32> {
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    lines
        .map(|line| line.expect("readable"))
        .take_while(|line| line != "ready")
        .filter_map(|line| line.parse().ok())
        .collect()
}

fn carriers(marker: &str) -> usize {
    let entry = format!("{VARIABLE}={marker}");
    std::fs::read_dir("/proc")
        .expect("readable")
        .filter_map(|entry| std::fs::read(entry.ok()?.path().join("environ")).ok())
        .filter(|environ| environ.split(|b| *b == 0).any(|e| e == entry.as_bytes()))
        .count()
}

#[tokio::test]
async fn a_whole_process_tree_is_killed_and_nothing_else() {
    // A child in another session, one that ignores SIGTERM, one without the marker in its environment, and the same in
    // a group of its own, which is found only by its parent.
    let script = r"echo $$
setsid sleep 300 & echo $!
(trap '' TERM; sleep 300) & echo $!
env -u CUELINE_WORKER_STATE sleep 300 & echo $!
env -u CUELINE_WORKER_STATE setsid sleep 300 & echo $!
echo ready; wait";
    let (mut target, pids) = tree("/a/state", script);
    let (mut other, others) = tree("/a/state2", "echo $$; echo ready; sleep 300");
    let killed = kill_orphans("/a/state").await.expect("all gone");
    assert_eq!(pids.len(), 5);
    assert!(!pids.iter().any(|pid| alive(*pid)), "{pids:?}");
    assert!(killed >= 5, "{killed}");
    assert!(alive(others[0]), "another worker's processes are not ours");
    assert_eq!(kill_orphans("/a/state").await.expect("none"), 0);
    assert!(kill_orphans("/a/state2").await.expect("all gone") >= 1);
    let _ = (target.wait(), other.wait());
}

#[tokio::test]
async fn processes_that_keep_forking_are_all_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let hop = dir.path().join("hop.sh");
    std::fs::write(&hop, "sleep 0.005\nsetsid sh \"$0\" >/dev/null 2>&1 &\n").expect("written");
    let script = format!(
        "for i in 1 2 3; do setsid sh {} & done; echo ready; sleep 300",
        hop.display()
    );
    let (mut child, _) = tree("/hopping/state", &script);
    kill_orphans("/hopping/state").await.expect("all gone");
    assert_eq!(carriers("/hopping/state"), 0);
    let _ = child.wait();
}

#[tokio::test]
async fn a_guard_spares_processes_that_were_started_under_a_newer_lease() {
    let id = GuardId::of("/guarded/state", "this start");
    let start = |by: &str| {
        let mut child = Command::new("sh")
            .args([
                "-c",
                "echo $$; setsid sleep 300 & echo $!; echo ready; wait",
            ])
            .env("CUELINE_WORKER_GUARD", format!("{by} {}", id.as_str()))
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let pids = pids(&mut child);
        assert_eq!(pids.len(), 2);
        (child, pids)
    };
    let living = |pids: &[i32]| pids.iter().filter(|pid| alive(**pid)).count();
    let (mut first, firsts) = start("1000");
    let (mut second, seconds) = start("2000");
    let (mut kept, keeps) = start("keep");
    let clock = ManualBootClock::default();
    clock.advance(Duration::from_millis(1_900));
    let (mut pipe, input) = tokio::io::duplex(1_024);
    let guard = tokio::spawn({
        let (id, clock) = (id.clone(), clock.clone());
        async move { watch(tokio::io::BufReader::new(input), &id, &clock).await }
    });
    pipe.write_all(b"1000 1900\n").await.expect("written");
    eventually("the first is gone", || living(&firsts) == 0).await;
    assert_eq!((living(&seconds), living(&keeps)), (2, 2));
    // The worker never announces its newer lease, which runs out at 2,900.
    clock.advance(Duration::from_secs(1));
    eventually("the second is gone", || living(&seconds) == 0).await;
    assert_eq!(living(&keeps), 2);
    drop(pipe);
    guard.await.expect("no panic").expect("all gone");
    assert_eq!(living(&keeps), 0, "without its worker");
    let _ = (first.wait(), second.wait(), kept.wait());
}

#[tokio::test]
async fn processes_of_a_killed_worker_are_found() {
    let marker = format!("/killed/state/{}", std::process::id());
    let mut worker = Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", "worker_to_be_killed", "--ignored", "--nocapture"])
        .env("MARKER_OF_THE_TEST", &marker)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let pids = pids(&mut worker);
    assert_eq!(pids.len(), 2);
    worker.kill().expect("killed");
    worker.wait().expect("collected");
    assert!(pids.iter().all(|pid| alive(*pid)), "kill -9 leaves them");
    let killed = kill_orphans(&marker).await;
    let living: Vec<&i32> = pids.iter().filter(|pid| alive(**pid)).collect();
    for pid in &pids {
        end(*pid);
    }
    assert!(living.is_empty(), "{living:?}");
    assert!(killed.expect("all gone") >= 2);
}

/// The worker of the test above.
#[tokio::test]
#[ignore = "started by another test"]
async fn worker_to_be_killed() {
    let Ok(marker) = std::env::var("MARKER_OF_THE_TEST") else {
        return;
    };
    let script = "echo pid $$; setsid sh -c 'trap \"\" TERM; echo pid $$; while :; do sleep 1; done' & while :; do sleep 1; done";
    let (cx, recorded) = testing::context(info(HandlerSpec::from(sh(script))));
    let handler = ShellHandler::new(marker);
    let task = tokio::spawn(async move { cueline_worker::Handler::run(&handler, cx).await });
    support::eventually("both", || support::out(&recorded).len() == 2).await;
    // The test runner writes on this line too.
    println!();
    for line in support::out(&recorded) {
        println!("{}", line.trim_start_matches("pid "));
    }
    println!("ready");
    let _ = task.await;
}
