//! Connections that stay open between calls.
//!
//! A pool tests each connection that is returned, in case its call was dropped. These are round trips of the server's
//! process for each call, at times just before the next statement of a due run. So a connection whose call has ended
//! well is kept here, and the newest of them serves the next call. All others go to the pool.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cueline_store::PoolUse;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Executor as _, Postgres};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::counted_pool::CountedPool;
use crate::error::Result;
use crate::promotions::LastPromotion;

/// A connection that was idle for longer than this is tested before use.
pub(crate) const TRUSTED_IDLE: Duration = Duration::from_secs(2);

/// A tested connection that does not answer within this time is closed.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// After this time a connection goes to its pool, which ends those that are too old or not needed.
const KEPT_FOR: Duration = Duration::from_mins(10);

/// A pool, and connections of it that are kept.
#[derive(Debug)]
pub(crate) struct KeptConnections {
    pool: CountedPool,
    /// As many as the pool has connections. Those that are kept serve the calls that wait for one, in their order.
    calls: Arc<Semaphore>,
    last_promotion: LastPromotion,
    /// By the time of their last use, the newest last.
    kept: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    conn: PoolConnection<Postgres>,
    since: Instant,
    used_at: Instant,
}

/// A connection for one call. Without [`keep`](Self::keep) it goes to the pool.
#[derive(Debug)]
pub(crate) struct CallConnection {
    // In this order: a call that waits for the permit finds the connection.
    conn: PoolConnection<Postgres>,
    _call: OwnedSemaphorePermit,
    owner: Arc<KeptConnections>,
    since: Instant,
    /// Of a user's request.
    pub(crate) request: Option<OwnedSemaphorePermit>,
}

impl KeptConnections {
    pub(crate) fn new(pool: CountedPool, last_promotion: LastPromotion) -> Arc<Self> {
        let calls = usize::try_from(pool.limit()).unwrap_or(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            pool,
            calls: Arc::new(Semaphore::new(calls)),
            last_promotion,
            kept: Mutex::default(),
        })
    }

    /// A connection: one that is kept, or one of the pool.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Result<CallConnection> {
        let call = self.permit().await?;
        let newest = self.lock().pop();
        let (conn, since) = match newest {
            Some(kept) => match self.test(kept).await {
                Some(kept) => (kept.conn, kept.since),
                None => (self.pool.acquire().await?, Instant::now()),
            },
            None => (self.pool.acquire().await?, Instant::now()),
        };
        Ok(CallConnection {
            conn,
            _call: call,
            owner: Arc::clone(self),
            since,
            request: None,
        })
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        let calls = Arc::clone(&self.calls);
        if let Ok(free) = Arc::clone(&calls).try_acquire_owned() {
            return Ok(free);
        }
        self.pool.count_wait();
        match timeout(self.pool.acquire_timeout(), calls.acquire_owned()).await {
            Ok(Ok(free)) => Ok(free),
            Ok(Err(_)) => Err(sqlx::Error::PoolClosed.into()),
            Err(_) => Err(sqlx::Error::PoolTimedOut.into()),
        }
    }

    /// Returns the connection if it can be used. Otherwise it ends all that are kept: the others are older, and each
    /// would take as long to fail, here or in the pool.
    async fn test(&self, mut kept: Kept) -> Option<Kept> {
        let is_trusted = !self.last_promotion.is_after(kept.since)
            && (kept.used_at.elapsed() < TRUSTED_IDLE
                || matches!(timeout(PING_TIMEOUT, kept.conn.ping()).await, Ok(Ok(()))));
        if is_trusted {
            return Some(kept);
        }
        drop(kept.conn.detach());
        self.detach_all();
        None
    }

    /// Ends all connections that are kept.
    fn detach_all(&self) {
        for kept in self.lock().drain(..) {
            drop(kept.conn.detach());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn close(&self) {
        // The pool waits for all its connections. Those that are in use meanwhile are not kept.
        let closing = self.pool.close();
        self.lock().clear();
        closing.await;
    }

    /// Those that are kept count as idle.
    pub(crate) fn usage(&self) -> PoolUse {
        let kept = u32::try_from(self.lock().len()).unwrap_or(u32::MAX);
        let of_pool = self.pool.usage();
        PoolUse {
            idle: of_pool.idle.saturating_add(kept).min(of_pool.open),
            ..of_pool
        }
    }
}

impl Drop for KeptConnections {
    fn drop(&mut self) {
        // Without a runtime, a connection cannot return to its pool.
        self.detach_all();
    }
}

impl CallConnection {
    /// Keeps the connection for the next call. Call it when all statements have ended.
    pub(crate) fn keep(self) {
        let now = Instant::now();
        if now - self.since >= KEPT_FOR {
            return;
        }
        // Looked at under the lock: a closing pool waits for each connection, also for one that is kept too late.
        let mut kept = self.owner.lock();
        if self.owner.pool.is_closed() {
            return;
        }
        kept.push(Kept {
            conn: self.conn,
            since: self.since,
            used_at: now,
        });
    }

    /// Ends a transaction that was dropped. Keeps the connection if the server answers, and ends it otherwise.
    pub(crate) async fn roll_back(mut self) {
        match timeout(PING_TIMEOUT, self.execute("ROLLBACK")).await {
            Ok(Ok(_)) => self.keep(),
            _ => self.detach(),
        }
    }

    /// Ends the connection, without a word to the server.
    pub(crate) fn detach(self) {
        drop(self.conn.detach());
    }
}

impl Deref for CallConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.conn
    }
}

impl DerefMut for CallConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.conn
    }
}

#[cfg(test)]
mod tests;
