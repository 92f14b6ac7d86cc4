//! The choice of an executor for a run, as the job states it. The scheduler carries it out.

use serde::{Deserialize, Serialize};

use crate::name::ExecutorName;

/// How to choose among the live executors that announce the handler, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// The first by name.
    First,
    /// The last by name.
    Last,
    /// One after another, exactly in turn across scheduler nodes.
    #[default]
    Round,
    /// A random one.
    Random,
    /// The one that the job's id maps to on a consistent-hash ring (MD5).
    ConsistentHash,
    /// The one that got the fewest runs of the job within 24 h.
    Lfu,
    /// The one whose last run of the job was dispatched longest ago.
    Lru,
    /// The first by name that answers.
    Failover,
    /// The first by name without an outstanding run of the job; without such a one, the one with the fewest.
    Busyover,
    /// The one with the fewest attempts for its capacity.
    LeastLoaded,
    /// In turn, each as often as its weight says, exactly across scheduler nodes.
    Weighted,
    /// The first one that has room. Until then the run stays in the store.
    Any,
    /// This one only.
    Executor(ExecutorName),
    /// One run for each live executor: shard i of n.
    Broadcast,
    /// A fixed number of shards, spread evenly over the live executors. Each text is the item of one shard; an empty
    /// text means no item.
    Sharded(Vec<String>),
}

impl Route {
    /// The most shards that a job can have.
    pub const MAX_SHARDS: usize = 1_000;

    /// Whether one fire time creates several runs.
    pub fn is_sharded(&self) -> bool {
        matches!(self, Self::Broadcast | Self::Sharded(_))
    }
}

/// The part of the work that a run does: shard `index` of `total`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shard {
    /// The number of the shard, from 0.
    pub index: u32,
    /// The number of shards, at least 1.
    pub total: u32,
    /// The item of the shard, if it has one (`0=Beijing`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
}

impl Shard {
    /// The only shard of an unsharded run.
    pub const fn whole() -> Self {
        Self {
            index: 0,
            total: 1,
            item: None,
        }
    }
}

/// A run that a fire time creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlan {
    /// The part of the work.
    pub shard: Shard,
    /// The executor that must run it, under `broadcast`.
    pub executor: Option<ExecutorName>,
}

/// The runs that one fire time of a job with `route` creates. `live` holds the candidates, sorted by name.
///
/// Without a live executor, `broadcast` creates one run that any executor may take once it is live.
pub fn expand(route: &Route, live: &[ExecutorName]) -> Vec<ShardPlan> {
    let total_of = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    match route {
        Route::Broadcast if !live.is_empty() => live
            .iter()
            .zip(0..)
            .map(|(name, index)| ShardPlan {
                shard: Shard {
                    index,
                    total: total_of(live.len()),
                    item: None,
                },
                executor: Some(name.clone()),
            })
            .collect(),
        Route::Sharded(items) if !items.is_empty() => items
            .iter()
            .zip(0..)
            .map(|(item, index)| ShardPlan {
                shard: Shard {
                    index,
                    total: total_of(items.len()),
                    item: (!item.is_empty()).then(|| item.clone()),
                },
                executor: None,
            })
            .collect(),
        _ => vec![ShardPlan {
            shard: Shard::whole(),
            executor: None,
        }],
    }
}
