//! A journal that cannot be written.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cueline_model::{Block, OutcomeKind};

use crate::world::{World, own_queue, run, trigger};

/// A small file system of its own; unmounted when dropped.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mount(path: &'a Path) -> Option<Self> {
        std::fs::create_dir_all(path).expect("directory");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(path);
        let done = mount.output().is_ok_and(|o| o.status.success());
        done.then_some(Self(path))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

#[tokio::test]
async fn with_a_full_disk_nothing_is_acked_or_started_and_nothing_is_lost() {
    let world = World::new().await;
    let state = world.directory.path().join("small");
    let Some(_small) = Small::mount(&state) else {
        println!("skipped: a small file system can only be mounted by root");
        return;
    };
    let live = run(world.builder().state_dir(&state));
    world.publish(&[trigger(1, "noop", Block::Serial)]).await;
    world.outcome(1).await;

    let filler = state.join("filler");
    // Fails when the disk is full, which is the point.
    let _ = std::fs::write(&filler, vec![1_u8; 16 << 20]);
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
    world.publish(&padded).await;
    // Long enough for several tries: that nothing happens cannot be waited for otherwise.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(world.calls.load(Ordering::SeqCst), 1, "nothing is started");
    assert_eq!(world.events().len(), 1, "nothing is reported");
    let queues = world.broker.stats(&[own_queue()]).await.expect("stats");
    let own = queues.iter().find(|s| s.queue == own_queue());
    let own = own.expect("the executor's queue");
    assert_eq!(own.ready + own.unsettled, 199, "nothing is acked");
    assert!(!live.task.is_finished(), "it goes on trying");

    std::fs::remove_file(&filler).expect("remove");
    let kinds = world.kinds(2..=200).await;
    assert!(kinds.iter().all(|k| *k == OutcomeKind::Succeeded));
    world.wait_settled().await;
    assert_eq!(world.calls.load(Ordering::SeqCst), 200);
    live.drain().await;
}
