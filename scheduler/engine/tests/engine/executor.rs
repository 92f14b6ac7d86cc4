//! An executor played by the test: it says that it is alive, takes its triggers, reports, and answers.

use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Broker, BrokerError, Channel, Listener, Outgoing, QueueId, Settlement};
use cueline_model::{
    AttemptEvent, AttemptId, ExecutorId, Heartbeat, Outcome, OutcomeKind, StoreId, Timestamp,
};
use cueline_protocol::{
    Control, HeartbeatMessage, HoldingsReply, ReportMessage, Trigger, VERSION, decode, encode,
};
use tokio::time::timeout;

use crate::scene::{PATIENCE, Scene, name};

pub(crate) struct Executor {
    pub(crate) name: &'static str,
    broker: Broker,
    control: Listener,
    store_id: StoreId,
}

impl Executor {
    /// An executor of the group `default` that runs `native:work`, and has said so.
    pub(crate) async fn start(scene: &Scene, name: &'static str) -> Self {
        let executor = Self::silent(scene, name).await;
        executor.heartbeat().await;
        executor
    }

    /// The same, that has not said so yet.
    pub(crate) async fn silent(scene: &Scene, name: &'static str) -> Self {
        let broker = scene.broker.clone();
        let control = Channel::Control {
            group: "default".to_owned(),
            executor: name.to_owned(),
        };
        let control = broker.listen(&control).await.expect("listens");
        let executor = Self {
            name,
            broker,
            control,
            store_id: scene.real().store_id().await.expect("reads"),
        };
        let declared = executor.broker.declare(&executor.queue()).await;
        declared.expect("its queue is declared");
        executor
    }

    pub(crate) fn queue(&self) -> QueueId {
        QueueId::Executor {
            group: "default".to_owned(),
            executor: self.name.to_owned(),
        }
    }

    /// Says that it is alive.
    pub(crate) async fn heartbeat(&self) {
        self.heartbeat_with(|_| {}).await;
    }

    /// Says that it is about to stop.
    pub(crate) async fn drain(&self) {
        self.heartbeat_with(|beat| beat.draining = true).await;
    }

    /// Says that it has stopped.
    pub(crate) async fn leave(&self) {
        self.heartbeat_with(|beat| beat.gone = true).await;
    }

    pub(crate) async fn heartbeat_with(&self, change: impl FnOnce(&mut Heartbeat)) {
        self.try_heartbeat(change).await.expect("announces");
    }

    /// The same with a broker that may fail.
    pub(crate) async fn try_heartbeat(
        &self,
        change: impl FnOnce(&mut Heartbeat),
    ) -> Result<(), BrokerError> {
        let mut heartbeat = Heartbeat {
            executor: ExecutorId {
                group: name("default"),
                name: name(self.name),
            },
            incarnation: "1".to_owned(),
            capabilities: vec!["native:work".to_owned()],
            capacity: 8,
            held: 0,
            running: 0,
            draining: false,
            gone: false,
        };
        change(&mut heartbeat);
        let message = HeartbeatMessage {
            v: VERSION,
            heartbeat,
        };
        self.broker
            .announce(&Channel::Heartbeats, Bytes::from(encode(&message)))
            .await
    }

    /// Takes all triggers that are in its queue.
    pub(crate) async fn take(&self) -> Vec<Trigger> {
        self.try_take().await.expect("fetches and acks")
    }

    /// The same with a broker that may fail. What was fetched is the executor's, as if it had been written to a journal, whatever becomes of
    /// the ack; what was not acked comes again.
    pub(crate) async fn try_take(&self) -> Result<Vec<Trigger>, BrokerError> {
        let queue = self.queue();
        let deliveries = self.broker.fetch(&queue, 1_000, Duration::ZERO).await?;
        let acks: Vec<_> = deliveries
            .iter()
            .map(|d| (d.receipt, Settlement::Ack))
            .collect();
        let _ = self.broker.settle(&queue, &acks).await;
        Ok(deliveries
            .iter()
            .map(|d| decode(&d.payload).expect("a trigger"))
            .collect())
    }

    /// Takes the one trigger that is in its queue.
    pub(crate) async fn take_one(&self) -> Trigger {
        let mut triggers = self.take().await;
        assert_eq!(triggers.len(), 1, "at {}: {triggers:#?}", self.name);
        triggers.remove(0)
    }

    /// Names of the jobs whose triggers are in its queue, in order.
    pub(crate) async fn take_names(&self) -> Vec<String> {
        let triggers = self.take().await;
        triggers.iter().map(|t| t.job.name.to_string()).collect()
    }

    /// What the executor sends when something happens to an attempt.
    pub(crate) fn event(&self, id: AttemptId, body: AttemptEvent) -> Vec<u8> {
        encode(&ReportMessage {
            v: VERSION,
            store: self.store_id,
            run: id.run,
            attempt: id.attempt,
            executor: name(self.name),
            event: body,
        })
    }

    pub(crate) async fn report(&self, trigger: &Trigger, body: AttemptEvent) {
        self.try_report(trigger, body).await.expect("publishes");
    }

    /// The same with a broker that may fail.
    pub(crate) async fn try_report(
        &self,
        trigger: &Trigger,
        body: AttemptEvent,
    ) -> Result<(), BrokerError> {
        let message = Outgoing {
            queue: QueueId::Results,
            topic: trigger.job.name.to_string(),
            id: String::new(),
            payload: Bytes::from(self.event(id_of(trigger), body)),
        };
        let answers = self.broker.publish(&[message]).await?;
        assert_eq!(answers, [Ok(())]);
        Ok(())
    }

    pub(crate) async fn started(&self, trigger: &Trigger, at: Timestamp) {
        self.report(trigger, AttemptEvent::Started { at }).await;
    }

    pub(crate) async fn ended(&self, trigger: &Trigger, kind: OutcomeKind, at: Timestamp) {
        self.try_end(trigger, kind, at).await.expect("publishes");
    }

    /// The same with a broker that may fail.
    pub(crate) async fn try_end(
        &self,
        trigger: &Trigger,
        kind: OutcomeKind,
        at: Timestamp,
    ) -> Result<(), BrokerError> {
        let outcome = Outcome::new(kind, at);
        self.try_report(trigger, AttemptEvent::Ended { outcome })
            .await
    }

    /// The runs that it was ordered to cancel since the last look.
    pub(crate) async fn cancels(&mut self) -> Vec<i64> {
        let mut runs = Vec::new();
        // Announcements are passed on one by one by a task of the driver: quiet is when it has had some turns and brought nothing.
        let mut quiet = 0;
        while quiet < 8 {
            tokio::task::yield_now().await;
            quiet += 1;
            while let Ok(order) = self.control.try_recv() {
                quiet = 0;
                match decode(&order.payload).expect("an order") {
                    Control::Cancel { run, .. } => runs.push(run.0),
                    Control::Echo { .. } => {}
                    Control::Holdings { .. } => panic!("a question that nobody answered"),
                }
            }
        }
        runs
    }

    /// Answers the next question about what it holds; what it was asked about.
    pub(crate) async fn answer(&mut self, held: &[AttemptId]) -> Vec<AttemptId> {
        let question = timeout(PATIENCE, self.control.recv()).await;
        let question = question.expect("is asked in time").expect("a question");
        let Control::Holdings { attempts, .. } = decode(&question.payload).expect("an order")
        else {
            panic!("another order: {question:?}");
        };
        let reply = HoldingsReply {
            v: VERSION,
            held: held.to_vec(),
        };
        let to = question.reply_to.expect("an answer is expected");
        let answered = self.broker.announce(&to, Bytes::from(encode(&reply))).await;
        answered.expect("answers");
        attempts
    }
}

pub(crate) fn id_of(trigger: &Trigger) -> AttemptId {
    AttemptId {
        run: trigger.run,
        attempt: trigger.attempt,
    }
}
