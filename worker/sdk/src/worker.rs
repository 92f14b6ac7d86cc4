//! A worker from start to stop: puts the parts together and ends them in order.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{BrokerError, ErrorKind, Listener, QueueId};
use cueline_runtime::{Backoff, Stop};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::beat::{Beats, Sign};

use crate::contact::Contact;
use crate::control::Order;
use crate::core::{Core, Parts, channels};
use crate::error::{Error, Result};
use crate::gauges::Gauges;
use crate::intake::Intake;
use crate::journal::Journal;
use crate::outbox::Outbox;
use crate::reporter::{MAX_TOGETHER_BYTES, Reporter};
use crate::settings::{Hook, Settings};
use crate::stores::Stores;
use crate::{control, settle};

/// How long a drained worker waits for the broker to take its last reports. What is left is in the journal.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// A worker, ready to run.
pub struct Worker {
    settings: Arc<Settings>,
    before_start: Option<Hook>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Worker {
    pub(crate) fn new(settings: Settings, before_start: Option<Hook>) -> Self {
        Self {
            settings: Arc::new(settings),
            before_start,
        }
    }

    /// Runs until SIGTERM or SIGINT: then drains, reports and leaves. A second signal ends it at once; the journal
    /// keeps what was not finished.
    pub async fn run_until_signal(self) -> Result<()> {
        let stop = Stop::new();
        let signals = stop.clone();
        let listening = tokio::spawn(async move {
            next_signal().await;
            signals.ask_soft();
            next_signal().await;
            signals.ask_hard();
        });
        let done = self.run(stop).await;
        listening.abort();
        done
    }

    /// Runs until `stop`. Softly: takes no more, gives back what has not started, lets what runs end within the
    /// drain timeout, reports and leaves. Hard: returns at once.
    pub async fn run(self, stop: Stop) -> Result<()> {
        let settings = self.settings;
        let journal = Journal::open(&settings.state_dir).await?;
        if let Some(hook) = self.before_start {
            hook().await.map_err(Error::BeforeStart)?;
        }
        let contact = Arc::new(Contact::new(&settings));
        let gauges = Arc::default();
        let beats = || Beats {
            settings: Arc::clone(&settings),
            gauges: Arc::clone(&gauges),
            contact: Arc::clone(&contact),
        };
        let Some(orders) = connect(&settings, &beats(), &stop).await? else {
            return Ok(());
        };
        let (settle_in, settle_out) = mpsc::channel(settle::MAX_WAITING);
        let parts = Parts {
            settings: Arc::clone(&settings),
            journal,
            stores: Arc::default(),
            outbox: Arc::default(),
            watch: Arc::default(),
            gauges: Arc::clone(&gauges),
            contact: Arc::clone(&contact),
            settle: settle_in,
            stop: stop.clone(),
        };
        let (outbox, watch) = (Arc::clone(&parts.outbox), Arc::clone(&parts.watch));
        let stores = Arc::clone(&parts.stores);
        let (voices, ears) = channels();
        let mut core = Core::new(parts, &voices);
        core.recover().await?;

        let mut tasks = Tasks::default();
        let intake = Intake {
            settings: Arc::clone(&settings),
            gauges: Arc::clone(&gauges),
            outbox: Arc::clone(&outbox),
            contact: Arc::clone(&contact),
            core: voices.arrivals.clone(),
        };
        tasks.start_reporting(&settings, &outbox, &stores, &gauges);
        tasks.spawn("watch over attempts", async move { watch.run().await });
        let settling = settle::run(Arc::clone(&settings), Arc::clone(&gauges), settle_out);
        tasks.spawn("settling of triggers", settling);
        tasks.start_contact(&settings, &contact, orders, voices.orders.clone());
        tasks.spawn("heartbeat", beats().run());
        tasks.spawn(INTAKE, intake.run(stop.clone()));
        drop(voices);
        tracing::info!(group = %settings.group, name = %settings.name, can = ?settings.handlers, "the worker runs");

        let drained = tokio::select! {
            drained = core.run(ears) => drained?,
            name = tasks.broken(&stop) => return Err(Error::Broken(name)),
        };
        if !drained {
            core.abandon().await;
            return Ok(());
        }
        if timeout(FLUSH_TIMEOUT, outbox.empty()).await.is_err() {
            tracing::warn!(
                "some outcomes could not be reported; the journal keeps them for the next start"
            );
        }
        core.finish().await;
        tasks.settled().await;
        beats().announce(Sign::Leaves).await;
        tracing::info!(group = %settings.group, name = %settings.name, "the worker has left");
        Ok(())
    }
}

const INTAKE: &str = "intake of triggers";

/// The tasks around the core. They end when this is dropped.
#[derive(Default)]
struct Tasks(JoinSet<&'static str>);

impl Tasks {
    fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(async move {
            task.await;
            name
        });
    }

    fn start_reporting(
        &mut self,
        settings: &Arc<Settings>,
        outbox: &Arc<Outbox>,
        stores: &Arc<Stores>,
        gauges: &Arc<Gauges>,
    ) {
        let reporter = Reporter {
            settings: Arc::clone(settings),
            outbox: Arc::clone(outbox),
            stores: Arc::clone(stores),
            gauges: Arc::clone(gauges),
            counter: 0,
            together_bytes: MAX_TOGETHER_BYTES,
        };
        self.spawn("reporter", reporter.run());
    }

    fn start_contact(
        &mut self,
        settings: &Arc<Settings>,
        contact: &Arc<Contact>,
        orders: Listener,
        core: mpsc::Sender<Order>,
    ) {
        let hearing = control::run(Arc::clone(settings), Arc::clone(contact), orders, core);
        self.spawn("control channel", hearing);
        let contact = Arc::clone(contact);
        self.spawn("watch over the contact", async move {
            contact.watch().await;
        });
    }

    /// Returns when a task has ended that should not have.
    async fn broken(&mut self, stop: &Stop) -> &'static str {
        loop {
            match self.0.join_next().await {
                Some(Ok(INTAKE)) if stop.is_soft() => {}
                Some(Ok(name)) => return name,
                Some(Err(error)) => {
                    tracing::error!(%error, "a part of the worker failed");
                    return "worker";
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until what was journalled is settled; it ends by itself when the core is gone.
    async fn settled(&mut self) {
        let done = async {
            while let Some(ended) = self.0.join_next().await {
                if matches!(ended, Ok("settling of triggers")) {
                    return;
                }
            }
        };
        if timeout(FLUSH_TIMEOUT, done).await.is_err() {
            tracing::warn!("some triggers could not be settled; they will come again");
        }
    }
}

/// Declares the queues and listens for orders, however long that takes. `None` when the worker is to stop.
async fn connect(settings: &Settings, beats: &Beats, stop: &Stop) -> Result<Option<Listener>> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        // A scheduler that hears of this worker declares its queue, where the worker itself may not.
        beats.announce(Sign::Joins).await;
        match try_connect(settings).await {
            Ok(listener) => return Ok(Some(listener)),
            Err(NotYet { error, .. }) if error.kind() == ErrorKind::Transient => {
                tracing::warn!(%error, "the broker cannot be used; trying again");
            }
            Err(NotYet {
                error,
                queue: Some(queue),
            }) if error.kind() == ErrorKind::Permanent => {
                tracing::warn!(%error, %queue, "the queue cannot be used: either this worker's user may not declare it and no scheduler has yet, or it has no \
                    right to the queue at all; trying again");
            }
            Err(NotYet { error, .. }) => return Err(error.into()),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_wait()) => {}
            () = stop.soft() => return Ok(None),
        }
    }
}

/// Why the worker cannot begin, and which queue it is about.
struct NotYet {
    error: BrokerError,
    queue: Option<QueueId>,
}

async fn try_connect(settings: &Settings) -> Result<Listener, NotYet> {
    for queue in [settings.queue(), QueueId::Results, QueueId::Dead] {
        let declared = settings.broker.declare(&queue).await;
        declared.map_err(|error| NotYet {
            error,
            queue: Some(queue),
        })?;
    }
    let listening = control::listen(settings).await;
    listening.map_err(|error| NotYet { error, queue: None })
}

#[cfg(unix)]
async fn next_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (term, interrupt) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    match (term, interrupt) {
        (Ok(mut term), Ok(mut interrupt)) => {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "signals cannot be heard");
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(not(unix))]
async fn next_signal() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::error!(%error, "signals cannot be heard");
        std::future::pending::<()>().await;
    }
}
