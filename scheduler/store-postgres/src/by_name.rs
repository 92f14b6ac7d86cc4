//! Jobs by their names.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::{Job, JobName};
use cueline_store::StoreError;
use cueline_store::adapter::definitions::parse;
use sqlx::postgres::PgConnection;

use crate::error::failed;

const BY_NAME: &str = "
    SELECT j.id, j.version, j.definition FROM unnest($1::text[]) e (name) JOIN job j ON j.name = e.name AND j.deleted_at IS NULL";

/// The jobs of these names that exist.
pub(crate) async fn stored(
    conn: &mut PgConnection,
    names: impl Iterator<Item = &JobName>,
) -> Result<HashMap<JobName, Arc<Job>>, StoreError> {
    let names: Vec<&str> = names.map(JobName::as_str).collect();
    let rows: Vec<(i64, i64, String)> = sqlx::query_as(BY_NAME)
        .bind(names)
        .fetch_all(conn)
        .await
        .map_err(failed("read jobs by name"))?;
    rows.into_iter()
        .map(|(id, version, definition)| {
            let job = parse(id, version, &definition)?;
            Ok((job.spec.name.clone(), job))
        })
        .collect()
}
