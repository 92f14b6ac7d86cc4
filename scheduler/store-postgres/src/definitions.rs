//! Parsed job definitions, kept by id and version.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cueline_model::{Job, JobId, JobSpec};
use cueline_store::StoreError;
use sqlx::postgres::PgConnection;

use crate::error::{damaged, failed};

pub(crate) const LOAD: &str = "
    SELECT j.id, j.version, j.definition FROM unnest($1::bigint[]) e (id) JOIN job j ON j.id = e.id";

/// So many definitions are kept at the most; then all are forgotten and read anew as they are asked for.
const MOST: usize = 200_000;

/// The newest version that was seen of each job.
#[derive(Debug, Default)]
pub(crate) struct Definitions(Mutex<HashMap<i64, Arc<Job>>>);

impl Definitions {
    /// The definitions of jobs whose present version is known to be `version`, by id.
    pub(crate) async fn of(
        &self,
        conn: &mut PgConnection,
        wanted: impl Iterator<Item = (i64, i64)>,
    ) -> Result<HashMap<i64, Arc<Job>>, StoreError> {
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            for (id, version) in wanted {
                match kept.get(&id) {
                    Some(job) if job.version == version => {
                        found.insert(id, Arc::clone(job));
                    }
                    _ => missing.push(id),
                }
            }
        }
        if !missing.is_empty() {
            found.extend(self.load(conn, &missing).await?);
        }
        Ok(found)
    }

    /// Reads definitions in their present version; ids that do not exist, and definitions that cannot be read, are left out.
    pub(crate) async fn load(
        &self,
        conn: &mut PgConnection,
        ids: &[i64],
    ) -> Result<HashMap<i64, Arc<Job>>, StoreError> {
        let rows: Vec<(i64, i64, String)> = sqlx::query_as(LOAD)
            .bind(ids)
            .fetch_all(conn)
            .await
            .map_err(failed("read job definitions"))?;
        let mut found = HashMap::with_capacity(rows.len());
        for (id, version, definition) in rows {
            match parse(id, version, &definition) {
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
        Ok(found)
    }
}

/// A definition as it was written down.
pub(crate) fn parse(id: i64, version: i64, definition: &str) -> Result<Arc<Job>, StoreError> {
    let spec: JobSpec = serde_json::from_str(definition)
        .map_err(|e| damaged(format!("failed to read the definition of job {id}"), e))?;
    Ok(Arc::new(Job {
        id: JobId(id),
        version,
        spec,
    }))
}

/// The job with `id` among definitions that were just read.
pub(crate) fn pick(jobs: &HashMap<i64, Arc<Job>>, id: i64) -> Result<Arc<Job>, StoreError> {
    jobs.get(&id).cloned().ok_or_else(|| {
        damaged(
            "failed to read a run",
            format!("its job {id} does not exist or cannot be read"),
        )
    })
}
