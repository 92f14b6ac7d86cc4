//! Ends plain successes, which nearly all reports are, by one statement that reads nothing before it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cueline_model::{RunState, Timestamp};
use cueline_store::adapter::plain_ends::{PlainEnd, after_plain_ends, plain_ends};
use cueline_store::{AttemptReport, IngestSummary};

use crate::PgStore;
use crate::columns::{column, id_range, sparse, state_code, to_i32};
use crate::end_runs::end_runs;
use crate::error::Result;
use crate::partitions::{Day, share_old_days};

/// What [`PlainEnd`] says, by conditions. The values of a run are at the index of its id in the sorted `$1`, as in
/// [`BEGIN`](crate::marks::BEGIN). `$3` are positions in `$4` and `$5`, the groups and names of executors, which are listed
/// once because few report many runs. `$9`, `$11` and `$13` are sparse, see [`sparse`].
///
/// A run whose attempt was published to another group than that of its job now is left out.
pub(crate) const END_PLAIN: &str = end_runs!(
    "",
    delete: "WHERE l.id = ANY ($1::bigint[]) AND l.attempt = ($2::integer[])[width_bucket(l.id, $1::bigint[])]
        AND l.state BETWEEN 1 AND 3 AND l.published_group IS NULL
        AND l.executor = ($5::text[])[($3::integer[])[width_bucket(l.id, $1::bigint[])]]
        AND (SELECT d.children = 0 AND NOT d.fixed_delay AND NOT d.failing
                AND d.group_name = ($4::text[])[($3::integer[])[width_bucket(l.id, $1::bigint[])]]
            FROM job_due d WHERE d.job_id = l.job_id)",
    ends: "$6::smallint AS end_state,
        coalesce(($7::bigint[])[width_bucket(l.id, $1::bigint[])], CASE WHEN l.state = 3 THEN l.started_at END) AS began_at,
        ($8::bigint[])[width_bucket(l.id, $1::bigint[])] AS end_at,
        ($10::integer[])[($9::integer[])[width_bucket(l.id, $1::bigint[])]] AS status,
        ($12::text[])[($11::integer[])[width_bucket(l.id, $1::bigint[])]] AS reason,
        ($14::text[])[($13::integer[])[width_bucket(l.id, $1::bigint[])]] AS result",
    within: "AND run.id BETWEEN $15 AND $16",
    then: "SELECT coalesce(array_agg(id), '{}'), coalesce(array_agg(job_id), '{}') FROM done"
);

impl PgStore {
    /// Ends the runs of plain successes in a transaction of its own. It holds no locks of jobs, so other reports, which may
    /// need them, are for a later transaction. Returns the answer for those runs, and the other reports with their positions.
    pub(crate) async fn end_plainly<'r>(
        &self,
        reports: &'r [AttemptReport],
    ) -> Result<(IngestSummary, Vec<(usize, &'r AttemptReport)>)> {
        let ends = plain_ends(reports);
        let jobs = if ends.is_empty() {
            BTreeMap::new()
        } else {
            self.end_all(&ends).await?
        };
        Ok(after_plain_ends(reports, &ends, &jobs))
    }

    /// Returns the ended runs and their jobs.
    async fn end_all(&self, ends: &[PlainEnd<'_>]) -> Result<BTreeMap<i64, i64>> {
        let run = |end: &PlainEnd<'_>| end.attempt.run.0;
        let (low, high) = id_range(ends.iter().map(run));
        let executors = Executors::of(ends);
        let started_at = |end: &PlainEnd<'_>| end.outcome.started_at.map(Timestamp::as_millis);
        let (status_at, statuses) = sparse(ends, |end| end.outcome.exit_status);
        let (message_at, messages) = sparse(ends, PlainEnd::message);
        let (output_at, outputs) = sparse(ends, PlainEnd::output);
        let mut tx = self.db.write().await?;
        let now = tx.now;
        let days: BTreeSet<Day> = ends.iter().map(|end| Day::of_run(run(end))).collect();
        share_old_days(&mut tx, &days, now).await?;
        let (runs, jobs): (Vec<i64>, Vec<i64>) = sqlx::query_as(END_PLAIN)
            .bind(column(ends, run))
            .bind(column(ends, |end| to_i32(end.attempt.attempt)))
            .bind(executors.positions)
            .bind(executors.groups)
            .bind(executors.names)
            .bind(state_code(RunState::Succeeded))
            .bind(column(ends, started_at))
            .bind(column(ends, |end| end.outcome.ended_at.as_millis()))
            .bind(status_at)
            .bind(statuses)
            .bind(message_at)
            .bind(messages)
            .bind(output_at)
            .bind(outputs)
            .bind(low)
            .bind(high)
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(runs.into_iter().zip(jobs).collect())
    }
}

/// The executors of a list of reports, each once.
#[derive(Default)]
struct Executors<'a> {
    /// For each report, the position of its executor, from 1.
    positions: Vec<i32>,
    groups: Vec<&'a str>,
    names: Vec<&'a str>,
}

impl<'a> Executors<'a> {
    fn of(ends: &[PlainEnd<'a>]) -> Self {
        let mut known = HashMap::new();
        let mut executors = Self::default();
        for end in ends {
            let position = *known.entry(end.executor).or_insert_with(|| {
                executors.groups.push(end.executor.group.as_str());
                executors.names.push(end.executor.name.as_str());
                i32::try_from(executors.names.len()).unwrap_or(i32::MAX)
            });
            executors.positions.push(position);
        }
        executors
    }
}
