//! Puts a worker together.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::Broker;
use cueline_model::selector::{MAX_EXECUTOR_LABELS, check_label};
use cueline_model::{ExecutorId, ExecutorLabels, NameError, Timestamp, Weight};
use cueline_protocol::{TriggerVerifier, VerifyingKeys, WorkerProcess};
use cueline_runtime::{BootClock, Clock, SystemBootClock, SystemClock};

use crate::context::Context;
use crate::error::{BoxError, Error, Result};
use crate::handler::{Handler, from_fn};
use crate::lease::{LeaseDeadline, LeaseTimings, OnLeaseRenewed};
use crate::origin::{Origin, WorkerIdentity};
use crate::registry::Registry;
use crate::returned::{Failure, Output};
use crate::settings::{Hook, Settings};
use crate::worker::Worker;

/// The default time between two heartbeats of a worker without a lease.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// The smallest log limit.
const MIN_LOG_BYTES: usize = 1024;

type Named = Vec<(String, Arc<dyn Handler>)>;

/// Puts a [`Worker`] together. Only the broker and the trusted keys are required; each method names its default.
///
/// ```no_run
/// use std::time::Duration;
/// use cueline_worker::{Context, Failure, Result, VerifyingKeys, Worker};
///
/// async fn run(broker: cueline_broker::Broker, keys: VerifyingKeys) -> Result<()> {
///     Worker::builder("billing")
///         .name("billing-1")
///         .broker(broker)
///         .trust(keys)
///         .state_dir("/var/lib/billing")
///         .concurrency(16)
///         .drain_timeout(Duration::from_secs(60))
///         .handler("invoice", |cx: Context| async move {
///             cx.log("nothing to bill");
///             Ok::<(), Failure>(())
///         })
///         .build()?
///         .run_until_signal()
///         .await
/// }
/// ```
pub struct Builder {
    group: String,
    name: Option<String>,
    broker: Option<Broker>,
    state_dir: Option<PathBuf>,
    native: Named,
    kinds: Named,
    trust: VerifyingKeys,
    unverified_native: bool,
    concurrency: usize,
    labels: Vec<(String, String)>,
    weight: i64,
    log_bytes: usize,
    clock: Arc<dyn Clock>,
    drain_timeout: Duration,
    heartbeat_every: Option<Duration>,
    fence_after: Option<Duration>,
    failover_after: Duration,
    in_process_scheduler: bool,
    on_lease_renewed: Option<OnLeaseRenewed>,
    boot_clock: Arc<dyn BootClock>,
    before_start: Option<Hook>,
    identity: Option<WorkerIdentity>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("group", &self.group)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Starts to build a worker of this executor group.
    pub fn builder(group: &str) -> Builder {
        Builder::new(group)
    }
}

impl Builder {
    fn new(group: &str) -> Self {
        Self {
            group: group.to_owned(),
            name: None,
            broker: None,
            state_dir: None,
            native: Vec::new(),
            kinds: Vec::new(),
            trust: VerifyingKeys::default(),
            unverified_native: false,
            concurrency: 256,
            labels: Vec::new(),
            weight: 1,
            log_bytes: 1024 * 1024,
            clock: Arc::new(SystemClock),
            drain_timeout: Duration::from_secs(30),
            heartbeat_every: None,
            fence_after: None,
            failover_after: Duration::from_secs(30),
            in_process_scheduler: false,
            on_lease_renewed: None,
            boot_clock: Arc::new(SystemBootClock),
            before_start: None,
            identity: None,
        }
    }

    /// The executor's name: unique in the group, and the same after each restart. Default: that of the
    /// [`identity`](Self::identity), or the machine's host name. Of two workers that run under one name, the one that
    /// started later [ends](Error::NameTaken).
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// The broker from which triggers are fetched and to which reports are published. Required.
    ///
    /// Workers of one process may share its connection: give each of them a clone. To a NATS server, all of them are
    /// then the executor that the connection names, so its permissions cannot tell them apart.
    #[must_use]
    pub fn broker(mut self, broker: Broker) -> Self {
        self.broker = Some(broker);
        self
    }

    /// The directory of the journal. One worker at a time can use it, and the next start of this executor needs the
    /// same one. Default: that of the [`identity`](Self::identity), or `cueline-state/<group>/<name>`.
    #[must_use]
    pub fn state_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(directory.into());
        self
    }

    /// Runs `{ native = "<name>" }` jobs with this async function.
    #[must_use]
    pub fn handler<F, Fut, T, E>(self, name: &str, function: F) -> Self
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Into<Output>,
        E: Into<Failure>,
    {
        self.native(name, from_fn(function))
    }

    /// Runs `{ native = "<name>" }` jobs with this handler.
    #[must_use]
    pub fn native(mut self, name: &str, handler: impl Handler) -> Self {
        self.native.push((name.to_owned(), Arc::new(handler)));
        self
    }

    /// Allows a built-in kind, `shell`, `command` or `http`, and runs it with this handler. Such jobs run only from
    /// triggers that a [trusted](Self::trust) key has signed, also with
    /// [`allow_unverified_native`](Self::allow_unverified_native).
    #[must_use]
    pub fn kind(mut self, kind: &str, handler: impl Handler) -> Self {
        self.kinds.push((kind.to_owned(), Arc::new(handler)));
        self
    }

    /// The schedulers' public keys. A trigger runs only if one of them has signed it. Required, unless
    /// [`allow_unverified_native`](Self::allow_unverified_native) is called.
    #[must_use]
    pub fn trust(mut self, keys: VerifyingKeys) -> Self {
        self.trust = keys;
        self
    }

    /// Runs native handlers from triggers that are not verified. Every user who may publish to the executor's queue can
    /// then run them, with any parameters. Use it for tests, and for a broker in this process.
    #[must_use]
    pub fn allow_unverified_native(mut self) -> Self {
        self.unverified_native = true;
        self
    }

    /// The executor that the worker is, with the key that proves it. The worker seals its heartbeats, reports and answers,
    /// so that schedulers know that it sent them. Schedulers that require seals ignore a worker without an identity.
    ///
    /// The driver of the [`broker`](Self::broker) seals refused triggers with its
    /// [`dead_letter_seal`](WorkerIdentity::dead_letter_seal). The identity gives [`name`](Self::name) and
    /// [`state_dir`](Self::state_dir) their defaults; another group or name is refused. Default: none, which serves for an
    /// [`in_process_scheduler`](Self::in_process_scheduler).
    #[must_use]
    pub fn identity(mut self, identity: WorkerIdentity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// The most handlers that run at once. Default: 256.
    #[must_use]
    pub fn concurrency(mut self, limit: usize) -> Self {
        self.concurrency = limit;
        self
    }

    /// A label of the executor, by which jobs may select it (`selector = "zone=a"`). A later value of a key replaces the
    /// earlier one. Default: none.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.push((key.to_owned(), value.to_owned()));
        self
    }

    /// The executor's share of the runs of jobs with `route = "weighted"`, beside the weights of the others: 1–100.
    /// Default: 1.
    #[must_use]
    pub fn weight(mut self, weight: u8) -> Self {
        self.weight = i64::from(weight);
        self
    }

    /// The most bytes of log that an attempt keeps: the first and the last half. At least 1,024. Default: 1 MiB.
    #[must_use]
    pub fn log_bytes(mut self, limit: usize) -> Self {
        self.log_bytes = limit;
        self
    }

    /// The wall clock. Default: the machine's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// How long running attempts may go on after a soft stop. They are then asked to stop, and end `lost`. Default:
    /// 30 s.
    #[must_use]
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// The time between two heartbeats. Default: a quarter of [`fence_after`](Self::fence_after), and at most 5 s.
    #[must_use]
    pub fn heartbeat_every(mut self, every: Duration) -> Self {
        self.heartbeat_every = Some(every);
        self
    }

    /// The worker's broker lease ends this long after its last proof. The worker then starts nothing, and stops
    /// running attempts unless their job says `fence = "keep"`. Waiting attempts go on if the lease is renewed in
    /// time. Already after half of this time the worker accepts and starts nothing until the next proof.
    ///
    /// The value must be more than twice [`heartbeat_every`](Self::heartbeat_every), so that one lost heartbeat stops
    /// nothing. It must be less than [`failover_after`](Self::failover_after). Default: two thirds of that, 20 s.
    #[must_use]
    pub fn fence_after(mut self, after: Duration) -> Self {
        self.fence_after = Some(after);
        self
    }

    /// The schedulers give the work of a silent executor to others after this time. The value must be the same as
    /// theirs. Default: 30 s. With a longer one than theirs, the worker gets no triggers.
    ///
    /// Fenced attempts end 2 s earlier, whatever their job's kill grace (a fifteenth earlier if the time is less than
    /// 30 s). Waiting attempts are returned halfway between [`fence_after`](Self::fence_after) and that, after 24 s.
    #[must_use]
    pub fn failover_after(mut self, after: Duration) -> Self {
        self.failover_after = after;
        self
    }

    /// Declares that the only schedulers, and their broker, run in this process. They stop and start together with the
    /// worker, so there is no broker lease. Nothing is ever fenced, and waiting attempts go on after any downtime.
    #[must_use]
    pub fn in_process_scheduler(mut self) -> Self {
        self.in_process_scheduler = true;
        self
    }

    /// Called with each renewal of the broker lease, for a supervisor that ends the worker's attempts when the worker
    /// itself cannot. The callback must return at once.
    ///
    /// It is never called for a worker with an [`in_process_scheduler`](Self::in_process_scheduler), nor for a lease
    /// that has already ended.
    #[must_use]
    pub fn on_lease_renewed(
        mut self,
        notify: impl Fn(LeaseDeadline) + Send + Sync + 'static,
    ) -> Self {
        self.on_lease_renewed = Some(OnLeaseRenewed::new(notify));
        self
    }

    /// The clock of the broker lease. Default: the time since the machine's start.
    #[must_use]
    pub fn boot_clock(mut self, clock: Arc<dyn BootClock>) -> Self {
        self.boot_clock = clock;
        self
    }

    /// Called once, after the state directory is locked and before anything is started. Use it to end processes that an
    /// earlier start of the worker left behind. An error keeps the worker from running.
    #[must_use]
    pub fn before_start<F, Fut>(mut self, hook: F) -> Self
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.before_start = Some(Box::new(move || Box::pin(hook())));
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] with the first invalid setting and the values that it accepts.
    pub fn build(mut self) -> Result<Worker> {
        let before_start = self.before_start.take();
        Ok(Worker::new(self.settings()?, before_start))
    }

    pub(crate) fn settings(self) -> Result<Settings> {
        let identity = self.identity.as_ref();
        let own_name = identity.map(|identity| identity.executor().name.to_string());
        let name = self.name.or(own_name).or_else(host_name);
        let executor = ExecutorId {
            group: parse("group", &self.group)?,
            name: parse("name", &name.unwrap_or_default())?,
        };
        check_identity(&executor, identity)?;
        let no_broker = || Error::setting("broker", "", "a worker needs a broker");
        let broker = self.broker.ok_or_else(no_broker)?;
        if self.trust.is_empty() && !self.unverified_native {
            let problem = "a worker needs the public keys of its schedulers; or call allow_unverified_native, if only they can publish to its queue";
            return Err(Error::setting("trust", "", problem));
        }
        if self.concurrency == 0 {
            return Err(Error::setting("concurrency", "0", "at least 1"));
        }
        let labels = labels(&self.labels)?;
        let weight = Weight::clamped(self.weight);
        if i64::from(weight.get()) != self.weight {
            return Err(Error::setting("weight", &self.weight.to_string(), "1–100"));
        }
        if self.log_bytes < MIN_LOG_BYTES {
            let problem = format!("at least {MIN_LOG_BYTES}");
            return Err(Error::setting(
                "log_bytes",
                &self.log_bytes.to_string(),
                &problem,
            ));
        }
        let timings =
            LeaseTimings::new(self.failover_after, self.fence_after, self.heartbeat_every);
        let lease_timings = (!self.in_process_scheduler).then_some(timings);
        let every = lease_timings.map(|timings| timings.heartbeat_every);
        let heartbeat_every = every.or(self.heartbeat_every).unwrap_or(HEARTBEAT_EVERY);
        check_times(heartbeat_every, lease_timings.as_ref())?;
        let own_dir = identity.and_then(WorkerIdentity::state_dir);
        let state_dir = self.state_dir.or(own_dir);
        let state_dir = state_dir.unwrap_or_else(|| default_state_dir(&executor));
        let process = WorkerProcess {
            host: host_name(),
            pid: std::process::id(),
            started_at: Timestamp::from_millis(self.clock.now_ms()),
        };
        Ok(Settings {
            incarnation: incarnation(&process),
            process,
            executor,
            broker,
            state_dir,
            handlers: registry(self.native, self.kinds)?,
            trust: TriggerVerifier::new(self.trust),
            unverified_native: self.unverified_native,
            concurrency: self.concurrency,
            labels,
            weight,
            log_bytes: self.log_bytes,
            clock: self.clock,
            drain_timeout: self.drain_timeout,
            heartbeat_every,
            lease_timings,
            on_lease_renewed: self.on_lease_renewed,
            boot_clock: self.boot_clock,
            origin: self
                .identity
                .map_or_else(Origin::unsealed, WorkerIdentity::into_origin),
        })
    }
}

fn check_identity(executor: &ExecutorId, identity: Option<&WorkerIdentity>) -> Result<()> {
    match identity.map(WorkerIdentity::executor) {
        Some(own) if own != executor => {
            let problem = format!("the identity of the executor {executor}");
            Err(Error::setting("identity", &own.to_string(), &problem))
        }
        _ => Ok(()),
    }
}

fn labels(given: &[(String, String)]) -> Result<ExecutorLabels> {
    let mut labels = ExecutorLabels::new();
    for (key, value) in given {
        let (key, value) = check_label(key, value)
            .map_err(|e| Error::setting("label", &format!("{key}={value}"), &e.to_string()))?;
        labels.insert(key, value);
    }
    if labels.len() > MAX_EXECUTOR_LABELS {
        let problem = format!("at most {MAX_EXECUTOR_LABELS} labels");
        return Err(Error::setting("label", &labels.len().to_string(), &problem));
    }
    Ok(labels)
}

fn default_state_dir(executor: &ExecutorId) -> PathBuf {
    let base = PathBuf::from("cueline-state");
    // With '/', the directory of one group could be inside that of another. No name has a per cent sign.
    base.join(executor.group.as_str().replace('/', "%2F"))
        .join(executor.name.as_str())
}

fn check_times(heartbeat_every: Duration, timings: Option<&LeaseTimings>) -> Result<()> {
    if heartbeat_every.is_zero() {
        return Err(Error::setting("heartbeat_every", "0s", "more than 0"));
    }
    let Some(LeaseTimings {
        fence_after,
        failover_after,
        ..
    }) = timings
    else {
        return Ok(());
    };
    if *fence_after <= heartbeat_every.saturating_mul(2) {
        let problem = format!("more than twice heartbeat_every, which is {heartbeat_every:?}");
        return Err(Error::setting(
            "fence_after",
            &format!("{fence_after:?}"),
            &problem,
        ));
    }
    // Fenced attempts need the time between the two to end.
    if failover_after.saturating_mul(5) < fence_after.saturating_mul(6) {
        let problem = format!("at least six fifths of fence_after, which is {fence_after:?}");
        return Err(Error::setting(
            "failover_after",
            &format!("{failover_after:?}"),
            &problem,
        ));
    }
    Ok(())
}

fn registry(native: Named, kinds: Named) -> Result<Registry> {
    let mut handlers = Registry::default();
    for (name, handler) in native {
        handlers.add_native(&name, handler)?;
    }
    for (kind, handler) in kinds {
        handlers.add_kind(&kind, handler)?;
    }
    handlers.look_for_interpreters();
    Ok(handlers)
}

fn parse<T: FromStr<Err = NameError>>(field: &'static str, text: &str) -> Result<T> {
    text.parse()
        .map_err(|e: NameError| Error::setting(field, text, &e.to_string()))
}

/// Differs after each start. Containers may have the same process id and start in the same millisecond, hence the
/// random part. It is not drawn from a seeded generator, because it only identifies this process.
fn incarnation(process: &WorkerProcess) -> String {
    let nonce = RandomState::new().hash_one(process.pid);
    format!(
        "{:x}-{:x}-{nonce:x}",
        process.started_at.as_millis(),
        process.pid
    )
}

fn host_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::fs::read_to_string("/etc/hostname"))
        .ok()?;
    Some(text.trim().to_owned())
}
