//! A journal whose database thread has ended. No later call to it can succeed.

use cueline_model::{Block, OutcomeKind};
use cueline_test_support::{SOON, SqliteThreads};
use tokio::time::timeout;

use crate::fixture::{Fixture, trigger};

/// Otherwise the worker would go on without a journal, and start nothing.
#[tokio::test]
async fn the_worker_ends_with_an_error_and_the_next_start_continues() {
    let threads = SqliteThreads::watch();
    let fixture = Fixture::new().await;
    let worker = fixture.start();
    fixture
        .publish(&[trigger(1, "gate", Block::Parallel(9))])
        .await;
    fixture.wait_started(&[1]).await;
    fixture.wait_settled().await;
    threads.end_next("journal-");
    let ended = timeout(SOON, worker.task).await;
    let ended = ended.expect("it ends in time").expect("no panic");
    let error = ended.expect_err("its journal cannot be used");
    assert!(error.to_string().contains("thread"), "{error}");

    let worker = fixture.start();
    assert_eq!(fixture.outcome(1).await.kind, OutcomeKind::Lost);
    worker.drain().await;
}
