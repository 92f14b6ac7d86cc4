//! Notices a promotion after which the former primary is silent, as when its host is cut off.
//!
//! Nothing ends the connections to such a server: what is sent there is lost without a word. So a call that has waited for
//! an answer for a while opens a connection of its own, and reads the server's timeline. If that is a newer one, the address
//! leads to another server now, and no older connection does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::time::{Instant, timeout};

use crate::error::Result;

/// A call that has waited for this long looks for a promotion, and looks again each time that it has waited so long. One
/// call looks for all. Few statements take as long.
pub(crate) const LOOK_AFTER: Duration = Duration::from_secs(3);

/// A server that does not accept a connection within this time is not the new primary.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);

/// The first part of the name of a file of the log, in which later timelines are greater. NULL on a replica.
const TIMELINE: &str = "
    SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END";

/// When this process noticed the last promotion.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastPromotion(Arc<Mutex<Option<Instant>>>);

impl LastPromotion {
    fn get(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_now(&self) {
        let mut noticed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *noticed = Some(Instant::now());
    }

    /// Whether a connection of this age may lead to the former primary.
    pub(crate) fn outdates(&self, age: Duration) -> bool {
        self.get().is_some_and(|noticed| noticed.elapsed() < age)
    }

    /// Whether a call or a connection that began then may be at the former primary.
    pub(crate) fn is_after(&self, began: Instant) -> bool {
        self.get().is_some_and(|noticed| began < noticed)
    }
}

#[derive(Debug)]
pub(crate) struct Promotions {
    connect: PgConnectOptions,
    last: LastPromotion,
    /// Locked by the call that looks.
    look: tokio::sync::Mutex<Look>,
}

#[derive(Debug)]
struct Look {
    /// The last one that was seen.
    timeline: Option<String>,
    ended: Option<Instant>,
}

impl Promotions {
    /// `conn` leads to the present primary.
    pub(crate) async fn since(
        conn: &mut PgConnection,
        connect: PgConnectOptions,
        last: LastPromotion,
    ) -> Result<Self> {
        let look = Look {
            timeline: timeline(conn).await?,
            ended: None,
        };
        Ok(Self {
            connect,
            last,
            look: tokio::sync::Mutex::new(look),
        })
    }

    /// Whether there was a promotion after a call began. Connects to the server, unless another call just did.
    pub(crate) async fn was_after(&self, began: Instant) -> bool {
        let mut look = self.look.lock().await;
        // Those that waited for the lock meanwhile take the answer of this look.
        let has_looked = look.ended.is_some_and(|at| at.elapsed() < LOOK_AFTER);
        if !self.last.is_after(began) && !has_looked {
            // A server that cannot be reached, or refuses the statement, is no reason to end a call.
            let present = timeout(LOOK_TIMEOUT, self.present_timeline()).await;
            let present = present.ok().and_then(Result::ok).flatten();
            if present.is_some() && look.timeline < present {
                tracing::warn!(
                    before = ?look.timeline,
                    now = ?present,
                    "database was promoted, and the former primary does not answer; calls and connections to it are ended"
                );
                look.timeline = present;
                self.last.set_now();
            }
            look.ended = Some(Instant::now());
        }
        self.last.is_after(began)
    }

    async fn present_timeline(&self) -> Result<Option<String>> {
        let mut conn = self.connect.connect().await?;
        let found = timeline(&mut conn).await?;
        // The server notices an end without a farewell too.
        let _ = conn.close().await;
        Ok(found)
    }
}

async fn timeline(conn: &mut PgConnection) -> Result<Option<String>> {
    Ok(sqlx::query_scalar(TIMELINE).fetch_one(conn).await?)
}
