//! Helpers that tests of every crate share. It depends on no other crate of this workspace, so that each crate can use
//! it as a dev-dependency.

#[cfg(feature = "certificates")]
mod certificates;
mod eventually;
mod metrics_page;
mod sqlite_threads;
mod stopped;

#[cfg(feature = "certificates")]
pub use certificates::Authority;
pub use eventually::{NotWithin, SOON, Wait, eventually, eventually_blocking, try_eventually};
pub use metrics_page::{DescribedMetric, documented_metrics, served_metrics};
pub use sqlite_threads::SqliteThreads;
pub use stopped::wait_until_stopped;
