//! What follows from the end of a run, in the transaction that ends it: the next fixed-delay fire time, and child runs.

use std::collections::{BTreeMap, HashMap};

use cueline_model::{RunId, RunKind, Timestamp};
use cueline_store::StoreError;
use cueline_store::adapter::report::soonest;
use serde::Deserialize;
use sqlx::SqliteConnection;

use crate::SqliteStore;
use crate::definitions::Definitions;
use crate::error::failed;
use crate::live::Live;
use crate::new_run::{self, Fire, NewRun};
use crate::nodes::write_with_turns;
use crate::rows::{decode, encode, int};

/// Of the given jobs, those that wait for nothing but their delay now.
pub(crate) const RESTING: &str = "
    SELECT json_group_array(json_array(d.job_id, d.version))
    FROM json_each(?1) e CROSS JOIN job_due d ON d.job_id = e.value
    WHERE d.fixed_delay = 1 AND d.enabled = 1
        AND NOT EXISTS (SELECT 1 FROM run r WHERE r.job_id = d.job_id AND r.awaited = 1 AND r.state < 10)";

pub(crate) const SET_NEXT: &str = "
    UPDATE job_due SET next_fire_at = e.value ->> 1 FROM json_each(?1) e WHERE job_id = e.value ->> 0";

/// Of the given fires, those whose runs have all succeeded.
pub(crate) const COMPLETE: &str = "
    SELECT json_group_array(json_array(e.key, f.id, f.fire_at))
    FROM json_each(?1) e CROSS JOIN run f
        ON f.id = (SELECT min(r.id) FROM run r
                   WHERE r.fire_key = e.value ->> 0 AND r.job_id = e.value ->> 1 AND r.kind = e.value ->> 2)
    WHERE NOT EXISTS (SELECT 1 FROM run r
        WHERE r.fire_key = e.value ->> 0 AND r.job_id = e.value ->> 1 AND r.kind = e.value ->> 2 AND r.state <> 10)";

pub(crate) const CHILDREN: &str = "
    SELECT json_group_array(json_array(j.parent_id, d.job_id, d.version, d.turn))
    FROM json_each(?1) e CROSS JOIN job j ON j.parent_id = e.value AND j.deleted_at IS NULL
        CROSS JOIN job_due d ON d.job_id = j.id
    WHERE d.enabled = 1";

/// A run of a job with children that has just succeeded.
pub(crate) struct Success<'a> {
    pub(crate) run: i64,
    pub(crate) job: i64,
    pub(crate) kind: i64,
    pub(crate) fire_key: i64,
    pub(crate) output: Option<&'a str>,
}

#[derive(Deserialize)]
struct Complete(usize, i64, Timestamp);

/// Sets the next fire time of the `fixed_delay` jobs among `ended` (job, end of the run) of which no run is live any more; the
/// earliest of them.
pub(crate) async fn next_after_end(
    conn: &mut SqliteConnection,
    definitions: &Definitions,
    ended: &[(i64, Timestamp)],
) -> Result<Option<Timestamp>, StoreError> {
    if ended.is_empty() {
        return Ok(None);
    }
    let fail = failed("find the next fixed-delay fire time");
    let mut ends: BTreeMap<i64, Timestamp> = BTreeMap::new();
    for &(job, at) in ended {
        let last = ends.entry(job).or_insert(at);
        *last = at.max(*last);
    }
    let ids: Vec<i64> = ends.keys().copied().collect();
    let text: String = sqlx::query_scalar(RESTING)
        .bind(encode(&ids)?)
        .fetch_one(&mut *conn)
        .await
        .map_err(&fail)?;
    let resting: Vec<(i64, i64)> = decode(&text)?;
    if resting.is_empty() {
        return Ok(None);
    }
    let jobs = definitions.of(conn, resting.iter().copied()).await?;
    let mut next = Vec::with_capacity(resting.len());
    let mut first = None;
    for (id, _) in resting {
        // One that cannot be read does nothing, and keeps no other from it.
        let (Some(end), Some(job)) = (ends.get(&id), jobs.get(&id)) else {
            continue;
        };
        let fire_at = job.spec.next_fire(*end);
        if let Some(fire_at) = fire_at {
            soonest(&mut first, fire_at);
        }
        next.push((id, fire_at));
    }
    sqlx::query(SET_NEXT)
        .bind(encode(&next)?)
        .execute(conn)
        .await
        .map_err(&fail)?;
    Ok(first)
}

impl SqliteStore {
    /// Writes the child runs of the fires that are complete now; how many.
    pub(crate) async fn fire_children(
        &self,
        conn: &mut SqliteConnection,
        successes: &[Success<'_>],
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let fail = failed("write child runs");
        // The run that was reported last stands for its fire.
        let fires: BTreeMap<(i64, i64, i64), &Success<'_>> = successes
            .iter()
            .map(|s| ((s.fire_key, s.job, s.kind), s))
            .collect();
        let keys: Vec<(i64, i64, i64)> = fires.keys().copied().collect();
        let text: String = sqlx::query_scalar(COMPLETE)
            .bind(encode(&keys)?)
            .fetch_one(&mut *conn)
            .await
            .map_err(&fail)?;
        let complete: Vec<Complete> = decode(&text)?;
        if complete.is_empty() {
            return Ok(0);
        }
        let mut parents: Vec<i64> = fires.values().map(|s| s.job).collect();
        parents.sort_unstable();
        parents.dedup();
        let text: String = sqlx::query_scalar(CHILDREN)
            .bind(encode(&parents)?)
            .fetch_one(&mut *conn)
            .await
            .map_err(&fail)?;
        let children: Vec<(i64, i64, i64, i64)> = decode(&text)?;
        let versions = children.iter().map(|(_, id, version, _)| (*id, *version));
        let jobs = self.definitions.of(conn, versions).await?;
        let mut live = Live::load(conn, now, self.db.executor_dead_after_ms()).await?;
        let mut id = new_run::last_id(conn).await? + 1;
        let mut turns: HashMap<i64, i64> = children.iter().map(|c| (c.1, c.3)).collect();
        let mut runs = Vec::new();
        for Complete(key, first_run, fire_at) in complete {
            let Some(success) = keys.get(key).and_then(|key| fires.get(key)) else {
                continue;
            };
            for (_, child, ..) in children.iter().filter(|c| c.0 == success.job) {
                let Some(job) = jobs.get(child) else { continue };
                let passes = job.spec.after.as_ref().is_some_and(|a| a.pass_output);
                let fire = Fire {
                    kind: RunKind::Child,
                    key: Some(first_run),
                    at: fire_at,
                    due_at: now,
                    claimed_by: None,
                    parent: Some(RunId(success.run)),
                    params: success.output.filter(|_| passes).map(str::to_owned),
                };
                let turn = turns.entry(*child).or_default();
                let more = NewRun::of_fire(id, job, *turn, &mut live, &fire);
                id += int(more.len());
                *turn += int(more.len());
                runs.extend(more);
            }
        }
        write_with_turns(conn, &runs, now).await
    }
}
