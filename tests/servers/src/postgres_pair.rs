//! A PostgreSQL primary with a synchronous standby, which a test may promote.
//!
//! Clients connect through a proxy, as through the address that a cluster manager moves. A commit is on both servers
//! before its client gets the answer, so a promotion loses none.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use cueline_test_support::eventually_blocking;

use crate::postgres::{Postgres, url_at};
use crate::proxy::Proxy;

/// The time limit until the standby has what the primary has.
const CAUGHT_UP_WITHIN: Duration = Duration::from_mins(1);

/// While the standby is away, the primary keeps this much of its log. Tests write less in this time.
const PRIMARY: &str = "wal_keep_size = '512MB'\n";

/// The standby's name in the settings of the primary.
const STANDBY: &str = "standby";

/// Two servers and the proxy in front of the one that accepts writes. Dropping it ends all.
#[derive(Debug)]
pub struct PostgresPair {
    proxy: Proxy,
    primary: Postgres,
    standby: Postgres,
    promoted: AtomicBool,
}

impl PostgresPair {
    /// Starts both servers, and waits until commits wait for the standby.
    pub fn start() -> Result<Self> {
        let primary = Postgres::start_with(|_| Ok(PRIMARY.to_owned()))?;
        primary.stop()?;
        let standby = Postgres::start_with(|standby| {
            standby.copy_as_standby(&primary)?;
            primary.start_again()?;
            let port = primary.port();
            Ok(format!(
                "primary_conninfo = 'host=127.0.0.1 port={port} user=cueline application_name={STANDBY}'\n\
                 wal_retrieve_retry_interval = '200ms'\n"
            ))
        })?;
        let pair = Self {
            proxy: Proxy::start(([127, 0, 0, 1], primary.port()).into())?,
            primary,
            standby,
            promoted: AtomicBool::new(false),
        };
        // Before the standby is there, a commit would wait for it.
        let wait_for_it = format!("ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'");
        pair.primary.sql("postgres", &wait_for_it)?;
        pair.primary.sql("postgres", "SELECT pg_reload_conf()")?;
        pair.wait_for_standby()?;
        Ok(pair)
    }

    /// The address of a database, which stays the same after a promotion.
    pub fn url(&self, database: &str) -> String {
        url_at(self.proxy.addr().port(), database)
    }

    /// Creates an empty database. Returns its name.
    pub fn create_database(&self) -> Result<String> {
        self.active().create_database()
    }

    /// Runs statements through the proxy. Returns what they print.
    pub fn sql(&self, database: &str, statements: &str) -> Result<String> {
        self.active().sql_at(&self.url(database), statements)
    }

    /// Whether the standby was promoted.
    pub fn is_promoted(&self) -> bool {
        self.promoted.load(Ordering::SeqCst)
    }

    /// SIGKILL to the server that accepts writes, and a start on its data. Returns when a promotion would lose nothing.
    pub fn kill_and_start(&self) -> Result<()> {
        self.active().kill()?;
        self.active().start_again()?;
        if self.is_promoted() {
            return Ok(());
        }
        self.wait_for_standby()
    }

    /// SIGSTOP for the server that accepts writes.
    pub fn pause(&self) -> Result<()> {
        self.active().pause()
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.active().resume()
    }

    /// SIGKILL to the primary. Promotes the standby, and sends new connections there. The primary never runs again, and
    /// the promoted server has no standby.
    pub fn promote(&self) -> Result<()> {
        ensure!(!self.is_promoted(), "the standby was promoted before");
        self.primary.kill()?;
        self.promote_beside_primary()
    }

    /// Promotes the standby, and sends new connections there. Connections to the primary stay, so it must be paused: then
    /// it is as silent as one whose host is cut off.
    pub fn promote_beside_primary(&self) -> Result<()> {
        let promoted = self.standby.sql(
            "postgres",
            "SELECT pg_promote(wait => true, wait_seconds => 60)",
        )?;
        ensure!(promoted == "t", "the standby was not promoted in time");
        self.promoted.store(true, Ordering::SeqCst);
        let new = ([127, 0, 0, 1], self.standby.port()).into();
        self.proxy.retarget(new);
        Ok(())
    }

    /// The server that accepts writes.
    fn active(&self) -> &Postgres {
        if self.is_promoted() {
            &self.standby
        } else {
            &self.primary
        }
    }

    /// Waits until commits wait for the standby, and the standby has all that can be read now. After a crash that
    /// includes commits whose clients were never answered.
    fn wait_for_standby(&self) -> Result<()> {
        let written = self
            .primary
            .sql("postgres", "SELECT pg_current_wal_flush_lsn()")?;
        let look = format!(
            "SELECT count(*) FROM pg_stat_replication \
             WHERE application_name = '{STANDBY}' AND sync_state = 'sync' AND flush_lsn >= '{written}'"
        );
        let expected = "the standby has what the primary has";
        eventually_blocking(expected, CAUGHT_UP_WITHIN, || {
            match self.primary.sql("postgres", &look) {
                Ok(count) if count == "1" => Ok(()),
                other => Err(format!(
                    "{other:?}; the standby's log: {}",
                    self.standby.log()
                )),
            }
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promotion_keeps_every_commit() {
        let pair = PostgresPair::start().unwrap();
        let database = pair.create_database().unwrap();
        let sql = |statements| pair.sql(&database, statements).unwrap();
        sql("CREATE TABLE t (x int)");
        sql("INSERT INTO t VALUES (1)");
        pair.kill_and_start().unwrap();
        sql("INSERT INTO t VALUES (2)");
        pair.promote().unwrap();
        assert_eq!(sql("SELECT sum(x) FROM t"), "3");
        assert!(pair.promote().is_err(), "there is no second standby");
        sql("INSERT INTO t VALUES (4)");
        pair.kill_and_start().unwrap();
        assert_eq!(sql("SELECT sum(x) FROM t"), "7");
    }

    #[test]
    fn a_commit_waits_for_the_standby() {
        let pair = PostgresPair::start().unwrap();
        let database = pair.create_database().unwrap();
        pair.standby.pause().unwrap();
        std::thread::scope(|scope| {
            let commit = scope.spawn(|| pair.sql(&database, "CREATE TABLE t (x int)"));
            let waiting = "SELECT count(*) FROM pg_stat_activity \
                           WHERE wait_event = 'SyncRep' AND query LIKE 'CREATE TABLE%'";
            let waits = eventually_blocking("a commit waits", CAUGHT_UP_WITHIN, || {
                match pair.sql("postgres", waiting) {
                    Ok(count) if count == "1" => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
            pair.standby.resume().unwrap();
            waits.unwrap();
            commit.join().unwrap().unwrap();
        });
    }
}
