//! Kept connections and their transactions, on a server. The pool has one connection, so each call gets what the call
//! before has left.

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use cueline_test_servers::postgres::Postgres;
use cueline_test_support::SOON;
use sqlx::Row as _;
use sqlx::postgres::PgPoolOptions;
use tokio::time::timeout;

use super::{CallConnection, KEPT_FOR, KeptConnections};
use crate::counted_pool::CountedPool;
use crate::promotions::LastPromotion;
use crate::transaction::Transaction;

async fn kept(connections: u32) -> (Arc<Postgres>, Arc<KeptConnections>) {
    let server = Postgres::shared().expect("PostgreSQL starts");
    let name = server.create_database().expect("creates a database");
    let pool = PgPoolOptions::new()
        .max_connections(connections)
        // Longer than the tests wait.
        .acquire_timeout(3 * SOON)
        .test_before_acquire(false)
        // So a connection that goes to the pool is not found again.
        .after_release(|_, _| Box::pin(async { Ok(false) }))
        .connect(&server.url(&name))
        .await
        .expect("connects");
    let kept = KeptConnections::new(CountedPool::new("test", pool), LastPromotion::default());
    (server, kept)
}

async fn acquire(kept: &Arc<KeptConnections>) -> CallConnection {
    let acquired = timeout(SOON, kept.acquire()).await;
    acquired.expect("a connection is free").expect("acquires")
}

async fn until(is_so: impl Fn() -> bool) {
    let waits = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, waits).await.expect("happens soon");
}

async fn number(conn: &mut CallConnection, query: &'static str) -> i64 {
    let number = sqlx::query_scalar(query).fetch_one(&mut **conn).await;
    number.expect("answers")
}

async fn process(conn: &mut CallConnection) -> i64 {
    number(conn, "SELECT pg_backend_pid()::bigint").await
}

/// Fails if the connection is in a transaction, whose time is that of its first statement.
async fn is_in_no_transaction(conn: &mut CallConnection) {
    // A prepared statement would have a time of its own.
    let of_first = sqlx::raw_sql("SELECT now() = statement_timestamp()");
    let row = of_first.fetch_one(&mut **conn).await.expect("answers");
    assert!(row.get::<bool, _>(0), "a transaction is open");
}

#[tokio::test]
async fn the_newest_connection_serves_the_next_call() {
    let (_server, kept) = kept(2).await;
    let (mut first, mut second) = (acquire(&kept).await, acquire(&kept).await);
    let (older, newer) = (process(&mut first).await, process(&mut second).await);
    assert_ne!(older, newer);
    first.keep();
    second.keep();
    for _ in 0..5 {
        let mut conn = acquire(&kept).await;
        assert_eq!(process(&mut conn).await, newer);
        conn.keep();
    }
    let usage = kept.usage();
    assert_eq!((usage.open, usage.idle, usage.waits), (2, 2, 0));
}

#[tokio::test]
async fn calls_that_wait_get_connections_that_are_kept() {
    let (_server, kept) = kept(1).await;
    let mut held = acquire(&kept).await;
    let of_held = process(&mut held).await;
    let waiting = tokio::spawn({
        let kept = Arc::clone(&kept);
        async move {
            let mut conn = acquire(&kept).await;
            process(&mut conn).await
        }
    });
    until(|| kept.usage().waits == 1).await;
    held.keep();
    assert_eq!(waiting.await.expect("gets a connection"), of_held);
}

#[tokio::test]
async fn a_dropped_transaction_is_rolled_back() {
    let (_server, kept) = kept(1).await;
    let mut conn = acquire(&kept).await;
    let first = process(&mut conn).await;
    let create = sqlx::query("CREATE TABLE written (id bigint)");
    create.execute(&mut *conn).await.expect("creates");
    let mut tx = Transaction::begin(conn, "BEGIN").await.expect("begins");
    let write = sqlx::query("INSERT INTO written VALUES (1)");
    write.execute(&mut *tx).await.expect("writes");
    drop(tx);
    let mut conn = acquire(&kept).await;
    is_in_no_transaction(&mut conn).await;
    assert_eq!(number(&mut conn, "SELECT count(*) FROM written").await, 0);
    assert_eq!(process(&mut conn).await, first, "it is kept");
}

#[tokio::test]
async fn a_transaction_that_is_dropped_while_it_begins_is_rolled_back() {
    let (_server, kept) = kept(1).await;
    let conn = acquire(&kept).await;
    {
        // The server is not ready soon. The statement is sent, and no answer is read.
        let statement = "BEGIN; SELECT pg_sleep(1)";
        let mut begins = pin!(Transaction::begin(conn, statement));
        let polled = begins
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    is_in_no_transaction(&mut acquire(&kept).await).await;
}

#[tokio::test]
async fn ended_transactions_keep_their_connection() {
    let (_server, kept) = kept(1).await;
    let mut conn = acquire(&kept).await;
    let first = process(&mut conn).await;
    let tx = Transaction::begin(conn, "BEGIN").await.expect("begins");
    tx.commit().await.expect("commits");
    let conn = acquire(&kept).await;
    let tx = Transaction::begin(conn, "BEGIN").await.expect("begins");
    tx.roll_back().await.expect("rolls back");
    assert_eq!(kept.lock().len(), 1);
    let mut conn = acquire(&kept).await;
    assert_eq!(process(&mut conn).await, first);
    is_in_no_transaction(&mut conn).await;
}

#[tokio::test]
async fn connections_to_a_former_primary_are_not_used() {
    let (_server, kept) = kept(2).await;
    let (mut first, mut second) = (acquire(&kept).await, acquire(&kept).await);
    let former = [process(&mut first).await, process(&mut second).await];
    let tx = Transaction::begin(first, "BEGIN").await.expect("begins");
    second.keep();
    kept.last_promotion.set_now();
    drop(tx);
    until(|| kept.usage().open == 1).await;
    let (mut third, mut fourth) = (acquire(&kept).await, acquire(&kept).await);
    for conn in [&mut third, &mut fourth] {
        assert!(!former.contains(&process(conn).await));
    }
}

#[tokio::test]
async fn no_connection_is_kept_for_too_long() {
    let (_server, kept) = kept(2).await;
    let (unneeded, used) = (acquire(&kept).await, acquire(&kept).await);
    unneeded.keep();
    tokio::time::pause();
    tokio::time::advance(KEPT_FOR).await;
    tokio::time::resume();
    used.keep();
    assert_eq!(kept.lock().len(), 0);
    acquire(&kept).await.keep();
    assert_eq!(kept.lock().len(), 1);
}

#[tokio::test]
async fn a_call_that_waits_ends_with_its_pool() {
    let (_server, kept) = kept(1).await;
    let held = acquire(&kept).await;
    let waiting = tokio::spawn({
        let kept = Arc::clone(&kept);
        async move { kept.acquire().await.map(drop) }
    });
    until(|| kept.usage().waits == 1).await;
    let closing = tokio::spawn({
        let kept = Arc::clone(&kept);
        async move { kept.close().await }
    });
    let ended = timeout(SOON, waiting).await.expect("in time");
    ended.expect("ends").expect_err("gets no connection");
    drop(held);
    closing.await.expect("closes");
}

#[tokio::test]
async fn a_closed_pool_ends_what_is_kept() {
    let (_server, kept) = kept(2).await;
    let (first, second) = (acquire(&kept).await, acquire(&kept).await);
    first.keep();
    let closing = tokio::spawn({
        let kept = Arc::clone(&kept);
        async move { kept.close().await }
    });
    until(|| kept.pool.is_closed()).await;
    second.keep();
    timeout(SOON, closing)
        .await
        .expect("in time")
        .expect("closes");
    assert_eq!(kept.usage().open, 0);
}
