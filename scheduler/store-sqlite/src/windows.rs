//! Adds and ends maintenance windows and pauses. The plans of their jobs follow in transactions of some jobs each.

use cueline_model::{Actor, WindowSpec};
use cueline_store::adapter::audit::window_changed;
use cueline_store::adapter::convert::{corrupt, to_i64};
use cueline_store::adapter::job_list::name_range;
use cueline_store::adapter::windows::{PendingRow, PendingWindow, present_window, room_for_window};
use cueline_store::{REPLAN_ABANDONED_MS, WindowReplan};
use sqlx::types::Json;

use crate::error::Result;
use crate::fire_rules::NEXT_REVISION;
use crate::{SqliteStore, audit};

const INSERT_WINDOW: &str = "
    INSERT INTO maintenance_window (definition, changed_at, replan_after, replanned_at) VALUES (?1, ?2, 0, ?2)
    RETURNING id";

/// A fire time at the very instant of the end is excluded still: the plans change from the next one on.
const END_WINDOW: &str = "
    UPDATE maintenance_window SET ended_at = ?2 + 1, changed_at = ?2, replan_after = 0, replanned_at = ?2 WHERE id = ?1";

/// One whose jobs still need their new plans stays.
const DELETE_WINDOWS: &str = "
    DELETE FROM maintenance_window
    WHERE id IN (SELECT value FROM json_each(?1)) AND replan_after IS NULL";

const PENDING: &str = "
    SELECT id, definition, ended_at, changed_at, replan_after FROM maintenance_window
    WHERE replan_after IS NOT NULL AND (id = ?1 OR ?1 IS NULL AND replanned_at <= ?2) ORDER BY id LIMIT 1";

const SET_REPLANNED: &str =
    "UPDATE maintenance_window SET replan_after = ?2, replanned_at = ?3 WHERE id = ?1";

const NEXT_JOBS: &str = "
    SELECT id, version FROM job
    WHERE id > ?1 AND name >= ?2 AND name < ?3 AND (?4 = 0 OR instr(name, '/') = 0) AND deleted_at IS NULL
    ORDER BY id LIMIT ?5";

impl SqliteStore {
    pub(crate) async fn insert_window(&self, spec: &WindowSpec, by: &Actor) -> Result<i64> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let before = self.present_rules(&mut tx).await?;
        let over = room_for_window(&before, now)?;
        sqlx::query(DELETE_WINDOWS)
            .bind(Json(over))
            .execute(&mut *tx)
            .await?;
        let definition = window_text(spec)?;
        let id: i64 = sqlx::query_scalar(INSERT_WINDOW)
            .bind(&definition)
            .bind(now.as_millis())
            .fetch_one(&mut *tx)
            .await?;
        sqlx::query(NEXT_REVISION).execute(&mut *tx).await?;
        let entry = window_changed(by, id, spec, None, Some(definition));
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(id)
    }

    pub(crate) async fn end_window(&self, id: i64, by: &Actor) -> Result<()> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let before = self.present_rules(&mut tx).await?;
        let spec = present_window(&before, id)?;
        sqlx::query(END_WINDOW)
            .bind(id)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        sqlx::query(NEXT_REVISION).execute(&mut *tx).await?;
        let entry = window_changed(by, id, spec, Some(window_text(spec)?), None);
        audit::write(&mut tx, &[entry], now).await?;
        tx.commit().await?;
        Ok(())
    }

    pub(crate) async fn replan_window(
        &self,
        window: Option<i64>,
        limit: usize,
    ) -> Result<WindowReplan> {
        let mut tx = self.db.write().await?;
        let now = self.db.now();
        let pending: Option<PendingRow> = sqlx::query_as(PENDING)
            .bind(window)
            .bind(now.minus_ms(REPLAN_ABANDONED_MS).as_millis())
            .fetch_optional(&mut *tx)
            .await?;
        let Some(pending) = pending.map(PendingWindow::of).transpose()? else {
            return Ok(WindowReplan::done());
        };
        let scope = &pending.spec.scope;
        let (from, below, without_slash) = name_range(scope.namespace.as_ref());
        let versions: Vec<(i64, i64)> = sqlx::query_as(NEXT_JOBS)
            .bind(pending.after)
            .bind(from)
            .bind(below)
            .bind(without_slash)
            .bind(to_i64(limit))
            .fetch_all(&mut *tx)
            .await?;
        let is_done = versions.len() < limit;
        let last = versions.last().map_or(pending.after, |(id, _)| *id);
        let mut jobs = self.definitions.get(&mut tx, versions).await?;
        jobs.retain(|_, job| scope.has(&job.spec));
        let rules = self.present_rules(&mut tx).await?;
        let changed_at = pending.changed_at;
        let before = pending.rules_before(&rules);
        let both = (&before, &*rules);
        let ends_runs = pending.ends_runs();
        let jobs = self
            .replan(&mut tx, &jobs, both, changed_at, ends_runs)
            .await?;
        sqlx::query(SET_REPLANNED)
            .bind(pending.id)
            .bind((!is_done).then_some(last))
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        if is_done && pending.ended_at.is_some() {
            sqlx::query(DELETE_WINDOWS)
                .bind(Json([pending.id]))
                .execute(&mut *tx)
                .await?;
            sqlx::query(NEXT_REVISION).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(WindowReplan { jobs, is_done })
    }
}

fn window_text(spec: &WindowSpec) -> Result<String> {
    let text = serde_json::to_string(spec);
    Ok(text.map_err(|e| corrupt("failed to write a maintenance window", e))?)
}
