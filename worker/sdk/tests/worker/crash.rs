//! What a worker finds after kill -9 (G4, G6).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cueline_model::{Block, OutcomeKind};
use sqlx::Connection;

use crate::world::{World, run, trigger};

#[tokio::test]
async fn what_ran_is_lost_and_what_waited_goes_on_in_order() {
    let world = World::new().await;
    let live = world.start();
    let triggers: Vec<_> = (1..=4).map(|n| trigger(n, "gate", Block::Serial)).collect();
    world.publish(&triggers).await;
    world.wait_entered(&[1]).await;
    world.wait_settled().await;
    live.kill().await;

    world.gate.add_permits(10);
    let live = world.start();
    let kinds = world.kinds([1, 2, 3, 4]).await;
    assert_eq!(kinds[0], OutcomeKind::Lost);
    assert_eq!(kinds[1..], [OutcomeKind::Succeeded; 3]);
    assert_eq!(world.entered(), [1, 2, 3, 4]);
    let lost = world.outcome(1).await;
    let text = lost.message.expect("a message");
    assert_eq!(text, "the worker stopped while it ran");
    assert!(lost.started_at.is_some());
    assert!(lost.ended_at <= world.outcome(2).await.started_at.expect("it ran"));
    live.drain().await;
}

#[tokio::test]
async fn the_hook_runs_before_anything_starts() {
    let world = World::new().await;
    let live = world.start();
    let triggers: Vec<_> = (1..=2).map(|n| trigger(n, "gate", Block::Serial)).collect();
    world.publish(&triggers).await;
    world.wait_entered(&[1]).await;
    world.wait_settled().await;
    live.kill().await;

    let seen = Arc::new(Mutex::new(None));
    let (entered, noted) = (Arc::clone(&world.entered), Arc::clone(&seen));
    let live = run(world.builder().before_start(move || async move {
        tokio::task::yield_now().await;
        *noted.lock().expect("lock") = Some(entered.lock().expect("lock").clone());
        Ok(())
    }));
    world.wait_entered(&[1, 2]).await;
    assert_eq!(*seen.lock().expect("lock"), Some(vec![1]));
    live.kill().await;
}

#[tokio::test]
async fn a_failing_hook_keeps_the_worker_from_running() {
    let world = World::new().await;
    let worker = world
        .builder()
        .before_start(|| async { Err("left-overs cannot be ended".into()) })
        .build()
        .expect("a worker");
    let error = worker.run(cueline_worker::Stop::new()).await;
    let text = error.expect_err("an error").to_string();
    assert_eq!(
        text,
        "failed to prepare the start: left-overs cannot be ended"
    );
}

#[tokio::test]
async fn an_outcome_that_was_not_confirmed_is_reported_after_the_restart() {
    let world = World::new().await;
    let live = world.start();
    world.publish(&[trigger(1, "noop", Block::Serial)]).await;
    world.outcome(1).await;
    live.drain().await;
    // As if the worker had died between the end and the confirmation.
    let mut journal = journal(&world).await;
    let changed = sqlx::query("UPDATE entry SET state = 2 WHERE run = 1 AND state = 3")
        .execute(&mut journal)
        .await
        .expect("update");
    assert_eq!(changed.rows_affected(), 1, "it was marked as reported");
    journal.close().await.expect("close");

    let live = world.start();
    world
        .wait("the second report", || {
            (world.outcomes(1).len() == 2).then_some(())
        })
        .await;
    live.drain().await;
    assert_eq!(world.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn many_kills_lose_nothing_and_run_nothing_twice() {
    let world = World::new().await;
    let triggers: Vec<_> = (1..=300)
        .map(|n| trigger(n, "noop", Block::Parallel(8)))
        .collect();
    let publishing = async {
        for chunk in triggers.chunks(30) {
            world.publish(chunk).await;
        }
    };
    let killing = async {
        for n in 1..=8 {
            let live = world.start();
            world
                .wait("some progress", || {
                    (world.events().len() >= n * 20).then_some(())
                })
                .await;
            live.kill().await;
        }
    };
    tokio::join!(publishing, killing);
    let live = world.start();
    let kinds = world.kinds(1..=300).await;
    let ran = kinds
        .iter()
        .filter(|k| **k == OutcomeKind::Succeeded)
        .count();
    let lost = kinds.iter().filter(|k| **k == OutcomeKind::Lost).count();
    assert_eq!(ran + lost, 300);
    let calls = world.calls.load(Ordering::SeqCst);
    assert!(
        calls >= ran && calls <= 300,
        "{calls} calls, {ran} succeeded, {lost} lost"
    );
    live.drain().await;
}

#[tokio::test]
async fn a_second_worker_on_the_same_directory_is_refused() {
    let world = World::new().await;
    let live = world.start();
    world.publish(&[trigger(1, "noop", Block::Serial)]).await;
    world.outcome(1).await;
    let second = world.builder().build().expect("a worker");
    let second = second.run(cueline_worker::Stop::new());
    let refused = tokio::time::timeout(Duration::from_secs(10), second).await;
    let refused = refused.expect("refused at once");
    let text = refused.expect_err("an error").to_string();
    assert!(
        text.contains("another worker uses this state directory"),
        "{text}"
    );
    live.drain().await;
}

#[tokio::test]
async fn a_confirmed_outcome_is_marked_while_the_worker_runs() {
    let world = World::new().await;
    let live = world.start();
    world.publish(&[trigger(1, "noop", Block::Serial)]).await;
    world.outcome(1).await;
    let mut journal = journal(&world).await;
    let start = tokio::time::Instant::now();
    loop {
        let state: i64 = sqlx::query_scalar("SELECT state FROM entry WHERE run = 1")
            .fetch_one(&mut journal)
            .await
            .expect("read");
        if state == 3 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "state {state}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    live.drain().await;
}

async fn journal(world: &World) -> sqlx::SqliteConnection {
    let file = world.state_dir().join("journal.db");
    let url = format!("sqlite://{}", file.display());
    sqlx::SqliteConnection::connect(&url).await.expect("open")
}
