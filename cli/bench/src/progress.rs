//! Progress bars, on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, sleep};

pub(crate) fn bar(length: u64, name: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:<12} {bar:40} {pos}/{len}");
    ProgressBar::new(length.max(1))
        .with_message(name)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Waits, with a progress bar.
pub(crate) async fn wait(name: &'static str, seconds: u64) {
    let bar = bar(seconds, name);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        sleep((end - Instant::now()).min(Duration::from_secs(1))).await;
        bar.inc(1);
    }
    bar.finish_and_clear();
}
