//! Scripts: their rows, which versions jobs use, and which changes are refused.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cueline_model::{JobId, JobName, JobSpec, Namespace, ScriptName, ScriptSpec, Timestamp};

use super::convert::{parse_name, to_u64};
use super::jobs::ApplyPlan;
use super::script_bodies::language;
use crate::{
    Change, ErrorKind, MAX_JOBS_OF_SCRIPT, MAX_SCRIPT_VERSIONS, MAX_SCRIPTS_OF_NAMESPACE, Revision,
    ScriptVersion, StoreError, StoredScript,
};

/// The most jobs that a refusal names.
const MAX_NAMED: usize = 5;

/// The newest version of a script: id, number, language, text.
pub type NewestRow = (i64, i64, String, String);

/// A version: number, time, author, remark, language, length, text.
pub type VersionRow = (i64, i64, String, String, String, i64, Option<String>);

/// A script of a list: name, id, then as [`VersionRow`] without the text.
pub type ScriptRow = (String, i64, i64, i64, String, String, String, i64);

/// A job that uses a script: script, job, version, whether it is pinned to that version.
pub type UserRow = (i64, String, i64, bool);

/// A version that jobs may use: name and id of the script, its newest version, this version.
pub type KnownVersionRow = (String, i64, i64, i64);

/// A version from its row.
///
/// # Errors
///
/// As [`language`].
pub fn script_version(row: VersionRow) -> Result<ScriptVersion, StoreError> {
    let (version, at, by, remark, word, bytes, text) = row;
    Ok(ScriptVersion {
        version,
        at: Timestamp::from_millis(at),
        by,
        remark,
        language: language(&word)?,
        bytes: to_u64(bytes),
        text,
    })
}

/// Scripts from their rows, which are sorted by name.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for names and languages that this program cannot have written.
pub fn stored_scripts(
    rows: Vec<ScriptRow>,
    users: Vec<UserRow>,
) -> Result<Vec<StoredScript>, StoreError> {
    let mut jobs: HashMap<i64, Vec<UserRow>> = HashMap::new();
    for user in users {
        jobs.entry(user.0).or_default().push(user);
    }
    let mut found = Vec::with_capacity(rows.len());
    for (name, id, version, at, by, remark, language, bytes) in rows {
        let users = jobs.remove(&id).unwrap_or_default();
        found.push(StoredScript {
            name: parse_name(&name)?,
            revision: Revision { id, version },
            newest: script_version((version, at, by, remark, language, bytes, None))?,
            jobs: users_of_script(users)?,
        });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The jobs that use one script, sorted by name, each with the version that it is pinned to.
///
/// # Errors
///
/// [`ErrorKind::Broken`] for names that this program cannot have written.
pub fn users_of_script(rows: Vec<UserRow>) -> Result<Vec<(JobName, Option<i64>)>, StoreError> {
    let user =
        |(_, job, version, pinned): UserRow| Ok((parse_name(&job)?, pinned.then_some(version)));
    let mut users: Vec<_> = rows
        .into_iter()
        .map(user)
        .collect::<Result<_, StoreError>>()?;
    users.sort_unstable();
    Ok(users)
}

/// There is no script of that name.
pub fn no_script(name: &ScriptName) -> StoreError {
    let message = format!("there is no script {:?}", name.as_str());
    StoreError::new(ErrorKind::NotFound, message)
}

/// What a save does to the stored script.
///
/// # Errors
///
/// As [`language`].
pub fn change_of(spec: &ScriptSpec, stored: Option<&NewestRow>) -> Result<Change, StoreError> {
    let Some((_, _, word, text)) = stored else {
        return Ok(Change::Created);
    };
    Ok(if spec.is_same(language(word)?, text) {
        Change::Unchanged
    } else {
        Change::Updated
    })
}

/// Refuses one script more in a namespace that has `present`.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] at the bound.
pub fn refuse_many(namespace: &Namespace, present: i64) -> Result<(), StoreError> {
    if to_u64(present) < MAX_SCRIPTS_OF_NAMESPACE as u64 {
        return Ok(());
    }
    Err(StoreError::new(
        ErrorKind::Conflict,
        format!(
            "failed to save the script: namespace {namespace} has {MAX_SCRIPTS_OF_NAMESPACE}, and no more are kept. Delete some"
        ),
    ))
}

/// The newest version that a save of `newest` deletes, unless a job is pinned to it.
pub fn oldest_kept(newest: i64) -> i64 {
    newest.saturating_sub(i64::try_from(MAX_SCRIPT_VERSIONS).unwrap_or(i64::MAX))
}

/// Refuses to delete a script that jobs use.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] with the names of the jobs.
pub fn refuse_used_script(name: &ScriptName, users: &[UserRow]) -> Result<(), StoreError> {
    if users.is_empty() {
        return Ok(());
    }
    let mut names: Vec<&str> = users.iter().map(|(_, job, ..)| job.as_str()).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let more = if more == 0 {
        String::new()
    } else {
        format!(" and {more} more")
    };
    Err(StoreError::new(
        ErrorKind::Conflict,
        format!(
            "failed to delete script {:?}: it is used by {}{more}",
            name.as_str(),
            names.join(", ")
        ),
    ))
}

/// The names of the scripts that these definitions use.
pub fn wanted_scripts(specs: &[JobSpec]) -> Vec<ScriptName> {
    let names = specs.iter().filter_map(JobSpec::script);
    let names: BTreeSet<ScriptName> = names.map(|(name, _)| name).collect();
    names.into_iter().collect()
}

/// A script and the version of it that a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedVersion {
    /// The id of the script.
    pub script: i64,
    /// The version.
    pub version: i64,
    /// Whether later versions change nothing for the job.
    pub pinned: bool,
}

/// The versions that jobs with scripts run.
#[derive(Debug, Default)]
pub struct ResolvedScripts(HashMap<JobName, UsedVersion>);

impl ResolvedScripts {
    /// Finds the versions for these definitions among the stored ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] with the job and the script or version that does not exist.
    pub fn new(specs: &[JobSpec], known: &[KnownVersionRow]) -> Result<Self, StoreError> {
        let mut scripts: HashMap<&str, (i64, i64, BTreeSet<i64>)> = HashMap::new();
        for (name, id, newest, version) in known {
            let entry = scripts.entry(name);
            let (_, _, versions) = entry.or_insert_with(|| (*id, *newest, BTreeSet::new()));
            versions.insert(*version);
        }
        let mut found = HashMap::new();
        for spec in specs {
            let Some((name, pinned)) = spec.script() else {
                continue;
            };
            let refused = |why: String| {
                let job = spec.name.as_str();
                StoreError::invalid(format!("failed to apply jobs: handler of {job:?}: {why}"))
            };
            let Some((script, newest, versions)) = scripts.get(name.as_str()) else {
                return Err(refused(format!(
                    "there is no script {:?}; save the script first, or apply it with the job",
                    name.as_str()
                )));
            };
            if let Some(version) = pinned
                && !versions.contains(&version)
            {
                return Err(refused(format!(
                    "script {:?} has no version {version}; it has {}",
                    name.as_str(),
                    numbers(versions)
                )));
            }
            let used = UsedVersion {
                script: *script,
                version: pinned.unwrap_or(*newest),
                pinned: pinned.is_some(),
            };
            found.insert(spec.name.clone(), used);
        }
        Ok(Self(found))
    }
}

/// `3-8, 11`.
fn numbers(versions: &BTreeSet<i64>) -> String {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for version in versions {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *version => *last = *version,
            _ => ranges.push((*version, *version)),
        }
    }
    let range = |(first, last): &(i64, i64)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(", ")
}

/// The rows about the scripts of jobs that an apply writes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ScriptWrites {
    /// The versions that jobs run, by job.
    pub used: BTreeMap<i64, UsedVersion>,
    /// Jobs that use no script any more.
    pub unused: Vec<i64>,
}

impl ScriptWrites {
    /// The writes of a plan. `created` has the ids of its new jobs.
    pub fn new(
        plan: &ApplyPlan,
        resolved: &ResolvedScripts,
        created: &HashMap<JobName, JobId>,
    ) -> Self {
        let mut writes = Self::default();
        if !resolved.0.is_empty() {
            for spec in plan.new_jobs() {
                let used = resolved.0.get(&spec.name);
                if let (Some(used), Some(job)) = (used, created.get(&spec.name)) {
                    writes.used.insert(job.0, *used);
                }
            }
        }
        for update in plan.updates() {
            match resolved.0.get(&update.spec.name) {
                Some(used) => {
                    writes.used.insert(update.job.id.0, *used);
                }
                None if update.job.spec.script().is_some() => writes.unused.push(update.job.id.0),
                None => {}
            }
        }
        writes
    }

    /// The scripts that get jobs.
    pub fn scripts(&self) -> Vec<i64> {
        let scripts: BTreeSet<i64> = self.used.values().map(|used| used.script).collect();
        scripts.into_iter().collect()
    }
}

/// Refuses scripts that too many jobs use. The counts are those after the change, by the name of the script.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] with the script.
pub fn refuse_many_users(counts: &[(String, i64)]) -> Result<(), StoreError> {
    let over = counts
        .iter()
        .find(|(_, jobs)| to_u64(*jobs) > MAX_JOBS_OF_SCRIPT as u64);
    match over {
        None => Ok(()),
        Some((name, jobs)) => Err(StoreError::new(
            ErrorKind::Conflict,
            format!(
                "failed to apply jobs: {jobs} jobs would use script {name:?}; at most {MAX_JOBS_OF_SCRIPT} do. Save the text under a second name"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(name: &str, handler: &serde_json::Value) -> JobSpec {
        let job = json!({ "name": name, "group": "default", "schedule": { "manual": true }, "handler": handler });
        serde_json::from_value(job).expect("a valid definition")
    }

    fn known() -> Vec<KnownVersionRow> {
        let version = |version| ("backup".to_owned(), 4, 9, version);
        [3, 7, 8, 9].map(version).into()
    }

    #[test]
    fn a_job_runs_the_newest_version_or_the_one_it_is_pinned_to() {
        let newest = spec("a", &json!({ "script": { "name": "backup" } }));
        let pinned = spec(
            "b",
            &json!({ "script": { "name": "backup", "version": 7 } }),
        );
        let other = spec("c", &json!({ "native": "x" }));
        let found = ResolvedScripts::new(&[newest, pinned, other], &known()).expect("resolves");
        let of = |name: &str| found.0.get(&name.parse().expect("a name")).copied();
        let used = |version, pinned| UsedVersion {
            script: 4,
            version,
            pinned,
        };
        assert_eq!(of("a"), Some(used(9, false)));
        assert_eq!(of("b"), Some(used(7, true)));
        assert_eq!(of("c"), None);
    }

    #[test]
    fn a_missing_script_and_a_missing_version_are_refused_with_what_there_is() {
        let missing = spec("a", &json!({ "script": { "name": "other" } }));
        let error = ResolvedScripts::new(&[missing], &known()).expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("there is no script \"other\""));
        let pinned = spec(
            "a",
            &json!({ "script": { "name": "backup", "version": 4 } }),
        );
        let error = ResolvedScripts::new(&[pinned], &known()).expect_err("is refused");
        let text = error.to_string();
        assert!(text.contains("no version 4; it has 3, 7-9"), "{text}");
    }

    #[test]
    fn the_last_thirty_versions_are_kept() {
        assert_eq!(oldest_kept(30), 0);
        assert_eq!(oldest_kept(31), 1);
    }

    #[test]
    fn a_refused_deletion_names_some_of_the_jobs() {
        let name: ScriptName = "backup".parse().expect("a name");
        assert!(refuse_used_script(&name, &[]).is_ok());
        let user = |n: i64| (1, format!("job-{n}"), 1, false);
        let users: Vec<UserRow> = (1..=7).map(user).collect();
        let error = refuse_used_script(&name, &users).expect_err("is used");
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let text = error.to_string();
        assert!(
            text.contains("job-1, job-2, job-3, job-4, job-5 and 2 more"),
            "{text}"
        );
    }
}
