//! How much haste what is written down is in.

use std::time::Duration;

use cueline_runtime::Stop;

/// After a small batch: time for more to gather, and for what is more urgent. Writing down that something went well can wait a moment; what
/// is due cannot, and at a low rate each commit would be for a single run. A stop does not wait.
pub(crate) async fn gather(wrote: usize, stop: &Stop) {
    if wrote < LARGE {
        tokio::select! {
            () = tokio::time::sleep(PACE) => {}
            () = stop.soft() => {}
        }
    }
}

/// At least so much is written without a pause.
const LARGE: usize = 500;
/// Hardly longer than a person's or a pause's patience would notice.
const PACE: Duration = Duration::from_millis(10);
