//! A worker that starts again after an absence (G10).

use std::sync::Arc;
use std::time::Duration;

use cueline_model::{Block, OutcomeKind};
use cueline_runtime::{Clock, ManualBootClock, ManualClock, SystemClock};
use cueline_worker::Builder;
use sqlx::Connection;

use crate::fixture::{Fixture, run, trigger};

/// One run of `gate` was running and two were waiting when the worker was killed.
struct KilledWorker {
    fixture: Fixture,
    wall: ManualClock,
    boot: ManualBootClock,
}

impl KilledWorker {
    async fn new() -> Self {
        let killed = Self {
            fixture: Fixture::new().await,
            wall: ManualClock::at(SystemClock.now_ms()),
            boot: ManualBootClock::default(),
        };
        let worker = run(killed.builder());
        let triggers: Vec<_> = (1..=3).map(|n| trigger(n, "gate", Block::Serial)).collect();
        killed.fixture.publish(&triggers).await;
        killed.fixture.wait_started(&[1]).await;
        killed.fixture.wait_settled().await;
        worker.kill().await;
        killed.fixture.gate.add_permits(10);
        killed
    }

    fn builder(&self) -> Builder {
        let builder = self.fixture.builder().clock(Arc::new(self.wall.clone()));
        builder.boot_clock(Arc::new(self.boot.clone()))
    }

    async fn restart(&self, builder: Builder) {
        let worker = run(builder);
        assert_eq!(self.fixture.outcome(1).await.kind, OutcomeKind::Lost);
        self.fixture.kinds([2, 3]).await;
        worker.drain().await;
    }

    async fn returns_waiting(&self) {
        self.restart(self.builder()).await;
        assert_eq!(self.fixture.kinds([2, 3]).await, [OutcomeKind::Returned; 2]);
        assert_eq!(self.fixture.started(), [1], "nothing was started");
    }

    async fn continues(&self, builder: Builder) {
        self.restart(builder).await;
        assert_eq!(
            self.fixture.kinds([2, 3]).await,
            [OutcomeKind::Succeeded; 2]
        );
        assert_eq!(self.fixture.started(), [1, 2, 3]);
    }
}

#[tokio::test]
async fn after_a_short_absence_waiting_attempts_go_on() {
    let killed = KilledWorker::new().await;
    killed.wall.advance(15_000);
    killed.boot.advance(Duration::from_secs(15));
    killed.continues(killed.builder()).await;
}

#[tokio::test]
async fn after_a_long_absence_waiting_attempts_are_returned() {
    let killed = KilledWorker::new().await;
    killed.wall.advance(21_000);
    killed.boot.advance(Duration::from_secs(21));
    killed.returns_waiting().await;
}

#[tokio::test]
async fn a_clock_that_went_back_proves_no_lease() {
    let killed = KilledWorker::new().await;
    killed.wall.advance(-1);
    killed.returns_waiting().await;
}

#[tokio::test]
async fn without_a_recorded_lease_waiting_attempts_are_returned() {
    let killed = KilledWorker::new().await;
    let file = killed.fixture.state_dir().join("journal.db");
    let url = format!("sqlite://{}", file.display());
    let mut journal = sqlx::SqliteConnection::connect(&url).await.expect("open");
    let done = sqlx::query("DELETE FROM lease").execute(&mut journal).await;
    assert_eq!(done.expect("deleted").rows_affected(), 1, "it was recorded");
    journal.close().await.expect("close");
    killed.returns_waiting().await;
}

#[tokio::test]
async fn a_worker_with_in_process_schedulers_goes_on_after_any_absence() {
    let killed = KilledWorker::new().await;
    killed.wall.advance(3_600_000);
    killed.boot.advance(Duration::from_hours(1));
    killed
        .continues(killed.builder().in_process_scheduler())
        .await;
}
