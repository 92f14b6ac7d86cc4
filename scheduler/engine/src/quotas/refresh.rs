//! Reads the quotas of namespaces, the counts of their waiting runs, and the rate limits of groups, again and again.

use std::sync::Arc;
use std::time::Duration;

use cueline_runtime::{Duty, Next};
use cueline_store::{Store, StoreError};
use tokio::time::Instant;

use super::NamespaceQuotas;
use super::group_rates::GroupRates;
use crate::database_clock::DatabaseClock;

/// The time between two readings, if they are quick.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time between two readings.
const LONGEST: Duration = Duration::from_secs(30);
/// A reading takes at most one part of this many of the time.
const SHARE: u32 = 10;

pub(crate) struct RefreshQuotas {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) quotas: Arc<NamespaceQuotas>,
    pub(crate) group_rates: Arc<GroupRates>,
}

impl Duty for RefreshQuotas {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "quotas"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        let begun_at = Instant::now();
        let loads = self.store.quota_loads().await?;
        self.quotas.replace(loads, self.clock.now());
        self.group_rates.replace(self.store.group_rates().await?);
        Ok(Next::After(pause(begun_at.elapsed())))
    }
}

/// The time until the next reading, if the last one took this long.
fn pause(took: Duration) -> Duration {
    took.saturating_mul(SHARE).clamp(EVERY, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_store_is_asked_less_often() {
        let pause_ms = |took_ms| pause(Duration::from_millis(took_ms)).as_millis();
        assert_eq!(pause_ms(5), 1_000);
        assert_eq!(pause_ms(500), 5_000);
        assert_eq!(pause_ms(60_000), 30_000);
    }
}
