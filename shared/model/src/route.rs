//! Which executor a run is for, as the job states it. The choosing itself is the scheduler's.

use serde::{Deserialize, Serialize};

use crate::name::ExecutorName;

/// How an executor is chosen among the live ones that announce the handler, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// The first by name.
    First,
    /// One after the other, exact across scheduler nodes.
    #[default]
    Round,
    /// Any, by chance.
    Random,
    /// The one that the job's id hashes to on an MD5 ring.
    ConsistentHash,
    /// One run for each live executor: shard i of n.
    Broadcast,
    /// A fixed number of shards, spread evenly over the live executors. The texts are the shards' items; an empty
    /// text is a shard without one.
    Sharded(Vec<String>),
}

impl Route {
    /// The most shards that a job can have.
    pub const MAX_SHARDS: usize = 1_000;

    /// Whether one fire makes several runs.
    pub fn is_sharded(&self) -> bool {
        matches!(self, Self::Broadcast | Self::Sharded(_))
    }
}

/// Which part of the work a run is: shard `index` of `total`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shard {
    /// From 0.
    pub index: u32,
    /// At least 1.
    pub total: u32,
    /// The item of a shard that has one (`0=Beijing`).
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

/// One of the runs that a fire makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlan {
    /// Which part.
    pub shard: Shard,
    /// The executor that it is pinned to, with `broadcast`.
    pub executor: Option<ExecutorName>,
}

/// The runs that one fire of a job with `route` makes, `live` being its candidates, sorted by name.
///
/// `broadcast` without a live executor makes one unpinned run, which waits for an executor like any other run.
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
