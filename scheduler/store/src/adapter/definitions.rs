//! Job definitions: their stored form, and a cache of parsed ones.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cueline_model::script::{LoadedScript, ScriptBody};
use cueline_model::{HandlerSpec, Job, JobId, JobSpec};

use super::convert::{corrupt, parse_name};
use super::script_bodies::{BodyRow, UseRow, script_body};
use crate::StoreError;

/// The most cached definitions. The cache is cleared before it would exceed this number.
const MAX_CACHED: usize = 200_000;

/// Parsed jobs by id.
pub type JobsById = HashMap<i64, Arc<Job>>;

/// A stored definition: job id, version, name, text, and whether the schedule is enabled.
///
/// A pause or a resume writes a column, not the text, so it keeps fields of the text that this program does not know. A
/// deleted job has no such column any more.
pub type DefinitionRow<T = String> = (i64, i64, T, T, Option<bool>);

/// The most unreadable definitions whose error is remembered. They are forgotten before they would exceed this number.
const MAX_REPORTED: usize = 10_000;

/// Parsed definitions by job, in the newest version seen. A version never changes, so each is parsed once.
#[derive(Debug, Default)]
pub struct DefinitionCache {
    parsed: Mutex<JobsById>,
    /// The texts of scripts that cached jobs use, by script and version.
    bodies: Mutex<HashMap<(i64, i64), Weak<ScriptBody>>>,
    /// The unreadable versions by job. The error of each is logged once, because every claim reads them again.
    reported: Mutex<HashMap<i64, i64>>,
}

/// Texts of scripts by script and version.
pub type ScriptBodies = HashMap<(i64, i64), Arc<ScriptBody>>;

impl DefinitionCache {
    /// Looks up jobs by id and current version. Returns the cached ones, and the ids to read from the database.
    pub fn find(&self, wanted: impl Iterator<Item = (i64, i64)>) -> (JobsById, Vec<i64>) {
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        let cached = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, version) in wanted {
            match cached.get(&id) {
                Some(job) if job.version == version => {
                    found.insert(id, Arc::clone(job));
                }
                _ => missing.push(id),
            }
        }
        (found, missing)
    }

    /// Parses definitions. An unreadable one is left out and stops only its own job. [`keep`](Self::keep) follows.
    pub fn parse<T: AsRef<str>>(
        &self,
        rows: impl IntoIterator<Item = DefinitionRow<T>>,
    ) -> Vec<Arc<Job>> {
        let rows = rows.into_iter();
        let mut found = Vec::with_capacity(rows.size_hint().0);
        for (id, version, name, definition, enabled) in rows {
            match parse(id, version, definition.as_ref(), enabled) {
                Ok(job) => found.push(job),
                Err(error) => self.report(id, version, name.as_ref(), &error),
            }
        }
        found
    }

    /// Of the versions that jobs use, the texts in memory, and the versions to read from the database.
    pub fn bodies(&self, uses: &[UseRow]) -> (ScriptBodies, Vec<(i64, i64)>) {
        let bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = ScriptBodies::new();
        let mut missing = BTreeSet::new();
        for &(_, script, version) in uses {
            let key = (script, version);
            match bodies.get(&key).and_then(Weak::upgrade) {
                Some(body) => {
                    found.insert(key, body);
                }
                None => {
                    missing.insert(key);
                }
            }
        }
        (found, missing.into_iter().collect())
    }

    /// Adds texts that were read from the database. One that this program cannot read is left out.
    pub fn add_bodies(&self, found: &mut ScriptBodies, rows: Vec<BodyRow>) {
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        bodies.retain(|_, body| body.strong_count() > 0);
        for row in rows {
            if let Ok((key, body)) = script_body(row) {
                bodies.insert(key, Arc::downgrade(&body));
                found.insert(key, body);
            }
        }
    }

    /// Caches and returns jobs, with the texts of the scripts that they use. A job without its text is left out.
    pub fn keep(&self, jobs: Vec<Arc<Job>>, uses: &[UseRow], bodies: &ScriptBodies) -> JobsById {
        let versions: HashMap<i64, (i64, i64)> =
            uses.iter().map(|use_| (use_.0, (use_.1, use_.2))).collect();
        let mut found = HashMap::with_capacity(jobs.len());
        for mut job in jobs {
            let id = job.id.0;
            // A deleted job has its definition, and uses no script any more.
            if job.spec.script().is_some()
                && let Some(key) = versions.get(&id)
            {
                let Some(body) = bodies.get(key) else {
                    let error = corrupt(
                        format!("failed to read the script of job {id}"),
                        "its text is missing or unreadable",
                    );
                    self.report(id, job.version, job.spec.name.as_str(), &error);
                    continue;
                };
                // This is the only reference yet, so the job is not copied.
                if let HandlerSpec::Script(script) = &mut Arc::make_mut(&mut job).spec.handler {
                    script.loaded = LoadedScript(Some(Arc::clone(body)));
                }
            }
            found.insert(id, job);
        }
        let mut cached = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.len() + found.len() > MAX_CACHED {
            cached.clear();
        }
        cached.extend(found.iter().map(|(id, job)| (*id, Arc::clone(job))));
        found
    }

    fn report(&self, id: i64, version: i64, name: &str, error: &StoreError) {
        if self.is_first_report(id, version) {
            tracing::error!(
                job = %name,
                job_id = id,
                version,
                %error,
                "failed to read a job definition; this node does not run the job, and leaves it to newer ones. Upgrade this node, or delete the job and apply it again"
            );
        }
    }

    /// Forgets all definitions. Call it when the database may have lost versions, because it issues them again.
    pub fn clear(&self) {
        let mut cached = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        cached.clear();
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        bodies.clear();
    }

    /// Whether the error of this version was not reported before.
    fn is_first_report(&self, id: i64, version: i64) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= MAX_REPORTED {
            reported.clear();
        }
        reported.insert(id, version) != Some(version)
    }
}

/// The job in its final place: a definition is large, and moves of a batch would cost as much as a third of its parsing.
fn parse(
    id: i64,
    version: i64,
    definition: &str,
    enabled: Option<bool>,
) -> Result<Arc<Job>, StoreError> {
    let spec = parse_definition(definition, enabled)
        .map_err(|e| corrupt(format!("failed to read the definition of job {id}"), e))?;
    Ok(Arc::new(Job {
        id: JobId(id),
        version,
        spec,
    }))
}

/// A definition from its text. `enabled` is the column, which comes before the text.
///
/// # Errors
///
/// If this program cannot read it: it may be of a newer one.
pub fn parse_definition(
    definition: &str,
    enabled: Option<bool>,
) -> Result<JobSpec, serde_json::Error> {
    let mut spec: JobSpec = serde_json::from_str(definition)?;
    spec.enabled = enabled.or(spec.enabled);
    Ok(spec)
}

/// The text of a definition to store.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if it cannot be serialised.
pub fn serialize_definition(spec: &JobSpec) -> Result<String, StoreError> {
    serde_json::to_string(spec).map_err(|e| corrupt("failed to write a job's definition", e))
}

/// The job with this id among those that were just read.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if it is missing, because its definition is unreadable.
pub fn job_of(jobs: &JobsById, id: i64) -> Result<Arc<Job>, StoreError> {
    jobs.get(&id).cloned().ok_or_else(|| {
        corrupt(
            format!("failed to read job {id}"),
            "its definition is missing or unreadable",
        )
    })
}

/// The job with the group that a published attempt was sent to. An edit may have moved the job to another group since.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if the name of the group is not valid.
pub fn in_published_group(job: Arc<Job>, group: Option<&str>) -> Result<Arc<Job>, StoreError> {
    match group {
        Some(group) if job.spec.group.as_str() != group => {
            let mut published = Job::clone(&job);
            published.spec.group = parse_name(group)?;
            Ok(Arc::new(published))
        }
        _ => Ok(job),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = r#"{"name": "a", "group": "g", "schedule": {"every": "1s"}, "handler": {"native": "work"}}"#;

    fn insert(cache: &DefinitionCache, rows: impl IntoIterator<Item = DefinitionRow>) -> JobsById {
        let jobs = cache.parse(rows);
        cache.keep(jobs, &[], &ScriptBodies::new())
    }

    fn row(id: i64, version: i64, definition: &str, enabled: Option<bool>) -> DefinitionRow {
        (id, version, "a".to_owned(), definition.to_owned(), enabled)
    }

    #[test]
    fn another_version_is_read_again() {
        let cache = DefinitionCache::default();
        assert_eq!(insert(&cache, [row(1, 1, JOB, None)]).len(), 1);
        let (found, missing) = cache.find([(1, 1), (2, 1)].into_iter());
        assert_eq!((found.len(), missing), (1, vec![2]));
        let (found, missing) = cache.find(std::iter::once((1, 2)));
        assert_eq!((found.len(), missing), (0, vec![1]));
    }

    #[test]
    fn an_unreadable_definition_does_not_stop_the_others() {
        let rows = [row(1, 1, "{", None), row(2, 1, JOB, None)];
        let found = insert(&DefinitionCache::default(), rows);
        assert!(job_of(&found, 1).is_err());
        assert_eq!(job_of(&found, 2).expect("it was read").version, 1);
    }

    #[test]
    fn the_column_says_whether_the_schedule_is_enabled() {
        let enabled = |column| {
            let found = insert(&DefinitionCache::default(), [row(1, 1, JOB, column)]);
            job_of(&found, 1).expect("it was read").spec.enabled
        };
        for column in [None, Some(true), Some(false)] {
            assert_eq!(enabled(column), column);
        }
    }

    #[test]
    fn an_unreadable_version_is_reported_once() {
        let cache = DefinitionCache::default();
        assert!(cache.is_first_report(1, 1));
        assert!(!cache.is_first_report(1, 1));
        assert!(cache.is_first_report(1, 2));
        assert!(cache.is_first_report(2, 1));
    }

    #[test]
    fn cleared_definitions_are_read_again() {
        let cache = DefinitionCache::default();
        insert(&cache, [row(1, 1, JOB, None)]);
        cache.clear();
        assert_eq!(cache.find(std::iter::once((1, 1))).1, [1]);
    }

    const WITH_SCRIPT: &str = r#"{"name": "a", "group": "g", "schedule": {"manual": true}, "handler": {"script": {"name": "s"}}}"#;

    fn text_of(job: &Job) -> Option<&str> {
        match &job.spec.handler {
            HandlerSpec::Script(script) => Some(&*script.loaded.0.as_ref()?.text),
            _ => None,
        }
    }

    #[test]
    fn jobs_share_the_text_of_their_script() {
        let cache = DefinitionCache::default();
        let uses = [(1, 7, 3), (2, 7, 3)];
        let (mut bodies, missing) = cache.bodies(&uses);
        assert_eq!(missing, [(7, 3)]);
        cache.add_bodies(
            &mut bodies,
            vec![(7, 3, "sh".to_owned(), "date".to_owned())],
        );
        let jobs = cache.parse([1, 2].map(|id| row(id, 1, WITH_SCRIPT, None)));
        let found = cache.keep(jobs, &uses, &bodies);
        assert_eq!(
            [text_of(&found[&1]), text_of(&found[&2])],
            [Some("date"); 2]
        );
        let (in_memory, missing) = cache.bodies(&uses);
        assert_eq!((in_memory.len(), missing.len()), (1, 0));
        drop((found, bodies, in_memory));
        cache.clear();
        assert_eq!(cache.bodies(&uses).1, [(7, 3)]);
    }

    #[test]
    fn a_job_without_the_text_of_its_script_is_left_out() {
        let cache = DefinitionCache::default();
        let jobs = cache.parse([row(1, 1, WITH_SCRIPT, None), row(2, 1, JOB, None)]);
        let found = cache.keep(jobs, &[(1, 7, 3)], &ScriptBodies::new());
        assert_eq!(found.keys().collect::<Vec<_>>(), [&2]);
    }
}
