-- What a fire reads and writes. An index whose condition names the state is evaluated at each change of the state, so
-- those of live runs say that a run has no end.

-- That of the job, so that ingest reads one row of each job only.
ALTER TABLE job_due ADD COLUMN group_name TEXT NOT NULL DEFAULT '';
UPDATE job_due SET group_name = (SELECT j.group_name FROM job j WHERE j.id = job_due.job_id);

DROP INDEX run_delays_next_fire;
CREATE INDEX run_delays_next_fire ON run (job_id) WHERE delays_next_fire = 1 AND ended_at IS NULL;
DROP INDEX run_cancelling;
CREATE INDEX run_cancelling ON run (id) WHERE cancel_requested = 1 AND ended_at IS NULL;
-- In states other than `running` the time is one of an earlier attempt.
DROP INDEX run_overdue;
CREATE INDEX run_overdue ON run (overdue_at) WHERE overdue_at IS NOT NULL AND ended_at IS NULL;
