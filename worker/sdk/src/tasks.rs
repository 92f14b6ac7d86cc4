//! The tasks around the event loop.

use std::future::Future;
use std::time::Duration;

use cueline_runtime::Stop;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(crate) const INTAKE: &str = "intake of triggers";
pub(crate) const SETTLING: &str = "settling of triggers";

/// The tasks around the event loop. They are aborted when this is dropped.
#[derive(Default)]
pub(crate) struct Tasks(JoinSet<&'static str>);

impl Tasks {
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.0.spawn(async move {
            task.await;
            name
        });
    }

    /// Returns the name of the first task that ends although it should not. The intake ends at a soft stop.
    pub(crate) async fn first_to_end(&mut self, stop: &Stop) -> &'static str {
        loop {
            match self.0.join_next().await {
                Some(Ok(INTAKE)) if stop.is_soft() => {}
                Some(Ok(name)) => return name,
                Some(Err(error)) => {
                    tracing::error!(%error, "a task of the worker panicked; the worker ends");
                    return "worker";
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until the journalled triggers are settled. The settling task ends by itself once the event loop is gone.
    pub(crate) async fn settled(&mut self, limit: Duration) {
        let settled = async {
            while let Some(ended) = self.0.join_next().await {
                if matches!(ended, Ok(SETTLING)) {
                    return;
                }
            }
        };
        if timeout(limit, settled).await.is_err() {
            tracing::warn!("some triggers were not settled; the broker will deliver them again");
        }
    }
}
