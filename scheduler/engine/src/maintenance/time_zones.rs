//! Notices a changed time-zone database without a restart.
//!
//! Fire times are computed with the rules of the machine's database. Each minute this duty reads the zones in use again. If
//! rules have changed, the store computes the next fire times of the jobs again that depend on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cueline_model::schedule::zones;
use cueline_runtime::{Duty, Next};
use cueline_store::{Store, StoreError};

pub(crate) struct TimeZones {
    pub(crate) store: Arc<dyn Store>,
    /// The digests that the store has from this process; `None` before the first turn.
    pub(crate) noted: Option<BTreeMap<String, i64>>,
}

const EVERY: Duration = Duration::from_mins(1);

impl Duty for TimeZones {
    type Error = StoreError;

    fn name(&self) -> &'static str {
        "time_zones"
    }

    async fn activate(&mut self) -> Result<Next, StoreError> {
        // The rules may have changed while no scheduler ran, so the first turn compares all zones that the store knows.
        let known: Vec<String> = if let Some(noted) = &self.noted {
            noted.keys().cloned().collect()
        } else {
            let known = self.store.known_zones().await?;
            known.into_iter().map(|zone| zone.name).collect()
        };
        // Some small files, so it does not need a thread of its own.
        let present = zones::refresh(&known);
        let noted = self.noted.get_or_insert_default();
        let changed: Vec<_> = present
            .into_iter()
            .filter(|zone| noted.get(&zone.name) != Some(&zone.digest))
            .collect();
        if changed.is_empty() {
            return Ok(Next::After(EVERY));
        }
        let replanned = self.store.note_zones(&changed).await?;
        if replanned > 0 {
            let names: Vec<&str> = changed.iter().map(|zone| zone.name.as_str()).collect();
            tracing::info!(
                jobs = replanned,
                zones = names.join(","),
                "time-zone rules changed; next fire times were computed again"
            );
        }
        noted.extend(changed.into_iter().map(|zone| (zone.name, zone.digest)));
        Ok(Next::After(EVERY))
    }
}
