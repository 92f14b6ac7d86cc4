//! Jobs by their names.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::{Job, JobName};
use cueline_store::StoreError;
use cueline_store::adapter::definitions::parse;
use sqlx::SqliteConnection;

use crate::error::failed;
use crate::rows::encode;

const BY_NAME: &str = "
    SELECT j.id, j.version, j.definition FROM json_each(?1) e CROSS JOIN job j ON j.name = e.value AND j.deleted_at IS NULL";

/// The jobs of these names that exist.
pub(crate) async fn stored(
    conn: &mut SqliteConnection,
    names: impl Iterator<Item = &JobName>,
) -> Result<HashMap<JobName, Arc<Job>>, StoreError> {
    let names: Vec<&JobName> = names.collect();
    let rows: Vec<(i64, i64, String)> = sqlx::query_as(BY_NAME)
        .bind(encode(&names)?)
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
