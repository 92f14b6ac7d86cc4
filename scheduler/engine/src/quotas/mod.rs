//! The quotas of namespaces, as this node knows them.
//!
//! The node reads quotas and counts of waiting runs every second, and adds what it writes itself in between. So a quota of
//! waiting runs may be exceeded by what all nodes write within that time. Without quotas, nothing is asked or counted.

pub(crate) mod group_rates;
pub(crate) mod refresh;
mod token_bucket;

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use cueline_model::{Namespace, Timestamp};
use cueline_store::{QuotaLoad, QuotaRefusals, Quotas, WaitingQuota};

use self::token_bucket::TokenBucket;
use crate::lock::lock;

const WAITING: &str = "max_waiting_runs";
const TRIGGERS: &str = "max_triggers_per_minute";

/// After this time, another scheduler or a worker may have made room for waiting runs.
const RETRY_WAITING_AFTER_MS: u64 = 1_000;

/// A request that a quota does not allow now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QuotaRefusal {
    /// The quota with its value and the namespace.
    pub(crate) reason: String,
    /// The request may succeed after this time.
    pub(crate) retry_after_ms: u64,
}

/// What the node knows about one namespace.
#[derive(Debug)]
struct Known {
    quotas: Quotas,
    waiting: u64,
    /// Only with a quota of triggers.
    triggers: Option<TokenBucket>,
}

#[derive(Debug, Default)]
struct State {
    /// At most as many as the store has namespaces with quotas.
    known: HashMap<Namespace, Known>,
    /// Refusals since the start, of namespaces with quotas.
    refused: BTreeMap<(Namespace, &'static str), u64>,
}

/// Quotas and the present use of them.
#[derive(Debug, Default)]
pub(crate) struct NamespaceQuotas(Mutex<State>);

impl NamespaceQuotas {
    /// Takes over what was read from the store.
    pub(crate) fn replace(&self, loads: Vec<QuotaLoad>, now: Timestamp) {
        let mut state = lock(&self.0);
        let mut known = HashMap::with_capacity(loads.len());
        for load in loads {
            let before = state.known.remove(&load.namespace);
            let bucket = before.and_then(|before| before.triggers);
            let limit = load.quotas.max_triggers_per_minute;
            let triggers =
                limit.map(|limit| bucket.unwrap_or_else(|| TokenBucket::full(limit, now)));
            known.insert(
                load.namespace,
                Known {
                    quotas: load.quotas,
                    waiting: load.waiting_runs,
                    triggers,
                },
            );
        }
        let State {
            known: present,
            refused,
        } = &mut *state;
        *present = known;
        refused.retain(|(namespace, _), _| present.contains_key(namespace));
    }

    /// The namespaces with a quota of waiting runs.
    pub(crate) fn waiting(&self) -> HashMap<Namespace, WaitingQuota> {
        let state = lock(&self.0);
        let limited = state.known.iter().filter_map(|(namespace, known)| {
            let quota = WaitingQuota {
                limit: known.quotas.max_waiting_runs?,
                waiting: known.waiting,
            };
            Some((namespace.clone(), quota))
        });
        limited.collect()
    }

    /// Counts runs that were written for this namespace.
    pub(crate) fn add_waiting(&self, namespace: &Namespace, runs: usize) {
        if let Some(known) = lock(&self.0).known.get_mut(namespace) {
            known.waiting = known.waiting.saturating_add(runs as u64);
        }
    }

    /// Counts fires that were skipped because too many runs wait.
    pub(crate) fn note_skipped(&self, namespace: &Namespace, fires: u64) {
        lock(&self.0).note_refused(namespace, WAITING, fires);
    }

    /// Admits a request that triggers a job of the namespace, or says which quota is reached.
    pub(crate) fn admit_trigger(
        &self,
        namespace: &Namespace,
        now: Timestamp,
    ) -> Result<(), QuotaRefusal> {
        let mut state = lock(&self.0);
        let Some(known) = state.known.get_mut(namespace) else {
            return Ok(());
        };
        let Some((quota, limit, retry_after_ms)) = known.refused(now) else {
            return Ok(());
        };
        state.note_refused(namespace, quota, 1);
        Err(QuotaRefusal {
            reason: format!("quota {quota} of namespace {namespace} ({limit}) is reached"),
            retry_after_ms,
        })
    }

    /// Refusals since the start, sorted by namespace and quota.
    pub(crate) fn refusals(&self) -> Vec<QuotaRefusals> {
        let state = lock(&self.0);
        let refusals = state.refused.iter();
        let refusals = refusals.map(|((namespace, quota), count)| QuotaRefusals {
            namespace: namespace.clone(),
            quota,
            count: *count,
        });
        refusals.collect()
    }
}

impl State {
    fn note_refused(&mut self, namespace: &Namespace, quota: &'static str, count: u64) {
        if self.known.contains_key(namespace) {
            let refused = self.refused.entry((namespace.clone(), quota)).or_default();
            *refused = refused.saturating_add(count);
        }
    }
}

impl Known {
    /// The quota that refuses a trigger now, its value, and the time to wait. It takes a token only if no quota refuses.
    fn refused(&mut self, now: Timestamp) -> Option<(&'static str, u64, u64)> {
        if let Some(limit) = self.quotas.max_waiting_runs
            && self.waiting >= limit
        {
            return Some((WAITING, limit, RETRY_WAITING_AFTER_MS));
        }
        let limit = self.quotas.max_triggers_per_minute?;
        let bucket = self
            .triggers
            .get_or_insert_with(|| TokenBucket::full(limit, now));
        let wait_ms = bucket.take(limit, now).err()?;
        Some((TRIGGERS, limit, wait_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team() -> Namespace {
        "team-a".parse().expect("a namespace")
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn load(waiting: Option<u64>, triggers: Option<u64>, waiting_runs: u64) -> QuotaLoad {
        QuotaLoad {
            namespace: team(),
            quotas: Quotas {
                max_jobs: None,
                max_waiting_runs: waiting,
                max_triggers_per_minute: triggers,
            },
            waiting_runs,
        }
    }

    #[test]
    fn without_quotas_everything_is_admitted() {
        let quotas = NamespaceQuotas::default();
        assert_eq!(quotas.admit_trigger(&team(), at(0)), Ok(()));
        quotas.add_waiting(&team(), 5);
        quotas.note_skipped(&team(), 1);
        assert!(quotas.waiting().is_empty());
        assert!(quotas.refusals().is_empty());
    }

    #[test]
    fn waiting_runs_count_until_the_store_is_read_again() {
        let quotas = NamespaceQuotas::default();
        quotas.replace(vec![load(Some(5), None, 3)], at(0));
        assert_eq!(quotas.admit_trigger(&team(), at(0)), Ok(()));
        quotas.add_waiting(&team(), 2);
        let refusal = quotas
            .admit_trigger(&team(), at(0))
            .expect_err("is refused");
        assert_eq!(
            refusal.reason,
            "quota max_waiting_runs of namespace team-a (5) is reached"
        );
        assert_eq!(refusal.retry_after_ms, 1_000);
        let waiting = quotas.waiting();
        let expected = WaitingQuota {
            limit: 5,
            waiting: 5,
        };
        assert_eq!(waiting.get(&team()), Some(&expected));
        quotas.replace(vec![load(Some(5), None, 1)], at(1));
        assert_eq!(quotas.admit_trigger(&team(), at(1)), Ok(()));
        let refusals = quotas.refusals();
        assert_eq!(refusals.len(), 1);
        assert_eq!((refusals[0].quota, refusals[0].count), (WAITING, 1));
    }

    #[test]
    fn a_bucket_outlives_the_next_reading_and_ends_with_its_quota() {
        let quotas = NamespaceQuotas::default();
        for _ in 0..2 {
            quotas.replace(vec![load(None, Some(1), 0)], at(0));
            let admitted = quotas.admit_trigger(&team(), at(0)).is_ok();
            assert_eq!(admitted, quotas.refusals().is_empty());
        }
        assert_eq!(quotas.refusals()[0].quota, TRIGGERS);
        quotas.replace(Vec::new(), at(0));
        assert!(quotas.refusals().is_empty(), "no series without a quota");
        assert_eq!(quotas.admit_trigger(&team(), at(0)), Ok(()));
    }

    #[test]
    fn a_refusal_by_waiting_runs_takes_no_token() {
        let quotas = NamespaceQuotas::default();
        quotas.replace(vec![load(Some(0), Some(1), 0)], at(0));
        assert!(quotas.admit_trigger(&team(), at(0)).is_err());
        quotas.replace(vec![load(Some(9), Some(1), 0)], at(0));
        assert_eq!(quotas.admit_trigger(&team(), at(0)), Ok(()));
        assert!(quotas.admit_trigger(&team(), at(0)).is_err());
    }
}
