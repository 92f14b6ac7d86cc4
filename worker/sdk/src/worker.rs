//! A worker from start to stop. It starts its tasks, and stops them in a fixed order.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cueline_broker::Listener;
use cueline_model::Session;
use cueline_runtime::Stop;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::connect::connect;
use crate::error::{Error, Result};
use crate::event_loop::{self, EventLoop, Halt, Services};
use crate::heartbeats::{HeartbeatKind, Heartbeats};
use crate::intake::Intake;
use crate::journal::Journal;
use crate::lease::BrokerLease;
use crate::readiness::Readiness;
use crate::report::{ReportPublisher, ReportQueue};
use crate::settings::{Hook, Settings};
use crate::signals::stop_on_signals;
use crate::starts::StartRecorder;
use crate::status::WorkerStatus;
use crate::tasks::{INTAKE, SETTLING, Tasks};
use crate::{control, settle};

/// The least time that a drained worker waits for the broker to confirm its last reports. It uses the rest of the drain
/// timeout if that is longer. The journal keeps the others.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it then waits for the broker to take its last acks, if it took not all reports.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// A worker that is ready to run. [`Worker::builder`] puts one together.
///
/// ```no_run
/// use cueline_worker::{Context, Failure, Result, Stop, VerifyingKeys, Worker};
///
/// async fn serve(broker: cueline_broker::Broker, keys: VerifyingKeys, stop: Stop) -> Result<()> {
///     let worker = Worker::builder("billing")
///         .broker(broker)
///         .trust(keys)
///         .handler("invoice", |_cx: Context| async { Ok::<_, Failure>("done") })
///         .build()?;
///     worker.run(stop).await // `stop.ask_soft()` elsewhere drains it
/// }
/// ```
pub struct Worker {
    settings: Arc<Settings>,
    status: Arc<WorkerStatus>,
    before_start: Option<Hook>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// How often the worker looks again which interpreters the machine has.
const INTERPRETERS_EVERY: Duration = Duration::from_mins(5);

/// Keeps what the heartbeats announce up to date. It looks on a thread of its own, because a search path may have a
/// directory that does not answer. Never returns.
async fn look_for_interpreters(settings: Arc<Settings>) {
    loop {
        tokio::time::sleep(INTERPRETERS_EVERY).await;
        let handlers = settings.handlers.clone();
        let looked = tokio::task::spawn_blocking(move || handlers.look_for_interpreters());
        if let Err(error) = looked.await {
            tracing::warn!(%error, "failed to look for interpreters; the last answer stays");
        }
    }
}

impl Worker {
    pub(crate) fn new(settings: Settings, before_start: Option<Hook>) -> Self {
        let status = Arc::new(WorkerStatus::default());
        status.set_problem(Some("the worker is starting".to_owned()));
        Self {
            settings: Arc::new(settings),
            status,
            before_start,
        }
    }

    /// Tells whether the worker takes triggers, also while it [runs](Self::run).
    pub fn readiness(&self) -> Readiness {
        Readiness::new(Arc::clone(&self.status))
    }

    /// Runs until SIGTERM or SIGINT, and then stops softly as [`run`](Self::run) does. A second signal stops it at
    /// once.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run).
    pub async fn run_until_signal(self) -> Result<()> {
        let stop = Stop::new();
        let signals = tokio::spawn(stop_on_signals(stop.clone()));
        let ended = self.run(stop).await;
        signals.abort();
        ended
    }

    /// Runs until `stop`.
    ///
    /// A soft stop accepts no more triggers and returns those that have not started. Running attempts may end within
    /// the drain timeout. The worker then reports their outcomes and returns. It tries that until the drain timeout is
    /// over, and for at least 10 s. A hard stop returns at once: the next start reports running attempts `lost`.
    ///
    /// # Errors
    ///
    /// - [`Error::Journal`] if the state directory cannot be used at the start, or not until the end of a drain, or if
    ///   the thread of the journal's database has ended.
    /// - [`Error::BeforeStart`] if the hook failed.
    /// - [`Error::Broker`] if the broker refuses the worker. A broker that cannot be reached is tried again without
    ///   limit.
    /// - [`Error::NameTaken`] if another worker runs under the same name and started earlier. The worker has stopped
    ///   softly then.
    /// - [`Error::Unreported`] if the worker has stopped softly, and the broker has not confirmed all outcomes.
    /// - [`Error::TaskEnded`] if a task of the worker failed.
    pub async fn run(self, stop: Stop) -> Result<()> {
        let settings = self.settings;
        let journal = Journal::open(&settings.state_dir).await?;
        if let Some(hook) = self.before_start {
            hook().await.map_err(Error::BeforeStart)?;
        }
        let lease = Arc::new(BrokerLease::new(
            settings.lease_timings,
            settings.on_lease_renewed.clone(),
            Arc::clone(&settings.boot_clock),
            settings.incarnation.clone(),
            Session(settings.clock.now_ms()),
        ));
        let state = WorkerState {
            settings,
            lease,
            status: self.status,
        };
        let Some(orders) = connect(&state.settings, &state.heartbeats(), &stop).await? else {
            return Ok(());
        };
        let (settings, status) = (Arc::clone(&state.settings), Arc::clone(&state.status));
        match state.run(journal, orders, stop).await {
            Ok(()) | Err(Halt::HardStop) => name_taken(&settings, &status).map_or(Ok(()), Err),
            Err(Halt::Failed(error @ Error::Unreported { .. })) => {
                Err(name_taken(&settings, &status).unwrap_or(error))
            }
            Err(Halt::Failed(error)) => Err(error),
        }
    }
}

/// The error of a worker that was refused, because another one has its name.
fn name_taken(settings: &Settings, status: &WorkerStatus) -> Option<Error> {
    let holder = status.name_holder()?;
    let host = holder.host.as_deref().unwrap_or("an unknown machine");
    Some(Error::NameTaken {
        executor: settings.executor.clone(),
        other: format!("process {} on {host}", holder.pid),
    })
}

/// Passes the caller's stop on to this worker. A refusal stops this worker alone, softly. Never returns.
async fn pass_on_stop(asked: Stop, own: Stop, status: Arc<WorkerStatus>) {
    tokio::select! {
        () = asked.soft() => {}
        () = status.refused() => {}
    }
    own.ask_soft();
    asked.hard().await;
    own.ask_hard();
    std::future::pending::<()>().await;
}

/// State that nearly all tasks share.
struct WorkerState {
    settings: Arc<Settings>,
    lease: Arc<BrokerLease>,
    status: Arc<WorkerStatus>,
}

impl WorkerState {
    fn heartbeats(&self) -> Heartbeats {
        Heartbeats {
            settings: Arc::clone(&self.settings),
            status: Arc::clone(&self.status),
            lease: Arc::clone(&self.lease),
        }
    }

    async fn run(self, journal: Journal, orders: Listener, asked: Stop) -> Result<(), Halt> {
        let stop = Stop::new();
        let (settlements, settle_queue) = mpsc::channel(settle::MAX_WAITING);
        let (senders, inbox) = event_loop::channels();
        let services = Services {
            settings: Arc::clone(&self.settings),
            lease: Arc::clone(&self.lease),
            status: Arc::clone(&self.status),
            reports: Arc::default(),
            starts: self.settings.lease_timings.map(|_| Arc::default()),
            ticker: Arc::default(),
            settlements,
            ended: senders.ended,
            stop: stop.clone(),
        };
        let reports = Arc::clone(&services.reports);
        let starts = services.starts.clone();
        let intake = Intake {
            settings: Arc::clone(&self.settings),
            status: Arc::clone(&self.status),
            reports: Arc::clone(&reports),
            lease: Arc::clone(&self.lease),
            event_loop: senders.received,
        };
        let ticker = Arc::clone(&services.ticker);
        let mut event_loop = EventLoop::new(services, journal);
        event_loop.recover().await?;

        let mut tasks = Tasks::default();
        let status = Arc::clone(&self.status);
        tasks.spawn("stop", pass_on_stop(asked, stop.clone(), status));
        let (settings, status) = (Arc::clone(&self.settings), Arc::clone(&self.status));
        let publisher = ReportPublisher::new(settings, Arc::clone(&reports), status);
        tasks.spawn("report publisher", publisher.run());
        tasks.spawn("attempt ticker", async move { ticker.run().await });
        self.spawn_settling(&mut tasks, settle_queue);
        if let Some(queue) = starts {
            let recorder = StartRecorder {
                settings: Arc::clone(&self.settings),
                lease: Arc::clone(&self.lease),
                queue,
                status: Arc::clone(&self.status),
                recorded: senders.recorded,
            };
            tasks.spawn("recorder of starts", recorder.run());
        }
        self.spawn_lease(&mut tasks, orders, senders.orders);
        tasks.spawn(INTAKE, intake.run(stop.clone()));
        if self.settings.handlers.has_scripts() {
            let settings = Arc::clone(&self.settings);
            tasks.spawn("search for interpreters", look_for_interpreters(settings));
        }
        let executor = &self.settings.executor;
        tracing::info!(group = %executor.group, executor = %executor.name, capabilities = ?self.settings.handlers, "worker started");

        let ended = tokio::select! {
            ended = event_loop.run(inbox) => ended,
            name = tasks.first_to_end(&stop) => return Err(Halt::Failed(Error::TaskEnded(name))),
        };
        if let Err(halt) = ended {
            event_loop.abandon().await;
            return Err(halt);
        }
        self.finish(event_loop, &reports, &mut tasks, &stop).await
    }

    /// After a drain: waits for the confirmation of the last reports and acks, and then announces the end. Fails if
    /// outcomes are left that only the journal has.
    async fn finish(
        &self,
        event_loop: EventLoop,
        reports: &ReportQueue,
        tasks: &mut Tasks,
        stop: &Stop,
    ) -> Result<(), Halt> {
        let least = Instant::now() + FLUSH_TIMEOUT;
        let deadline = event_loop.drain_ends_at.map_or(least, |end| end.max(least));
        let is_flushed = tokio::select! {
            flushed = timeout_at(deadline, reports.emptied()) => flushed.is_ok(),
            () = stop.hard() => {
                event_loop.abandon().await;
                return Err(Halt::HardStop);
            }
        };
        let outcomes = reports.unconfirmed_outcomes();
        if !is_flushed {
            tracing::warn!(
                outcomes,
                "the broker did not confirm all reports before the stop; outcomes stay in the journal. Check the results queue, and start this worker again with its state directory before schedulers fail it over"
            );
        }
        event_loop.finish().await;
        // A broker that took no reports takes no acks either.
        let limit = if is_flushed {
            FLUSH_TIMEOUT
        } else {
            SETTLE_TIMEOUT
        };
        tasks.settled(limit).await;
        self.heartbeats().send(HeartbeatKind::Stopped).await;
        let executor = &self.settings.executor;
        tracing::info!(group = %executor.group, executor = %executor.name, "worker stopped");
        if outcomes > 0 {
            return Err(Halt::Failed(Error::Unreported { outcomes }));
        }
        Ok(())
    }

    fn spawn_settling(&self, tasks: &mut Tasks, queue: mpsc::Receiver<settle::Settlements>) {
        let (settings, status) = (Arc::clone(&self.settings), Arc::clone(&self.status));
        tasks.spawn(SETTLING, settle::run(settings, status, queue));
    }

    fn spawn_lease(
        &self,
        tasks: &mut Tasks,
        listener: Listener,
        orders: mpsc::Sender<control::Order>,
    ) {
        let (settings, lease) = (Arc::clone(&self.settings), Arc::clone(&self.lease));
        let status = Arc::clone(&self.status);
        tasks.spawn(
            "control channel",
            control::run(settings, lease, status, listener, orders),
        );
        let lease = Arc::clone(&self.lease);
        tasks.spawn("check of the broker lease", async move {
            lease.run_checks().await;
        });
        tasks.spawn("heartbeats", self.heartbeats().run());
    }
}
