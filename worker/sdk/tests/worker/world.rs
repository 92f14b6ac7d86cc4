//! A broker, a worker on it, and what the worker reports.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, BrokerOptions, Channel, Driver, Outgoing, QueueId, Settlement};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use cueline_model::{
    AttemptEvent, Block, DurationMs, Fence, HandlerSpec, JobId, OnLost, Outcome, OutcomeKind,
    RunId, RunKind, Scope, Shard, StoreId, Timestamp,
};
use cueline_protocol::{
    Control, JobSnapshot, ReportMessage, Trigger, VERSION, decode_reports, encode,
};
use cueline_worker::{Builder, Context, Failure, Stop, StopReason, Worker};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What no condition takes longer than.
const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct World {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) broker: Broker,
    pub(crate) driver: Arc<dyn Driver>,
    events: Arc<Mutex<Vec<ReportMessage>>>,
    /// Messages that they came in.
    pub(crate) messages: Arc<AtomicUsize>,
    collector: JoinHandle<()>,
    /// Runs of the `gate` handler that have started, in order.
    pub(crate) entered: Arc<Mutex<Vec<i64>>>,
    /// Lets one run of the `gate` handler through.
    pub(crate) gate: Arc<Semaphore>,
    /// Calls of the `noop` handler.
    pub(crate) calls: Arc<AtomicUsize>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.collector.abort();
    }
}

/// A worker that runs.
pub(crate) struct Live {
    pub(crate) stop: Stop,
    pub(crate) task: JoinHandle<cueline_worker::Result<()>>,
}

impl Live {
    /// As after kill -9: it is gone at once, whatever it did.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub(crate) async fn drain(self) {
        self.stop.ask_soft();
        self.task.await.expect("no panic").expect("no error");
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(EmbeddedOptions::default()).await
    }

    pub(crate) async fn with(options: EmbeddedOptions) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("broker.db");
        let options = EmbeddedOptions {
            // What a killed worker had fetched and not acked comes back soon.
            ack_wait: Duration::from_secs(1),
            ..options
        };
        let driver = EmbeddedDriver::open(&path, options).await.expect("broker");
        let driver: Arc<dyn Driver> = Arc::new(driver);
        let broker = Broker::from_arc(Arc::clone(&driver), BrokerOptions::default());
        broker.declare(&QueueId::Results).await.expect("declare");
        broker.declare(&own_queue()).await.expect("declare");
        let (events, messages) = (Arc::default(), Arc::default());
        let collected = collect(broker.clone(), Arc::clone(&events), Arc::clone(&messages));
        let collector = tokio::spawn(collected);
        Self {
            directory,
            broker,
            driver,
            events,
            messages,
            collector,
            entered: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            calls: Arc::default(),
        }
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// A worker with the handlers `noop`, `gate`, `stubborn` and `panic`.
    pub(crate) fn builder(&self) -> Builder {
        let (entered, gate) = (Arc::clone(&self.entered), Arc::clone(&self.gate));
        let calls = Arc::clone(&self.calls);
        Worker::builder("default")
            .name("worker-1")
            .broker(self.broker.clone())
            .state_dir(self.state_dir())
            .handler("noop", move |_cx: Context| {
                calls.fetch_add(1, Ordering::SeqCst);
                async { Ok::<_, Failure>("fine") }
            })
            .handler("gate", move |cx: Context| {
                let (entered, gate) = (Arc::clone(&entered), Arc::clone(&gate));
                async move {
                    entered.lock().expect("lock").push(cx.run().0);
                    tokio::select! {
                        permit = gate.acquire() => permit.expect("open").forget(),
                        reason = cx.stopped() => return Err(Failure::new(format!("stopped: {reason:?}"))),
                    }
                    Ok(())
                }
            })
            .handler("stubborn", |_cx: Context| async {
                std::future::pending::<Result<(), Failure>>().await
            })
            .handler("panic", |cx: Context| async move {
                assert!(cx.attempt() == 0, "no such invoice");
                Ok::<(), Failure>(())
            })
    }

    pub(crate) fn start(&self) -> Live {
        run(self.builder())
    }

    pub(crate) async fn publish(&self, triggers: &[Trigger]) {
        let messages: Vec<Outgoing> = triggers.iter().map(message).collect();
        self.publish_raw(&messages).await;
    }

    pub(crate) async fn publish_raw(&self, messages: &[Outgoing]) {
        let answers = self.broker.publish(messages).await.expect("publish");
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }

    pub(crate) async fn cancel(&self, run: i64) {
        let order = Control::Cancel {
            v: VERSION,
            store: StoreId(1),
            run: RunId(run),
        };
        let payload = Bytes::from(encode(&order));
        let sent = self.broker.announce(&control_channel(), payload).await;
        sent.expect("announce");
    }

    pub(crate) fn events(&self) -> Vec<ReportMessage> {
        self.events.lock().expect("lock").clone()
    }

    /// How the attempts of `run` ended, in the order of the reports.
    pub(crate) fn outcomes(&self, run: i64) -> Vec<Outcome> {
        let events = self.events();
        let of_run = events.into_iter().filter(|e| e.run == RunId(run));
        of_run
            .filter_map(|e| match e.event {
                AttemptEvent::Ended { outcome } => Some(outcome),
                _ => None,
            })
            .collect()
    }

    pub(crate) async fn outcome(&self, run: i64) -> Outcome {
        self.wait(&format!("an outcome of run {run}"), || {
            self.outcomes(run).pop()
        })
        .await
    }

    pub(crate) async fn kinds(&self, runs: impl IntoIterator<Item = i64>) -> Vec<OutcomeKind> {
        let mut kinds = Vec::new();
        for run in runs {
            kinds.push(self.outcome(run).await.kind);
        }
        kinds
    }

    pub(crate) fn entered(&self) -> Vec<i64> {
        self.entered.lock().expect("lock").clone()
    }

    pub(crate) async fn wait_entered(&self, runs: &[i64]) {
        self.wait(&format!("runs {runs:?} to start"), || {
            (self.entered() == runs).then_some(())
        })
        .await;
    }

    /// Waits until the worker has settled all triggers.
    pub(crate) async fn wait_settled(&self) {
        let start = Instant::now();
        loop {
            let stats = self.broker.stats(&[own_queue()]).await.expect("stats");
            let own = stats.iter().find(|s| s.queue == own_queue());
            if own.is_none_or(|s| s.ready + s.unsettled == 0) {
                return;
            }
            assert!(
                start.elapsed() < DEADLINE,
                "triggers are not settled: {own:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the worker has taken all triggers from its queue.
    pub(crate) async fn wait_fetched(&self) {
        let start = Instant::now();
        loop {
            let stats = self.broker.stats(&[own_queue()]).await.expect("stats");
            if stats.iter().all(|s| s.ready == 0) {
                return;
            }
            assert!(start.elapsed() < DEADLINE, "triggers are left: {stats:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn wait<T>(&self, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = condition() {
                return found;
            }
            assert!(
                start.elapsed() < DEADLINE,
                "waited in vain for {what}; entered {:?}, events {:#?}",
                self.entered(),
                self.events()
            );
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
}

async fn collect(
    broker: Broker,
    events: Arc<Mutex<Vec<ReportMessage>>>,
    messages: Arc<AtomicUsize>,
) {
    loop {
        let queue = QueueId::Results;
        let Ok(deliveries) = broker.fetch(&queue, 1_000, Duration::from_secs(1)).await else {
            return;
        };
        let settled: Vec<_> = deliveries
            .iter()
            .map(|d| (d.receipt, Settlement::Ack))
            .collect();
        messages.fetch_add(deliveries.len(), Ordering::SeqCst);
        let read = deliveries
            .iter()
            .flat_map(|d| decode_reports(&d.payload))
            .map(|event| event.expect("a readable event"));
        events.lock().expect("lock").extend(read);
        broker.settle(&queue, &settled).await.expect("settle");
    }
}

pub(crate) fn run(builder: Builder) -> Live {
    let worker = builder.build().expect("a worker");
    let stop = Stop::new();
    let task = tokio::spawn(worker.run(stop.clone()));
    Live { stop, task }
}

pub(crate) fn control_channel() -> Channel {
    Channel::Control {
        group: "default".to_owned(),
        executor: "worker-1".to_owned(),
    }
}

pub(crate) fn own_queue() -> QueueId {
    QueueId::Executor {
        group: "default".to_owned(),
        executor: "worker-1".to_owned(),
    }
}

/// A trigger of attempt 1 of `run` of job 1.
pub(crate) fn trigger(run: i64, handler: &str, block: Block) -> Trigger {
    let job = JobSnapshot {
        id: JobId(1),
        name: "report".parse().expect("name"),
        version: 1,
        handler: HandlerSpec::Native(handler.to_owned()),
        block,
        scope: Scope::default(),
        backlog: 1_000,
        timeout: None,
        kill_grace: DurationMs::secs(5),
        on_lost: OnLost::default(),
        fence: Fence::default(),
        priority: 5,
        lane_per_shard: false,
    };
    Trigger {
        v: VERSION,
        store: StoreId(1),
        run: RunId(run),
        attempt: 1,
        group: "default".parse().expect("name"),
        executor: "worker-1".parse().expect("name"),
        kind: RunKind::Schedule,
        fire_at: Timestamp::from_millis(1),
        shard: Shard::whole(),
        params: None,
        job: Arc::new(job),
        deadline: Timestamp::from_millis(i64::MAX / 2),
        signature: None,
    }
}

/// The same with another job part.
pub(crate) fn with_job(mut trigger: Trigger, change: impl FnOnce(&mut JobSnapshot)) -> Trigger {
    let mut job = (*trigger.job).clone();
    change(&mut job);
    trigger.job = Arc::new(job);
    trigger
}

pub(crate) fn message(trigger: &Trigger) -> Outgoing {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Outgoing {
        queue: own_queue(),
        topic: trigger.job.name.to_string(),
        // Never taken for a duplicate: these tests send the same trigger twice on purpose.
        id: format!("{}:{}:{number}", trigger.run, trigger.attempt),
        payload: Bytes::from(encode(trigger)),
    }
}

pub(crate) fn stopped(reason: StopReason) -> String {
    format!("stopped: {reason:?}")
}
