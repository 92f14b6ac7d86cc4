//! Job definitions: read by id or name, parsed once per version.

use std::collections::HashMap;
use std::sync::Arc;

use cueline_model::{Job, JobId, JobName, JobSpec};
use cueline_store::adapter::convert::parse_name;
use cueline_store::adapter::definitions::{
    DefinitionCache, DefinitionRow, JobsById, ScriptBodies, job_of,
};
use cueline_store::adapter::parents::{ParentLinks, StoredLink};
use cueline_store::adapter::script_bodies::with_scripts;
use sqlx::FromRow as _;
use sqlx::postgres::PgConnection;

use crate::columns::job_ids;
use crate::error::Result;
use crate::{PgStore, scripts};

pub(crate) const LOAD: &str = "
    SELECT j.id, j.version, j.name, j.definition, (SELECT d.enabled FROM job_due d WHERE d.job_id = j.id)
    FROM job j WHERE j.id = ANY ($1::bigint[])";

/// For jobs that have a next fire time, so they are enabled.
pub(crate) const LOAD_DUE: &str = "
    SELECT j.id, j.version, j.name, j.definition, true FROM job j WHERE j.id = ANY ($1::bigint[])";

const BY_NAME: &str = "
    SELECT j.id, j.version FROM unnest($1::text[]) e (name) JOIN job j ON j.name = e.name AND j.deleted_at IS NULL";

const PARENTS: &str = "
    SELECT c.name, p.name, l.waits_for_all FROM job_parent l JOIN job c ON c.id = l.child_id JOIN job p ON p.id = l.parent_id";

/// The definitions of the store, with a cache.
#[derive(Debug, Default)]
pub(crate) struct Definitions(DefinitionCache);

impl Definitions {
    /// Jobs by id. The caller passes their current versions. Unreadable definitions are left out.
    pub(crate) async fn get(
        &self,
        conn: &mut PgConnection,
        versions: impl IntoIterator<Item = (i64, i64)>,
    ) -> Result<JobsById> {
        self.get_by(LOAD, conn, versions).await
    }

    /// The same for jobs that have a next fire time, and whose rows are locked.
    pub(crate) async fn get_due(
        &self,
        conn: &mut PgConnection,
        versions: impl IntoIterator<Item = (i64, i64)>,
    ) -> Result<JobsById> {
        self.get_by(LOAD_DUE, conn, versions).await
    }

    async fn get_by(
        &self,
        statement: &'static str,
        conn: &mut PgConnection,
        versions: impl IntoIterator<Item = (i64, i64)>,
    ) -> Result<JobsById> {
        let (mut found, missing) = self.0.find(versions.into_iter());
        if !missing.is_empty() {
            found.extend(self.load(statement, conn, &missing).await?);
        }
        Ok(found)
    }

    /// Reads jobs in their current versions. Unknown ids and unreadable definitions are left out.
    async fn load(
        &self,
        statement: &'static str,
        conn: &mut PgConnection,
        ids: &[i64],
    ) -> Result<JobsById> {
        let rows = sqlx::query(statement)
            .bind(ids)
            .fetch_all(&mut *conn)
            .await?;
        let rows: Vec<DefinitionRow<&str>> = rows
            .iter()
            .map(DefinitionRow::from_row)
            .collect::<std::result::Result<_, _>>()?;
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

    /// Forgets all definitions, because the database may issue their versions again.
    pub(crate) fn forget(&self) {
        self.0.clear();
    }

    /// Jobs by name. Unknown names are left out.
    pub(crate) async fn by_name(
        &self,
        conn: &mut PgConnection,
        names: impl Iterator<Item = &JobName>,
    ) -> Result<HashMap<JobName, Arc<Job>>> {
        let versions: Vec<(i64, i64)> = sqlx::query_as(BY_NAME)
            .bind(names.map(JobName::as_str).collect::<Vec<_>>())
            .fetch_all(&mut *conn)
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
        conn: &mut PgConnection,
        specs: &[JobSpec],
        stored: &HashMap<JobName, Arc<Job>>,
    ) -> Result<()> {
        let links = ParentLinks::new(specs)?;
        if links.is_empty(stored) {
            return Ok(());
        }
        let found = self.by_name(conn, links.missing_from(stored)).await?;
        links.require_parents(stored, &found)?;
        let rows: Vec<(String, String, bool)> = sqlx::query_as(PARENTS).fetch_all(conn).await?;
        let stored_links = rows
            .iter()
            .map(|(child, parent, waits_for_all)| {
                Ok(StoredLink {
                    child: parse_name(child)?,
                    parent: parse_name(parent)?,
                    waits_for_all: *waits_for_all,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(links.check_graph(&stored_links)?)
    }
}

impl PgStore {
    pub(crate) async fn definitions(&self, ids: &[JobId]) -> Result<Vec<Arc<Job>>> {
        let mut conn = self.db.read().await?;
        let mut found = self
            .definitions
            .load(LOAD, &mut conn, &job_ids(ids))
            .await?;
        Ok(ids.iter().filter_map(|id| found.remove(&id.0)).collect())
    }
}
