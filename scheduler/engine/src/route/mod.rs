//! Chooses the executor of a run.
//!
//! Pure except for the random numbers of `random`. A strategy gets the run and the candidates, sorted by name.
//! Candidates are live executors of the job's group that announce its handler. A new strategy is a new arm in
//! [`Router::choose`].

mod ring;

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::{ExecutorName, Route};
use cueline_store::ClaimedRun;
use rand::RngExt as _;
use rand::rngs::StdRng;

use ring::Ring;

/// Live executors that can run a handler, sorted by name. The list is shared until the registry changes.
pub(crate) type Candidates = Arc<Vec<ExecutorName>>;

/// At this many rings the cache is cleared.
const MAX_RINGS: usize = 1_000;

/// Chooses executors. Caches the hash rings, which are costly to build.
#[derive(Debug)]
pub(crate) struct Router {
    rng: StdRng,
    rings: HashMap<Candidates, Ring>,
}

impl Router {
    /// Random choices come from `rng`.
    pub(crate) fn new(rng: StdRng) -> Self {
        Self {
            rng,
            rings: HashMap::new(),
        }
    }

    /// The executor for `run`; `None` when there is no candidate.
    pub(crate) fn choose(
        &mut self,
        run: &ClaimedRun,
        candidates: &Candidates,
    ) -> Option<ExecutorName> {
        if let Some(pinned) = &run.executor {
            return candidates.contains(pinned).then(|| pinned.clone());
        }
        if candidates.is_empty() {
            return None;
        }
        let nth = |n: u64| {
            let index = n % candidates.len() as u64;
            candidates.get(usize::try_from(index).unwrap_or(0)).cloned()
        };
        // A retry moves on to the next executor, because the run has just failed on this one.
        let turn = run.sequence + u64::from(run.attempt.saturating_sub(1));
        match &run.job.spec.route {
            Route::First | Route::Broadcast => nth(0),
            Route::Round => nth(turn),
            Route::Sharded(_) => {
                nth(u64::from(run.shard.index) + turn / u64::from(run.shard.total))
            }
            Route::Random => nth(self.rng.random()),
            Route::ConsistentHash => {
                if self.rings.len() >= MAX_RINGS {
                    self.rings.clear();
                }
                let ring = self
                    .rings
                    .entry(candidates.clone())
                    .or_insert_with(|| Ring::new(candidates));
                ring.find(&run.job.id.to_string()).cloned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::{Job, JobId, RunId, RunKind, Shard, Timestamp};
    use rand::SeedableRng;

    use super::*;

    fn names(n: usize) -> Candidates {
        Arc::new(
            (1..=n)
                .map(|i| format!("worker-{i}").parse().expect("a name"))
                .collect(),
        )
    }

    fn run(route: &serde_json::Value, turn: u64) -> ClaimedRun {
        let spec = serde_json::from_value(serde_json::json!({
            "name": "j", "group": "default", "schedule": { "manual": true },
            "route": route, "handler": { "native": "noop" },
        }))
        .expect("a valid definition");
        ClaimedRun {
            id: RunId(7),
            attempt: 1,
            job: Arc::new(Job {
                id: JobId(42),
                version: 1,
                spec,
            }),
            kind: RunKind::Manual,
            fire_at: Timestamp::default(),
            due_at: Timestamp::default(),
            shard: Shard::whole(),
            params: None,
            executor: None,
            sequence: turn,
            maybe_published: false,
        }
    }

    fn router() -> Router {
        Router::new(StdRng::seed_from_u64(1))
    }

    #[test]
    fn without_candidates_no_executor_is_chosen() {
        for route in ["first", "round", "random", "consistent_hash", "broadcast"] {
            assert_eq!(
                router().choose(&run(&route.into(), 0), &names(0)),
                None,
                "{route}"
            );
        }
    }

    #[test]
    fn round_visits_the_executors_in_turn() {
        let mut router = router();
        let chosen: Vec<_> = (0..6)
            .map(|turn| {
                router
                    .choose(&run(&"round".into(), turn), &names(3))
                    .unwrap()
                    .to_string()
            })
            .collect();
        assert_eq!(
            chosen,
            [
                "worker-1", "worker-2", "worker-3", "worker-1", "worker-2", "worker-3"
            ]
        );
    }

    #[test]
    fn random_reaches_every_executor() {
        let mut router = router();
        let chosen: std::collections::BTreeSet<_> = (0..200)
            .filter_map(|t| router.choose(&run(&"random".into(), t), &names(4)))
            .collect();
        assert_eq!(chosen.len(), 4);
    }

    #[test]
    fn shards_of_one_fire_are_spread_evenly() {
        let mut router = router();
        let items: Vec<String> = vec![String::new(); 6];
        let chosen: Vec<_> = (0..6)
            .map(|i| {
                let mut run = run(&serde_json::json!({ "sharded": items }), u64::from(i));
                run.shard = Shard {
                    index: i,
                    total: 6,
                    item: None,
                };
                router.choose(&run, &names(3)).unwrap().to_string()
            })
            .collect();
        for name in ["worker-1", "worker-2", "worker-3"] {
            assert_eq!(
                chosen.iter().filter(|c| *c == name).count(),
                2,
                "{chosen:?}"
            );
        }
    }

    #[test]
    fn a_pinned_run_waits_for_its_executor() {
        let mut pinned = run(&"broadcast".into(), 0);
        pinned.executor = Some("worker-3".parse().expect("a name"));
        assert_eq!(router().choose(&pinned, &names(2)), None);
        assert_eq!(router().choose(&pinned, &names(3)), pinned.executor);
    }
}
