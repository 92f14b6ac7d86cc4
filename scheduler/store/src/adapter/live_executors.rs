//! Matches live executors with the jobs that they can run.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{ExecutorId, ExecutorName, GroupName, JobSpec};

/// Live executors. Lookups are cached, because thousands of due jobs share a few groups and handlers.
#[derive(Debug, Default)]
pub struct LiveExecutors {
    executors: Vec<(ExecutorId, BTreeSet<String>)>,
    found: HashMap<(GroupName, String), Arc<[ExecutorName]>>,
}

impl LiveExecutors {
    /// Live executors with their capabilities, sorted by group and name.
    pub fn new(executors: Vec<(ExecutorId, BTreeSet<String>)>) -> Self {
        Self {
            executors,
            found: HashMap::new(),
        }
    }

    /// The executors of the job's group that announce its handler, sorted by name.
    pub fn candidates(&mut self, spec: &JobSpec) -> Arc<[ExecutorName]> {
        if self.executors.is_empty() {
            return Arc::new([]);
        }
        let executors = &self.executors;
        let key = (spec.group.clone(), spec.handler.capability().into_owned());
        let found = self.found.entry(key).or_insert_with_key(|(group, needed)| {
            executors
                .iter()
                .filter(|(id, capabilities)| id.group == *group && capabilities.contains(needed))
                .map(|(id, _)| id.name.clone())
                .collect()
        });
        Arc::clone(found)
    }
}
