//! Parsed job definitions, kept by id and version.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::Job;
use cueline_store::StoreError;
use cueline_store::adapter::definitions::KeptDefinitions;
use serde::Deserialize;
use serde_json::value::RawValue;
use sqlx::SqliteConnection;

use crate::error::{damaged, failed};
use crate::rows::encode;

const LOAD: &str = "
    SELECT json_group_array(json_array(j.id, j.version, json(j.definition)))
    FROM json_each(?1) e CROSS JOIN job j ON j.id = e.value";

#[derive(Deserialize)]
struct Row<'a>(i64, i64, #[serde(borrow)] &'a RawValue);

/// The newest version that was seen of each job.
#[derive(Debug, Default)]
pub(crate) struct Definitions(KeptDefinitions);

impl Definitions {
    /// The definitions of jobs whose present version is known to be `version`, by id.
    pub(crate) async fn of(
        &self,
        conn: &mut SqliteConnection,
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
        conn: &mut SqliteConnection,
        ids: &[i64],
    ) -> Result<HashMap<i64, Arc<Job>>, StoreError> {
        let text: String = sqlx::query_scalar(LOAD)
            .bind(encode(ids)?)
            .fetch_one(conn)
            .await
            .map_err(failed("read job definitions"))?;
        let rows: Vec<Row<'_>> = serde_json::from_str(&text)
            .map_err(|e| damaged("failed to read job definitions", e))?;
        let rows = rows
            .iter()
            .map(|Row(id, version, definition)| (*id, *version, definition.get()));
        Ok(self.0.keep(rows))
    }
}
