//! From claimed to queued: the guarded steps around a publication.
//!
//! Lists are put in the order of their ids first: transactions that touch the same runs lock them in the same order.

use std::collections::{BTreeMap, HashMap, HashSet};

use cueline_model::{AttemptId, RunId, Timestamp};
use cueline_store::adapter::skipped::STOPPED_MEANWHILE;
use cueline_store::{ClaimedRun, DispatchRequest, ErrorKind, NodeId, StoreError};
use sqlx::postgres::PgConnection;

use crate::database::commit;
use crate::error::failed;
use crate::finish::finish;
use crate::rows::{bounds, clean, int4, small};
use crate::{PgStore, follow, nodes};

/// What belongs to each run stands at the place of its id in the sorted $1, and is not joined with: while `run_live` is new, or was empty
/// when it was last analyzed, the planner would take it for empty still, and go through the whole list for each row of it.
///
/// The version is that of the moment when the statement began. Whoever changes it also takes the claim from each run that waits, and a row that
/// was changed meanwhile is looked at again; but the node may have claimed it anew by then, which [`CHANGED`] finds.
pub(crate) const BEGIN: &str = "
    UPDATE run_live l SET state = 1, executor = ($5::text[])[($4::integer[])[width_bucket(l.id, $1::bigint[])]],
        maybe_published = false, sent_to_group = NULL
    WHERE l.id = ANY ($1::bigint[]) AND l.state = 0 AND l.claimed_by = $6
        AND l.attempt = ($2::integer[])[width_bucket(l.id, $1::bigint[])]
        AND ($3::bigint[])[width_bucket(l.id, $1::bigint[])] = (SELECT d.version FROM job_due d WHERE d.job_id = l.job_id)
    RETURNING l.id";

/// Of runs that were marked just now, those whose job has another version than their mark, or is gone: nobody may have waited for them when it
/// was changed.
pub(crate) const CHANGED: &str = "
    SELECT l.id, l.attempt FROM run_live l
    WHERE l.id = ANY ($1::bigint[]) AND l.state = 1 AND l.claimed_by = $3
        AND (SELECT d.version FROM job_due d WHERE d.job_id = l.job_id)
            IS DISTINCT FROM ($2::bigint[])[width_bucket(l.id, $1::bigint[])]";

/// Of the marks, those that the node may publish now: just taken, or `dispatching` by it already. A release of which the answer was lost may still be
/// on its way; its end is waited for.
pub(crate) const TAKEN: &str = "
    SELECT e.place FROM unnest($1::bigint[], $2::integer[], $3::text[]) WITH ORDINALITY e (id, attempt, executor, place)
        JOIN run_live l ON l.id = e.id
    WHERE l.attempt = e.attempt AND l.state = 1 AND l.claimed_by = $4 AND l.executor = e.executor ORDER BY e.place FOR SHARE OF l";

/// Nearly always all are at the same attempt. The claim stays where it is, without a meaning: taking it away would cost an entry in each
/// index.
pub(crate) const CONFIRM: &str = "
    UPDATE run_live l SET state = 2, queued_at = coalesce($3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    WHERE l.id = ANY ($1) AND l.attempt = $2 AND l.state = 1";

/// The jobs of which a release may end a run. They are held meanwhile: a pause that ends what waits would not see what a release has not yet
/// committed.
pub(crate) const BOUND: &str = "
    SELECT DISTINCT l.job_id FROM unnest($1::bigint[]) e (id) JOIN run_live l ON l.id = e.id
    WHERE l.claimed_by = $2 AND l.state = 1 AND NOT l.maybe_published";

/// Nothing is left to be done for what was not published, and was cancelled or had its job stopped while it was being published. Like a report
/// that would give a run another attempt, it leaves alone what was triggered by hand and whose job is only paused.
pub(crate) const END_RELEASED: &str = finish!(
    "e AS (SELECT * FROM unnest($1::bigint[], $2::integer[]) u (id, attempt)),",
    delete: "USING e WHERE l.id = e.id AND l.attempt = e.attempt AND l.claimed_by = $3 AND l.state = 1 AND NOT l.maybe_published
        AND (l.cancel_requested
            OR NOT EXISTS (SELECT FROM job_due d WHERE d.job_id = l.job_id AND (d.enabled OR l.kind = 1)))",
    ends: "CASE WHEN l.cancel_requested OR l.attempt > 1 THEN 15 ELSE 18 END::smallint AS end_state, l.started_at AS began_at,
        $4::bigint AS end_at, l.exit_status AS status, CASE WHEN l.cancel_requested
            THEN coalesce(l.message, 'cancelled before it was published') ELSE $5::text END AS why, NULL::text AS result",
    within: "AND run.id BETWEEN $6 AND $7",
    then: ", noted AS (INSERT INTO run_event (run_id, at, attempt, event, detail)
            SELECT id, $4, attempt, CASE WHEN attempt = 1 THEN 'skipped' ELSE 'cancel' END, $5 FROM gone WHERE NOT cancel_requested)
        SELECT job_id FROM done"
);

/// By attempt, like [`CONFIRM`].
pub(crate) const RELEASE: &str = "
    UPDATE run_live l SET claimed_by = NULL, due_at = greatest(l.due_at, $4),
        state = CASE WHEN l.maybe_published THEN l.state ELSE 0 END
    WHERE l.id = ANY ($1) AND l.attempt = $2 AND l.claimed_by = $3 AND l.state IN (0, 1)";

/// The jobs of runs that may be taken back, which are held: an edit that looks for runs that are being published would not see these yet.
const OUT: &str = "
    SELECT DISTINCT l.job_id FROM unnest($1::bigint[]) e (id) JOIN run_live l ON l.id = e.id WHERE l.state IN (2, 3)";

/// Their jobs were stopped after they had gone out, and they are not where they were sent: they do not go out again.
pub(crate) const END_STOPPED: &str = finish!(
    "e AS (SELECT * FROM unnest($1::bigint[], $2::integer[]) u (id, attempt)),",
    delete: "USING e WHERE l.id = e.id AND l.attempt = e.attempt AND l.state IN (2, 3)
        AND NOT EXISTS (SELECT FROM job_due d WHERE d.job_id = l.job_id AND (d.enabled OR l.kind = 1))",
    ends: "15::smallint AS end_state, l.started_at AS began_at, $3::bigint AS end_at, l.exit_status AS status, $4::text AS why,
        NULL::text AS result",
    within: "AND run.id BETWEEN $5 AND $6",
    then: "INSERT INTO run_event (run_id, at, attempt, event, detail) SELECT id, $3, attempt, 'cancel', $4 FROM done"
);

pub(crate) const TAKE_BACK: &str = "
    UPDATE run_live l SET state = 1, claimed_by = $3, maybe_published = true
    FROM unnest($1::bigint[], $2::integer[]) e (id, attempt)
    WHERE l.id = e.id AND l.attempt = e.attempt AND l.state IN (2, 3)
    RETURNING l.id";

const NOTE_TAKEN_BACK: &str = "
    INSERT INTO run_event (run_id, at, attempt, event, detail)
    SELECT l.id, $2, l.attempt, 'republished', $3
    FROM unnest($1::bigint[]) e (id) JOIN run_live l ON l.id = e.id
    WHERE (SELECT count(*) FROM (SELECT FROM run_event v WHERE v.run_id = l.id LIMIT 1000) known) < 1000";

/// How often runs that an edit has overtaken are released at the most.
const GIVE_UP_TRIES: usize = 5;

impl PgStore {
    pub(crate) async fn begin(
        &self,
        node: NodeId,
        marks: &[DispatchRequest],
    ) -> Result<Vec<AttemptId>, StoreError> {
        if marks.is_empty() {
            return Ok(Vec::new());
        }
        let fail = failed("begin to dispatch runs");
        let Sorted {
            ids,
            attempts,
            versions,
            executors,
            names,
        } = sorted(marks);
        // A transaction of its own: one round trip and not three, at a point where what is due waits for it.
        let mut conn = self.db.planned_once().await?;
        let marked: Vec<i64> = sqlx::query_scalar(BEGIN)
            .bind(&ids)
            .bind(attempts)
            .bind(&versions)
            .bind(executors)
            .bind(names)
            .bind(node.0)
            .fetch_all(&mut *conn)
            .await
            .map_err(&fail)?;
        let changed: Vec<(i64, i32)> = sqlx::query_as(CHANGED)
            .bind(&ids)
            .bind(&versions)
            .bind(node.0)
            .fetch_all(&mut *conn)
            .await
            .map_err(&fail)?;
        // What was marked before is in its queue, maybe, and stays.
        let marked: HashSet<i64> = marked.into_iter().collect();
        let changed: Vec<AttemptId> = changed
            .into_iter()
            .filter(|(id, _)| marked.contains(id))
            .map(|(id, attempt)| AttemptId {
                run: RunId(id),
                attempt: small(attempt),
            })
            .collect();
        drop(conn);
        if !changed.is_empty() {
            self.give_up_surely(node, &changed).await?;
        }
        let all = marked.len() == marks.len() && changed.is_empty();
        let taken: Vec<i64> = if all {
            (1..).take(marks.len()).collect()
        } else {
            sqlx::query_scalar(TAKEN)
                .bind(marks.iter().map(|m| m.attempt.run.0).collect::<Vec<_>>())
                .bind(
                    marks
                        .iter()
                        .map(|m| int4(m.attempt.attempt))
                        .collect::<Vec<_>>(),
                )
                .bind(
                    marks
                        .iter()
                        .map(|m| m.executor.as_str())
                        .collect::<Vec<_>>(),
                )
                .bind(node.0)
                .fetch_all(&mut *self.db.glance().await?)
                .await
                .map_err(&fail)?
        };
        let mut seen = HashSet::with_capacity(taken.len());
        Ok(taken
            .into_iter()
            .filter_map(|place| marks.get(usize::try_from(place - 1).ok()?))
            .map(|m| m.attempt)
            .filter(|id| seen.insert(*id))
            .collect())
    }

    /// Made again here: from the call as a whole, made again, the marks would look like good ones of an earlier call.
    async fn give_up_surely(&self, node: NodeId, changed: &[AttemptId]) -> Result<(), StoreError> {
        for _ in 1..GIVE_UP_TRIES {
            match self.give_up(node, changed, None).await {
                Err(e) if e.kind() == ErrorKind::Transient => {}
                done => return done,
            }
        }
        self.give_up(node, changed, None).await
    }

    pub(crate) async fn confirm(&self, attempts: &[AttemptId]) -> Result<(), StoreError> {
        if attempts.is_empty() {
            return Ok(());
        }
        let mut conn = self.db.planned_once().await?;
        let now = self.db.set_clock().map(Timestamp::as_millis);
        for (attempt, ids) in by_attempt(attempts) {
            sqlx::query(CONFIRM)
                .bind(ids)
                .bind(attempt)
                .bind(now)
                .execute(&mut *conn)
                .await
                .map_err(failed("write down that triggers are queued"))?;
        }
        Ok(())
    }

    pub(crate) async fn give_up(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        due_at: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        if attempts.is_empty() {
            return Ok(());
        }
        let fail = failed("release runs");
        let (ids, numbers) = columns(attempts);
        let (low, high) = bounds(ids.iter().copied());
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let bound: Vec<i64> = sqlx::query_scalar(BOUND)
            .bind(&ids)
            .bind(node.0)
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        follow::hold(&mut tx, bound).await?;
        let ended: Vec<i64> = sqlx::query_scalar(END_RELEASED)
            .bind(&ids)
            .bind(&numbers)
            .bind(node.0)
            .bind(now.as_millis())
            .bind(STOPPED_MEANWHILE)
            .bind(low)
            .bind(high)
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        for (attempt, ids) in by_attempt(attempts) {
            sqlx::query(RELEASE)
                .bind(ids)
                .bind(attempt)
                .bind(node.0)
                .bind(due_at.map(Timestamp::as_millis))
                .execute(&mut *tx)
                .await
                .map_err(&fail)?;
        }
        let ended: Vec<(i64, Timestamp)> = ended.into_iter().map(|job| (job, now)).collect();
        follow::next_after_end(&mut tx, &self.definitions, &ended).await?;
        commit(tx).await
    }

    pub(crate) async fn publish_again(
        &self,
        node: NodeId,
        attempts: &[AttemptId],
        reason: &str,
    ) -> Result<Vec<ClaimedRun>, StoreError> {
        if attempts.is_empty() {
            return Ok(Vec::new());
        }
        let fail = failed("take runs back");
        let (ids, numbers) = columns(attempts);
        let (low, high) = bounds(ids.iter().copied());
        let mut tx = self.db.write().await?;
        let now = tx.now;
        nodes::known(&mut tx, node).await?;
        let out: Vec<i64> = sqlx::query_scalar(OUT)
            .bind(&ids)
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        follow::hold(&mut tx, out).await?;
        sqlx::query(END_STOPPED)
            .bind(&ids)
            .bind(&numbers)
            .bind(now.as_millis())
            .bind(STOPPED_MEANWHILE)
            .bind(low)
            .bind(high)
            .execute(&mut *tx)
            .await
            .map_err(&fail)?;
        let taken: Vec<i64> = sqlx::query_scalar(TAKE_BACK)
            .bind(ids)
            .bind(numbers)
            .bind(node.0)
            .fetch_all(&mut *tx)
            .await
            .map_err(&fail)?;
        let taken: HashSet<i64> = taken.into_iter().collect();
        let taken: Vec<i64> = attempts
            .iter()
            .map(|a| a.run.0)
            .filter(|id| taken.contains(id))
            .collect();
        note_taken_back(&mut tx, &taken, now, reason).await?;
        let runs = self.read_waiting(&mut tx, &taken).await?;
        commit(tx).await?;
        Ok(runs)
    }
}

async fn note_taken_back(
    conn: &mut PgConnection,
    ids: &[i64],
    now: Timestamp,
    reason: &str,
) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query(NOTE_TAKEN_BACK)
        .bind(ids)
        .bind(now.as_millis())
        .bind(clean(reason).as_ref())
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("write the timeline of runs taken back"))
}

/// Marks as columns, by id; one for each run.
#[derive(Default)]
struct Sorted<'a> {
    ids: Vec<i64>,
    attempts: Vec<i32>,
    versions: Vec<i64>,
    /// Places in `names`, from 1.
    executors: Vec<i32>,
    names: Vec<&'a str>,
}

fn sorted(marks: &[DispatchRequest]) -> Sorted<'_> {
    let by_run: BTreeMap<i64, &DispatchRequest> =
        marks.iter().map(|m| (m.attempt.run.0, m)).collect();
    let mut places = HashMap::<&str, i32>::new();
    let mut sorted = Sorted::default();
    for (id, mark) in by_run {
        let place = *places.entry(mark.executor.as_str()).or_insert_with(|| {
            sorted.names.push(mark.executor.as_str());
            i32::try_from(sorted.names.len()).unwrap_or(i32::MAX)
        });
        sorted.ids.push(id);
        sorted.attempts.push(int4(mark.attempt.attempt));
        sorted.versions.push(mark.job_version);
        sorted.executors.push(place);
    }
    sorted
}

/// The runs of each attempt, by id.
fn by_attempt(attempts: &[AttemptId]) -> BTreeMap<i32, Vec<i64>> {
    let mut sorted = attempts.to_vec();
    sorted.sort_unstable();
    let mut groups: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    for id in sorted {
        groups.entry(int4(id.attempt)).or_default().push(id.run.0);
    }
    groups
}

/// Attempts as two columns, by id.
fn columns(attempts: &[AttemptId]) -> (Vec<i64>, Vec<i32>) {
    let mut sorted = attempts.to_vec();
    sorted.sort_unstable();
    sorted.iter().map(|a| (a.run.0, int4(a.attempt))).unzip()
}
