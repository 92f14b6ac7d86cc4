//! Connections that stay open between calls of the pipeline.
//!
//! A pool tests each connection that is returned, in case its call was dropped. For statements that a due run waits for,
//! that is one more round trip of the server's process, on the same machine just before the next statement. So a
//! connection whose call has ended well is kept here. All others go to the pool.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cueline_store::PoolUse;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Postgres};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout};

use crate::counted_pool::CountedPool;
use crate::error::Result;
use crate::promotions::LastPromotion;

/// A connection that was idle for longer than this is tested before use.
pub(crate) const TRUSTED_IDLE: Duration = Duration::from_secs(2);

/// A tested connection that does not answer within this time is closed.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// After this time a connection goes to its pool, which ends those that are too old.
const KEPT_FOR: Duration = Duration::from_mins(10);

/// A pool, and connections of it that are kept.
#[derive(Debug)]
pub(crate) struct KeptConnections {
    pool: CountedPool,
    last_promotion: LastPromotion,
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
pub(crate) struct CallConnection<'a> {
    owner: &'a KeptConnections,
    conn: PoolConnection<Postgres>,
    since: Instant,
    /// Of a user's request.
    pub(crate) permit: Option<SemaphorePermit<'a>>,
}

impl KeptConnections {
    pub(crate) fn new(pool: CountedPool, last_promotion: LastPromotion) -> Self {
        Self {
            pool,
            last_promotion,
            kept: Mutex::default(),
        }
    }

    /// A connection: one that is kept, or one of the pool.
    pub(crate) async fn acquire(&self) -> Result<CallConnection<'_>> {
        let newest = self.lock().pop();
        if let Some(mut kept) = newest {
            let is_trusted = !self.last_promotion.is_after(kept.since)
                && (kept.used_at.elapsed() < TRUSTED_IDLE
                    || matches!(timeout(PING_TIMEOUT, kept.conn.ping()).await, Ok(Ok(()))));
            if is_trusted {
                return Ok(CallConnection {
                    owner: self,
                    conn: kept.conn,
                    since: kept.since,
                    permit: None,
                });
            }
            // The others are older. Each would take as long to fail, here or in the pool.
            drop(kept.conn.detach());
            self.detach_all();
        }
        Ok(CallConnection {
            owner: self,
            conn: self.pool.for_call().acquire().await?,
            since: Instant::now(),
            permit: None,
        })
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

impl CallConnection<'_> {
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
}

impl Deref for CallConnection<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.conn
    }
}

impl DerefMut for CallConnection<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.conn
    }
}
