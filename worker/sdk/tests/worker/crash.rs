//! A worker that continues after kill -9 (G4, G6).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use cueline_broker::StartLog;
use cueline_model::{Block, OutcomeKind};
use cueline_test_support::{SOON, eventually};
use sqlx::Connection;

use crate::fixture::{Fixture, run, start_log, trigger};

#[tokio::test]
async fn after_a_crash_running_attempts_are_lost_and_waiting_ones_go_on_in_order() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let triggers: Vec<_> = (1..=4).map(|n| trigger(n, "gate", Block::Serial)).collect();
    fixture.publish(&triggers).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    worker.kill().await;

    fixture.gate.add_permits(10);
    let worker = fixture.start();
    let kinds = fixture.kinds([1, 2, 3, 4]).await;
    assert_eq!(kinds[0], OutcomeKind::Lost);
    assert_eq!(kinds[1..], [OutcomeKind::Succeeded; 3]);
    assert_eq!(fixture.started(), [1, 2, 3, 4]);
    let lost = fixture.outcome(1).await;
    let text = lost.message.expect("a message");
    assert_eq!(text, "the worker stopped while it ran");
    assert!(lost.started_at.is_some());
    assert!(lost.ended_at <= fixture.outcome(2).await.started_at.expect("it ran"));
    worker.drain().await;
}

/// A scheduler may publish late, and a broker may deliver again.
#[tokio::test]
async fn late_triggers_go_before_the_newer_ones_that_wait_also_after_a_crash() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let serial = |n| trigger(n, "gate", Block::Serial);
    fixture.publish(&[serial(1)]).await;
    fixture.wait_started(&[1]).await;
    fixture.publish(&[serial(5), serial(3)]).await;
    fixture.wait_settled().await;
    fixture.publish(&[serial(2)]).await;
    fixture.wait_settled().await;
    fixture.gate.add_permits(1);
    fixture.wait_started(&[1, 2]).await;
    fixture.publish(&[serial(4)]).await;
    fixture.wait_settled().await;
    worker.kill().await;

    fixture.gate.add_permits(10);
    let worker = fixture.start();
    fixture.wait_started(&[1, 2, 3, 4, 5]).await;
    worker.drain().await;
}

/// The schedulers fail the old name over, and do not read the start log of the new one for that. What it started would
/// run twice at once.
#[tokio::test]
async fn a_worker_under_another_name_starts_nothing_that_waited() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let triggers: Vec<_> = (1..=3).map(|n| trigger(n, "gate", Block::Serial)).collect();
    fixture.publish(&triggers).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    worker.kill().await;

    fixture.gate.add_permits(10);
    let log = StartLog {
        executor: "worker-2".to_owned(),
        ..start_log()
    };
    fixture.broker.declare_log(&log).await.expect("declare");
    let worker = run(fixture.builder().name("worker-2"));
    let kinds = fixture.kinds([1, 2, 3]).await;
    assert_eq!(kinds[0], OutcomeKind::Lost);
    assert_eq!(kinds[1..], [OutcomeKind::Returned; 2]);
    assert_eq!(fixture.started(), [1], "nothing was started");
    let returned = fixture.outcome(2).await;
    let text = returned.message.expect("a message");
    assert!(text.contains("for executor default/worker-1"), "{text}");
    worker.drain().await;
}

#[tokio::test]
async fn the_hook_runs_before_any_attempt_starts() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    let triggers: Vec<_> = (1..=2).map(|n| trigger(n, "gate", Block::Serial)).collect();
    fixture.publish(&triggers).await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    worker.kill().await;

    let seen = Arc::new(Mutex::new(None));
    let (started, noted) = (Arc::clone(&fixture.started), Arc::clone(&seen));
    let worker = run(fixture.builder().before_start(move || async move {
        tokio::task::yield_now().await;
        *noted.lock().expect("lock") = Some(started.lock().expect("lock").clone());
        Ok(())
    }));
    fixture.wait_started(&[1, 2]).await;
    assert_eq!(*seen.lock().expect("lock"), Some(vec![1]));
    worker.kill().await;
}

#[tokio::test]
async fn a_failing_hook_keeps_the_worker_from_running() {
    let fixture = Fixture::new().await;
    let worker = fixture
        .builder()
        .before_start(|| async { Err("orphans cannot be ended".into()) })
        .build()
        .expect("a worker");
    let error = worker.run(cueline_worker::Stop::new()).await;
    let text = error.expect_err("an error").to_string();
    assert_eq!(text, "failed to prepare the start: orphans cannot be ended");
}

#[tokio::test]
async fn an_unconfirmed_outcome_is_reported_after_the_restart() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
    fixture.outcome(1).await;
    worker.drain().await;
    // As if the worker had been killed between the end and the confirmation.
    let mut journal = journal(&fixture).await;
    let changed = sqlx::query("UPDATE entry SET state = 2 WHERE key = 1 AND state = 3")
        .execute(&mut journal)
        .await
        .expect("update");
    assert_eq!(changed.rows_affected(), 1, "it was marked as reported");
    journal.close().await.expect("close");

    let worker = fixture.start();
    fixture.wait_outcomes(1, 2).await;
    worker.drain().await;
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn many_kills_lose_no_attempt_and_run_none_twice() {
    let fixture = Fixture::new().await;
    let triggers: Vec<_> = (1..=300)
        .map(|n| trigger(n, "noop", Block::Parallel(8)))
        .collect();
    let publishing = async {
        for chunk in triggers.chunks(30) {
            fixture.publish(chunk).await;
        }
    };
    let killing = async {
        for n in 1..=8 {
            let worker = fixture.start();
            let progress = || (fixture.reports().len() >= n * 20).then_some(());
            fixture.wait("some progress", progress).await;
            worker.kill().await;
        }
    };
    tokio::join!(publishing, killing);
    let worker = fixture.start();
    let kinds = fixture.kinds(1..=300).await;
    let ran = kinds
        .iter()
        .filter(|k| **k == OutcomeKind::Succeeded)
        .count();
    let lost = kinds.iter().filter(|k| **k == OutcomeKind::Lost).count();
    assert_eq!(ran + lost, 300);
    let calls = fixture.calls.load(Ordering::SeqCst);
    assert!(
        calls >= ran && calls <= 300,
        "{calls} calls, {ran} succeeded, {lost} lost"
    );
    worker.drain().await;
}

#[tokio::test]
async fn a_second_worker_on_the_same_directory_is_refused() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
    fixture.outcome(1).await;
    let second = fixture.builder().build().expect("a worker");
    let second = second.run(cueline_worker::Stop::new());
    let refused = tokio::time::timeout(SOON, second).await;
    let refused = refused.expect("refused at once");
    let text = refused.expect_err("an error").to_string();
    assert!(
        text.contains("another worker uses this state directory"),
        "{text}"
    );
    worker.drain().await;
}

#[tokio::test]
async fn a_confirmed_outcome_is_marked_while_the_worker_runs() {
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture.publish(&[trigger(1, "noop", Block::Serial)]).await;
    fixture.outcome(1).await;
    let mut journal = journal(&fixture).await;
    let look = async || {
        let state = sqlx::query_scalar("SELECT state FROM entry WHERE key = 1");
        match state.fetch_one(&mut journal).await.expect("read") {
            3_i64 => Ok(()),
            other => Err(format!("state {other}")),
        }
    };
    let marked = eventually("the outcome is marked as reported", SOON, look).await;
    marked.expect("in time");
    worker.drain().await;
}

async fn journal(fixture: &Fixture) -> sqlx::SqliteConnection {
    let file = fixture.state_dir().join("journal.db");
    let url = format!("sqlite://{}", file.display());
    sqlx::SqliteConnection::connect(&url).await.expect("open")
}
