//! Sends heartbeats. Once the broker has stored one, its echo follows, which renews the lease.

use std::sync::Arc;
use std::time::Duration;

use cueline_broker::{BrokerError, Channel};
use cueline_model::{Heartbeat, Timestamp};
use cueline_protocol::{HeartbeatMessage, HeartbeatSender, LeaseTimes, VERSION, encode};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::lease::{BrokerLease, LeaseTimings};
use crate::settings::Settings;
use crate::status::WorkerStatus;

/// The longest time that sending one message may take, without a lease.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// The phase of the worker's life in which a heartbeat is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeartbeatKind {
    /// The worker waits for its queue.
    Starting,
    Running,
    /// The worker has drained and stopped.
    Stopped,
}

/// Sends the worker's heartbeats.
pub(crate) struct Heartbeats {
    pub(crate) settings: Arc<Settings>,
    pub(crate) status: Arc<WorkerStatus>,
    pub(crate) lease: Arc<BrokerLease>,
}

impl Heartbeats {
    /// Sends a heartbeat every `heartbeat_every`, and more often while no echo returns. Also sends one at once when the
    /// drain begins, the lease is renewed or schedulers accept the worker's key, or right after the heartbeat that is
    /// being sent then. Never returns.
    pub(crate) async fn run(self) {
        loop {
            // If the drain begins later, this heartbeat may not say so.
            let is_drain_announced = self.status.is_draining();
            let began = Instant::now();
            self.send(HeartbeatKind::Running).await;
            tokio::select! {
                () = self.pause(began) => {}
                () = self.status.drain_began(), if !is_drain_announced => {}
                () = self.lease.heartbeat_requested() => {}
                () = self.settings.origin.accepted() => {}
            }
        }
    }

    /// The pause after the heartbeat that `began` then. A broker that takes seconds for each one makes them no rarer:
    /// otherwise it would make the lease overdue.
    async fn pause(&self, began: Instant) {
        let every = self.settings.heartbeat_every;
        let Some(timings) = &self.settings.lease_timings else {
            return sleep(every).await;
        };
        let retry = every.min(timings.retry_every());
        sleep(retry).await;
        if self.lease.is_newest_echo_returned() {
            sleep_until(began + every).await;
        }
    }

    /// Sends one heartbeat. A failure is only logged: the next heartbeat follows soon.
    ///
    /// A refused worker sends none: they would be taken for those of the worker that has its name. Its lease then ends,
    /// so that its attempts end before any failover.
    pub(crate) async fn send(&self, kind: HeartbeatKind) {
        if self.status.is_refused() {
            let problem = "another worker runs under this name; give each worker its own --name";
            self.status.set_problem(Some(problem.to_owned()));
            return;
        }
        let problem = self.problem(kind);
        // The echo is made before the heartbeat is sent, because its time becomes the time of the lease's proof.
        let echo = match kind {
            HeartbeatKind::Running => self.lease.next_echo(self.settings.clock.now_ms()),
            HeartbeatKind::Starting | HeartbeatKind::Stopped => None,
        };
        let message = HeartbeatMessage {
            v: VERSION,
            heartbeat: self.heartbeat(kind, problem.is_none()),
            sender: Some(HeartbeatSender {
                process: self.settings.process.clone(),
                sent_at: Timestamp::from_millis(self.settings.clock.now_ms()),
                number: self.status.next_heartbeat(),
            }),
            lease: self.settings.lease_timings.map(|timings| LeaseTimes {
                fence_after_ms: millis(timings.fence_after),
                failover_after_ms: millis(timings.failover_after),
            }),
            enrolment: None,
            rotation: None,
            confirm_key: false,
        };
        let origin = &self.settings.origin;
        self.status
            .set_problem(problem.or_else(|| origin.problem()));
        let broker = &self.settings.broker;
        let (heartbeats, payload) = (Channel::Heartbeats, origin.seal_heartbeat(message).into());
        let timings = self.settings.lease_timings.as_ref();
        let limit = timings.map_or(SEND_TIMEOUT, LeaseTimings::send_timeout);
        let Some(echo) = echo else {
            let announcing = broker.announce(&heartbeats, payload);
            self.in_time(limit, announcing).await;
            return;
        };
        // A slow majority must not fence a worker whose schedulers receive its heartbeats.
        let store_limit = timings.map_or(SEND_TIMEOUT, LeaseTimings::store_timeout);
        // The echo follows only a heartbeat that a majority of the broker's servers took. Its return proves both.
        let storing = broker.announce_stored(&heartbeats, payload);
        if self.in_time(store_limit, storing).await {
            let control = self.settings.control_channel();
            let echoing = broker.announce(&control, encode(&echo).into());
            if self.in_time(limit, echoing).await {
                self.status.set_send_failure(None);
            }
        }
    }

    /// Why the worker accepts no triggers. `None` if it accepts them.
    fn problem(&self, kind: HeartbeatKind) -> Option<String> {
        let status = &self.status;
        let problem = match kind {
            HeartbeatKind::Starting => "the worker waits for its queue; its log shows the cause",
            HeartbeatKind::Stopped => "the worker has stopped",
            HeartbeatKind::Running if status.is_draining() => "the worker is stopping",
            HeartbeatKind::Running if status.is_journal_unusable() => {
                "the worker's journal cannot be used; check the disk of its state directory"
            }
            HeartbeatKind::Running if self.lease.is_fenced() => {
                let why = status.send_failure();
                let why = why.unwrap_or_else(|| "no heartbeat has returned to it".to_owned());
                return Some(format!("the worker has no broker lease: {why}"));
            }
            HeartbeatKind::Running if status.is_starts_unrecorded() => {
                "no start of an attempt can be recorded; check the start log and the worker's right to append to it"
            }
            HeartbeatKind::Running => return None,
        };
        Some(problem.to_owned())
    }

    fn heartbeat(&self, kind: HeartbeatKind, accepts: bool) -> Heartbeat {
        Heartbeat {
            executor: self.settings.executor.clone(),
            incarnation: self.settings.incarnation.clone(),
            session: self.lease.session(),
            capabilities: self.settings.handlers.capabilities(),
            capacity: u32::try_from(self.settings.concurrency).unwrap_or(u32::MAX),
            labels: self.settings.labels.clone(),
            weight: self.settings.weight,
            held: self.status.held() as u64,
            running: self.status.running() as u64,
            draining: !accepts,
            gone: kind == HeartbeatKind::Stopped,
            refusal: None,
        }
    }

    /// Whether the message was sent within the time limit.
    async fn in_time(
        &self,
        limit: Duration,
        sending: impl Future<Output = Result<(), BrokerError>>,
    ) -> bool {
        let failure = match timeout(limit, sending).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to send a heartbeat; the next one follows");
                error.to_string()
            }
            Err(_) => {
                tracing::warn!(
                    timeout_ms = limit.as_millis(),
                    "a heartbeat was not sent, or not stored by a majority of the broker's servers, in time; the next one follows. Check the broker"
                );
                format!("the broker did not answer a heartbeat within {limit:?}")
            }
        };
        self.status.set_send_failure(Some(failure));
        false
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use cueline_broker::conformance::{Fault, Faulty, Operation};
    use cueline_broker::{Announcement, Broker, BrokerOptions, Listener};
    use cueline_broker_embedded::{EmbeddedDriver, EmbeddedOptions};
    use cueline_protocol::{Control, decode};
    use cueline_runtime::ManualBootClock;

    use super::*;
    use crate::Worker;
    use crate::lease::FenceStage;
    use crate::lease::tests::unproven;

    /// A worker with a `fence_after` of 20 s, and a broker that takes `delay` to store a heartbeat.
    struct SlowBroker {
        _folder: tempfile::TempDir,
        heartbeats: Heartbeats,
        control: Listener,
        clock: ManualBootClock,
        lease: Arc<BrokerLease>,
    }

    impl SlowBroker {
        async fn new(delay: Duration) -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("broker.db");
            let driver = EmbeddedDriver::open(&file, EmbeddedOptions::default()).await;
            let driver = Faulty::new(Arc::new(driver.expect("a broker")));
            let faults = driver.faults();
            faults.always(Operation::AnnounceStored, Fault::Late(delay));
            let broker = Broker::new(driver, BrokerOptions::default());
            let builder = Worker::builder("default")
                .name("one")
                .broker(broker.clone())
                .allow_unverified_native();
            let settings = builder.settings().expect("settings");
            let listening = broker.listen(&settings.control_channel()).await;
            let control = listening.expect("a listener");
            let clock = ManualBootClock::default();
            let lease = Arc::new(unproven(&clock));
            let heartbeats = Heartbeats {
                settings: Arc::new(settings),
                status: Arc::default(),
                lease: Arc::clone(&lease),
            };
            // From here on, time passes at once when all tasks wait.
            tokio::time::pause();
            Self {
                _folder: folder,
                heartbeats,
                control,
                clock,
                lease,
            }
        }
    }

    fn take_echo(lease: &BrokerLease, echo: &Announcement) {
        match decode::<Control>(&echo.payload) {
            Ok(Control::Echo {
                incarnation,
                number,
                ..
            }) => lease.echo_returned(&incarnation, number),
            other => panic!("{other:?}"),
        }
    }

    /// Sends one heartbeat. Returns whether it renewed the lease.
    async fn is_renewed_after(delay: Duration) -> bool {
        let mut broker = SlowBroker::new(delay).await;
        broker.heartbeats.send(HeartbeatKind::Running).await;
        broker.clock.advance(delay);
        let mut echoes = Vec::new();
        broker.control.try_recv_many(&mut echoes, usize::MAX);
        for echo in &echoes {
            take_echo(&broker.lease, echo);
        }
        let failure = broker.heartbeats.status.send_failure();
        assert_eq!(failure.is_none(), !echoes.is_empty(), "{failure:?}");
        broker.lease.lift_fence(FenceStage::WaitingReturned, 0)
    }

    #[tokio::test]
    async fn a_broker_that_stores_slowly_makes_heartbeats_no_rarer() {
        let broker = SlowBroker::new(Duration::from_secs(4)).await;
        let status = Arc::clone(&broker.heartbeats.status);
        let (mut control, lease) = (broker.control, broker.lease);
        let echoes = async {
            while let Some(echo) = control.recv().await {
                take_echo(&lease, &echo);
            }
        };
        let all = async { tokio::join!(broker.heartbeats.run(), echoes) };
        let over = timeout(Duration::from_secs(59), all).await;
        assert!(over.is_err());
        assert_eq!(status.last_heartbeat(), 12, "one every 5 s");
    }

    /// An answer that takes longer than any other message may.
    #[tokio::test]
    async fn a_heartbeat_that_is_stored_late_renews_the_lease() {
        let timings = LeaseTimings::new(Duration::from_secs(30), None, None);
        let delay = Duration::from_millis(4_900);
        assert!(timings.send_timeout() < delay && delay < timings.store_timeout());
        assert!(is_renewed_after(delay).await);
    }

    #[tokio::test]
    async fn a_heartbeat_that_is_stored_too_late_renews_nothing() {
        assert!(!is_renewed_after(Duration::from_millis(5_100)).await);
    }
}
