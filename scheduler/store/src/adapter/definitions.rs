//! Parsed job definitions, kept by id and version.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use cueline_model::{Job, JobId, JobSpec};

use super::values::{damaged, name};
use crate::StoreError;

/// So many definitions are kept at the most; then all are forgotten and read anew as they are asked for.
const MOST: usize = 200_000;

/// The job of a run that is out, which stays in the group that it was sent to, whatever has become of the job since.
pub fn as_sent(job: Arc<Job>, group: Option<&str>) -> Result<Arc<Job>, StoreError> {
    match group {
        Some(group) if job.spec.group.as_str() != group => {
            let mut sent = Job::clone(&job);
            sent.spec.group = name(group)?;
            Ok(Arc::new(sent))
        }
        _ => Ok(job),
    }
}

/// The newest version that was seen of each job.
#[derive(Debug, Default)]
pub struct KeptDefinitions(Mutex<HashMap<i64, Arc<Job>>>);

impl KeptDefinitions {
    /// Those kept of the jobs whose present version is known to be as given (id, version), by id; and the ids of those that have to be
    /// read.
    pub fn find(
        &self,
        wanted: impl Iterator<Item = (i64, i64)>,
    ) -> (HashMap<i64, Arc<Job>>, Vec<i64>) {
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, version) in wanted {
            match kept.get(&id) {
                Some(job) if job.version == version => {
                    found.insert(id, Arc::clone(job));
                }
                _ => missing.push(id),
            }
        }
        (found, missing)
    }

    /// Keeps what was read (id, version, definition), and returns it by id; definitions that cannot be read are left out.
    pub fn keep<T: AsRef<str>>(
        &self,
        rows: impl IntoIterator<Item = (i64, i64, T)>,
    ) -> HashMap<i64, Arc<Job>> {
        let mut found = HashMap::new();
        for (id, version, definition) in rows {
            match parse(id, version, definition.as_ref()) {
                Ok(job) => {
                    found.insert(id, job);
                }
                // One damaged job is no reason for all the others to stop.
                Err(error) => {
                    tracing::error!(job = id, %error, "this job does nothing: its definition cannot be read");
                }
            }
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() + found.len() > MOST {
            kept.clear();
        }
        for (id, job) in &found {
            kept.insert(*id, Arc::clone(job));
        }
        found
    }
}

/// A definition as it was written down.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if it is not one.
pub fn parse(id: i64, version: i64, definition: &str) -> Result<Arc<Job>, StoreError> {
    let spec: JobSpec = serde_json::from_str(definition)
        .map_err(|e| damaged(format!("failed to read the definition of job {id}"), e))?;
    Ok(Arc::new(Job {
        id: JobId(id),
        version,
        spec,
    }))
}

/// A definition as it is written down.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if it cannot be written.
pub fn written(spec: &JobSpec) -> Result<String, StoreError> {
    serde_json::to_string(spec).map_err(|e| damaged("failed to write a job's definition", e))
}

/// The job with `id` among definitions that were just read.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if it is not there.
pub fn pick<S: BuildHasher>(
    jobs: &HashMap<i64, Arc<Job>, S>,
    id: i64,
) -> Result<Arc<Job>, StoreError> {
    jobs.get(&id).cloned().ok_or_else(|| {
        damaged(
            "failed to read a run",
            format!("its job {id} does not exist or cannot be read"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = r#"{"name": "a", "group": "g", "schedule": {"every": "1s"}, "handler": {"native": "work"}}"#;

    #[test]
    fn another_version_is_read_anew() {
        let kept = KeptDefinitions::default();
        assert_eq!(kept.keep([(1, 1, JOB)]).len(), 1);
        let (found, missing) = kept.find([(1, 1), (2, 1)].into_iter());
        assert_eq!((found.len(), missing), (1, vec![2]));
        let (found, missing) = kept.find(std::iter::once((1, 2)));
        assert_eq!((found.len(), missing), (0, vec![1]));
    }

    #[test]
    fn a_damaged_definition_does_not_stop_the_others() {
        let found = KeptDefinitions::default().keep([(1, 1, "{"), (2, 1, JOB)]);
        assert!(pick(&found, 1).is_err());
        assert_eq!(pick(&found, 2).expect("it was read").version, 1);
    }
}
