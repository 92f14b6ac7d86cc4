//! The end of runs: out of `run_live`, and completed in `run`.

/// Makes a statement that ends runs of `run_live`. `$gone` is the part from `DELETE` to `WHERE`, `$ends` what the end itself
/// says (`state`, `started_at`, `ended_at`, `exit_status`, `message`, `output`), `$then` what is done with the runs, as `done`, that have ended.
macro_rules! finish {
    ($input:literal, delete: $delete:literal, ends: $ends:literal, within: $within:literal, then: $then:literal) => {
        concat!(
            "WITH ", $input, " gone AS (DELETE FROM run_live l ", $delete,
            " RETURNING l.id, l.job_id, l.attempt, l.retries, l.due_at, l.queued_at, l.cancel_requested, l.progress, l.executor,
                l.sent_to_group, ", $ends, "),
            done AS (UPDATE run SET state = g.end_state, mishap = CASE WHEN g.end_state > 10 THEN g.end_state END,
                cancel_requested = g.cancel_requested, attempt = g.attempt, retries = g.retries, due_at = g.due_at,
                queued_at = g.queued_at, progress = g.progress, executor = g.executor, sent_to_group = g.sent_to_group,
                started_at = g.began_at, ended_at = g.end_at, exit_status = g.status, message = g.why, output = g.result
            FROM gone g WHERE run.id = g.id ", $within, " RETURNING run.id, run.job_id, run.attempt) ",
            $then
        )
    };
}

pub(crate) use finish;
