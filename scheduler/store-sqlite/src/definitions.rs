//! Job definitions: read by id or name, parsed once per version.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::{Job, JobId, JobName, JobSpec};
use cueline_store::adapter::definitions::{
    DefinitionCache, DefinitionRow, JobsById, ScriptBodies, job_of,
};
use cueline_store::adapter::parents::{ParentLinks, StoredLink};
use cueline_store::adapter::script_bodies::with_scripts;
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;
use crate::{SqliteStore, scripts};

const LOAD: &str = "
    SELECT j.id, j.version, j.name, j.definition, (SELECT d.enabled FROM job_due d WHERE d.job_id = j.id)
    FROM json_each(?1) e CROSS JOIN job j ON j.id = e.value";

const BY_NAME: &str = "
    SELECT json_group_array(json_array(j.id, j.version))
    FROM json_each(?1) e CROSS JOIN job j ON j.name = e.value AND j.deleted_at IS NULL";

const PARENTS: &str = "
    SELECT json_group_array(json_array(c.name, p.name, l.waits_for_all))
    FROM job_parent l CROSS JOIN job c ON c.id = l.child_id CROSS JOIN job p ON p.id = l.parent_id";

/// The definitions of the store, with a cache.
#[derive(Debug, Default)]
pub(crate) struct Definitions(DefinitionCache);

impl Definitions {
    /// Jobs by id. The caller passes their current versions. Unreadable definitions are left out.
    pub(crate) async fn get(
        &self,
        conn: &mut SqliteConnection,
        versions: impl IntoIterator<Item = (i64, i64)>,
    ) -> Result<JobsById> {
        let (mut found, missing) = self.0.find(versions.into_iter());
        if !missing.is_empty() {
            found.extend(self.load(conn, &missing).await?);
        }
        Ok(found)
    }

    /// Reads jobs in their current versions. Unknown ids and unreadable definitions are left out.
    async fn load(&self, conn: &mut SqliteConnection, ids: &[i64]) -> Result<JobsById> {
        let rows: Vec<DefinitionRow> = sqlx::query_as(LOAD)
            .bind(Json(ids))
            .fetch_all(&mut *conn)
            .await?;
        let jobs = self.0.parse(rows);
        let with_scripts = with_scripts(&jobs);
        if with_scripts.is_empty() {
            return Ok(self.0.keep(jobs, &[], &ScriptBodies::new()));
        }
        let uses = scripts::uses(&mut *conn, &with_scripts).await?;
        let (mut bodies, missing) = self.0.bodies(&uses);
        if !missing.is_empty() {
            let rows = scripts::bodies(conn, &missing).await?;
            self.0.add_bodies(&mut bodies, rows);
        }
        Ok(self.0.keep(jobs, &uses, &bodies))
    }

    /// Jobs by name. Unknown names are left out.
    pub(crate) async fn by_name(
        &self,
        conn: &mut SqliteConnection,
        names: impl Iterator<Item = &JobName>,
    ) -> Result<HashMap<JobName, Arc<Job>>> {
        let Json(versions): Json<Vec<(i64, i64)>> = sqlx::query_scalar(BY_NAME)
            .bind(Json(names.collect::<Vec<_>>()))
            .fetch_one(&mut *conn)
            .await?;
        let jobs = self.get(conn, versions.iter().copied()).await?;
        let mut found = HashMap::with_capacity(versions.len());
        for (id, _) in versions {
            let job = job_of(&jobs, id)?;
            found.insert(job.spec.name.clone(), job);
        }
        Ok(found)
    }

    /// Returns an error for parents that do not exist, for cycles, and for what else [`ParentLinks`] refuses.
    pub(crate) async fn check_parents(
        &self,
        conn: &mut SqliteConnection,
        specs: &[JobSpec],
        stored: &HashMap<JobName, Arc<Job>>,
    ) -> Result<()> {
        let links = ParentLinks::new(specs)?;
        if links.is_empty(stored) {
            return Ok(());
        }
        let found = self.by_name(conn, links.missing_from(stored)).await?;
        links.require_parents(stored, &found)?;
        let Json(rows): Json<Vec<(JobName, JobName, i64)>> =
            sqlx::query_scalar(PARENTS).fetch_one(conn).await?;
        let stored_links: Vec<StoredLink> = rows
            .into_iter()
            .map(|(child, parent, waits_for_all)| StoredLink {
                child,
                parent,
                waits_for_all: waits_for_all == 1,
            })
            .collect();
        Ok(links.check_graph(&stored_links)?)
    }
}

impl SqliteStore {
    pub(crate) async fn definitions(&self, ids: &[JobId]) -> Result<Vec<Arc<Job>>> {
        let ids: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let mut conn = self.db.read().await?;
        let mut found = self.definitions.load(&mut conn, &ids).await?;
        Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
    }
}
