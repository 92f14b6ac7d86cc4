//! Connections that stay open between calls.
//!
//! A pool tests each connection that is returned, in case its call was dropped. Each test costs round trips to the
//! server, at times just before the next statement of a due run. So a connection whose call has ended well is kept here,
//! and the newest of them serves the next call. All others go to the pool.

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

/// A connection is kept for so long at most. Then it goes to its pool, which ends those that are too old or not needed.
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
    // Dropped before the permit, which another call may wait for.
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
        match timeout(self.pool.acquire_timeout(), self.acquire_in_time()).await {
            Ok(acquired) => acquired,
            Err(_) => Err(sqlx::Error::PoolTimedOut.into()),
        }
    }

    async fn acquire_in_time(self: &Arc<Self>) -> Result<CallConnection> {
        let call = self.permit().await?;
        let newest = self.lock().pop();
        let trusted = match newest {
            Some(kept) => self.test(kept).await,
            None => None,
        };
        let (conn, since) = if let Some(kept) = trusted {
            (kept.conn, kept.since)
        } else {
            // A promotion that is noticed meanwhile counts as later.
            let since = Instant::now();
            (self.pool.acquire().await?, since)
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
        let free = calls.acquire_owned().await;
        Ok(free.map_err(|_| sqlx::Error::PoolClosed)?)
    }

    /// Returns the connection if it can be used. Otherwise it ends those that were used before it, too: each would take as
    /// long to fail, here or in the pool.
    async fn test(&self, mut kept: Kept) -> Option<Kept> {
        let is_trusted = !self.last_promotion.is_after(kept.since)
            && (kept.used_at.elapsed() < TRUSTED_IDLE
                || matches!(timeout(PING_TIMEOUT, kept.conn.ping()).await, Ok(Ok(()))));
        if is_trusted {
            return Some(kept);
        }
        let used_at = kept.used_at;
        drop(kept.conn.detach());
        let others = self.take(|other| other.used_at <= used_at);
        for other in others {
            drop(other.conn.detach());
        }
        None
    }

    /// Removes those that are as described.
    fn take(&self, is_one: impl Fn(&Kept) -> bool) -> Vec<Kept> {
        self.lock().extract_if(.., |kept| is_one(kept)).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn close(&self) {
        self.calls.close();
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
        for kept in self.take(|_| true) {
            drop(kept.conn.detach());
        }
    }
}

impl CallConnection {
    /// Keeps the connection for the next call. Call it when all statements have ended.
    pub(crate) fn keep(self) {
        let now = Instant::now();
        // Also those that no call has needed since then.
        let too_long = self.owner.take(|kept| now - kept.since >= KEPT_FOR);
        drop(too_long);
        // Looked at under the lock: a closing pool waits for each connection, also for one that is kept too late.
        let mut kept = self.owner.lock();
        if self.owner.pool.is_closed() || now - self.since >= KEPT_FOR {
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
        // A former primary may be silent.
        if self.owner.last_promotion.is_after(self.since) {
            return self.detach();
        }
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
