//! A broker, a worker on it, and the worker's reports.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{
    Broker, BrokerOptions, Channel, Driver, Outgoing, QueueId, Settlement, StartLog,
};
use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
use cueline_model::{
    AttemptEvent, AttemptId, Block, DurationMs, Fence, HandlerSpec, JobId, OnLost, Outcome,
    OutcomeKind, RunId, RunKind, Scope, Session, Shard, StoreId, Timestamp,
};
use cueline_protocol::origin::Sealed;
use cueline_protocol::{
    Control, HeartbeatMessage, HoldingsReply, Incarnation, JobSnapshot, ReportMessage, Trigger,
    VERSION, WorkerProcess, decode, decode_reports, encode,
};
use cueline_test_support::{SOON, eventually};
use cueline_worker::{Builder, Context, Failure, Readiness, Stop, StopReason, Worker};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::faulty_link::FaultyLink;

/// The store of all triggers, unless a test says otherwise.
pub(crate) const STORE: StoreId = StoreId(1);

pub(crate) struct Fixture {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) broker: Broker,
    /// The worker's link to the broker.
    pub(crate) link: Arc<FaultyLink>,
    reports: Arc<Mutex<Vec<ReportMessage>>>,
    /// The number of messages that carried the reports.
    pub(crate) messages: Arc<AtomicUsize>,
    collector: JoinHandle<()>,
    /// Runs of the `gate` handler that have started, in order.
    pub(crate) started: Arc<Mutex<Vec<i64>>>,
    /// Each permit lets one run of the `gate` handler return.
    pub(crate) gate: Arc<Semaphore>,
    /// Calls of the `noop` handler.
    pub(crate) calls: Arc<AtomicUsize>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.collector.abort();
    }
}

pub(crate) struct RunningWorker {
    pub(crate) stop: Stop,
    pub(crate) task: JoinHandle<cueline_worker::Result<()>>,
}

impl RunningWorker {
    /// Ends the worker at once, as kill -9 does.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub(crate) async fn drain(self) {
        self.stop.ask_soft();
        self.task.await.expect("no panic").expect("no error");
    }
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(EmbeddedOptions::default()).await
    }

    pub(crate) async fn with(options: EmbeddedOptions) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("broker.db");
        let options = EmbeddedOptions {
            // Triggers that a killed worker had fetched and not acked are delivered again soon. What is being journaled
            // must not be, also while the disk stands still: tests count the answers.
            ack_wait: Duration::from_secs(8),
            ..options
        };
        let driver = EmbeddedDriver::open(&path, options).await.expect("broker");
        let driver: Arc<dyn Driver> = Arc::new(driver);
        let broker = Broker::from_arc(Arc::clone(&driver), BrokerOptions::default());
        broker.declare(&QueueId::Results).await.expect("declare");
        broker.declare(&own_queue()).await.expect("declare");
        broker.declare_log(&start_log()).await.expect("declare");
        let (reports, messages) = (Arc::default(), Arc::default());
        let collect = collect(broker.clone(), Arc::clone(&reports), Arc::clone(&messages));
        Self {
            directory,
            broker,
            link: FaultyLink::over(driver),
            reports,
            messages,
            collector: tokio::spawn(collect),
            started: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            calls: Arc::default(),
        }
    }

    /// Leaves reports in their queue, for tests that look at the messages.
    pub(crate) fn stop_collecting(&self) {
        self.collector.abort();
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// A worker with the handlers `noop`, `gate`, `stubborn` and `panic`, which it runs from unsigned triggers.
    pub(crate) fn builder(&self) -> Builder {
        self.verifying_builder().allow_unverified_native()
    }

    /// The same, but it verifies all triggers. It needs keys to trust.
    pub(crate) fn verifying_builder(&self) -> Builder {
        let (started, gate) = (Arc::clone(&self.started), Arc::clone(&self.gate));
        let stubborn = Arc::clone(&self.started);
        let calls = Arc::clone(&self.calls);
        Worker::builder("default")
            .name("worker-1")
            .broker(Broker::from_arc(
                self.link.clone(),
                BrokerOptions::default(),
            ))
            .state_dir(self.state_dir())
            .handler("noop", move |_cx: Context| {
                calls.fetch_add(1, Ordering::SeqCst);
                async { Ok::<_, Failure>("fine") }
            })
            .handler("gate", move |cx: Context| {
                let (started, gate) = (Arc::clone(&started), Arc::clone(&gate));
                async move {
                    started.lock().expect("lock").push(cx.run().0);
                    tokio::select! {
                        permit = gate.acquire() => permit.expect("open").forget(),
                        reason = cx.stopped() => return Err(Failure::new(stopped(reason))),
                    }
                    Ok(())
                }
            })
            .handler("stubborn", move |cx: Context| {
                stubborn.lock().expect("lock").push(cx.run().0);
                std::future::pending::<Result<(), Failure>>()
            })
            .handler("panic", |cx: Context| async move {
                assert!(cx.attempt() == 0, "no such invoice");
                Ok::<(), Failure>(())
            })
    }

    pub(crate) fn start(&self) -> RunningWorker {
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
        self.cancel_in(STORE, run).await;
    }

    pub(crate) async fn cancel_in(&self, store: StoreId, run: i64) {
        let order = Control::Cancel {
            v: VERSION,
            store,
            run: RunId(run),
        };
        let channel = control_channel();
        let sent = self.broker.announce(&channel, encode(&order).into());
        sent.await.expect("announce");
    }

    /// Tells the worker about two processes with its name.
    pub(crate) async fn name_conflict(&self, kept: &str, refused: &str) {
        let incarnation = |id: &str| Incarnation {
            incarnation: id.to_owned(),
            process: WorkerProcess {
                host: Some("elsewhere".to_owned()),
                pid: 7,
                started_at: Timestamp::from_millis(1),
            },
        };
        let conflict = Control::NameConflict {
            v: VERSION,
            kept: incarnation(kept),
            refused: incarnation(refused),
        };
        let channel = control_channel();
        let sent = self.broker.announce(&channel, encode(&conflict).into());
        sent.await.expect("announce");
    }

    /// Returns the attempts among these that the worker reports as held.
    pub(crate) async fn holdings(&self, store: StoreId, attempts: &[(i64, u32)]) -> Vec<AttemptId> {
        self.holdings_reply(store, attempts).await.held
    }

    /// How far the worker says it has read its queue.
    pub(crate) async fn fetched_until(&self, store: StoreId) -> Option<Timestamp> {
        self.holdings_reply(store, &[]).await.fetched_until
    }

    /// Whether the worker says that it has triggers that it has not handled yet.
    pub(crate) async fn is_behind(&self, store: StoreId) -> bool {
        self.holdings_reply(store, &[]).await.behind
    }

    async fn holdings_reply(&self, store: StoreId, attempts: &[(i64, u32)]) -> HoldingsReply {
        let id = |&(run, attempt): &(i64, u32)| AttemptId {
            run: RunId(run),
            attempt,
        };
        let query = Control::Holdings {
            v: VERSION,
            store,
            nonce: "00000000000000ff".to_owned(),
            attempts: attempts.iter().map(id).collect(),
        };
        let channel = control_channel();
        let answer = self.broker.ask(&channel, encode(&query).into(), SOON).await;
        let answer = answer.expect("ask").expect("an answer");
        decode(body(&answer)).expect("readable")
    }

    pub(crate) fn reports(&self) -> Vec<ReportMessage> {
        self.reports.lock().expect("lock").clone()
    }

    /// The reported outcomes of `run`, in the order of the reports.
    pub(crate) fn outcomes(&self, run: i64) -> Vec<Outcome> {
        let reports = self.reports().into_iter();
        reports
            .filter(|report| report.run == RunId(run))
            .filter_map(|report| match report.event {
                AttemptEvent::Ended { outcome } => Some(outcome),
                _ => None,
            })
            .collect()
    }

    /// Waits for this many outcomes of `run`.
    pub(crate) async fn wait_outcomes(&self, run: i64, count: usize) -> Vec<Outcome> {
        let expected = format!("{count} outcomes of run {run}");
        let outcomes = || Some(self.outcomes(run)).filter(|outcomes| outcomes.len() >= count);
        self.wait(&expected, outcomes).await
    }

    pub(crate) async fn outcome(&self, run: i64) -> Outcome {
        let outcomes = self.wait_outcomes(run, 1).await;
        outcomes.into_iter().next_back().expect("an outcome")
    }

    pub(crate) async fn kinds(&self, runs: impl IntoIterator<Item = i64>) -> Vec<OutcomeKind> {
        let mut kinds = Vec::new();
        for run in runs {
            kinds.push(self.outcome(run).await.kind);
        }
        kinds
    }

    pub(crate) fn started(&self) -> Vec<i64> {
        self.started.lock().expect("lock").clone()
    }

    pub(crate) async fn wait_started(&self, runs: &[i64]) {
        let expected = format!("runs {runs:?} to start");
        let started = || (self.started() == runs).then_some(());
        self.wait(&expected, started).await;
    }

    /// Waits until the worker has settled all triggers.
    pub(crate) async fn wait_settled(&self) {
        self.wait_left(0).await;
    }

    /// Waits until the worker has settled all triggers but this many.
    pub(crate) async fn wait_left(&self, count: u64) {
        self.wait_queue("settled triggers", |ready, unsettled| {
            ready + unsettled == count
        })
        .await;
    }

    /// Waits until the worker has fetched all triggers.
    pub(crate) async fn wait_fetched(&self) {
        self.wait_queue("fetched triggers", |ready, _| ready == 0)
            .await;
    }

    /// Triggers that no worker has.
    pub(crate) async fn queue_ready(&self) -> u64 {
        let stats = self.broker.stats(&[own_queue()]).await.expect("stats");
        stats.of(&own_queue()).map_or(0, |own| own.ready)
    }

    /// Waits until the numbers of triggers that no worker has, and that one has and has not settled, are as expected.
    pub(crate) async fn wait_queue(&self, expected: &str, enough: impl Fn(u64, u64) -> bool) {
        let look = async || {
            let queue = own_queue();
            let stats = self.broker.stats(&[own_queue()]).await.expect("stats");
            match stats.of(&queue) {
                Some(own) if !enough(own.ready, own.unsettled) => Err(format!("{own:?}")),
                _ => Ok(()),
            }
        };
        eventually(expected, SOON, look).await.expect("in time");
    }

    pub(crate) async fn wait<T>(&self, expected: &str, condition: impl Fn() -> Option<T>) -> T {
        let look = async || {
            let (started, reports) = (self.started(), self.reports());
            condition().ok_or_else(|| format!("started {started:?}, reports {reports:#?}"))
        };
        eventually(expected, SOON, look).await.expect("in time")
    }

    pub(crate) async fn listen_to_heartbeats(&self) -> Heartbeats {
        let listener = self.broker.listen(&Channel::Heartbeats).await;
        Heartbeats(listener.expect("listen"))
    }
}

pub(crate) struct Heartbeats(cueline_broker::Listener);

impl Heartbeats {
    pub(crate) async fn next(&mut self) -> cueline_model::Heartbeat {
        let message = timeout(SOON, self.0.recv()).await.expect("a heartbeat");
        let payload = message.expect("an open channel").payload;
        decode::<HeartbeatMessage>(&payload)
            .expect("readable")
            .heartbeat
    }

    /// The heartbeats that have arrived since the last call.
    pub(crate) fn received(&mut self) -> Vec<cueline_model::Heartbeat> {
        let mut messages = Vec::new();
        self.0.try_recv_many(&mut messages, usize::MAX);
        messages
            .iter()
            .map(|message| {
                let message = decode::<HeartbeatMessage>(&message.payload);
                message.expect("readable").heartbeat
            })
            .collect()
    }

    /// Waits for a heartbeat that says whether the worker accepts triggers.
    pub(crate) async fn wait_for_draining(&mut self, draining: bool) {
        let found = async { while self.next().await.draining != draining {} };
        timeout(SOON, found)
            .await
            .expect("a heartbeat of this kind");
    }
}

async fn collect(
    broker: Broker,
    reports: Arc<Mutex<Vec<ReportMessage>>>,
    messages: Arc<AtomicUsize>,
) {
    loop {
        let queue = QueueId::Results;
        let Ok(deliveries) = broker.fetch(&queue, 1_000, Duration::from_secs(1)).await else {
            return;
        };
        let acks: Vec<_> = deliveries
            .iter()
            .map(|d| (d.receipt, Settlement::Ack))
            .collect();
        messages.fetch_add(deliveries.len(), Ordering::SeqCst);
        let new = deliveries
            .iter()
            .flat_map(|d| decode_reports(body(&d.payload)))
            .map(|report| report.expect("a readable report"));
        reports.lock().expect("lock").extend(new);
        broker.settle(&queue, &acks).await.expect("settle");
    }
}

/// The message without its seal, if it has one.
fn body(payload: &[u8]) -> &[u8] {
    Sealed::parse(payload).map_or(payload, |sealed| sealed.body)
}

pub(crate) fn run(builder: Builder) -> RunningWorker {
    run_with_readiness(builder).0
}

/// The same, with what the worker tells the health page.
pub(crate) fn run_with_readiness(builder: Builder) -> (RunningWorker, Readiness) {
    let worker = builder.build().expect("a worker");
    let readiness = worker.readiness();
    let stop = Stop::new();
    let task = tokio::spawn(worker.run(stop.clone()));
    (RunningWorker { stop, task }, readiness)
}

pub(crate) fn start_log() -> StartLog {
    StartLog {
        group: "default".to_owned(),
        executor: "worker-1".to_owned(),
    }
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
        store: STORE,
        run: RunId(run),
        attempt: 1,
        group: "default".parse().expect("name"),
        executor: "worker-1".parse().expect("name"),
        kind: RunKind::Schedule,
        fire_at: Timestamp::from_millis(1),
        lane_at: None,
        shard: Shard::whole(),
        params: None,
        job: Arc::new(job),
        session: Some(Session(i64::MAX)),
        deadline: Timestamp::from_millis(i64::MAX / 2),
        signature: None,
    }
}

/// The same trigger with another snapshot of its job.
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
        // Ids differ, so that the broker does not drop a trigger that a test publishes twice.
        id: format!("{}:{}:{number}", trigger.run, trigger.attempt),
        payload: Bytes::from(encode(trigger)),
    }
}

/// The message of a `gate` run that was stopped.
pub(crate) fn stopped(reason: StopReason) -> String {
    format!("stopped: {reason:?}")
}
