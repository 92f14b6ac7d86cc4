//! The connections to the server, and its clock.

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use cueline_model::Timestamp;
use cueline_store::{ClockOverride, ErrorKind, PoolUse, StoreError};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{Connection as _, Postgres};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::counted_pool::CountedPool;
use crate::error::Result;
use crate::kept_connections::{CallConnection, KeptConnections, PING_TIMEOUT, TRUSTED_IDLE};
use crate::partitions::{DAY_MS, Day, KnownPartitions};
use crate::promotions::{LOOK_AFTER, LastPromotion, Promotions};
use crate::transaction::Transaction;
use crate::{PgOptions, PgStore, schema, url};

/// Rounded to milliseconds, as all stored times are.
pub(crate) const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// Overrides the server's configuration, which may allow the loss of commits. The port forbids that.
const REQUIRE_DURABLE_COMMITS: &str = "
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

const BEGIN: &str = "BEGIN";

const BEGIN_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Plans each statement of a transaction once per connection, not at each call that a user waits for. A generic plan
/// does not adapt to a growing table. Use it only for statements that compare an indexed column with a list or a value
/// and join nothing.
const BEGIN_GENERIC_PLAN: &str = "BEGIN; SET LOCAL plan_cache_mode = force_generic_plan";

/// The same, with short waits for locks. For limits, whose rows a scheduler may hold that has just been stopped: the dispatch
/// of all other jobs waits meanwhile.
const BEGIN_SHORT_WAITS: &str =
    "BEGIN; SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL lock_timeout = '100ms'";

/// Connections for single statements with generic plans. Three stages of the pipeline need one each at a time, and
/// requests use up to [`GENERIC_PLAN_REQUESTS`].
const GENERIC_PLAN_CONNECTIONS: u32 = 6;

/// The most requests of users that use such a connection at once, because they may wait for locks. The stages always
/// find one.
const GENERIC_PLAN_REQUESTS: usize = 2;

/// This many of them stay open while nothing is due, because a due run has no time to wait for a connection.
const GENERIC_PLAN_KEPT: u32 = 3;

/// Connections that find sessions and API tokens. Each request needs one for a moment, and must not wait for the
/// queries of other users.
const AUTHENTICATION_CONNECTIONS: u32 = 2;

pub(crate) struct Database {
    writers: Arc<KeptConnections>,
    generic_plan: Arc<KeptConnections>,
    requests: Arc<Semaphore>,
    readers: CountedPool,
    authentication: CountedPool,
    connect: PgConnectOptions,
    options: PgOptions,
    partitions: KnownPartitions,
    promotions: Promotions,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A writing transaction. It is rolled back if it is dropped without a commit.
#[derive(Debug)]
pub(crate) struct WriteTx {
    tx: Transaction,
    /// The time of the database's clock at its beginning.
    pub(crate) now: Timestamp,
}

impl WriteTx {
    pub(crate) fn new(tx: Transaction, now: Timestamp) -> Self {
        Self { tx, now }
    }

    /// Makes the changes durable.
    pub(crate) async fn commit(self) -> Result<()> {
        self.tx.commit().await
    }

    /// Commits what has succeeded, and rolls back what was refused, see [`roll_back`](Self::roll_back).
    pub(crate) async fn finish<T>(self, result: Result<T>) -> Result<T> {
        match result {
            Ok(done) => self.commit().await.map(|()| done),
            Err(refused) => {
                self.roll_back().await;
                Err(refused)
            }
        }
    }

    /// Rolls back and waits for the result. A dropped transaction is rolled back in the background. A repeated call
    /// could skip the rows that it still locks. After a failed rollback, the connection is ended soon.
    pub(crate) async fn roll_back(self) {
        let _ = self.tx.roll_back().await;
    }
}

impl Deref for WriteTx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.tx
    }
}

impl DerefMut for WriteTx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.tx
    }
}

impl Database {
    pub(crate) async fn connect(url: &str, options: PgOptions) -> Result<Self> {
        options.validate()?;
        let connect = url::parse(url, &options)?;
        schema::prepare(&connect, options.migrate).await?;
        // Batches use the primary key in the order of their list. So all transactions lock rows in the same order. No
        // plan depends on statistics, which may be older than the rows.
        let writing = connect.clone().options([
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("enable_seqscan", "off"),
            ("random_page_cost", "1.1"),
        ]);
        // Their statements look up single rows, or the few live runs of a job. The planner, which knows of no runs yet, may
        // choose bitmaps, which are made for many rows.
        let generic = writing.clone().options([
            ("plan_cache_mode", "force_generic_plan"),
            ("enable_bitmapscan", "off"),
        ]);
        let last = LastPromotion::default();
        let writers = pool(&options, &last, options.writers)
            .connect_with(writing)
            .await?;
        let mut conn = writers.acquire().await?;
        let promotions = Promotions::since(&mut conn, connect.clone(), last.clone()).await?;
        drop(conn);
        let generic_plan = pool(&options, &last, GENERIC_PLAN_CONNECTIONS)
            .min_connections(GENERIC_PLAN_KEPT)
            .idle_timeout(None)
            .connect_lazy_with(generic);
        let readers = pool(&options, &last, options.readers).connect_lazy_with(connect.clone());
        let authentication =
            pool(&options, &last, AUTHENTICATION_CONNECTIONS).connect_lazy_with(connect.clone());
        Ok(Self {
            writers: KeptConnections::new(CountedPool::new("writers", writers), last.clone()),
            generic_plan: KeptConnections::new(
                CountedPool::new("generic_plan", generic_plan),
                last,
            ),
            requests: Arc::new(Semaphore::new(GENERIC_PLAN_REQUESTS)),
            readers: CountedPool::new("readers", readers),
            authentication: CountedPool::new("authentication", authentication),
            connect,
            options,
            partitions: KnownPartitions::default(),
            promotions,
        })
    }

    pub(crate) async fn close(&self) {
        self.authentication.close().await;
        self.readers.close().await;
        self.generic_plan.close().await;
        self.writers.close().await;
    }

    /// The use of the connections.
    pub(crate) fn pool_use(&self) -> Vec<PoolUse> {
        vec![
            self.writers.usage(),
            self.generic_plan.usage(),
            self.readers.usage(),
            self.authentication.usage(),
        ]
    }

    /// Begins a writing transaction.
    pub(crate) async fn write(&self) -> Result<WriteTx> {
        let mut tx = self.begin(BEGIN).await?;
        let now = self.now(&mut tx).await?;
        Ok(WriteTx { tx, now })
    }

    /// The same for a caller that has read the clock just before.
    pub(crate) async fn write_at(&self, now: Timestamp) -> Result<WriteTx> {
        let tx = self.begin(BEGIN).await?;
        Ok(WriteTx { tx, now })
    }

    async fn begin(&self, statement: &'static str) -> Result<Transaction> {
        Transaction::begin(self.writers.acquire().await?, statement).await
    }

    /// Begins a writing transaction with generic plans. It does not read the clock, which would cost a waiting user one
    /// more round trip.
    pub(crate) async fn begin_generic_plan(&self) -> Result<Transaction> {
        self.begin(BEGIN_GENERIC_PLAN).await
    }

    /// Begins a writing transaction with generic plans whose statements fail if they wait for a lock for 100 ms.
    pub(crate) async fn begin_short_waits(&self) -> Result<Transaction> {
        self.begin(BEGIN_SHORT_WAITS).await
    }

    /// A connection for single reading statements on behalf of users.
    pub(crate) async fn read(&self) -> Result<PoolConnection<Postgres>> {
        Ok(self.readers.for_call().acquire().await?)
    }

    /// A connection for the statement that finds who sends a request.
    pub(crate) async fn authenticate(&self) -> Result<PoolConnection<Postgres>> {
        Ok(self.authentication.for_call().acquire().await?)
    }

    /// A connection for single statements of the scheduler. Each is a transaction of its own, and is planned like the
    /// statements of batches.
    pub(crate) async fn autocommit(&self) -> Result<CallConnection> {
        self.writers.acquire().await
    }

    /// Like [`autocommit`](Self::autocommit), with generic plans. For statements that use the primary key for all
    /// values.
    pub(crate) async fn generic_plan(&self) -> Result<CallConnection> {
        self.generic_plan.acquire().await
    }

    /// Like [`generic_plan`](Self::generic_plan), for the request of a user. `None` if as many requests as may use such
    /// connections do.
    pub(crate) async fn generic_plan_for_request(&self) -> Result<Option<CallConnection>> {
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            return Ok(None);
        };
        let mut conn = self.generic_plan().await?;
        conn.request = Some(permit);
        Ok(Some(conn))
    }

    /// Begins a reading transaction. All its statements see the same state.
    pub(crate) async fn snapshot(&self) -> Result<sqlx::Transaction<'static, Postgres>> {
        Ok(self.readers.for_call().begin_with(BEGIN_SNAPSHOT).await?)
    }

    /// The time of a test's clock.
    pub(crate) fn test_clock(&self) -> Option<Timestamp> {
        self.options.clock.as_ref().map(ClockOverride::now)
    }

    /// The time of the database's clock.
    pub(crate) async fn now(&self, conn: &mut PgConnection) -> Result<Timestamp> {
        if let Some(now) = self.test_clock() {
            return Ok(now);
        }
        let now: i64 = sqlx::query_scalar(NOW).fetch_one(conn).await?;
        Ok(Timestamp::from_millis(now))
    }

    /// Creates the partitions of these days and of tomorrow, so that no call has to create one at midnight.
    pub(crate) async fn ensure_partitions(
        &self,
        mut days: BTreeSet<Day>,
        now: Timestamp,
    ) -> Result<()> {
        days.insert(Day::of(now.plus_ms(DAY_MS)));
        self.partitions.ensure(&self.connect, days).await
    }

    pub(crate) fn forget_partitions(&self) {
        self.partitions.forget();
    }

    pub(crate) fn executor_dead_after_ms(&self) -> u64 {
        self.options.executor_dead_after_ms
    }

    /// Ends a call after the time limit, or when it waits for a former primary. Its connection is then tested, and closed
    /// if it does not answer.
    pub(crate) async fn bounded<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let began = Instant::now();
        let limit = self.options.call_timeout;
        let mut call = pin!(call);
        let why = loop {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                break format!("no answer from the database server within {limit:?}");
            }
            if let Ok(answer) = timeout(LOOK_AFTER.min(left), &mut call).await {
                return answer;
            }
            let left = limit.saturating_sub(began.elapsed());
            let is_promoted = tokio::select! {
                biased;
                answer = &mut call => return answer,
                looked = timeout(left, self.promotions.was_after(began)) => looked,
            };
            if is_promoted.unwrap_or(false) {
                break "the database was promoted, and the former primary does not answer"
                    .to_owned();
            }
        };
        let error = StoreError::new(
            ErrorKind::Transient,
            format!("failed to reach the store: {why}"),
        );
        Err(error.with_unknown_outcome().into())
    }
}

impl PgStore {
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        let mut conn = self.db.autocommit().await?;
        let now = self.db.now(&mut conn).await?;
        conn.keep();
        Ok(now)
    }
}

fn pool(options: &PgOptions, last: &LastPromotion, connections: u32) -> PgPoolOptions {
    let (at_acquire, at_release) = (last.clone(), last.clone());
    PgPoolOptions::new()
        .min_connections(0)
        .max_connections(connections)
        .acquire_timeout(options.acquire_timeout)
        .idle_timeout(Duration::from_mins(10))
        .max_lifetime(Duration::from_hours(1))
        .test_before_acquire(false)
        .after_connect(|conn, _| {
            Box::pin(async move {
                sqlx::query(REQUIRE_DURABLE_COMMITS)
                    .execute(conn)
                    .await
                    .map(drop)
            })
        })
        .before_acquire(move |conn, meta| {
            let is_outdated = at_acquire.outdates(meta.age);
            Box::pin(async move {
                if is_outdated || meta.idle_for < TRUSTED_IDLE {
                    return Ok(!is_outdated);
                }
                ping(conn).await.map(|()| true)
            })
        })
        // The ping ends after the rollback of a dropped call. A connection that does not answer is closed.
        .after_release(move |conn, meta| {
            let is_outdated = at_release.outdates(meta.age);
            Box::pin(async move {
                if is_outdated {
                    return Ok(false);
                }
                ping(conn).await.map(|()| true)
            })
        })
}

fn ping(
    conn: &mut PgConnection,
) -> Pin<Box<dyn Future<Output = std::result::Result<(), sqlx::Error>> + Send + '_>> {
    Box::pin(async move {
        match timeout(PING_TIMEOUT, conn.ping()).await {
            Ok(answer) => answer,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    })
}
