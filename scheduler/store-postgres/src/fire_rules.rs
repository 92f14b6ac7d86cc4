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
    About, CalendarChange, CalendarRow, DueRow, ExcludedRow, RulesRow, account_excluded,
    change_calendars, changed_zones, parse_rules, refuse_used_calendar, replan,
};
use cueline_store::adapter::job_list::name_range;
use cueline_store::{
    AppliedCalendar, Change, ErrorKind, FireRuleStore, Precondition, Revision, StoreError,
    StoredCalendar, WindowReplan,
};
use sqlx::postgres::PgConnection;

use crate::columns::column;
use crate::database::WriteTx;
use crate::error::Result;
use crate::job_writes::LOCK;
use crate::job_writes::wait_for_live_runs;
use crate::new_runs::FireTimes;
use crate::{PgStore, audit, waiting_runs};

const REVISION: &str = "SELECT revision FROM fire_rules";

/// One statement, so that the three belong to one moment.
const RULES: &str = "
    SELECT revision,
        (SELECT coalesce(json_agg(json_build_array(version, definition)), '[]'::json)::text FROM calendar),
        (SELECT coalesce(json_agg(json_build_array(id, definition, ended_at)), '[]'::json)::text FROM maintenance_window)
    FROM fire_rules";

pub(crate) const NEXT_REVISION: &str = "UPDATE fire_rules SET revision = revision + 1";

const CALENDARS: &str = "SELECT id, version, name, definition FROM calendar ORDER BY name";

const INSERT_CALENDAR: &str = "
    INSERT INTO calendar (name, version, definition) VALUES ($1, 1, $2) RETURNING id";

const UPDATE_CALENDAR: &str =
    "UPDATE calendar SET version = version + 1, definition = $2 WHERE id = $1";

const DELETE_CALENDAR: &str = "DELETE FROM calendar WHERE id = $1";

const JOBS: &str = "
    SELECT id, version FROM job
    WHERE name >= $1 AND name < $2 AND (NOT $3 OR strpos(name, '/') = 0) AND deleted_at IS NULL";

const EXCLUDED: &str = "
    SELECT job_id, version, excluded_from, next_fire_at, run_count FROM job_due
    WHERE job_id = ANY ($1::bigint[]) AND excluded_from IS NOT NULL";

const DUE: &str = "
    SELECT job_id, next_fire_at, excluded_from, enabled FROM job_due WHERE job_id = ANY ($1::bigint[])";

const REPLAN: &str = "
    UPDATE job_due SET next_fire_at = e.next_fire_at, excluded_from = e.excluded_from, rules = e.rules,
        paused_until = e.paused_until
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
        e (id, next_fire_at, excluded_from, rules, paused_until)
    WHERE job_due.job_id = e.id";

const ZONES: &str = "SELECT name, digest FROM time_zone ORDER BY name";

const WRITE_ZONES: &str = "
    INSERT INTO time_zone (name, digest) SELECT e.name, e.digest FROM unnest($1::text[], $2::bigint[]) e (name, digest)
    ON CONFLICT (name) DO UPDATE SET digest = excluded.digest";

impl PgStore {
    /// The present fire rules. A transaction that has changed them reads its own.
    pub(crate) async fn present_rules(&self, conn: &mut PgConnection) -> Result<Arc<FireRules>> {
        let revision: i64 = sqlx::query_scalar(REVISION).fetch_one(&mut *conn).await?;
        match self.rules.exactly(revision) {
            Some(rules) => Ok(rules),
            None => read_rules(conn).await,
        }
    }

    /// Fire rules that are at least as new as `revision`, for a transaction that has changed none.
    pub(crate) async fn rules_at_least(
        &self,
        conn: &mut PgConnection,
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
        tx: &mut WriteTx,
        jobs: &[i64],
        rules: &FireRules,
        now: Timestamp,
    ) -> Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        let rows: Vec<ExcludedRow> = sqlx::query_as(EXCLUDED)
            .bind(jobs)
            .fetch_all(&mut **tx)
            .await?;
        if rows.is_empty() {
            return Ok(());
        }
        let versions = rows.iter().map(|row| (row.0, row.1));
        let known = self.definitions.get(&mut *tx, versions).await?;
        let mut runs = account_excluded(&rows, &known, rules, now);
        self.insert_runs(tx, &mut runs, FireTimes::MayBeTaken)
            .await?;
        Ok(())
    }

    /// The jobs that a change is about.
    async fn jobs_about(&self, conn: &mut PgConnection, about: &About<'_>) -> Result<JobsById> {
        let namespace = about.namespace();
        let (from, below, without_slash) = name_range(namespace.as_ref());
        let versions: Vec<(i64, i64)> = sqlx::query_as(JOBS)
            .bind(from)
            .bind(below)
            .bind(without_slash)
            .fetch_all(&mut *conn)
            .await?;
        let mut jobs = self.definitions.get(conn, versions).await?;
        jobs.retain(|_, job| about.has(&job.spec));
        Ok(jobs)
    }

    /// Computes the plans of jobs again, after a change from the rules `before`, at `changed_at` or now. Returns their ids.
    /// It locks the jobs, so it waits for plans in progress, and later plans see the change. With `ends_runs`, runs that wait
    /// and are due before its time end with its message.
    pub(crate) async fn replan(
        &self,
        tx: &mut WriteTx,
        jobs: &JobsById,
        (before, after): (&FireRules, &FireRules),
        changed_at: Option<Timestamp>,
        ends_runs: Option<(i64, String)>,
    ) -> Result<Vec<JobId>> {
        let mut ids: Vec<i64> = jobs.keys().copied().collect();
        ids.sort_unstable();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let job_ids: Vec<JobId> = ids.iter().copied().map(JobId).collect();
        let now = self
            .lock_and_read_clock(tx, job_ids.iter().copied())
            .await?;
        let changed_at = changed_at.unwrap_or(now);
        self.account_excluded(tx, &ids, before, changed_at).await?;
        let rows: Vec<DueRow> = sqlx::query_as(DUE).bind(&ids).fetch_all(&mut **tx).await?;
        let plans = replan(&rows, jobs, (before, after), (changed_at, now));
        sqlx::query(REPLAN)
            .bind(column(&plans, |plan| plan.job))
            .bind(column(&plans, |plan| plan.columns.next_fire_at))
            .bind(column(&plans, |plan| plan.columns.excluded_from))
            .bind(column(&plans, |plan| plan.columns.rules))
            .bind(column(&plans, |plan| plan.columns.paused_until))
            .execute(&mut **tx)
            .await?;
        waiting_runs::delete_ahead(&mut *tx, &job_ids, now).await?;
        if let Some((until, message)) = ends_runs {
            waiting_runs::end_due(&mut *tx, &job_ids, (now, until), &message).await?;
        }
        wait_for_live_runs(&mut *tx, &job_ids).await?;
        Ok(job_ids)
    }

    /// Notes that the rules have changed, and computes the plans of the jobs again that the change is about.
    async fn rules_changed(
        &self,
        tx: &mut WriteTx,
        about: &About<'_>,
        before: &FireRules,
    ) -> Result<Vec<JobId>> {
        sqlx::query(NEXT_REVISION).execute(&mut **tx).await?;
        let after = read_rules(&mut *tx).await?;
        let jobs = self.jobs_about(&mut *tx, about).await?;
        self.replan(tx, &jobs, (before, &after), None, None).await
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
        let now = tx.now;
        sqlx::query(LOCK).execute(&mut *tx).await?;
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
        let jobs = self.rules_changed(&mut tx, &about, &before).await?;
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
        let now = tx.now;
        sqlx::query(LOCK).execute(&mut *tx).await?;
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
        sqlx::query(LOCK).execute(&mut *tx).await?;
        let stored: Vec<(String, i64)> = sqlx::query_as(ZONES).fetch_all(&mut *tx).await?;
        let changed = changed_zones(&stored, zones);
        let mut replanned = 0;
        if !changed.is_empty() {
            let rules = self.present_rules(&mut tx).await?;
            let about = About::Zones(&changed, &rules);
            let jobs = self.jobs_about(&mut tx, &about).await?;
            let both = (&*rules, &*rules);
            let jobs = self.replan(&mut tx, &jobs, both, None, None).await?;
            replanned = jobs.len() as u64;
        }
        sqlx::query(WRITE_ZONES)
            .bind(column(zones, |zone| zone.name.as_str()))
            .bind(column(zones, |zone| zone.digest))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(replanned)
    }
}

async fn read_rules(conn: &mut PgConnection) -> Result<Arc<FireRules>> {
    let row: RulesRow = sqlx::query_as(RULES).fetch_one(conn).await?;
    Ok(Arc::new(parse_rules(row)?))
}

async fn stored_calendars(conn: &mut PgConnection) -> Result<Vec<(CalendarName, CalendarRow)>> {
    let rows: Vec<(i64, i64, String, String)> = sqlx::query_as(CALENDARS).fetch_all(conn).await?;
    let row = |(id, version, name, definition): (i64, i64, String, String)| {
        Ok((parse_name(&name)?, (id, version, definition)))
    };
    rows.into_iter().map(row).collect()
}

async fn write_calendar(
    conn: &mut PgConnection,
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
impl FireRuleStore for PgStore {
    async fn fire_rules(&self) -> Answer<Arc<FireRules>> {
        let read = || async {
            let mut conn = self.db.read().await?;
            self.present_rules(&mut conn).await
        };
        self.read("read calendars and windows", read).await
    }

    async fn calendars(
        &self,
        namespace: &Namespace,
        name: Option<&CalendarName>,
    ) -> Answer<Vec<StoredCalendar>> {
        self.read("list calendars", || self.list_calendars(namespace, name))
            .await
    }

    async fn put_calendars(
        &self,
        specs: &[CalendarSpec],
        condition: &Precondition,
        dry_run: bool,
        by: &Actor,
    ) -> Answer<(Vec<AppliedCalendar>, Vec<JobId>)> {
        let write = || self.write_calendars(specs, condition, dry_run, by);
        self.write("apply calendars", write).await
    }

    async fn delete_calendar(
        &self,
        name: &CalendarName,
        condition: &Precondition,
        by: &Actor,
    ) -> Answer<()> {
        let write = || self.remove_calendar(name, condition, by);
        self.write("delete a calendar", write).await
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
        let read = || async {
            let mut conn = self.db.read().await?;
            let rows: Vec<(String, i64)> = sqlx::query_as(ZONES).fetch_all(&mut *conn).await?;
            let zone = |(name, digest)| ZoneDigest { name, digest };
            Ok(rows.into_iter().map(zone).collect())
        };
        self.read("read the time zones in use", read).await
    }

    async fn note_zones(&self, zones: &[ZoneDigest]) -> Answer<u64> {
        self.write("note time zones", || self.write_zones(zones))
            .await
    }
}
