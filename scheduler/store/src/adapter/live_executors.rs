//! Matches executors with the jobs that they can run.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{ExecutorId, ExecutorLabels, ExecutorName, GroupName, JobSpec, Selector};

/// An executor that would accept triggers, if it is live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownExecutor {
    /// The executor.
    pub id: ExecutorId,
    /// The handlers that it can run.
    pub capabilities: BTreeSet<String>,
    /// The labels that it announced.
    pub labels: ExecutorLabels,
    /// Whether its last heartbeat is recent.
    pub is_live: bool,
}

/// The executors that can run a job, sorted by name.
#[derive(Debug, Clone)]
struct Capable {
    live: Arc<[ExecutorName]>,
    silent: Arc<[ExecutorName]>,
}

/// Live executors, and silent ones. Lookups are cached, because thousands of due jobs share a few groups and handlers.
#[derive(Debug, Default)]
pub struct LiveExecutors {
    executors: Vec<KnownExecutor>,
    found: HashMap<(GroupName, String, Selector), Capable>,
}

impl LiveExecutors {
    /// Executors sorted by group and name.
    pub fn new(executors: Vec<KnownExecutor>) -> Self {
        Self {
            executors,
            found: HashMap::new(),
        }
    }

    /// The live executors of the job's group that announce its handler and that its selector selects, sorted by name.
    pub fn candidates(&mut self, spec: &JobSpec) -> Arc<[ExecutorName]> {
        self.capable(spec).live
    }

    /// The executors that would be [candidates](Self::candidates) if they had not fallen silent, sorted by name.
    pub fn silent(&mut self, spec: &JobSpec) -> Arc<[ExecutorName]> {
        self.capable(spec).silent
    }

    fn capable(&mut self, spec: &JobSpec) -> Capable {
        if self.executors.is_empty() {
            return Capable {
                live: Arc::new([]),
                silent: Arc::new([]),
            };
        }
        let executors = &self.executors;
        let key = (
            spec.group.clone(),
            spec.handler.capability().into_owned(),
            spec.selector.clone(),
        );
        let found = self
            .found
            .entry(key)
            .or_insert_with_key(|(group, needed, selector)| {
                let named = |is_live: bool| -> Arc<[ExecutorName]> {
                    executors
                        .iter()
                        .filter(|e| e.is_live == is_live)
                        .filter(|e| e.id.group == *group && e.capabilities.contains(needed))
                        .filter(|e| selector.selects(&e.labels))
                        .map(|e| e.id.name.clone())
                        .collect()
                };
                Capable {
                    live: named(true),
                    silent: named(false),
                }
            });
        found.clone()
    }
}
