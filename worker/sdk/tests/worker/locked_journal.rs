//! A journal that another program keeps locked. As on a full disk, it cannot be written, but here the worker can still
//! read it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cueline_model::{Block, OutcomeKind};
use sqlx::{Connection as _, SqliteConnection};

use crate::fixture::{Fixture, own_queue, run_with_readiness, trigger};

/// Locks the journal until [`unlock`].
async fn lock(fixture: &Fixture) -> SqliteConnection {
    let file = fixture.state_dir().join("journal.db");
    let url = format!("sqlite://{}", file.display());
    let mut journal = SqliteConnection::connect(&url).await.expect("open");
    let locked = sqlx::query("BEGIN EXCLUSIVE").execute(&mut journal).await;
    locked.expect("locked");
    journal
}

async fn unlock(mut journal: SqliteConnection) {
    let unlocked = sqlx::query("ROLLBACK").execute(&mut journal).await;
    unlocked.expect("unlocked");
    journal.close().await.expect("close");
}

/// The worker waits 5 s for the lock. Then the schedulers and the health page learn that it takes no triggers.
#[tokio::test]
async fn a_worker_with_a_locked_journal_is_not_ready_and_acks_starts_and_loses_nothing() {
    let fixture = Fixture::new().await;
    let mut heartbeats = fixture.listen_to_heartbeats().await;
    let builder = fixture.builder();
    let (worker, readiness) =
        run_with_readiness(builder.heartbeat_every(Duration::from_millis(200)));
    heartbeats.wait_for_draining(false).await;
    let running = trigger(1, "gate", Block::Parallel(9));
    fixture.publish(&[running]).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;

    let journal = lock(&fixture).await;
    let new: Vec<_> = (2..=20)
        .map(|run| trigger(run, "noop", Block::Parallel(9)))
        .collect();
    fixture.publish(&new).await;
    fixture.wait_fetched().await;
    fixture.gate.add_permits(1);
    heartbeats.wait_for_draining(true).await;
    let problem = readiness.problem().expect("it is not ready");
    assert!(problem.contains("journal cannot be used"), "{problem}");
    let queues = fixture.broker.stats(&[own_queue()]).await.expect("stats");
    let own = queues.of(&own_queue()).expect("the executor's queue");
    assert_eq!(own.ready + own.unsettled, 19, "nothing is acked");
    let calls = || fixture.calls.load(Ordering::SeqCst);
    assert_eq!(calls(), 0, "nothing is started");
    assert_eq!(fixture.outcomes(1), [], "no unwritten end is reported");

    unlock(journal).await;
    heartbeats.wait_for_draining(false).await;
    let ready = || readiness.problem().is_none().then_some(());
    fixture.wait("the worker to be ready", ready).await;
    let kinds = fixture.kinds(1..=20).await;
    assert_eq!(kinds, [OutcomeKind::Succeeded; 20]);
    fixture.wait_settled().await;
    assert_eq!(calls(), 19, "each is started once");
    worker.drain().await;
}
