//! SIGTERM and SIGINT, none of which is missed from the start of the process on.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears signals.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on.
    pub(crate) fn new() -> Result<Self> {
        let failed = "failed to listen for signals";
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context(failed)?,
            interrupt: signal(SignalKind::interrupt()).context(failed)?,
        })
    }

    /// Returns at the next signal that asks for an end.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Ends with `stop`, or at once at the next signal.
    pub(crate) async fn or_at_once(
        &mut self,
        stop: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        tokio::select! {
            result = stop => result,
            () = self.next() => {
                crate::failure::say("stopping at once");
                Ok(())
            }
        }
    }
}
