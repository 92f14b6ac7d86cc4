//! Marks attempts that have limits, within the transaction of their batch.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use cueline_model::{AttemptId, JobId, JobSpec, RunId};
use cueline_store::adapter::lanes::may_be_marked;
use cueline_store::adapter::limits::{LimitBook, limit_keys};
use cueline_store::{
    DispatchRequest, LimitKey, LimitState, LimitUsage, LimitWait, NodeId, limits_of_job,
};
use sqlx::SqliteConnection;
use sqlx::types::Json;

use crate::SqliteStore;
use crate::error::Result;
use crate::group_rates;

pub(crate) const READ: &str = "
    SELECT coalesce(json_group_object(name, json(state)), '{}') FROM run_limit
    WHERE name IN (SELECT value FROM json_each(?1))";

/// Those of these runs that are at executors.
pub(crate) const AT_WORK: &str = "
    SELECT json_group_array(r.id) FROM json_each(?1) e CROSS JOIN run r ON r.id = e.value WHERE r.state BETWEEN 1 AND 3";

const WRITE: &str = "
    INSERT INTO run_limit (name, state, used_at) SELECT e.key, e.value, ?2 FROM json_each(?1) e WHERE true
    ON CONFLICT (name) DO UPDATE SET state = excluded.state, used_at = excluded.used_at";

/// Deletes limits that were not used for two days, except if one of their runs is still at work. It runs whenever a new
/// limit is stored, so the table grows no longer than names of limits are in use.
const DELETE_UNUSED: &str = "
    DELETE FROM run_limit WHERE used_at < ?1 - 172800000
        AND NOT EXISTS (SELECT 1 FROM json_each(run_limit.state, '$.places') p JOIN run r ON r.id = p.value WHERE r.state BETWEEN 1 AND 3)";

impl SqliteStore {
    /// Marks the requests that their limits let pass. Returns those that the node may publish, and those that wait.
    pub(super) async fn mark_within_limits(
        &self,
        tx: &mut SqliteConnection,
        node: NodeId,
        requests: &[DispatchRequest],
    ) -> Result<(Vec<AttemptId>, Vec<LimitWait>)> {
        let now = self.db.now();
        let limited: Vec<DispatchRequest> =
            requests.iter().filter(|r| is_limited(r)).cloned().collect();
        let mut book = read(tx, limit_keys(&limited), &limited).await?;
        let before = book.states.clone();
        let admission = book.admit(&limited, now);
        let waits: HashSet<AttemptId> = admission.waits.iter().map(|w| w.attempt).collect();
        let passed = requests.iter().filter(|r| !waits.contains(&r.attempt));
        let passed: Vec<&DispatchRequest> = passed.collect();
        let accepted = self.mark(tx, node, &passed).await?;
        let marked: HashSet<RunId> = accepted.iter().map(|id| id.run).collect();
        let is_marked = |run| marked.contains(&run) && !book.at_work.contains(&run);
        let newly: HashSet<RunId> = limited
            .iter()
            .map(|r| r.attempt.run)
            .filter(|run| is_marked(*run))
            .collect();
        book.settle(
            node,
            &limited,
            &admission.kept,
            |run| newly.contains(&run),
            now,
        );
        let changed = book
            .states
            .iter()
            .filter(|(key, state)| before.get(*key) != Some(*state));
        let mut states = serde_json::Map::new();
        for (key, state) in changed {
            let text = serde_json::to_string(state)?;
            states.insert(key.stored(), text.into());
        }
        if book.states.keys().any(|key| !before.contains_key(key)) {
            sqlx::query(DELETE_UNUSED)
                .bind(now.as_millis())
                .execute(&mut *tx)
                .await?;
        }
        sqlx::query(WRITE)
            .bind(Json(states))
            .bind(now.as_millis())
            .execute(tx)
            .await?;
        Ok((accepted, admission.waits))
    }
}

/// An attempt that may be marked already marks nothing, and is counted.
pub(super) fn is_limited(request: &DispatchRequest) -> bool {
    request.limits.is_some() && !may_be_marked(request)
}

/// The limits of a job and what uses them, for an explanation.
pub(crate) async fn of_job(
    conn: &mut SqliteConnection,
    job: JobId,
    spec: &JobSpec,
) -> Result<Vec<LimitUsage>> {
    let rates = group_rates::read(conn, Some(&spec.group)).await?;
    let of_group = rates.first().map(|of_group| of_group.rate);
    let limits = limits_of_job(job, spec, of_group);
    if limits.is_empty() {
        return Ok(Vec::new());
    }
    let keys = limits.iter().map(|limit| limit.key.clone()).collect();
    Ok(read(conn, keys, &[]).await?.usage(limits))
}

/// What is known of these limits. A state that this program cannot read counts as unused.
async fn read(
    conn: &mut SqliteConnection,
    keys: BTreeSet<LimitKey>,
    requests: &[DispatchRequest],
) -> Result<LimitBook> {
    let names: BTreeMap<String, LimitKey> =
        keys.into_iter().map(|key| (key.stored(), key)).collect();
    let Json(states): Json<BTreeMap<String, serde_json::Value>> = sqlx::query_scalar(READ)
        .bind(Json(names.keys().collect::<Vec<_>>()))
        .fetch_one(&mut *conn)
        .await?;
    let states = states.into_iter().filter_map(|(name, state)| {
        let key = names.get(&name)?.clone();
        Some((
            key,
            serde_json::from_value::<LimitState>(state).unwrap_or_default(),
        ))
    });
    let mut book = LimitBook {
        states: states.collect(),
        at_work: HashSet::new(),
    };
    let Json(at_work): Json<Vec<RunId>> = sqlx::query_scalar(AT_WORK)
        .bind(Json(book.runs_to_look_at(requests)))
        .fetch_one(conn)
        .await?;
    book.at_work = at_work.into_iter().collect();
    Ok(book)
}
