//! Which jobs a rule or a silence is about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::job::JobSpec;
use crate::name::{GroupName, JobName, Namespace};

/// The most jobs, and the most groups, that one scope names.
pub const MAX_SCOPE_NAMES: usize = 200;

/// The jobs of a namespace that meet all conditions. Without a condition, all of them. Names are local ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlarmScope {
    /// Only these jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
    /// Only jobs of these groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Only jobs with these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl AlarmScope {
    /// Whether the scope, in `namespace`, has the job.
    pub fn has(&self, namespace: &Namespace, spec: &JobSpec) -> bool {
        spec.name.is_in(namespace)
            && self.fits(
                Some(spec.name.local()),
                Some(spec.group.local()),
                &spec.labels,
            )
    }

    /// Whether the scope, in `namespace`, has a job with this name, group and the right labels.
    pub fn may_have(&self, namespace: &Namespace, job: &JobName, group: &GroupName) -> bool {
        job.is_in(namespace) && self.fits(Some(job.local()), Some(group.local()), &self.labels)
    }

    /// Whether the scope fits a job or a group with these local names and labels. What is unknown fits only a scope
    /// without that condition.
    pub fn fits(
        &self,
        job: Option<&str>,
        group: Option<&str>,
        labels: &BTreeMap<String, String>,
    ) -> bool {
        let one_of = |names: &[String], name: Option<&str>| {
            names.is_empty() || name.is_some_and(|name| names.iter().any(|own| own == name))
        };
        let mut wanted = self.labels.iter();
        one_of(&self.jobs, job)
            && one_of(&self.groups, group)
            && wanted.all(|(name, value)| labels.get(name) == Some(value))
    }
}
