//! Which job comes after which: parents have to exist, and nothing may come after itself.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::{Job, JobName, JobSpec};
use cueline_store::StoreError;
use cueline_store::adapter::parents::Given;
use sqlx::postgres::PgConnection;

use crate::by_name::stored;
use crate::error::failed;
use crate::rows::name;

const PARENTS: &str = "
    SELECT c.name, p.name FROM job c JOIN job p ON p.id = c.parent_id WHERE c.parent_id IS NOT NULL AND c.deleted_at IS NULL";

/// Refuses parents that do not exist, and circles.
pub(crate) async fn check_parents(
    conn: &mut PgConnection,
    specs: &[JobSpec],
    stored_jobs: &HashMap<JobName, Arc<Job>>,
) -> Result<(), StoreError> {
    let given = Given::new(specs)?;
    if given.is_empty() {
        return Ok(());
    }
    let found = stored(conn, given.elsewhere(stored_jobs)).await?;
    given.refuse_unknown(stored_jobs, &found)?;
    let rows: Vec<(String, String)> = sqlx::query_as(PARENTS)
        .fetch_all(conn)
        .await
        .map_err(failed("read the parents of jobs"))?;
    let kept = rows
        .iter()
        .map(|(child, parent)| Ok((name(child)?, name(parent)?)))
        .collect::<Result<Vec<(JobName, JobName)>, StoreError>>()?;
    given.refuse_circles(&kept)
}
