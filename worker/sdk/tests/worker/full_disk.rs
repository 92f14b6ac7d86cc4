//! A journal that cannot be written.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cueline_model::{Block, OutcomeKind};

use crate::fixture::{Fixture, own_queue, run, trigger};

/// A file system of 32 MiB, unmounted when dropped. The journal's write-ahead log may take 16 MiB of it.
struct SmallFileSystem<'a>(&'a Path);

impl<'a> SmallFileSystem<'a> {
    fn mount(path: &'a Path) -> Option<Self> {
        std::fs::create_dir_all(path).expect("directory");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=32m", "tmpfs"])
            .arg(path);
        let done = mount.output().is_ok_and(|o| o.status.success());
        done.then_some(Self(path))
    }
}

impl Drop for SmallFileSystem<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

/// Schedulers route to executors that can accept triggers.
#[tokio::test]
async fn a_worker_with_a_full_disk_asks_for_no_triggers() {
    let fixture = Fixture::new().await;
    let state = fixture.directory.path().join("small");
    let Some(_mounted) = SmallFileSystem::mount(&state) else {
        println!("skipped: only root can mount a small file system");
        return;
    };
    let mut heartbeats = fixture.listen_to_heartbeats().await;
    let builder = fixture.builder().state_dir(&state);
    let worker = run(builder.heartbeat_every(Duration::from_millis(200)));
    fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
    fixture.outcome(1).await;
    heartbeats.wait_for_draining(false).await;

    let filler = state.join("filler");
    let _ = std::fs::write(&filler, vec![1_u8; 64 << 20]);
    let mut large = trigger(2, "noop", Block::Serial);
    large.params = Some("x".repeat(100_000));
    fixture.publish(&[large]).await;
    heartbeats.wait_for_draining(true).await;

    std::fs::remove_file(&filler).expect("remove");
    heartbeats.wait_for_draining(false).await;
    assert_eq!(fixture.outcome(2).await.kind, OutcomeKind::Succeeded);
    worker.drain().await;
}

#[tokio::test]
async fn with_a_full_disk_nothing_is_acked_started_or_lost() {
    let fixture = Fixture::new().await;
    let state = fixture.directory.path().join("small");
    let Some(_mounted) = SmallFileSystem::mount(&state) else {
        println!("skipped: only root can mount a small file system");
        return;
    };
    let worker = run(fixture.builder().state_dir(&state));
    fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
    fixture.outcome(1).await;

    let filler = state.join("filler");
    // Fails once the disk is full.
    let _ = std::fs::write(&filler, vec![1_u8; 64 << 20]);
    let rest: Vec<_> = (2..=200)
        .map(|n| trigger(n, "noop", Block::Parallel(9)))
        .collect();
    let padded: Vec<_> = rest
        .into_iter()
        .map(|mut t| {
            t.params = Some("x".repeat(4_000));
            t
        })
        .collect();
    fixture.publish(&padded).await;
    // Long enough for several tries. There is no condition to wait for when nothing happens.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(
        fixture.calls.load(Ordering::SeqCst),
        1,
        "nothing is started"
    );
    assert_eq!(fixture.reports().len(), 1, "nothing is reported");
    let queues = fixture.broker.stats(&[own_queue()]).await.expect("stats");
    let own = queues.of(&own_queue());
    let own = own.expect("the executor's queue");
    assert_eq!(own.ready + own.unsettled, 199, "nothing is acked");
    assert!(!worker.task.is_finished(), "it goes on trying");

    std::fs::remove_file(&filler).expect("remove");
    let kinds = fixture.kinds(2..=200).await;
    assert!(kinds.iter().all(|k| *k == OutcomeKind::Succeeded));
    fixture.wait_settled().await;
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 200);
    worker.drain().await;
}
