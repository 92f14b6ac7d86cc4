//! Which job comes after which: parents have to exist, and nothing may come after itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cueline_model::{Job, JobName, JobSpec};
use cueline_store::{ErrorKind, StoreError};
use sqlx::postgres::PgConnection;

use crate::error::failed;
use crate::jobs::stored;
use crate::rows::name;

const PARENTS: &str = "
    SELECT c.name, p.name FROM job c JOIN job p ON p.id = c.parent_id WHERE c.parent_id IS NOT NULL AND c.deleted_at IS NULL";

pub(crate) fn invalid(why: String) -> StoreError {
    StoreError::new(ErrorKind::Invalid, why)
}

/// The job that this one comes after.
pub(crate) fn parent_of(spec: &JobSpec) -> Result<Option<&JobName>, StoreError> {
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

/// Refuses parents that do not exist, and circles.
pub(crate) async fn check_parents(
    conn: &mut PgConnection,
    specs: &[JobSpec],
    stored_jobs: &HashMap<JobName, Arc<Job>>,
) -> Result<(), StoreError> {
    let mut given: BTreeMap<&JobName, &JobName> = BTreeMap::new();
    for spec in specs {
        if let Some(parent) = parent_of(spec)? {
            given.insert(&spec.name, parent);
        }
    }
    if given.is_empty() {
        return Ok(());
    }
    let own: BTreeSet<&JobName> = specs.iter().map(|s| &s.name).collect();
    let elsewhere: Vec<&JobName> = given
        .values()
        .copied()
        .filter(|p| !own.contains(p) && !stored_jobs.contains_key(*p))
        .collect();
    let found = stored(conn, elsewhere.iter().copied()).await?;
    for (child, parent) in &given {
        if !own.contains(parent)
            && !stored_jobs.contains_key(*parent)
            && !found.contains_key(*parent)
        {
            return Err(invalid(format!(
                "failed to apply job {:?}: its parent {:?} does not exist",
                child.as_str(),
                parent.as_str()
            )));
        }
    }
    let rows: Vec<(String, String)> = sqlx::query_as(PARENTS)
        .fetch_all(conn)
        .await
        .map_err(failed("read the parents of jobs"))?;
    let kept = rows
        .iter()
        .map(|(child, parent)| Ok((name(child)?, name(parent)?)))
        .collect::<Result<Vec<(JobName, JobName)>, StoreError>>()?;
    let mut parents: BTreeMap<&JobName, &JobName> = kept
        .iter()
        .filter(|(child, _)| !own.contains(child))
        .map(|(child, parent)| (child, parent))
        .collect();
    parents.extend(given.iter());
    refuse_circles(&given, &parents)
}

fn refuse_circles(
    given: &BTreeMap<&JobName, &JobName>,
    parents: &BTreeMap<&JobName, &JobName>,
) -> Result<(), StoreError> {
    let mut fine: BTreeSet<&JobName> = BTreeSet::new();
    for start in given.keys() {
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
