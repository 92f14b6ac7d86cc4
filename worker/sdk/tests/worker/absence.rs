//! A worker that comes back after it was away (G10).

use std::sync::Arc;
use std::time::Duration;

use cueline_model::{Block, OutcomeKind};
use cueline_runtime::{Clock, ManualBootClock, ManualClock, SystemClock};
use cueline_worker::Builder;
use sqlx::Connection;

use crate::world::{World, run, trigger};

/// One run of `gate` that runs and two that wait, and then the worker is killed.
struct Away {
    world: World,
    wall: ManualClock,
    boot: ManualBootClock,
}

impl Away {
    async fn new() -> Self {
        let away = Self {
            world: World::new().await,
            wall: ManualClock::at(SystemClock.now_ms()),
            boot: ManualBootClock::default(),
        };
        let live = run(away.builder());
        let triggers: Vec<_> = (1..=3).map(|n| trigger(n, "gate", Block::Serial)).collect();
        away.world.publish(&triggers).await;
        away.world.wait_entered(&[1]).await;
        away.world.wait_settled().await;
        live.kill().await;
        away.world.gate.add_permits(10);
        away
    }

    fn builder(&self) -> Builder {
        let builder = self.world.builder().clock(Arc::new(self.wall.clone()));
        builder.boot_clock(Arc::new(self.boot.clone()))
    }

    async fn comes_back(&self, builder: Builder) {
        let live = run(builder);
        assert_eq!(self.world.outcome(1).await.kind, OutcomeKind::Lost);
        self.world.kinds([2, 3]).await;
        live.drain().await;
    }

    async fn gives_back(&self) {
        self.comes_back(self.builder()).await;
        assert_eq!(self.world.kinds([2, 3]).await, [OutcomeKind::Returned; 2]);
        assert_eq!(self.world.entered(), [1], "nothing was started");
    }

    async fn goes_on(&self, builder: Builder) {
        self.comes_back(builder).await;
        assert_eq!(self.world.kinds([2, 3]).await, [OutcomeKind::Succeeded; 2]);
        assert_eq!(self.world.entered(), [1, 2, 3]);
    }
}

#[tokio::test]
async fn after_a_short_absence_what_waited_goes_on() {
    let away = Away::new().await;
    away.wall.advance(15_000);
    away.boot.advance(Duration::from_secs(15));
    away.goes_on(away.builder()).await;
}

#[tokio::test]
async fn after_a_long_absence_what_waited_is_given_back() {
    let away = Away::new().await;
    away.wall.advance(21_000);
    away.boot.advance(Duration::from_secs(21));
    away.gives_back().await;
}

#[tokio::test]
async fn a_clock_that_went_back_tells_nothing() {
    let away = Away::new().await;
    away.wall.advance(-1);
    away.gives_back().await;
}

#[tokio::test]
async fn entries_without_a_contact_are_given_back() {
    let away = Away::new().await;
    let file = away.world.state_dir().join("journal.db");
    let url = format!("sqlite://{}", file.display());
    let mut journal = sqlx::SqliteConnection::connect(&url).await.expect("open");
    let done = sqlx::query("DELETE FROM contact")
        .execute(&mut journal)
        .await;
    assert_eq!(done.expect("deleted").rows_affected(), 1, "it was recorded");
    journal.close().await.expect("close");
    away.gives_back().await;
}

#[tokio::test]
async fn a_worker_that_shares_its_schedulers_fate_goes_on_after_any_absence() {
    let away = Away::new().await;
    away.wall.advance(3_600_000);
    away.boot.advance(Duration::from_hours(1));
    away.goes_on(away.builder().shares_fate_with_schedulers())
        .await;
}
