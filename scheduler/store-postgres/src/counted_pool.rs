//! A pool that counts the calls which find all of its connections in use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cueline_store::PoolUse;
use sqlx::pool::PoolConnection;
use sqlx::{Pool, Postgres};

#[derive(Debug)]
pub(crate) struct CountedPool {
    /// For metrics.
    name: &'static str,
    pool: Pool<Postgres>,
    waits: AtomicU64,
}

impl CountedPool {
    pub(crate) fn new(name: &'static str, pool: Pool<Postgres>) -> Self {
        Self {
            name,
            pool,
            waits: AtomicU64::new(0),
        }
    }

    /// The pool, for a call that takes a connection of it. The count is an estimate: other calls take and return
    /// connections meanwhile.
    pub(crate) fn for_call(&self) -> &Pool<Postgres> {
        if self.pool.num_idle() == 0 && self.pool.size() >= self.limit() {
            self.count_wait();
        }
        &self.pool
    }

    /// A connection, for a call that is counted elsewhere.
    pub(crate) async fn acquire(&self) -> sqlx::Result<PoolConnection<Postgres>> {
        self.pool.acquire().await
    }

    pub(crate) fn count_wait(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// How long a call waits for a connection.
    pub(crate) fn acquire_timeout(&self) -> Duration {
        self.pool.options().get_acquire_timeout()
    }

    /// Closes the pool at once; the future waits for the connections in use.
    pub(crate) fn close(&self) -> impl Future<Output = ()> {
        self.pool.close()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.pool.is_closed()
    }

    pub(crate) fn usage(&self) -> PoolUse {
        // Both change meanwhile.
        let open = self.pool.size();
        let idle = u32::try_from(self.pool.num_idle()).unwrap_or(u32::MAX);
        PoolUse {
            pool: self.name,
            open,
            idle: idle.min(open),
            limit: self.limit(),
            waits: self.waits.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.pool.options().get_max_connections()
    }
}
