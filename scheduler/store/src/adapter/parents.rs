//! Checks the parents of jobs: they exist, no job runs after itself, and what runs after all of several jobs can run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{After, Job, JobName, JobSpec};

use super::parent_graph::ParentGraph;
use crate::StoreError;

/// A stored link between a child and one of its parents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLink {
    /// The child.
    pub child: JobName,
    /// A job that it runs after.
    pub parent: JobName,
    /// Whether it waits for all of its parents.
    pub waits_for_all: bool,
}

/// The parents of jobs that are applied.
#[derive(Debug)]
pub struct ParentLinks<'a> {
    jobs: BTreeSet<&'a JobName>,
    parents: BTreeMap<&'a JobName, &'a After>,
}

impl<'a> ParentLinks<'a> {
    /// The links that `specs` define.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a job names no parent, too many, or one twice, and if it
    /// names a group or a parent of another namespace.
    pub fn new(specs: &'a [JobSpec]) -> Result<Self, StoreError> {
        let mut parents = BTreeMap::new();
        for spec in specs {
            if !spec.stays_in_its_namespace() {
                return Err(refusal(
                    &spec.name,
                    format!(
                        "its group and its parents must be in its namespace {:?}",
                        spec.name.namespace().as_str()
                    ),
                ));
            }
            if let Some(after) = &spec.after {
                require_names(&spec.name, after)?;
                parents.insert(&spec.name, &**after);
            }
        }
        Ok(Self {
            jobs: specs.iter().map(|s| &s.name).collect(),
            parents,
        })
    }

    /// Whether there is nothing to check: no applied job has parents, or had some.
    pub fn is_empty(&self, stored: &HashMap<JobName, Arc<Job>>) -> bool {
        self.parents.is_empty() && stored.values().all(|job| job.spec.after.is_none())
    }

    fn names(&self) -> impl Iterator<Item = (&'a JobName, &'a JobName)> + Clone + use<'a, '_> {
        let links = self.parents.iter();
        links.flat_map(|(child, after)| after.names().iter().map(move |parent| (*child, parent)))
    }

    /// The parents that are neither among the applied jobs nor among `stored`.
    pub fn missing_from(
        &self,
        stored: &HashMap<JobName, Arc<Job>>,
    ) -> impl Iterator<Item = &'a JobName> + Clone {
        let names = self.names().map(|(_, parent)| parent);
        names.filter(|p| !self.jobs.contains(p) && !stored.contains_key(*p))
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
        for (child, parent) in self.names() {
            let exists = self.jobs.contains(parent)
                || stored.contains_key(parent)
                || found.contains_key(parent);
            if !exists {
                let problem = format!("its parent {:?} does not exist", parent.as_str());
                return Err(refusal(child, problem));
            }
        }
        Ok(())
    }

    /// Checks the graph of all jobs as it will be. `stored` holds all stored links.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the path of a cycle, with a job that would have too many
    /// jobs before it, and with a job that waits for all of several jobs which no flow run has together.
    pub fn check_graph(&self, stored: &[StoredLink]) -> Result<(), StoreError> {
        let mut graph = ParentGraph::default();
        for link in stored {
            if !self.jobs.contains(&link.child) {
                graph.link(&link.child, &link.parent, link.waits_for_all);
            }
        }
        for (child, parent) in self.names() {
            let after = self.parents.get(child);
            graph.link(child, parent, after.is_some_and(|a| a.waits_for_all()));
        }
        let applied: Vec<&JobName> = self.jobs.iter().copied().collect();
        graph
            .check(&applied)
            .map_err(|(job, problem)| refusal(job, problem))
    }
}

fn require_names(job: &JobName, after: &After) -> Result<(), StoreError> {
    let names = after.names();
    let field = if after.waits_for_all() { "all" } else { "any" };
    if !(1..=After::MAX_PARENTS).contains(&names.len()) {
        return Err(refusal(
            job,
            format!(
                "`after.{field}` names {} jobs; 1 to {} are expected",
                names.len(),
                After::MAX_PARENTS
            ),
        ));
    }
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(*name)) {
        Some(twice) => Err(refusal(
            job,
            format!("`after.{field}` names {:?} twice", twice.as_str()),
        )),
        None => Ok(()),
    }
}

fn refusal(job: &JobName, problem: impl std::fmt::Display) -> StoreError {
    StoreError::invalid(format!("failed to apply job {:?}: {problem}", job.as_str()))
}

#[cfg(test)]
mod tests {
    use cueline_model::{AfterOn, Parents};

    use super::*;

    fn name(text: &str) -> JobName {
        text.parse().expect("a name")
    }

    fn job(own: &str, parents: &[&str]) -> JobSpec {
        let text = format!(
            r#"{{"name": "{own}", "group": "g", "schedule": {{"every": "1s"}}, "handler": {{"native": "work"}}}}"#
        );
        let mut spec: JobSpec = serde_json::from_str(&text).expect("a definition");
        spec.after = Some(Box::new(After {
            parents: Parents::All(parents.iter().map(|p| name(p)).collect()),
            on: AfterOn::default(),
            pass_output: false,
        }));
        spec
    }

    fn link(child: &str, parent: &str) -> StoredLink {
        StoredLink {
            child: name(child),
            parent: name(parent),
            waits_for_all: true,
        }
    }

    #[test]
    fn a_job_has_1_to_32_different_parents() {
        let names: Vec<String> = (0..33).map(|n| format!("p{n}")).collect();
        let many: Vec<&str> = names.iter().map(String::as_str).collect();
        for (parents, says) in [
            (&[][..], "names 0 jobs; 1 to 32 are expected"),
            (&many, "names 33 jobs"),
            (&["b", "c", "b"], r#"names "b" twice"#),
        ] {
            let specs = [job("a", parents)];
            let error = ParentLinks::new(&specs).expect_err("is refused");
            assert!(error.to_string().contains(says), "{error}");
        }
        assert!(ParentLinks::new(&[job("a", &many[..32])]).is_ok());
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
    fn a_cycle_through_the_store_is_refused_with_its_path() {
        let specs = [job("a", &["b"])];
        let links = ParentLinks::new(&specs).expect("one parent each");
        let chain = |parent| [link("b", "c"), link("c", parent)];
        let error = links.check_graph(&chain("a")).expect_err("is refused");
        assert_eq!(
            error.to_string(),
            r#"failed to apply job "a": `after` forms a cycle: a after b after c after a"#
        );
        assert!(links.check_graph(&chain("d")).is_ok());
        // The stored parent of an applied job does not count.
        let before = [link("b", "d"), link("a", "a")];
        assert!(links.check_graph(&before).is_ok());
    }

    #[test]
    fn a_job_without_parents_has_nothing_to_check_unless_it_had_some() {
        let mut now = job("a", &[]);
        now.after = None;
        let links = ParentLinks::new(std::slice::from_ref(&now)).expect("no parents");
        assert!(links.is_empty(&HashMap::new()));
        let before = Arc::new(Job {
            id: cueline_model::JobId(1),
            version: 1,
            spec: job("a", &["b"]),
        });
        assert!(!links.is_empty(&HashMap::from([(name("a"), before)])));
    }
}
