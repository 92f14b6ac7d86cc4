//! Ends runs: deletes their rows in `run_live`, and completes their rows in `run`.

/// Builds a statement that ends runs.
///
/// `delete` is the part of the `DELETE FROM run_live l` from `USING` to `WHERE`. `ends` lists the values of the end:
/// `end_state`, `began_at`, `end_at`, `status`, `reason` and `result`. `within` bounds the partitions of `run`. `then`
/// continues with the ended runs as `done`.
macro_rules! end_runs {
    ($input:literal, delete: $delete:literal, ends: $ends:literal, within: $within:literal, then: $then:literal) => {
        concat!(
            "WITH ", $input, " gone AS (DELETE FROM run_live l ", $delete,
            " RETURNING l.id, l.job_id, l.attempt, l.retries, l.due_at, l.queued_at, l.cancel_requested, l.progress, l.executor,
                l.published_group, ", $ends, "),
            done AS (UPDATE run SET state = g.end_state, unsuccessful_state = CASE WHEN g.end_state > 10 THEN g.end_state END,
                cancel_requested = g.cancel_requested, attempt = g.attempt, retries = g.retries, due_at = g.due_at,
                queued_at = g.queued_at, progress = g.progress, executor = g.executor, published_group = g.published_group,
                started_at = g.began_at, ended_at = g.end_at, exit_status = g.status, message = g.reason, output = g.result
            FROM gone g WHERE run.id = g.id ", $within, " RETURNING run.id, run.job_id, run.attempt) ",
            $then
        )
    };
}

pub(crate) use end_runs;
