//! Parsed job definitions, kept by id and version.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::Job;
use cueline_store::StoreError;
use cueline_store::adapter::definitions::KeptDefinitions;
use sqlx::postgres::PgConnection;

use crate::error::failed;

pub(crate) const LOAD: &str = "
    SELECT j.id, j.version, j.definition FROM job j WHERE j.id = ANY ($1::bigint[])";

/// The newest version that was seen of each job.
#[derive(Debug, Default)]
pub(crate) struct Definitions(KeptDefinitions);

impl Definitions {
    /// The definitions of jobs whose present version is known to be `version`, by id.
    pub(crate) async fn of(
        &self,
        conn: &mut PgConnection,
        wanted: impl Iterator<Item = (i64, i64)>,
    ) -> Result<HashMap<i64, Arc<Job>>, StoreError> {
        let (mut found, missing) = self.0.find(wanted);
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
        Ok(self.0.keep(rows))
    }
}
