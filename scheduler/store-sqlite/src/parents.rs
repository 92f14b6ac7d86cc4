//! Which job comes after which: parents have to exist, and nothing may come after itself.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::{Job, JobName, JobSpec};
use cueline_store::StoreError;
use cueline_store::adapter::parents::Given;
use sqlx::SqliteConnection;

use crate::by_name::stored;
use crate::error::failed;
use crate::rows::decode;

const PARENTS: &str = "
    SELECT json_group_array(json_array(c.name, p.name))
    FROM job c CROSS JOIN job p ON p.id = c.parent_id WHERE c.parent_id IS NOT NULL AND c.deleted_at IS NULL";

/// Refuses parents that do not exist, and circles.
pub(crate) async fn check_parents(
    conn: &mut SqliteConnection,
    specs: &[JobSpec],
    stored_jobs: &HashMap<JobName, Arc<Job>>,
) -> Result<(), StoreError> {
    let given = Given::new(specs)?;
    if given.is_empty() {
        return Ok(());
    }
    let found = stored(conn, given.elsewhere(stored_jobs)).await?;
    given.refuse_unknown(stored_jobs, &found)?;
    let text: String = sqlx::query_scalar(PARENTS)
        .fetch_one(conn)
        .await
        .map_err(failed("read the parents of jobs"))?;
    let kept: Vec<(JobName, JobName)> = decode(&text)?;
    given.refuse_circles(&kept)
}
