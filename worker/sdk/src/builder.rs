//! Putting a worker together.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::Broker;
use cueline_model::{ExecutorName, GroupName};
use cueline_protocol::VerifyingKeys;
use cueline_runtime::{BootClock, Clock, SystemBootClock, SystemClock};

use crate::context::Context;
use crate::error::{BoxError, Error, Result};
use crate::handler::{Handler, from_fn};
use crate::registry::{KINDS, Registry};
use crate::returned::{Failure, Output};
use crate::settings::{Hook, Lease, Limits, Reach, Settings};
use crate::worker::Worker;

/// Puts a [`Worker`] together. What is not set has the default that its method names.
pub struct Builder {
    group: String,
    name: Option<String>,
    broker: Option<Broker>,
    state_dir: Option<PathBuf>,
    native: Named,
    kinds: Named,
    trust: VerifyingKeys,
    concurrency: usize,
    log_bytes: usize,
    clock: Arc<dyn Clock>,
    drain_timeout: Duration,
    beat_every: Option<Duration>,
    fence_after: Option<Duration>,
    failover_after: Duration,
    shares_fate: bool,
    lease: Option<Lease>,
    boot: Arc<dyn BootClock>,
    before_start: Option<Hook>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("group", &self.group)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Starts to put together a worker of this executor group.
    pub fn builder(group: &str) -> Builder {
        Builder::new(group)
    }
}

impl Builder {
    pub(crate) fn new(group: &str) -> Self {
        Self {
            group: group.to_owned(),
            name: None,
            broker: None,
            state_dir: None,
            native: Vec::new(),
            kinds: Vec::new(),
            trust: VerifyingKeys::default(),
            concurrency: 256,
            log_bytes: 1024 * 1024,
            clock: Arc::new(SystemClock),
            drain_timeout: Duration::from_secs(30),
            beat_every: None,
            fence_after: None,
            failover_after: Duration::from_secs(30),
            shares_fate: false,
            lease: None,
            boot: Arc::new(SystemBootClock),
            before_start: None,
        }
    }

    /// Its name, unique in the group and the same after each restart; the machine's name by default.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Where triggers come from and results go. Required.
    #[must_use]
    pub fn broker(mut self, broker: Broker) -> Self {
        self.broker = Some(broker);
        self
    }

    /// The directory of the journal, which one worker at a time may use; `cueline-state/<group>/<name>` by default.
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

    /// Allows a built-in kind, `shell`, `command` or `http`, and runs it with this handler. Only from triggers that
    /// a trusted key has signed.
    #[must_use]
    pub fn kind(mut self, kind: &str, handler: impl Handler) -> Self {
        self.kinds.push((kind.to_owned(), Arc::new(handler)));
        self
    }

    /// The schedulers' public keys; none by default, so that no kind can run.
    #[must_use]
    pub fn trust(mut self, keys: VerifyingKeys) -> Self {
        self.trust = keys;
        self
    }

    /// How many handlers run at once at the most; 256 by default.
    #[must_use]
    pub fn concurrency(mut self, most: usize) -> Self {
        self.concurrency = most;
        self
    }

    /// How many bytes of log an attempt may keep: the first and the last half; 1 MiB by default.
    #[must_use]
    pub fn log_bytes(mut self, most: usize) -> Self {
        self.log_bytes = most;
        self
    }

    /// What tells the time; the machine's clock by default.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// How long running attempts may go on after a soft stop; 30 s by default. Then they are told to stop.
    #[must_use]
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// How often it gives a sign of life; by default a quarter of [`fence_after`](Self::fence_after), and at least every 5 s.
    #[must_use]
    pub fn beat_every(mut self, every: Duration) -> Self {
        self.beat_every = Some(every);
        self
    }

    /// How long it may be without contact to the broker; by default two thirds of [`failover_after`](Self::failover_after), 20 s. Then it starts nothing, and stops what runs
    /// unless the job says `fence = "keep"`; what waits goes on if contact is back in time. More than twice [`beat_every`](Self::beat_every), so that one lost beat stops nothing, and less than
    /// [`failover_after`](Self::failover_after).
    #[must_use]
    pub fn fence_after(mut self, after: Duration) -> Self {
        self.fence_after = Some(after);
        self
    }

    /// After how long a silence the schedulers give its work to others: what is set there; 30 s by default. What is stopped for want of contact has
    /// ended 2 s before, whatever the job's kill grace; a fifteenth before where it is less than 30 s. What waits is given back half-way between
    /// [`fence_after`](Self::fence_after) and that, after 24 s.
    #[must_use]
    pub fn failover_after(mut self, after: Duration) -> Self {
        self.failover_after = after;
        self
    }

    /// The schedulers, and the broker, live and die with this process: nobody gives its work to others while it is away. Then nothing is stopped
    /// for want of contact, and what waited goes on after a restart however long that took.
    #[must_use]
    pub fn shares_fate_with_schedulers(mut self) -> Self {
        self.shares_fate = true;
        self
    }

    /// Called whenever contact with the broker was proven, with how far that reaches: what runs has to have ended a little before
    /// [`failover_after`](Self::failover_after) has passed since, as said there, unless contact is proven again. For whoever can end it when
    /// this process cannot. Has to return at once. Never called by a worker that shares its schedulers' fate, nor for a proof that is too old to start
    /// anything by.
    #[must_use]
    pub fn on_contact(mut self, tell: impl Fn(Reach) + Send + Sync + 'static) -> Self {
        self.lease = Some(Lease(Arc::new(tell)));
        self
    }

    /// What contact is measured with; the time since the machine's start by default.
    #[must_use]
    pub fn boot_clock(mut self, clock: Arc<dyn BootClock>) -> Self {
        self.boot = clock;
        self
    }

    /// Called once, with the state directory locked and before anything is started: the place to end what an earlier
    /// incarnation has left behind. An error keeps the worker from running.
    #[must_use]
    pub fn before_start<F, Fut>(mut self, hook: F) -> Self
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.before_start = Some(Box::new(move || Box::pin(hook())));
        self
    }

    /// The worker, or which setting is wrong and why.
    pub fn build(self) -> Result<Worker> {
        let group: GroupName = parse("group", &self.group)?;
        let name = self.name.or_else(machine_name).unwrap_or_default();
        let name: ExecutorName = parse("name", &name)?;
        let broker = self
            .broker
            .ok_or_else(|| wrong("broker", "", "a worker needs a broker"))?;
        if self.concurrency == 0 {
            return Err(wrong("concurrency", "0", "at least 1"));
        }
        if self.log_bytes < 1024 {
            let given = self.log_bytes.to_string();
            return Err(wrong("log_bytes", &given, "at least 1024"));
        }
        let limits = Limits {
            fence_after: self
                .fence_after
                .unwrap_or_else(|| Limits::usual_fence(self.failover_after)),
            failover_after: self.failover_after,
        };
        let limits = (!self.shares_fate).then_some(limits);
        let beat_every = self
            .beat_every
            .or(limits.map(|limits| limits.beat_every()))
            .unwrap_or(LONE_BEAT);
        if beat_every.is_zero() {
            return Err(wrong("beat_every", "0s", "more than nothing"));
        }
        if let Some(limits) = &limits {
            check_limits(limits, beat_every)?;
        }
        let handlers = registry_of(self.native, self.kinds)?;
        let state_dir = self.state_dir.unwrap_or_else(|| {
            let group = PathBuf::from("cueline-state").join(group.as_str());
            group.join(name.as_str())
        });
        let settings = Settings {
            incarnation: format!("{:x}-{:x}", self.clock.now_ms(), std::process::id()),
            group,
            name,
            broker,
            state_dir,
            handlers,
            trust: self.trust,
            concurrency: self.concurrency,
            log_bytes: self.log_bytes,
            clock: self.clock,
            drain_timeout: self.drain_timeout,
            beat_every,
            limits,
            lease: self.lease,
            boot: self.boot,
        };
        Ok(Worker::new(settings, self.before_start))
    }
}

/// How often a worker gives a sign of life of which nothing depends.
const LONE_BEAT: Duration = Duration::from_secs(5);

fn check_limits(limits: &Limits, beat_every: Duration) -> Result<()> {
    let Limits {
        fence_after,
        failover_after,
    } = limits;
    if *fence_after <= beat_every.saturating_mul(2) {
        let problem = format!("more than twice beat_every, which is {beat_every:?}");
        return Err(wrong("fence_after", &format!("{fence_after:?}"), &problem));
    }
    if failover_after <= fence_after {
        let problem = format!("more than fence_after, which is {fence_after:?}");
        let given = format!("{failover_after:?}");
        return Err(wrong("failover_after", &given, &problem));
    }
    Ok(())
}

type Named = Vec<(String, Arc<dyn Handler>)>;

fn registry_of(native: Named, kinds: Named) -> Result<Registry> {
    let mut handlers = Registry::default();
    for (handler, run) in native {
        if handler.is_empty() {
            return Err(wrong("handler", "", "a name must not be empty"));
        }
        if handlers.native.insert(handler.clone(), run).is_some() {
            return Err(wrong("handler", &handler, "registered twice"));
        }
    }
    for (kind, run) in kinds {
        if !KINDS.contains(&kind.as_str()) {
            return Err(wrong("kind", &kind, "one of shell, command, http"));
        }
        if handlers.kinds.insert(kind.clone(), run).is_some() {
            return Err(wrong("kind", &kind, "registered twice"));
        }
    }
    Ok(handlers)
}

fn wrong(field: &'static str, given: &str, problem: &str) -> Error {
    Error::Setting {
        field,
        given: given.to_owned(),
        problem: problem.to_owned(),
    }
}

fn parse<T>(field: &'static str, text: &str) -> Result<T>
where
    T: std::str::FromStr<Err = cueline_model::NameError>,
{
    text.parse()
        .map_err(|e: cueline_model::NameError| wrong(field, text, &e.to_string()))
}

fn machine_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::fs::read_to_string("/etc/hostname"))
        .ok()?;
    Some(text.trim().to_owned())
}
