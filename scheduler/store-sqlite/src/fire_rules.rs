//! Fire rules: calendars, maintenance windows, time zones, and the plans of the jobs that they are about.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use cueline_model::schedule::zones::ZoneDigest;
use cueline_model::{
    Actor, CalendarName, CalendarSpec, FireRules, Job, JobId, JobName, Namespace, Timestamp,
    WindowSpec,
};
use cueline_store::adapter::audit::calendar_changed;
use cueline_store::adapter::convert::{corrupt, parse_name};
use cueline_store::adapter::definitions::JobsById;
use cueline_store::adapter::fire_rules::{
    About, CalendarChange, CalendarRow, DueRow, ExcludedRow, Replanned, RulesRow, account_excluded,
    change_calendars, changed_zones, parse_rules, refuse_used_calendar, replan,
};
use cueline_store::adapter::job_list::name_range;
use cueline_store::{
    AppliedCalendar, Change, ErrorKind, FireRuleStore, Precondition, Revision, StoreError,
    StoredCalendar, WindowReplan,
};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::error::Result;
use crate::jobs::wait_for_live_runs;
use crate::{SqliteStore, audit, new_runs, waiting_runs};

const REVISION: &str = "SELECT revision FROM fire_rules";

const RULES: &str = "
    SELECT revision,
        (SELECT json_group_array(json_array(version, definition)) FROM calendar),
        (SELECT json_group_array(json_array(id, definition, ended_at)) FROM maintenance_window)
    FROM fire_rules";

pub(crate) const NEXT_REVISION: &str = "UPDATE fire_rules SET revision = revision + 1";

const CALENDARS: &str = "SELECT id, version, name, definition FROM calendar ORDER BY name";

const INSERT_CALENDAR: &str = "
    INSERT INTO calendar (name, version, definition) VALUES (?1, 1, ?2) RETURNING id";

const UPDATE_CALENDAR: &str =
    "UPDATE calendar SET version = version + 1, definition = ?2 WHERE id = ?1";

const DELETE_CALENDAR: &str = "DELETE FROM calendar WHERE id = ?1";

const JOBS: &str = "
    SELECT json_group_array(json_array(id, version)) FROM job
    WHERE name >= ?1 AND name < ?2 AND (?3 = 0 OR instr(name, '/') = 0) AND deleted_at IS NULL";

const EXCLUDED: &str = "
    SELECT json_group_array(json_array(job_id, version, excluded_from, next_fire_at, run_count)) FROM job_due
    WHERE job_id IN (SELECT value FROM json_each(?1)) AND excluded_from IS NOT NULL";

const DUE: &str = "
    SELECT json_group_array(json_array(job_id, next_fire_at, excluded_from, json(iif(enabled, 'true', 'false'))))
    FROM job_due WHERE job_id IN (SELECT value FROM json_each(?1))";

const REPLAN: &str = "
    UPDATE job_due SET next_fire_at = e.value ->> 1, excluded_from = e.value ->> 2, rules = e.value ->> 3,
        paused_until = e.value ->> 4
    FROM json_each(?1) e WHERE job_id = e.value ->> 0";

const ZONES: &str = "SELECT name, digest FROM time_zone ORDER BY name";

const WRITE_ZONE: &str = "
    INSERT INTO time_zone (name, digest) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET digest = excluded.digest";

impl SqliteStore {
    /// The present fire rules. A transaction that has changed them reads its own.
    pub(crate) async fn present_rules(
        &self,
        conn: &mut SqliteConnection,
    ) -> Result<Arc<FireRules>> {
        let revision: i64 = sqlx::query_scalar(REVISION).fetch_one(&mut *conn).await?;
        match self.rules.exactly(revision) {
            Some(rules) => Ok(rules),
            None => read_rules(conn).await,
        }
    }

    /// Fire rules that are at least as new as `revision`, for a transaction that has changed none.
    pub(crate) async fn rules_at_least(
        &self,
        conn: &mut SqliteConnection,
        revision: i64,
    ) -> Result<Arc<FireRules>> {
        if let Some(rules) = self.rules.at_least(revision) {
            return Ok(rules);
        }
        let rules = read_rules(conn).await?;
        self.rules.keep(&rules);
        Ok(rules)
    }

    /// Writes `skipped` runs for the excluded fire times of these jobs that have passed. A change of the jobs follows.
    pub(crate) async fn account_excluded(
        &self,
        conn: &mut SqliteConnection,
        jobs: &[i64],
        rules: &FireRules,
        now: Timestamp,
    ) -> Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        let Json(rows): Json<Vec<ExcludedRow>> = sqlx::query_scalar(EXCLUDED)
            .bind(Json(jobs))
            .fetch_one(&mut *conn)
            .await?;
        if rows.is_empty() {
            return Ok(());
        }
        let versions = rows.iter().map(|row| (row.0, row.1));
        let known = self.definitions.get(&mut *conn, versions).await?;
        let mut runs = account_excluded(&rows, &known, rules, now);
        new_runs::insert(conn, &mut runs, now).await?;
        Ok(())
    }

    /// The jobs that a change is about.
    async fn jobs_about(&self, conn: &mut SqliteConnection, about: &About<'_>) -> Result<JobsById> {
        let namespace = about.namespace();
        let (from, below, without_slash) = name_range(namespace.as_ref());
        let Json(versions): Json<Vec<(i64, i64)>> = sqlx::query_scalar(JOBS)
            .bind(from)
            .bind(below)
            .bind(without_slash)
            .fetch_one(&mut *conn)
            .await?;
        let mut jobs = self.definitions.get(conn, versions).await?;
        jobs.retain(|_, job| about.has(&job.spec));
        Ok(jobs)
    }

    /// Computes the plans of jobs again, after a change from the rules `before` at `changed_at`. Returns their ids. With
    /// `ends_runs`, runs that wait and are due before its time end with its message.
    pub(crate) async fn replan(
        &self,
        conn: &mut SqliteConnection,
        jobs: &JobsById,
        (before, after): (&FireRules, &FireRules),
        changed_at: Timestamp,
        ends_runs: Option<(i64, String)>,
    ) -> Result<Vec<JobId>> {
        let now = self.db.now();
        let mut ids: Vec<i64> = jobs.keys().copied().collect();
        ids.sort_unstable();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.account_excluded(conn, &ids, before, changed_at)
            .await?;
        let Json(rows): Json<Vec<DueRow>> = sqlx::query_scalar(DUE)
            .bind(Json(&ids))
            .fetch_one(&mut *conn)
            .await?;
        let plans: Vec<_> = replan(&rows, jobs, (before, after), (changed_at, now))
            .into_iter()
            .map(|Replanned { job, columns: due }| {
                (
                    job,
                    due.next_fire_at,
                    due.excluded_from,
                    due.rules,
                    due.paused_until,
                )
            })
            .collect();
        sqlx::query(REPLAN)
            .bind(Json(plans))
            .execute(&mut *conn)
            .await?;
        let ids: Vec<JobId> = ids.into_iter().map(JobId).collect();
        waiting_runs::delete_ahead(conn, &ids, now).await?;
        if let Some((until, message)) = ends_runs {
            waiting_runs::end_due(conn, &ids, (now, until), &message).await?;
        }
        wait_for_live_runs(conn, &ids).await?;
        Ok(ids)
    }

    /// Notes that the rules have changed, and computes the plans of the jobs again that the change is about.
    async fn rules_changed(
        &self,
        conn: &mut SqliteConnection,
        about: &About<'_>,
        before: &FireRules,
        now: Timestamp,
    ) -> Result<Vec<JobId>> {
        sqlx::query(NEXT_REVISION).execute(&mut *conn).await?;
        let after = read_rules(conn).await?;
        let jobs = self.jobs_about(conn, about).await?;
        self.replan(conn, &jobs, (before, &after), now, None).await
    }

    async fn list_calendars(
        &self,
        namespace: &Namespace,
        name: Option<&CalendarName>,
    ) -> Result<Vec<StoredCalendar>> {
        let mut tx = self.db.snapshot().await?;
        let rows = stored_calendars(&mut tx).await?;
        let mut found = Vec::new();
        let mut names = BTreeSet::new();
        for (own, (id, version, definition)) in rows {
            if !own.is_in(namespace) || name.is_some_and(|name| *name != own) {
                continue;
            }
            let spec = serde_json::from_str(&definition)
                .map_err(|e| corrupt(format!("failed to read calendar {own}"), e))?;
            names.insert(own);
            found.push(StoredCalendar {
                spec,
                revision: Revision { id, version },
                jobs: Vec::new(),
            });
        }
        if names.is_empty() {
            return Ok(found);
        }
        let jobs = self.jobs_about(&mut tx, &About::Calendars(&names)).await?;
        for calendar in &mut found {
            let has_calendar =
                |job: &&Arc<Job>| job.spec.calendar_names().any(|n| n == calendar.spec.name);
            let with_it = jobs.values().filter(has_calendar);
            let mut users: Vec<JobName> = with_it.map(|job| job.spec.name.clone()).collect();
            users.sort_unstable();
            calendar.jobs = users;
        }
        found.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        Ok(found)
    }

    async fn write_calendars(
        &self,
        specs: &[CalendarSpec],
        condition: &Precondition,
        dry_run: bool,
        by: &Actor,
    ) -> Result<(Vec<AppliedCalendar>, Vec<JobId>)> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let stored: HashMap<CalendarName, CalendarRow> =
            stored_calendars(&mut tx).await?.into_iter().collect();
        let mut present: HashMap<Namespace, usize> = HashMap::new();
        for name in stored.keys() {
            *present.entry(name.namespace()).or_default() += 1;
        }
        let changes = change_calendars(specs, &stored, &present, condition)?;
        let before = self.present_rules(&mut tx).await?;
        let mut applied = Vec::with_capacity(changes.len());
        let mut touched = BTreeSet::new();
        let mut entries = Vec::new();
        for change in &changes {
            let revision = write_calendar(&mut tx, change, dry_run).await?;
            applied.push(AppliedCalendar {
                name: change.spec.name.clone(),
                revision,
                change: change.change,
            });
            if change.change != Change::Unchanged {
                touched.insert(change.spec.name.clone());
                let old = change.before.as_ref().map(|row| row.2.clone());
                let new = Some(change.definition.clone());
                entries.push(calendar_changed(by, &change.spec.name, old, new));
            }
        }
        if dry_run || touched.is_empty() {
            return Ok((applied, Vec::new()));
        }
        let about = About::Calendars(&touched);
        let jobs = self.rules_changed(&mut tx, &about, &before, now).await?;
        audit::write(&mut tx, &entries, now).await?;
        tx.commit().await?;
        Ok((applied, jobs))
    }

    async fn remove_calendar(
        &self,
        name: &CalendarName,
        condition: &Precondition,
        by: &Actor,
    ) -> Result<()> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let stored = stored_calendars(&mut tx).await?;
        let Some((_, (id, version, definition))) = stored.into_iter().find(|(n, _)| n == name)
        else {
            return Err(no_calendar(name).into());
        };
        let revision = Some(Revision { id, version });
        condition.require("delete the calendar", name.as_str(), revision)?;
        let names = BTreeSet::from([name.clone()]);
        let jobs = self.jobs_about(&mut tx, &About::Calendars(&names)).await?;
        let jobs: Vec<Arc<Job>> = jobs.into_values().collect();
        refuse_used_calendar(name, &jobs)?;
        sqlx::query(DELETE_CALENDAR)
            .bind(id)
            .execute(&mut *tx)
            .await?;
        sqlx::query(NEXT_REVISION).execute(&mut *tx).await?;
        let entry = calendar_changed(by, name, Some(definition), None);
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn write_zones(&self, zones: &[ZoneDigest]) -> Result<u64> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let stored: Vec<(String, i64)> = sqlx::query_as(ZONES).fetch_all(&mut *tx).await?;
        let changed = changed_zones(&stored, zones);
        let mut replanned = 0;
        if !changed.is_empty() {
            let rules = self.present_rules(&mut tx).await?;
            let about = About::Zones(&changed, &rules);
            let jobs = self.jobs_about(&mut tx, &about).await?;
            let jobs = self
                .replan(&mut tx, &jobs, (&rules, &rules), now, None)
                .await?;
            replanned = jobs.len() as u64;
        }
        for zone in zones {
            sqlx::query(WRITE_ZONE)
                .bind(&zone.name)
                .bind(zone.digest)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(replanned)
    }
}

async fn read_rules(conn: &mut SqliteConnection) -> Result<Arc<FireRules>> {
    let row: RulesRow = sqlx::query_as(RULES).fetch_one(conn).await?;
    Ok(Arc::new(parse_rules(row)?))
}

async fn stored_calendars(conn: &mut SqliteConnection) -> Result<Vec<(CalendarName, CalendarRow)>> {
    let rows: Vec<(i64, i64, String, String)> = sqlx::query_as(CALENDARS).fetch_all(conn).await?;
    let row = |(id, version, name, definition): (i64, i64, String, String)| {
        Ok((parse_name(&name)?, (id, version, definition)))
    };
    rows.into_iter().map(row).collect()
}

async fn write_calendar(
    conn: &mut SqliteConnection,
    change: &CalendarChange<'_>,
    dry_run: bool,
) -> Result<Option<Revision>> {
    let stored = change.before.as_ref().map(|(id, version, _)| Revision {
        id: *id,
        version: *version,
    });
    if dry_run || change.change == Change::Unchanged {
        return Ok(stored);
    }
    let Some(Revision { id, version }) = stored else {
        let id: i64 = sqlx::query_scalar(INSERT_CALENDAR)
            .bind(change.spec.name.as_str())
            .bind(&change.definition)
            .fetch_one(conn)
            .await?;
        return Ok(Some(Revision { id, version: 1 }));
    };
    sqlx::query(UPDATE_CALENDAR)
        .bind(id)
        .bind(&change.definition)
        .execute(conn)
        .await?;
    let version = version + 1;
    Ok(Some(Revision { id, version }))
}

fn no_calendar(name: &CalendarName) -> StoreError {
    let message = format!("there is no calendar {:?}", name.as_str());
    StoreError::new(ErrorKind::NotFound, message)
}

type Answer<T> = std::result::Result<T, StoreError>;

#[async_trait]
impl FireRuleStore for SqliteStore {
    async fn fire_rules(&self) -> Answer<Arc<FireRules>> {
        let read = async {
            let mut conn = self.db.read().await?;
            self.present_rules(&mut conn).await
        };
        read.await
            .map_err(|error| error.failed_to("read calendars and windows"))
    }

    async fn calendars(
        &self,
        namespace: &Namespace,
        name: Option<&CalendarName>,
    ) -> Answer<Vec<StoredCalendar>> {
        let listed = self.list_calendars(namespace, name).await;
        listed.map_err(|error| error.failed_to("list calendars"))
    }

    async fn put_calendars(
        &self,
        specs: &[CalendarSpec],
        condition: &Precondition,
        dry_run: bool,
        by: &Actor,
    ) -> Answer<(Vec<AppliedCalendar>, Vec<JobId>)> {
        let written = self.write_calendars(specs, condition, dry_run, by).await;
        written.map_err(|error| error.failed_to("apply calendars"))
    }

    async fn delete_calendar(
        &self,
        name: &CalendarName,
        condition: &Precondition,
        by: &Actor,
    ) -> Answer<()> {
        let deleted = self.remove_calendar(name, condition, by).await;
        deleted.map_err(|error| error.failed_to("delete a calendar"))
    }

    async fn add_window(&self, spec: &WindowSpec, by: &Actor) -> Answer<i64> {
        let added = self.insert_window(spec, by).await;
        added.map_err(|error| error.failed_to("add a maintenance window or a pause"))
    }

    async fn end_window(&self, id: i64, by: &Actor) -> Answer<()> {
        let ended = self.end_window(id, by).await;
        ended.map_err(|error| error.failed_to("end a maintenance window or a pause"))
    }

    async fn replan_window(&self, window: Option<i64>, limit: usize) -> Answer<WindowReplan> {
        let replanned = self.replan_window(window, limit).await;
        replanned.map_err(|error| error.failed_to("plan the jobs of a window again"))
    }

    async fn known_zones(&self) -> Answer<Vec<ZoneDigest>> {
        let read = async {
            let mut conn = self.db.read().await?;
            let rows: Vec<(String, i64)> = sqlx::query_as(ZONES).fetch_all(&mut *conn).await?;
            Ok(rows
                .into_iter()
                .map(|(name, digest)| ZoneDigest { name, digest })
                .collect())
        };
        let read: Result<Vec<ZoneDigest>> = read.await;
        read.map_err(|error| error.failed_to("read the time zones in use"))
    }

    async fn note_zones(&self, zones: &[ZoneDigest]) -> Answer<u64> {
        let written = self.write_zones(zones).await;
        written.map_err(|error| error.failed_to("note time zones"))
    }
}
