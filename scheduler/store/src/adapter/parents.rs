//! Checks the parents of jobs: they exist, and no job runs after itself, directly or through others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{Job, JobName, JobSpec};

use crate::StoreError;

/// The parent, after which the job runs.
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if there are several.
pub fn parent_of(spec: &JobSpec) -> Result<Option<&JobName>, StoreError> {
    match spec.after.as_ref().map(|after| after.all.as_slice()) {
        None => Ok(None),
        Some([parent]) => Ok(Some(parent)),
        Some(parents) => Err(StoreError::invalid(format!(
            "failed to apply job {:?}: `after.all` names {} jobs, it must name exactly one",
            spec.name.as_str(),
            parents.len()
        ))),
    }
}

/// The parents of jobs that are applied.
#[derive(Debug)]
pub struct ParentLinks<'a> {
    jobs: BTreeSet<&'a JobName>,
    parents: BTreeMap<&'a JobName, &'a JobName>,
}

impl<'a> ParentLinks<'a> {
    /// The links that `specs` define.
    ///
    /// # Errors
    ///
    /// As [`parent_of`], and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a job names a group or a parent of
    /// another namespace.
    pub fn new(specs: &'a [JobSpec]) -> Result<Self, StoreError> {
        let mut parents = BTreeMap::new();
        for spec in specs {
            if !spec.stays_in_its_namespace() {
                return Err(StoreError::invalid(format!(
                    "failed to apply job {:?}: its group and its parent must be in its namespace {:?}",
                    spec.name.as_str(),
                    spec.name.namespace().as_str()
                )));
            }
            if let Some(parent) = parent_of(spec)? {
                parents.insert(&spec.name, parent);
            }
        }
        Ok(Self {
            jobs: specs.iter().map(|s| &s.name).collect(),
            parents,
        })
    }

    /// Whether there is nothing to check.
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// The parents that are neither among the applied jobs nor among `stored`.
    pub fn missing_from(
        &self,
        stored: &HashMap<JobName, Arc<Job>>,
    ) -> impl Iterator<Item = &'a JobName> + Clone {
        self.parents
            .values()
            .copied()
            .filter(|p| !self.jobs.contains(p) && !stored.contains_key(*p))
    }

    /// Returns an error if a parent does not exist: it is neither among the applied nor the `stored` nor the `found`
    /// jobs.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), with the child and its parent.
    pub fn require_parents(
        &self,
        stored: &HashMap<JobName, Arc<Job>>,
        found: &HashMap<JobName, Arc<Job>>,
    ) -> Result<(), StoreError> {
        for (child, parent) in &self.parents {
            if !self.jobs.contains(parent)
                && !stored.contains_key(*parent)
                && !found.contains_key(*parent)
            {
                return Err(StoreError::invalid(format!(
                    "failed to apply job {:?}: its parent {:?} does not exist",
                    child.as_str(),
                    parent.as_str()
                )));
            }
        }
        Ok(())
    }

    /// Returns an error if parents form a cycle. `stored` holds all stored children with their parents.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), with a job of the cycle.
    pub fn refuse_cycles(&self, stored: &[(JobName, JobName)]) -> Result<(), StoreError> {
        let mut parents: BTreeMap<&JobName, &JobName> = stored
            .iter()
            .filter(|(child, _)| !self.jobs.contains(child))
            .map(|(child, parent)| (child, parent))
            .collect();
        parents.extend(self.parents.iter());
        // Jobs whose chain of parents is known to end. Each chain is followed only up to such a job.
        let mut acyclic: BTreeSet<&JobName> = BTreeSet::new();
        for start in self.parents.keys() {
            let mut path: BTreeSet<&JobName> = BTreeSet::new();
            let mut at = *start;
            while !acyclic.contains(at) {
                if !path.insert(at) {
                    return Err(StoreError::invalid(format!(
                        "failed to apply job {:?}: its parents form a cycle through {:?}",
                        start.as_str(),
                        at.as_str()
                    )));
                }
                let Some(parent) = parents.get(at) else { break };
                at = parent;
            }
            acyclic.extend(path);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::{After, AfterOn};

    use super::*;

    fn name(text: &str) -> JobName {
        text.parse().expect("a name")
    }

    fn job(own: &str, parents: &[&str]) -> JobSpec {
        let text = format!(
            r#"{{"name": "{own}", "group": "g", "schedule": {{"every": "1s"}}, "handler": {{"native": "work"}}}}"#
        );
        let mut spec: JobSpec = serde_json::from_str(&text).expect("a definition");
        spec.after = Some(After {
            all: parents.iter().map(|p| name(p)).collect(),
            on: AfterOn::default(),
            pass_output: false,
        });
        spec
    }

    #[test]
    fn a_job_has_at_most_one_parent() {
        assert!(parent_of(&job("a", &["b", "c"])).is_err());
        let spec = job("a", &["b"]);
        assert_eq!(parent_of(&spec).expect("one parent"), Some(&name("b")));
    }

    #[test]
    fn a_job_of_one_namespace_is_not_linked_to_another() {
        let mut other_group = job("a", &[]);
        other_group.after = None;
        other_group.group = "team/g".parse().expect("a name");
        for spec in [job("a", &["team/b"]), other_group] {
            let error = ParentLinks::new(std::slice::from_ref(&spec)).expect_err("is refused");
            assert_eq!(error.kind(), crate::ErrorKind::Invalid);
            assert!(error.to_string().contains("namespace"), "{error}");
        }
    }

    #[test]
    fn a_parent_exists_or_is_applied_too() {
        let none = HashMap::new();
        let specs = [job("a", &["b"]), job("b", &["c"])];
        let links = ParentLinks::new(&specs).expect("one parent each");
        let missing: Vec<_> = links.missing_from(&none).collect();
        assert_eq!(missing, [&name("c")]);
        let error = links
            .require_parents(&none, &none)
            .expect_err("c is absent");
        assert_eq!(
            error.to_string(),
            r#"failed to apply job "b": its parent "c" does not exist"#
        );
    }

    #[test]
    fn a_cycle_through_the_store_is_refused() {
        let specs = [job("a", &["b"])];
        let links = ParentLinks::new(&specs).expect("one parent each");
        let chain = |parent| [(name("b"), name("c")), (name("c"), name(parent))];
        assert!(links.refuse_cycles(&chain("a")).is_err());
        assert!(links.refuse_cycles(&chain("d")).is_ok());
        // The stored parent of an applied job does not count.
        let before = [(name("b"), name("d")), (name("a"), name("a"))];
        assert!(links.refuse_cycles(&before).is_ok());
    }
}
