//! Scripts with their versions, and the jobs that use them.

use async_trait::async_trait;
use cueline_model::{Actor, JobId, JobSpec, Namespace, ScriptName, ScriptSpec};
use cueline_store::adapter::audit::{script_changed, script_value, stored_actor};
use cueline_store::adapter::job_list::name_range;
use cueline_store::adapter::script_bodies::{BodyRow, UseRow};
use cueline_store::adapter::scripts::{
    KnownVersionRow, NewestRow, ResolvedScripts, ScriptRow, ScriptWrites, UserRow, VersionRow,
    change_of, no_script, oldest_kept, refuse_many, refuse_many_users, refuse_used_script,
    script_version, stored_scripts, users_of_script, wanted_scripts,
};
use cueline_store::{
    AppliedScript, Change, Precondition, Revision, ScriptStore, ScriptVersion, StoreError,
    StoredScript,
};
use sqlx::postgres::PgConnection;

use crate::columns::column;
use crate::error::Result;
use crate::job_writes::LOCK;
use crate::{PgStore, audit, waiting_runs};

const SCRIPTS: &str = "
    SELECT s.name, s.id, s.version, v.at, v.saved_by, v.remark, v.language, octet_length(v.text)::bigint
    FROM script s JOIN script_version v ON v.script_id = s.id AND v.version = s.version
    WHERE s.name >= $1 AND s.name < $2 AND (NOT $3 OR strpos(s.name, '/') = 0)";

/// The jobs of the scripts with these ids.
const USERS: &str = "
    SELECT u.script_id, j.name, u.version, u.pinned
    FROM job_script u JOIN job j ON j.id = u.job_id WHERE u.script_id = ANY ($1::bigint[])";

const NEWEST: &str = "
    SELECT s.id, s.version, v.language, v.text
    FROM script s JOIN script_version v ON v.script_id = s.id AND v.version = s.version WHERE s.name = $1";

const SCRIPT_ID: &str = "SELECT id FROM script WHERE name = $1";

const VERSIONS: &str = "
    SELECT version, at, saved_by, remark, language, octet_length(text)::bigint, NULL::text FROM script_version
    WHERE script_id = $1 ORDER BY version DESC";

const VERSION: &str = "
    SELECT version, at, saved_by, remark, language, octet_length(text)::bigint, text FROM script_version
    WHERE script_id = $1 AND version = $2";

const COUNT: &str = "
    SELECT count(*) FROM script WHERE name >= $1 AND name < $2 AND (NOT $3 OR strpos(name, '/') = 0)";

const INSERT: &str = "INSERT INTO script (name, version) VALUES ($1, 1) RETURNING id";

const NEXT_VERSION: &str = "UPDATE script SET version = version + 1 WHERE id = $1";

const INSERT_VERSION: &str = "
    INSERT INTO script_version (script_id, version, at, saved_by, remark, language, text)
    SELECT id, version, $2, $3, $4, $5, $6 FROM script WHERE id = $1";

/// Jobs that follow the newest version.
const FOLLOWERS: &str =
    "SELECT job_id FROM job_script WHERE script_id = $1 AND NOT pinned ORDER BY job_id";

const FOLLOW: &str = "
    UPDATE job_script SET version = (SELECT s.version FROM script s WHERE s.id = $1)
    WHERE script_id = $1 AND NOT pinned";

const NEXT_JOB_VERSION: &str = "UPDATE job SET version = version + 1 WHERE id = ANY ($1::bigint[])";
const NEXT_DUE_VERSION: &str =
    "UPDATE job_due SET version = version + 1 WHERE job_id = ANY ($1::bigint[])";

/// A version that a job is pinned to stays.
const TRIM_VERSIONS: &str = "
    DELETE FROM script_version WHERE script_id = $1 AND version <= $2
        AND version NOT IN (SELECT u.version FROM job_script u WHERE u.script_id = $1)";

const DELETE_VERSIONS: &str = "DELETE FROM script_version WHERE script_id = $1";
const DELETE: &str = "DELETE FROM script WHERE id = $1";

const KNOWN_VERSIONS: &str = "
    SELECT s.name, s.id, s.version, v.version
    FROM script s JOIN script_version v ON v.script_id = s.id WHERE s.name = ANY ($1::text[])";

const WRITE_USED: &str = "
    INSERT INTO job_script (job_id, script_id, version, pinned)
    SELECT e.job, e.script, e.version, e.pinned
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::boolean[]) e (job, script, version, pinned)
    ON CONFLICT (job_id) DO UPDATE SET script_id = excluded.script_id, version = excluded.version, pinned = excluded.pinned";

const DELETE_USED: &str = "DELETE FROM job_script WHERE job_id = ANY ($1::bigint[])";

const USER_COUNTS: &str = "
    SELECT s.name, (SELECT count(*) FROM job_script u WHERE u.script_id = s.id)
    FROM script s WHERE s.id = ANY ($1::bigint[])";

const USES: &str = "
    SELECT job_id, script_id, version FROM job_script WHERE job_id = ANY ($1::bigint[])";

const BODIES: &str = "
    SELECT v.script_id, v.version, v.language, v.text
    FROM unnest($1::bigint[], $2::bigint[]) e (script, version)
        JOIN script_version v ON v.script_id = e.script AND v.version = e.version";

/// The versions that the scripts of these definitions have.
pub(crate) async fn resolve(conn: &mut PgConnection, specs: &[JobSpec]) -> Result<ResolvedScripts> {
    let wanted = wanted_scripts(specs);
    if wanted.is_empty() {
        return Ok(ResolvedScripts::default());
    }
    let known: Vec<KnownVersionRow> = sqlx::query_as(KNOWN_VERSIONS)
        .bind(column(&wanted, ScriptName::as_str))
        .fetch_all(conn)
        .await?;
    Ok(ResolvedScripts::new(specs, &known)?)
}

/// Writes which versions the jobs of an apply run.
pub(crate) async fn write_uses(conn: &mut PgConnection, writes: &ScriptWrites) -> Result<()> {
    if !writes.unused.is_empty() {
        forget_uses(conn, &writes.unused).await?;
    }
    if writes.used.is_empty() {
        return Ok(());
    }
    let used: Vec<_> = writes.used.iter().collect();
    sqlx::query(WRITE_USED)
        .bind(column(&used, |(job, _)| **job))
        .bind(column(&used, |(_, used)| used.script))
        .bind(column(&used, |(_, used)| used.version))
        .bind(column(&used, |(_, used)| used.pinned))
        .execute(&mut *conn)
        .await?;
    let counts: Vec<(String, i64)> = sqlx::query_as(USER_COUNTS)
        .bind(writes.scripts())
        .fetch_all(conn)
        .await?;
    Ok(refuse_many_users(&counts)?)
}

/// These jobs use no script any more.
pub(crate) async fn forget_uses(conn: &mut PgConnection, jobs: &[i64]) -> Result<()> {
    sqlx::query(DELETE_USED).bind(jobs).execute(conn).await?;
    Ok(())
}

/// The versions that these jobs run.
pub(crate) async fn uses(conn: &mut PgConnection, jobs: &[i64]) -> Result<Vec<UseRow>> {
    let rows = sqlx::query_as(USES).bind(jobs).fetch_all(conn);
    Ok(rows.await?)
}

/// The texts of these versions.
pub(crate) async fn bodies(
    conn: &mut PgConnection,
    versions: &[(i64, i64)],
) -> Result<Vec<BodyRow>> {
    let rows = sqlx::query_as(BODIES)
        .bind(column(versions, |(script, _)| *script))
        .bind(column(versions, |(_, version)| *version))
        .fetch_all(conn);
    Ok(rows.await?)
}

async fn newest(conn: &mut PgConnection, name: &ScriptName) -> Result<Option<NewestRow>> {
    let row = sqlx::query_as(NEWEST)
        .bind(name.as_str())
        .fetch_optional(conn);
    Ok(row.await?)
}

async fn users(conn: &mut PgConnection, scripts: &[i64]) -> Result<Vec<UserRow>> {
    let rows = sqlx::query_as(USERS).bind(scripts).fetch_all(conn);
    Ok(rows.await?)
}

async fn version_of(
    conn: &mut PgConnection,
    script: i64,
    version: i64,
) -> Result<Option<ScriptVersion>> {
    let row: Option<VersionRow> = sqlx::query_as(VERSION)
        .bind(script)
        .bind(version)
        .fetch_optional(conn)
        .await?;
    Ok(row.map(script_version).transpose()?)
}

/// Creates the script, or raises its version. Returns its id.
async fn next_version(
    conn: &mut PgConnection,
    spec: &ScriptSpec,
    stored: Option<&NewestRow>,
) -> Result<i64> {
    if let Some((id, ..)) = stored {
        sqlx::query(NEXT_VERSION).bind(id).execute(conn).await?;
        return Ok(*id);
    }
    let namespace = spec.name.namespace();
    let (from, below, without_slash) = name_range(Some(&namespace));
    let present: i64 = sqlx::query_scalar(COUNT)
        .bind(from)
        .bind(below)
        .bind(without_slash)
        .fetch_one(&mut *conn)
        .await?;
    refuse_many(&namespace, present)?;
    let inserted = sqlx::query_scalar(INSERT)
        .bind(spec.name.as_str())
        .fetch_one(conn);
    Ok(inserted.await?)
}

impl PgStore {
    /// Gives the jobs that follow the newest version a new version of their own, so that no trigger with the text before is
    /// published any more. Returns them.
    async fn follow(&self, conn: &mut PgConnection, script: i64, by: &Actor) -> Result<Vec<JobId>> {
        let ids: Vec<i64> = sqlx::query_scalar(FOLLOWERS)
            .bind(script)
            .fetch_all(&mut *conn)
            .await?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let jobs: Vec<JobId> = ids.iter().copied().map(JobId).collect();
        let now = self.lock_and_read_clock(conn, jobs.iter().copied()).await?;
        sqlx::query(FOLLOW).bind(script).execute(&mut *conn).await?;
        for statement in [NEXT_JOB_VERSION, NEXT_DUE_VERSION] {
            sqlx::query(statement)
                .bind(&ids)
                .execute(&mut *conn)
                .await?;
        }
        waiting_runs::unclaim(conn, &jobs).await?;
        audit::write_versions(conn, &ids, by, now).await?;
        Ok(jobs)
    }

    async fn list_scripts(&self, namespace: &Namespace) -> Result<Vec<StoredScript>> {
        let mut tx = self.db.snapshot().await?;
        let (from, below, without_slash) = name_range(Some(namespace));
        let rows: Vec<ScriptRow> = sqlx::query_as(SCRIPTS)
            .bind(from)
            .bind(below)
            .bind(without_slash)
            .fetch_all(&mut *tx)
            .await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.1).collect();
        let users = users(&mut tx, &ids).await?;
        Ok(stored_scripts(rows, users)?)
    }

    async fn find_script(&self, name: &ScriptName) -> Result<StoredScript> {
        let mut tx = self.db.snapshot().await?;
        let (id, version, ..) = newest(&mut tx, name)
            .await?
            .ok_or_else(|| no_script(name))?;
        let newest = version_of(&mut tx, id, version).await?;
        let users = users(&mut tx, &[id]).await?;
        Ok(StoredScript {
            name: name.clone(),
            revision: Revision { id, version },
            newest: newest.ok_or_else(|| no_script(name))?,
            jobs: users_of_script(users)?,
        })
    }

    async fn list_script_versions(&self, name: &ScriptName) -> Result<Vec<ScriptVersion>> {
        let mut tx = self.db.snapshot().await?;
        let id = script_id(&mut tx, name).await?;
        let rows: Vec<VersionRow> = sqlx::query_as(VERSIONS)
            .bind(id)
            .fetch_all(&mut *tx)
            .await?;
        rows.into_iter()
            .map(|row| Ok(script_version(row)?))
            .collect()
    }

    async fn find_script_version(
        &self,
        name: &ScriptName,
        version: i64,
    ) -> Result<Option<ScriptVersion>> {
        let mut tx = self.db.snapshot().await?;
        let id = script_id(&mut tx, name).await?;
        version_of(&mut tx, id, version).await
    }

    async fn write_script(
        &self,
        spec: &ScriptSpec,
        condition: &Precondition,
        dry_run: bool,
        by: &Actor,
    ) -> Result<(AppliedScript, Vec<JobId>)> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        let stored = newest(&mut tx, &spec.name).await?;
        let revision = stored.as_ref().map(|(id, version, ..)| Revision {
            id: *id,
            version: *version,
        });
        condition.require("save the script", spec.name.as_str(), revision)?;
        let change = change_of(spec, stored.as_ref())?;
        let mut applied = AppliedScript {
            name: spec.name.clone(),
            revision,
            change,
        };
        if dry_run || change == Change::Unchanged {
            return Ok((applied, Vec::new()));
        }
        let id = next_version(&mut tx, spec, stored.as_ref()).await?;
        let version = revision.map_or(1, |revision| revision.version + 1);
        applied.revision = Some(Revision { id, version });
        sqlx::query(INSERT_VERSION)
            .bind(id)
            .bind(now.as_millis())
            .bind(stored_actor(by))
            .bind(&spec.remark)
            .bind(spec.language.as_str())
            .bind(&spec.text)
            .execute(&mut *tx)
            .await?;
        let jobs = self.follow(&mut tx, id, by).await?;
        sqlx::query(TRIM_VERSIONS)
            .bind(id)
            .bind(oldest_kept(version))
            .execute(&mut *tx)
            .await?;
        let before =
            stored.map(|(_, version, word, text)| script_value(version, &word, &text, None));
        let after = script_value(
            version,
            spec.language.as_str(),
            &spec.text,
            Some(&spec.remark),
        );
        let entry = script_changed(by, &spec.name, before, Some(after), jobs.len());
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok((applied, jobs))
    }

    async fn remove_script(
        &self,
        name: &ScriptName,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<()> {
        let mut tx = self.db.write().await?;
        let now = tx.now;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        let (id, version, word, text) = newest(&mut tx, name)
            .await?
            .ok_or_else(|| no_script(name))?;
        let revision = Some(Revision { id, version });
        condition.require("delete the script", name.as_str(), revision)?;
        refuse_used_script(name, &users(&mut tx, &[id]).await?)?;
        for statement in [DELETE_VERSIONS, DELETE] {
            sqlx::query(statement).bind(id).execute(&mut *tx).await?;
        }
        let before = script_value(version, &word, &text, None);
        let entry = script_changed(by, name, Some(before), None, 0);
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(())
    }
}

async fn script_id(conn: &mut PgConnection, name: &ScriptName) -> Result<i64> {
    let id: Option<i64> = sqlx::query_scalar(SCRIPT_ID)
        .bind(name.as_str())
        .fetch_optional(conn)
        .await?;
    Ok(id.ok_or_else(|| no_script(name))?)
}

type Answer<T> = std::result::Result<T, StoreError>;

#[async_trait]
impl ScriptStore for PgStore {
    async fn scripts(&self, namespace: &Namespace) -> Answer<Vec<StoredScript>> {
        self.read("list scripts", || self.list_scripts(namespace))
            .await
    }

    async fn script(&self, name: &ScriptName) -> Answer<StoredScript> {
        self.read("read a script", || self.find_script(name)).await
    }

    async fn script_versions(&self, name: &ScriptName) -> Answer<Vec<ScriptVersion>> {
        self.read("list the versions of a script", || {
            self.list_script_versions(name)
        })
        .await
    }

    async fn script_version(
        &self,
        name: &ScriptName,
        version: i64,
    ) -> Answer<Option<ScriptVersion>> {
        self.read("read a version of a script", || {
            self.find_script_version(name, version)
        })
        .await
    }

    async fn put_script(
        &self,
        spec: &ScriptSpec,
        condition: &Precondition,
        dry_run: bool,
        by: &Actor,
    ) -> Answer<(AppliedScript, Vec<JobId>)> {
        self.write("save a script", || {
            self.write_script(spec, condition, dry_run, by)
        })
        .await
    }

    async fn delete_script(
        &self,
        name: &ScriptName,
        condition: &Precondition,
        by: &Actor,
    ) -> Answer<()> {
        self.write("delete a script", || {
            self.remove_script(name, condition, by)
        })
        .await
    }
}
