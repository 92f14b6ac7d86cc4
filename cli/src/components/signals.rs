//! SIGTERM and SIGINT. No signal is missed after the start of the process.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A listener for both signals.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Self> {
        let failed = "failed to listen for signals";
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context(failed)?,
            interrupt: signal(SignalKind::interrupt()).context(failed)?,
        })
    }

    /// Returns at the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for `stop`, or returns at once at the next signal.
    pub(crate) async fn or_at_once(
        &mut self,
        stop: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        tokio::select! {
            result = stop => result,
            () = self.next() => {
                cueline_interface::say("stopping at once: a second signal arrived");
                Ok(())
            }
        }
    }
}
