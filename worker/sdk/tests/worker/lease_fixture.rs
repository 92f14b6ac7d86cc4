//! A worker with a broker lease, a faulty link and a clock that the test moves.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cueline_model::{AttemptEvent, OutcomeKind};
use cueline_protocol::ReportMessage;
use cueline_runtime::ManualBootClock;
use cueline_worker::{Builder, Context, Failure, StopReason};

use crate::faulty_link::FaultyLink;
use crate::fixture::Fixture;

pub(crate) const FENCE_REASON: &str = "the broker was out of reach for 20 s; the schedulers may have given the run to another executor";

/// A run that returned, and the stop reason that it saw then.
pub(crate) type Return = (i64, Option<StopReason>);

/// A fixture whose worker has a faulty link and a clock that the test moves.
pub(crate) struct LeaseFixture {
    pub(crate) fixture: Fixture,
    pub(crate) link: Arc<FaultyLink>,
    pub(crate) clock: ManualBootClock,
    /// Runs of `hold` that were stopped, and why.
    pub(crate) stopped: Arc<Mutex<Vec<(i64, StopReason)>>>,
    /// Runs of `hold` that returned by themselves.
    pub(crate) returned: Arc<Mutex<Vec<Return>>>,
}

impl LeaseFixture {
    pub(crate) async fn new() -> Self {
        let fixture = Fixture::new().await;
        Self {
            link: Arc::clone(&fixture.link),
            fixture,
            clock: ManualBootClock::default(),
            stopped: Arc::default(),
            returned: Arc::default(),
        }
    }

    /// A worker with frequent heartbeats, and with the handler `hold`: as `gate`, and it records why it returned.
    pub(crate) fn builder(&self) -> Builder {
        let (stopped, returned) = (Arc::clone(&self.stopped), Arc::clone(&self.returned));
        let (started, gate) = (
            Arc::clone(&self.fixture.started),
            Arc::clone(&self.fixture.gate),
        );
        let builder = self.fixture.builder().broker(self.link.broker());
        let builder = builder.boot_clock(Arc::new(self.clock.clone()));
        let builder = builder.heartbeat_every(Duration::from_millis(50));
        builder.handler("hold", move |cx: Context| {
            let (stopped, returned) = (Arc::clone(&stopped), Arc::clone(&returned));
            let (started, gate) = (Arc::clone(&started), Arc::clone(&gate));
            async move {
                started.lock().expect("lock").push(cx.run().0);
                tokio::select! {
                    permit = gate.acquire() => {
                        permit.expect("open").forget();
                        returned.lock().expect("lock").push((cx.run().0, cx.stop_reason()));
                    }
                    reason = cx.stopped() => {
                        stopped.lock().expect("lock").push((cx.run().0, reason));
                        return Err(Failure::new("asked to stop"));
                    }
                }
                Ok(())
            }
        })
    }

    pub(crate) async fn wait_fenced(&self, runs: &[i64]) {
        let fenced = |run: &i64| (*run, StopReason::Fenced);
        let expected: Vec<_> = runs.iter().map(fenced).collect();
        let stopped = || (*self.stopped.lock().expect("lock") == expected).then_some(());
        self.fixture.wait("attempts to be stopped", stopped).await;
    }

    pub(crate) async fn wait_heartbeats(&self, count: usize) {
        let sent = || self.link.heartbeats.load(Ordering::SeqCst);
        let enough = sent() + count;
        let more = || (sent() >= enough).then_some(());
        self.fixture.wait("some more heartbeats", more).await;
    }

    /// The reported outcomes, in order.
    pub(crate) fn outcomes(&self) -> Vec<(i64, OutcomeKind)> {
        let outcome = |report: ReportMessage| match report.event {
            AttemptEvent::Ended { outcome } => Some((report.run.0, outcome.kind)),
            _ => None,
        };
        self.fixture
            .reports()
            .into_iter()
            .filter_map(outcome)
            .collect()
    }
}
