//! Signals that stop a worker.

use cueline_runtime::Stop;

/// Stops softly at the first SIGTERM or SIGINT, and at once at the second.
pub(crate) async fn stop_on_signals(stop: Stop) {
    next_signal().await;
    stop.ask_soft();
    next_signal().await;
    stop.ask_hard();
}

#[cfg(unix)]
async fn next_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let signals = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    match signals {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => unavailable(&error).await,
    }
}

#[cfg(not(unix))]
async fn next_signal() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        unavailable(&error).await;
    }
}

async fn unavailable(error: &std::io::Error) {
    tracing::error!(%error, "failed to listen to signals; only SIGKILL ends this worker");
    std::future::pending::<()>().await;
}
