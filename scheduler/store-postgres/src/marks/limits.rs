//! Marks attempts that have limits. Only batches with such attempts come here.
//!
//! One transaction locks the rows of the limits in the order of their names, looks at what is at work, marks what the limits
//! let pass, and counts it. It locks runs after limits, and no other transaction locks both. The looks at the lanes are the
//! same as for other attempts, before and after it.

use std::collections::{BTreeMap, HashMap, HashSet};

use cueline_model::{AttemptId, JobId, JobSpec, RunId, Timestamp};
use cueline_store::adapter::lanes::{before_mark, lane_groups, may_be_marked};
use cueline_store::adapter::limits::{LimitBook, limit_keys};
use cueline_store::{
    BegunDispatch, DispatchRequest, ErrorKind, LimitKey, LimitState, LimitUsage, LimitWait,
    LimitWaitReason, NodeId, StoreError, limits_of_job,
};
use sqlx::postgres::PgConnection;

use super::{Mark, subset};
use crate::PgStore;
use crate::error::{Error, Result};
use crate::group_rates;

pub(crate) const LOCK: &str =
    "SELECT name, state FROM run_limit WHERE name = ANY ($1) ORDER BY name FOR UPDATE";

pub(crate) const READ: &str = "SELECT name, state FROM run_limit WHERE name = ANY ($1)";

/// Limits that were not used yet. It is a transaction of its own, so that the rows are locked in their order.
const INSERT: &str = "
    INSERT INTO run_limit (name, state, used_at)
    SELECT n, '{}', coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM unnest($1::text[]) n ORDER BY n
    ON CONFLICT DO NOTHING";

/// Deletes limits that were not used for two days, except if one of their runs is still at work. It runs whenever a new
/// limit is stored, so the table grows no longer than names of limits are in use.
pub(crate) const DELETE_UNUSED: &str = "
    DELETE FROM run_limit WHERE name IN (
        SELECT r.name FROM run_limit r
        WHERE r.used_at < coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - 172800000
            AND NOT EXISTS (SELECT FROM jsonb_array_elements_text(coalesce(r.state::jsonb -> 'places', '[]')) p
                JOIN run_live l ON l.id = p::bigint WHERE l.state BETWEEN 1 AND 3)
        ORDER BY r.name LIMIT 1000 FOR UPDATE SKIP LOCKED)";

/// The time after the locks, and the runs that are at executors.
pub(crate) const AT_WORK: &str = "
    SELECT coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
        ARRAY(SELECT l.id FROM run_live l WHERE l.id = ANY ($1) AND l.state BETWEEN 1 AND 3)";

/// There is no join, so its generic plan is right for each size of the table.
pub(crate) const WRITE: &str = "
    UPDATE run_limit r SET state = ($2::text[])[array_position($1::text[], r.name)], used_at = $3 WHERE r.name = ANY ($1::text[])";

/// Rows that are missing are inserted at most this often.
const MAX_TRIES: usize = 5;

/// What became of the marks of a batch.
#[derive(Default)]
struct LimitedMarks {
    /// Indexes of the requests that the limits let pass.
    passed: Vec<usize>,
    marked: HashSet<AttemptId>,
    waits: Vec<LimitWait>,
}

impl LimitedMarks {
    /// All of them wait.
    fn contested(requests: &[DispatchRequest]) -> Self {
        let wait = |request: &DispatchRequest| {
            let limit = request.limits.as_ref()?.uses.first()?;
            Some(LimitWait {
                attempt: request.attempt,
                key: limit.key.clone(),
                reason: LimitWaitReason::Contested,
            })
        };
        Self {
            waits: requests.iter().filter_map(wait).collect(),
            ..Self::default()
        }
    }
}

impl PgStore {
    /// As [`begin_dispatch_in_lanes`](PgStore::begin_dispatch_in_lanes), for a batch in which some requests have limits.
    pub(super) async fn begin_in_limits(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
    ) -> Result<BegunDispatch> {
        let (limited, others): (Vec<_>, Vec<_>) = requests.iter().cloned().partition(is_limited);
        let mut begun = if others.is_empty() {
            BegunDispatch::default()
        } else {
            self.begin_without_limits(node, &others).await?
        };
        let of_limited = self.begin_limited(node, &limited).await?;
        begun.accepted.extend(of_limited.accepted);
        begun.waits.extend(of_limited.waits);
        begun.limit_waits = of_limited.limit_waits;
        let places = requests.iter().enumerate().map(|(at, r)| (r.attempt, at));
        let places: HashMap<AttemptId, usize> = places.collect();
        begun.accepted.sort_by_key(|id| places.get(id).copied());
        Ok(begun)
    }

    async fn begin_limited(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
    ) -> Result<BegunDispatch> {
        let groups = lane_groups(requests);
        let mut begun = BegunDispatch::default();
        let mut proceed = requests.to_vec();
        if !groups.is_empty() {
            let facts = self.lane_facts(node, requests, &groups).await?;
            // None of these is marked, so nothing is taken back.
            let before = before_mark(requests, &groups, &facts);
            begun.waits = before.waits;
            proceed = subset(requests, &before.proceed).into_owned();
        }
        let marks = self.mark_within_limits(node, &proceed).await?;
        begun.limit_waits = marks.waits;
        let passed = subset(&proceed, &marks.passed);
        if passed.is_empty() {
            return Ok(begun);
        }
        let groups = lane_groups(&passed);
        let marked = marks.marked;
        if !marked.is_empty() {
            let mut conn = self.db.generic_plan().await?;
            let seen = self.lost_marks(&mut conn, node, &passed, &groups).await?;
            conn.keep();
            let kept = self
                .keep_marks(node, &passed, &groups, &marked, seen)
                .await?;
            begun.waits.extend(kept.waits);
            begun.accepted = kept.accepted;
        }
        if marked.len() < passed.len() {
            begun.accepted = self.accepted(node, &passed).await?;
        }
        Ok(begun)
    }

    async fn mark_within_limits(
        &self,
        node: NodeId,
        requests: &[DispatchRequest],
    ) -> Result<LimitedMarks> {
        let keys = limit_keys(requests);
        if keys.is_empty() {
            return Ok(LimitedMarks::default());
        }
        let names: BTreeMap<String, &LimitKey> =
            keys.iter().map(|key| (key.stored(), key)).collect();
        let clock = self.db.test_clock().map(Timestamp::as_millis);
        for _ in 0..MAX_TRIES {
            let mut tx = self.db.begin_short_waits().await?;
            let marked = async {
                let states = read(&mut tx, LOCK, &names).await?;
                if states.len() < names.len() {
                    return Ok(None);
                }
                let marks = self.mark_locked(&mut tx, node, requests, states);
                marks.await.map(Some)
            };
            match marked.await {
                Ok(Some(marks)) => {
                    tx.commit().await?;
                    return Ok(marks);
                }
                Ok(None) => tx.roll_back().await?,
                Err(error) if Error::is_timeout(&error) => {
                    tx.roll_back().await?;
                    return Ok(LimitedMarks::contested(requests));
                }
                Err(error) => return Err(error),
            }
            let mut conn = self.db.autocommit().await?;
            sqlx::query(DELETE_UNUSED)
                .bind(clock)
                .execute(&mut *conn)
                .await?;
            sqlx::query(INSERT)
                .bind(names.keys().collect::<Vec<_>>())
                .bind(clock)
                .execute(&mut *conn)
                .await?;
            conn.keep();
        }
        Err(StoreError::new(
            ErrorKind::Transient,
            "the rows of limits were deleted again and again",
        )
        .into())
    }

    async fn mark_locked(
        &self,
        tx: &mut PgConnection,
        node: NodeId,
        requests: &[DispatchRequest],
        states: BTreeMap<LimitKey, LimitState>,
    ) -> Result<LimitedMarks> {
        let mut book = LimitBook {
            states,
            at_work: HashSet::new(),
        };
        let (now, at_work): (i64, Vec<i64>) = sqlx::query_as(AT_WORK)
            .bind(book.runs_to_look_at(requests))
            .bind(self.db.test_clock().map(Timestamp::as_millis))
            .fetch_one(&mut *tx)
            .await?;
        let now = Timestamp::from_millis(now);
        book.at_work = at_work.into_iter().map(RunId).collect();
        let before = book.states.clone();
        let admission = book.admit(requests, now);
        let passed = subset(requests, &admission.proceed);
        let marked = self.mark_on(tx, node, Mark::AfterLook, &passed).await?;
        let runs: HashSet<RunId> = marked.iter().map(|id| id.run).collect();
        let is_marked = |run: RunId| runs.contains(&run);
        book.settle(node, requests, &admission.kept, is_marked, now);
        let of_changed = book
            .states
            .iter()
            .filter(|(key, state)| before.get(*key) != Some(*state));
        let (mut names, mut states) = (Vec::new(), Vec::new());
        for (key, state) in of_changed {
            names.push(key.stored());
            states.push(written(state)?);
        }
        sqlx::query(WRITE)
            .bind(names)
            .bind(states)
            .bind(now.as_millis())
            .execute(&mut *tx)
            .await?;
        Ok(LimitedMarks {
            passed: admission.proceed,
            marked,
            waits: admission.waits,
        })
    }
}

/// An attempt that may be marked already marks nothing, and is counted.
pub(super) fn is_limited(request: &DispatchRequest) -> bool {
    request.limits.is_some() && !may_be_marked(request)
}

/// The limits of a job and what uses them, for an explanation.
pub(crate) async fn of_job(
    conn: &mut PgConnection,
    job: JobId,
    spec: &JobSpec,
) -> Result<Vec<LimitUsage>> {
    let rates = group_rates::read(conn, Some(&spec.group)).await?;
    let of_group = rates.first().map(|of_group| of_group.rate);
    let limits = limits_of_job(job, spec, of_group);
    if limits.is_empty() {
        return Ok(Vec::new());
    }
    let names = limits.iter().map(|limit| (limit.key.stored(), &limit.key));
    let names = names.collect();
    let mut book = LimitBook {
        states: read(conn, READ, &names).await?,
        at_work: HashSet::new(),
    };
    let (_, at_work): (i64, Vec<i64>) = sqlx::query_as(AT_WORK)
        .bind(book.runs_to_look_at(&[]))
        .bind(None::<i64>)
        .fetch_one(conn)
        .await?;
    book.at_work = at_work.into_iter().map(RunId).collect();
    Ok(book.usage(limits))
}

/// What is known of these limits. A state that this program cannot read counts as unused.
async fn read(
    conn: &mut PgConnection,
    statement: &'static str,
    names: &BTreeMap<String, &LimitKey>,
) -> Result<BTreeMap<LimitKey, LimitState>> {
    let rows: Vec<(String, String)> = sqlx::query_as(statement)
        .bind(names.keys().collect::<Vec<_>>())
        .fetch_all(conn)
        .await?;
    let known = rows.into_iter().filter_map(|(name, state)| {
        let key = *names.get(&name)?;
        Some((
            key.clone(),
            serde_json::from_str(&state).unwrap_or_default(),
        ))
    });
    Ok(known.collect())
}

fn written(state: &LimitState) -> Result<String> {
    let text = serde_json::to_string(state);
    text.map_err(|error| {
        let message = format!("failed to write the state of a limit: {error}");
        StoreError::new(ErrorKind::Broken, message).into()
    })
}
