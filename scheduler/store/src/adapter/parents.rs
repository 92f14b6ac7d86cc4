//! Which job comes after which: parents have to exist, and nothing may come after itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{Job, JobName, JobSpec};

use super::jobs::invalid;
use crate::StoreError;

/// The job that this one comes after.
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it names several.
pub fn parent_of(spec: &JobSpec) -> Result<Option<&JobName>, StoreError> {
    match spec.after.as_ref().map(|after| after.all.as_slice()) {
        None => Ok(None),
        Some([parent]) => Ok(Some(parent)),
        Some(parents) => Err(invalid(format!(
            "failed to apply job {:?}: `after.all` names {} jobs, it must name exactly one",
            spec.name.as_str(),
            parents.len()
        ))),
    }
}

/// The parents that jobs to apply name.
#[derive(Debug)]
pub struct Given<'a> {
    /// The jobs to apply.
    own: BTreeSet<&'a JobName>,
    parents: BTreeMap<&'a JobName, &'a JobName>,
}

impl<'a> Given<'a> {
    /// Those of `specs`.
    ///
    /// # Errors
    ///
    /// As [`parent_of`].
    pub fn new(specs: &'a [JobSpec]) -> Result<Self, StoreError> {
        let mut parents = BTreeMap::new();
        for spec in specs {
            if let Some(parent) = parent_of(spec)? {
                parents.insert(&spec.name, parent);
            }
        }
        Ok(Self {
            own: specs.iter().map(|s| &s.name).collect(),
            parents,
        })
    }

    /// Whether none is named: then there is nothing to check.
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// The parents that are neither applied together with their children nor among `stored`.
    pub fn elsewhere(
        &self,
        stored: &HashMap<JobName, Arc<Job>>,
    ) -> impl Iterator<Item = &'a JobName> + Clone {
        self.parents
            .values()
            .copied()
            .filter(|p| !self.own.contains(p) && !stored.contains_key(*p))
    }

    /// Refuses parents that are in neither of the two lists of jobs that exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), with the child and its parent.
    pub fn refuse_unknown(
        &self,
        stored: &HashMap<JobName, Arc<Job>>,
        found: &HashMap<JobName, Arc<Job>>,
    ) -> Result<(), StoreError> {
        for (child, parent) in &self.parents {
            if !self.own.contains(parent)
                && !stored.contains_key(*parent)
                && !found.contains_key(*parent)
            {
                return Err(invalid(format!(
                    "failed to apply job {:?}: its parent {:?} does not exist",
                    child.as_str(),
                    parent.as_str()
                )));
            }
        }
        Ok(())
    }

    /// Refuses circles. `kept` holds all children of the store with their parents.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), with a job of the circle.
    pub fn refuse_circles(&self, kept: &[(JobName, JobName)]) -> Result<(), StoreError> {
        let mut parents: BTreeMap<&JobName, &JobName> = kept
            .iter()
            .filter(|(child, _)| !self.own.contains(child))
            .map(|(child, parent)| (child, parent))
            .collect();
        parents.extend(self.parents.iter());
        let mut fine: BTreeSet<&JobName> = BTreeSet::new();
        for start in self.parents.keys() {
            let mut path: BTreeSet<&JobName> = BTreeSet::new();
            let mut at = *start;
            while !fine.contains(at) {
                if !path.insert(at) {
                    return Err(invalid(format!(
                        "failed to apply job {:?}: its parents form a circle through {:?}",
                        start.as_str(),
                        at.as_str()
                    )));
                }
                let Some(parent) = parents.get(at) else { break };
                at = parent;
            }
            fine.extend(path);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::{After, AfterOn};

    use super::*;
    use crate::adapter::definitions::parse;

    fn name(text: &str) -> JobName {
        text.parse().expect("a name")
    }

    fn job(own: &str, parents: &[&str]) -> JobSpec {
        let text = format!(
            r#"{{"name": "{own}", "group": "g", "schedule": {{"every": "1s"}}, "handler": {{"native": "work"}}}}"#
        );
        let mut spec = parse(1, 1, &text).expect("a definition").spec.clone();
        spec.after = Some(After {
            all: parents.iter().map(|p| name(p)).collect(),
            on: AfterOn::default(),
            pass_output: false,
        });
        spec
    }

    #[test]
    fn a_job_has_one_parent() {
        assert!(parent_of(&job("a", &["b", "c"])).is_err());
        let spec = job("a", &["b"]);
        assert_eq!(parent_of(&spec).expect("one parent"), Some(&name("b")));
    }

    #[test]
    fn a_parent_has_to_exist_or_to_come_along() {
        let none = HashMap::new();
        let specs = [job("a", &["b"]), job("b", &["c"])];
        let given = Given::new(&specs).expect("one parent each");
        let elsewhere: Vec<_> = given.elsewhere(&none).collect();
        assert_eq!(elsewhere, [&name("c")]);
        let error = given.refuse_unknown(&none, &none).expect_err("c is absent");
        assert_eq!(
            error.to_string(),
            r#"failed to apply job "b": its parent "c" does not exist"#
        );
    }

    #[test]
    fn a_circle_through_the_store_is_refused() {
        let specs = [job("a", &["b"])];
        let given = Given::new(&specs).expect("one parent each");
        let chain = |parent| [(name("b"), name("c")), (name("c"), name(parent))];
        assert!(given.refuse_circles(&chain("a")).is_err());
        assert!(given.refuse_circles(&chain("d")).is_ok());
        // What the store says of a job that is applied anew does not count any more.
        let before = [(name("b"), name("d")), (name("a"), name("a"))];
        assert!(given.refuse_circles(&before).is_ok());
    }
}
