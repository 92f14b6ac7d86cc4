//! The connections to the server, and its clock.

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::str::FromStr as _;
use std::time::Duration;

use cueline_model::Timestamp;
use cueline_store::{ErrorKind, StoreError};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, Postgres, Transaction};

use crate::days::{DAY_MS, Day, Days};
use crate::error::failed;
use crate::{PgOptions, schema};

/// Rounded as the server rounds; milliseconds are all that is kept of a time.
const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// A server that is set up to lose commits would break each promise of the port.
const DURABLE: &str = "
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

/// Of all transactions that see one state of the database.
const BEGIN_TO_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// What is read and written then is the same whatever the values: each statement is planned once, and not each time that somebody waits for it.
/// Such a plan does not see a table grow, so there must be only one way to go that an index offers: a list or a value, and no join.
const BEGIN_PLANNED_ONCE: &str = "BEGIN; SET LOCAL plan_cache_mode = force_generic_plan";

/// Connections for single statements that are planned once: those who use them, each for one batch at a time, and one more.
const PLANNED_ONCE: u32 = 4;

/// Of these, so many are kept however long nothing is due: what is due next has no time to wait for one.
const PLANNED_ONCE_KEPT: u32 = 2;

/// A connection that was idle for longer than this is tried before it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(2);

/// A connection that does not answer within this time, when it is tried, is gone.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Prepared statements kept per connection: more than there are.
const STATEMENTS: usize = 200;

/// A transaction that writes; dropped without a commit, it has not happened.
#[derive(Debug)]
pub(crate) struct Write {
    tx: Transaction<'static, Postgres>,
    /// The database's time at its beginning.
    pub(crate) now: Timestamp,
}

impl Write {
    pub(crate) fn at(tx: Transaction<'static, Postgres>, now: Timestamp) -> Self {
        Self { tx, now }
    }
}

impl Deref for Write {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.tx
    }
}

impl DerefMut for Write {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.tx
    }
}

pub(crate) struct Database {
    writers: PgPool,
    planned_once: PgPool,
    readers: PgPool,
    connect: PgConnectOptions,
    options: PgOptions,
    days: Days,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Database {
    pub(crate) async fn connect(url: &str, options: PgOptions) -> Result<Self, StoreError> {
        options.validate()?;
        let connect = parse(url, &options)?;
        schema::check(&connect, options.migrate).await?;
        // Batches go by the primary key, in the order of their list: rows are locked in the same order everywhere, and no plan is
        // made from statistics that are older than what is there.
        let writing = connect.clone().options([
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("enable_seqscan", "off"),
            ("random_page_cost", "1.1"),
        ]);
        let once = writing
            .clone()
            .options([("plan_cache_mode", "force_generic_plan")]);
        let fail = failed("open the store");
        let writers = pool(&options, options.writers)
            .connect_with(writing)
            .await
            .map_err(&fail)?;
        let planned_once = pool(&options, PLANNED_ONCE)
            .min_connections(PLANNED_ONCE_KEPT)
            .idle_timeout(None)
            .connect_lazy_with(once);
        let readers = pool(&options, options.readers).connect_lazy_with(connect.clone());
        Ok(Self {
            writers,
            planned_once,
            readers,
            connect,
            options,
            days: Days::default(),
        })
    }

    pub(crate) async fn close(&self) {
        self.readers.close().await;
        self.planned_once.close().await;
        self.writers.close().await;
    }

    /// Begins a transaction that writes.
    pub(crate) async fn write(&self) -> Result<Write, StoreError> {
        let mut tx = self
            .writers
            .begin()
            .await
            .map_err(failed("begin a transaction"))?;
        let now = self.now(&mut tx).await?;
        Ok(Write { tx, now })
    }

    /// The same, planned once, and with the database's time still to be told: for what somebody waits for, where a statement for the time alone
    /// would be one round trip too many.
    pub(crate) async fn begin_planned_once(
        &self,
    ) -> Result<Transaction<'static, Postgres>, StoreError> {
        self.writers
            .begin_with(BEGIN_PLANNED_ONCE)
            .await
            .map_err(failed("begin a transaction"))
    }

    /// A connection for single reading statements.
    pub(crate) async fn read(&self) -> Result<PoolConnection<Postgres>, StoreError> {
        self.readers
            .acquire()
            .await
            .map_err(failed("reach the store"))
    }

    /// A connection for single statements of the scheduler, each a transaction of its own, planned as those of its batches are.
    pub(crate) async fn glance(&self) -> Result<PoolConnection<Postgres>, StoreError> {
        self.writers
            .acquire()
            .await
            .map_err(failed("reach the store"))
    }

    /// The same for statements that are planned once: they look at no day, and go by the primary key whatever the values.
    pub(crate) async fn planned_once(&self) -> Result<PoolConnection<Postgres>, StoreError> {
        self.planned_once
            .acquire()
            .await
            .map_err(failed("reach the store"))
    }

    /// A reading transaction: all its statements see the same state.
    pub(crate) async fn snapshot(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        self.readers
            .begin_with(BEGIN_TO_READ)
            .await
            .map_err(failed("begin to read"))
    }

    /// What the clock was set to, in tests.
    pub(crate) fn set_clock(&self) -> Option<Timestamp> {
        self.options.now.as_ref().map(|now| now())
    }

    /// The database's clock.
    pub(crate) async fn now(&self, conn: &mut PgConnection) -> Result<Timestamp, StoreError> {
        if let Some(now) = self.set_clock() {
            return Ok(now);
        }
        sqlx::query_scalar(NOW)
            .fetch_one(conn)
            .await
            .map(Timestamp::from_millis)
            .map_err(failed("read the database's clock"))
    }

    /// Makes room for runs of these days, and of tomorrow, so that midnight is like any other time.
    pub(crate) async fn ensure_days(
        &self,
        mut wanted: BTreeSet<Day>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        wanted.insert(Day::of(now.plus_ms(DAY_MS)));
        self.days.ensure(&self.connect, wanted).await
    }

    pub(crate) fn forget_days(&self) {
        self.days.forget();
    }

    pub(crate) fn executor_dead_after_ms(&self) -> u64 {
        self.options.executor_dead_after_ms
    }

    /// Gives up a call that has no answer for too long. Its connection is tried, and closed if it does not answer either.
    pub(crate) async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = self.options.call_timeout;
        tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
            Err(StoreError::new(
                ErrorKind::Transient,
                format!(
                    "failed to reach the store: no answer from the database server within {limit:?}"
                ),
            )
            .with_unknown_outcome())
        })
    }
}

/// Makes what `write` did durable.
pub(crate) async fn commit(write: Write) -> Result<(), StoreError> {
    write
        .tx
        .commit()
        .await
        .map_err(failed("commit a transaction"))
        .map_err(StoreError::with_unknown_outcome)
}

/// Undoes what `write` did and waits for it: dropped, it would be undone in the background, and what it holds would be passed over by the
/// same call made again. A failure closes the connection, which undoes it too.
pub(crate) async fn roll_back(write: Write) {
    // The error that led here is the one that counts, and it is returned.
    let _ = write.tx.rollback().await;
}

/// The library below says of a file for TLS only that it is not there, and not which.
fn readable(url: &str) -> Result<(), StoreError> {
    let settings = url.split_once('?').map_or("", |(_, settings)| settings);
    for (name, file) in settings.split('&').filter_map(|s| s.split_once('=')) {
        let is_file = ["sslrootcert", "sslcert", "sslkey"].contains(&name);
        // A name with escapes, or one that is no file's name, is left to the library.
        if !is_file || file.contains('%') || file == "system" {
            continue;
        }
        std::fs::File::open(file).map_err(|error| {
            StoreError::new(
                ErrorKind::Broken,
                format!("failed to open the store: {name}: {file} cannot be read: {error}"),
            )
        })?;
    }
    Ok(())
}

/// The database that a URL names, and what is set on each connection to it.
pub(crate) fn parse(url: &str, options: &PgOptions) -> Result<PgConnectOptions, StoreError> {
    let invalid = |why: &dyn std::fmt::Display| {
        // The URL holds a password: it is not repeated.
        StoreError::new(
            ErrorKind::Invalid,
            format!(
                "failed to open the store: its URL is not one of PostgreSQL (postgres://user:password@host:port/database): {why}"
            ),
        )
    };
    if !["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return Err(invalid(&"it begins with something else"));
    }
    let base = PgConnectOptions::from_str(url).map_err(|error| invalid(&error))?;
    readable(url)?;
    let ms = |time: Duration| time.as_millis().to_string();
    // Noticed after the first silence of two thirds, and five questions without an answer in the rest.
    let idle = (options.keepalive.as_secs() * 2 / 3).max(1).to_string();
    let interval = (options.keepalive.as_secs() / 15).max(1).to_string();
    Ok(base
        .application_name(&options.application_name)
        .statement_cache_capacity(STATEMENTS)
        .disable_statement_logging()
        .options([
            ("lock_timeout", ms(options.lock_timeout)),
            ("statement_timeout", ms(options.statement_timeout)),
            (
                "idle_in_transaction_session_timeout",
                ms(options.idle_in_transaction_timeout),
            ),
            ("tcp_keepalives_idle", idle),
            ("tcp_keepalives_interval", interval),
            ("tcp_keepalives_count", "5".to_owned()),
            ("tcp_user_timeout", ms(options.keepalive)),
            ("default_transaction_isolation", "read committed".to_owned()),
            // The bounds of a batch leave the partitions of one or two days: a plan for it is made in less time than a plan for all
            // days takes to start.
            ("plan_cache_mode", "force_custom_plan".to_owned()),
            ("jit", "off".to_owned()),
            // Batches are joined by key. Where a table has no statistics yet the planner would rather keep one side in memory and compare
            // each row with each: a thousand times the work as soon as there are more rows than it thinks.
            ("enable_material", "off".to_owned()),
            ("max_parallel_workers_per_gather", "0".to_owned()),
        ]))
}

fn pool(options: &PgOptions, connections: u32) -> PgPoolOptions {
    PgPoolOptions::new()
        .min_connections(0)
        .max_connections(connections)
        .acquire_timeout(options.acquire_timeout)
        .idle_timeout(Duration::from_mins(10))
        .max_lifetime(Duration::from_hours(1))
        .test_before_acquire(false)
        .after_connect(|conn, _| {
            Box::pin(async move { sqlx::query(DURABLE).execute(conn).await.map(drop) })
        })
        .before_acquire(|conn, meta| {
            Box::pin(async move {
                if meta.idle_for < TRUSTED_IDLE {
                    return Ok(true);
                }
                answers(conn).await.map(|()| true)
            })
        })
        // Rolls back what a dropped call has left, and closes the connection if it does not answer.
        .after_release(|conn, _| Box::pin(async move { answers(conn).await.map(|()| true) }))
}

fn answers(
    conn: &mut PgConnection,
) -> Pin<Box<dyn Future<Output = Result<(), sqlx::Error>> + Send + '_>> {
    Box::pin(async move {
        match tokio::time::timeout(ANSWER_LIMIT, conn.ping()).await {
            Ok(answer) => answer,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    })
}
