-- The schema of a store.
--
-- Columns that change at each fire are in job_due, apart from the long text in job. Some indexes on run begin with a
-- value that grows with time, so a batch of new runs writes neighbouring pages. The others cover only runs that have
-- not ended. Times are milliseconds since 1970-01-01T00:00:00Z. States and kinds are codes of cueline-model: a state
-- from 10 on is terminal.

CREATE TABLE job (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    name           TEXT    NOT NULL,
    version        INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    deleted_at     INTEGER,
    group_name     TEXT    NOT NULL,
    startup        INTEGER NOT NULL,
    -- The longest that an attempt takes: timeout and kill grace.
    max_attempt_ms INTEGER,
    definition     TEXT    NOT NULL,
    -- 0 once retention has deleted the versions of a deleted job, so that it looks for them only once.
    keeps_versions INTEGER NOT NULL DEFAULT 1,
    -- Its retention. NULL is what its group or the server says.
    keep_age_ms     INTEGER,
    keep_runs       INTEGER,
    keep_logs_ms    INTEGER,
    keep_outputs_ms INTEGER
) STRICT;

CREATE UNIQUE INDEX job_name ON job (name) WHERE deleted_at IS NULL;
CREATE INDEX job_ever_named ON job (name);
CREATE INDEX job_group ON job (group_name, name);
CREATE INDEX job_keeps_versions ON job (deleted_at) WHERE deleted_at IS NOT NULL AND keeps_versions = 1;
CREATE INDEX job_startup ON job (id) WHERE startup = 1 AND deleted_at IS NULL;
CREATE INDEX job_retention_rule ON job (keep_age_ms, keep_runs, keep_logs_ms, keep_outputs_ms)
    WHERE coalesce(keep_age_ms, keep_runs, keep_logs_ms, keep_outputs_ms) IS NOT NULL;

-- Which jobs run after which ones; only jobs that are not deleted. The flags follow from the definition of the child.
CREATE TABLE job_parent (
    parent_id     INTEGER NOT NULL REFERENCES job (id),
    child_id      INTEGER NOT NULL REFERENCES job (id),
    -- The child waits for all of its parents.
    waits_for_all INTEGER NOT NULL,
    -- A failure of the parent may start the child.
    after_failure INTEGER NOT NULL,
    PRIMARY KEY (parent_id, child_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX job_parent_child ON job_parent (child_id, parent_id);

-- One row for each job that is not deleted.
CREATE TABLE job_due (
    job_id       INTEGER PRIMARY KEY REFERENCES job (id),
    version      INTEGER NOT NULL,
    next_fire_at INTEGER,
    run_count    INTEGER NOT NULL DEFAULT 0,
    enabled      INTEGER NOT NULL,
    fixed_delay  INTEGER NOT NULL,
    -- 1 if jobs run after this one, 2 if one of them may start after a failure.
    children     INTEGER NOT NULL DEFAULT 0,
    -- The revision of the fire rules that a plan needs at least; 0 if no calendar and no window is about the job.
    rules        INTEGER NOT NULL DEFAULT 0,
    -- The first excluded fire time without a run. Until next_fire_at, all fire times without a run are excluded.
    excluded_from INTEGER,
    -- When the last pause of the job's scope ends. Until then only manual runs of it are dispatched.
    paused_until  INTEGER
) STRICT;

CREATE INDEX job_due_next ON job_due (next_fire_at) WHERE next_fire_at IS NOT NULL;
CREATE INDEX job_due_idle ON job_due (job_id) WHERE fixed_delay = 1 AND enabled = 1 AND next_fire_at IS NULL;

-- Limits of dispatches: one row for each limit in use, by what shares it. Only dispatches of runs that have limits read or
-- change it.
CREATE TABLE run_limit (
    name    TEXT    PRIMARY KEY,
    -- A JSON object: the dispatches of the last interval, the runs that were dispatched, and the first waiting runs.
    state   TEXT    NOT NULL,
    used_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The rate limits of groups.
CREATE TABLE group_rate (
    group_name TEXT    PRIMARY KEY,
    count      INTEGER NOT NULL,
    -- `second`, `minute` or `hour`.
    per        TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- The retention of groups.
CREATE TABLE group_retention (
    group_name TEXT    PRIMARY KEY,
    age_ms     INTEGER,
    runs       INTEGER,
    logs_ms    INTEGER,
    outputs_ms INTEGER
) STRICT, WITHOUT ROWID;

-- The last fire time of each job whose run was deleted. Job 0 is for all jobs.
CREATE TABLE pruned_until (
    job_id  INTEGER PRIMARY KEY,
    fire_at INTEGER NOT NULL
) STRICT;

CREATE TABLE run (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id           INTEGER NOT NULL,
    kind             INTEGER NOT NULL,
    state            INTEGER NOT NULL,
    attempt          INTEGER NOT NULL DEFAULT 1,
    retries          INTEGER NOT NULL DEFAULT 0,
    reruns           INTEGER NOT NULL DEFAULT 0,
    -- What the shards of one fire have in common. It is the fire time (schedule, startup), the first run of the trigger
    -- request (manual), or the flow run: the first run of the fire that it began with (child).
    fire_key         INTEGER NOT NULL,
    fire_at          INTEGER NOT NULL,
    due_at           INTEGER NOT NULL,
    shard_index      INTEGER NOT NULL DEFAULT 0,
    shard_total      INTEGER NOT NULL DEFAULT 1,
    claimed_by       INTEGER,
    -- Number of the run among all runs of its job.
    sequence         INTEGER NOT NULL,
    -- The job is fixed_delay: its next fire time counts from the end of the run.
    delays_next_fire INTEGER NOT NULL DEFAULT 0,
    -- In `dispatching`: an earlier publication of the attempt may be in the queue.
    maybe_published  INTEGER NOT NULL DEFAULT 0,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    pinned           INTEGER NOT NULL DEFAULT 0,
    created_at       INTEGER NOT NULL,
    -- When the attempt was marked `dispatching`: before any publication of its trigger. It stays when the trigger is
    -- published again.
    dispatched_at    INTEGER,
    queued_at        INTEGER,
    started_at       INTEGER,
    -- In `running`: when timeout and kill grace are over. NULL without a timeout; without meaning in all other states.
    overdue_at       INTEGER,
    ended_at         INTEGER,
    exit_status      INTEGER,
    executor         TEXT,
    parent           INTEGER,
    -- A skipped run accounts for all fire times from here to its own.
    skipped_since    INTEGER,
    progress         REAL,
    -- The group that the attempt was published to, if the job has moved to another one since.
    published_group  TEXT,
    shard_item       TEXT,
    params           TEXT,
    message          TEXT,
    output           TEXT
) STRICT;

CREATE UNIQUE INDEX run_fire ON run (fire_key, job_id, kind, shard_index);
-- Runs of a job, by blocks of 16,384 ids: the new entries of all jobs are close together.
CREATE INDEX run_by_job ON run (id >> 14, job_id);
CREATE INDEX run_live ON run (state, claimed_by) WHERE state < 10;
-- The lanes of a job. An index that names the state in its condition is written at each change of the state.
CREATE INDEX run_lane ON run (job_id) WHERE ended_at IS NULL;
CREATE INDEX run_waiting ON run (due_at) WHERE claimed_by IS NULL AND state < 2;
CREATE INDEX run_delays_next_fire ON run (job_id) WHERE delays_next_fire = 1 AND state < 10;
CREATE INDEX run_cancelling ON run (id) WHERE cancel_requested = 1 AND state < 10;
CREATE INDEX run_overdue ON run (overdue_at) WHERE state = 3 AND overdue_at IS NOT NULL;
CREATE INDEX run_unsuccessful ON run (state) WHERE state > 10;
CREATE INDEX run_skipped ON run (job_id, fire_at) WHERE skipped_since IS NOT NULL;

CREATE TABLE run_event (
    id      INTEGER PRIMARY KEY,
    run_id  INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    event   TEXT    NOT NULL,
    detail  TEXT    NOT NULL,
    -- The executor of an attempt that another one follows: late reports about the attempt have to come from it.
    group_name TEXT,
    executor   TEXT
) STRICT;

CREATE INDEX run_event_run ON run_event (run_id);

-- The cursor has the attempt in its upper and the number of the line in its lower 32 bits.
CREATE TABLE run_log (
    run_id INTEGER NOT NULL,
    cursor INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    stream TEXT    NOT NULL,
    text   TEXT    NOT NULL,
    PRIMARY KEY (run_id, cursor)
) STRICT, WITHOUT ROWID;

-- Idempotency keys of trigger requests. They are deleted with the runs of the request.
CREATE TABLE trigger_key (
    job_id    INTEGER NOT NULL,
    key       TEXT    NOT NULL,
    first_run INTEGER NOT NULL,
    PRIMARY KEY (job_id, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX trigger_key_run ON trigger_key (first_run);

CREATE TABLE executor (
    group_name        TEXT    NOT NULL,
    name              TEXT    NOT NULL,
    incarnation       TEXT    NOT NULL,
    session           INTEGER NOT NULL,
    capabilities      TEXT    NOT NULL,
    capacity          INTEGER NOT NULL,
    -- A JSON object.
    labels            TEXT    NOT NULL,
    weight            INTEGER NOT NULL,
    held              INTEGER NOT NULL,
    running           INTEGER NOT NULL,
    draining          INTEGER NOT NULL,
    gone              INTEGER NOT NULL,
    refusal           TEXT,
    last_heartbeat_at INTEGER NOT NULL,
    PRIMARY KEY (group_name, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE node (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT    NOT NULL,
    lease_until INTEGER NOT NULL
) STRICT;

CREATE TABLE dead_letter (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    key       TEXT    NOT NULL,
    queue     TEXT    NOT NULL,
    topic     TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    payload   BLOB    NOT NULL,
    -- Who refused the message. NULL if that is not verified.
    origin    TEXT,
    -- NULL if it is not verified to which namespace the letter belongs.
    namespace TEXT
) STRICT;

CREATE UNIQUE INDEX dead_letter_key ON dead_letter (key);
CREATE INDEX dead_letter_of_namespace ON dead_letter (namespace, id) WHERE namespace IS NOT NULL;

-- Quotas of namespaces. A namespace needs no row to be used. NULL is no limit.
CREATE TABLE namespace (
    name                    TEXT    PRIMARY KEY,
    max_jobs                INTEGER,
    max_waiting_runs        INTEGER,
    max_triggers_per_minute INTEGER,
    version                 INTEGER NOT NULL,
    created_at              INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Calendars and maintenance windows. A definition is JSON.
CREATE TABLE calendar (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT    NOT NULL UNIQUE,
    version    INTEGER NOT NULL,
    definition TEXT    NOT NULL
) STRICT;

CREATE TABLE maintenance_window (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    definition   TEXT    NOT NULL,
    -- When a person ended it. The row is kept until all its jobs have their new plans.
    ended_at     INTEGER,
    -- When it was added or ended.
    changed_at   INTEGER NOT NULL,
    -- The last job that has its new plan; NULL once all have.
    replan_after INTEGER,
    -- When the last jobs got theirs.
    replanned_at INTEGER NOT NULL
) STRICT;

-- Runs for the fire times of past windows, which are created a few at a time.
CREATE TABLE backfill (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id           INTEGER NOT NULL,
    -- That of the job at the start: its schedule names the fire times.
    definition       TEXT    NOT NULL,
    from_at          INTEGER NOT NULL,
    to_at            INTEGER NOT NULL,
    parallel         INTEGER NOT NULL,
    include_excluded INTEGER NOT NULL,
    -- Codes of BackfillState: from 2 on it has ended.
    state            INTEGER NOT NULL DEFAULT 0,
    total            INTEGER NOT NULL,
    -- Fire times that have their runs. It also numbers them for their fire keys.
    fires            INTEGER NOT NULL DEFAULT 0,
    excluded         INTEGER NOT NULL DEFAULT 0,
    -- The last fire time that was looked at.
    cursor_at        INTEGER,
    started_at       INTEGER NOT NULL,
    started_by       TEXT    NOT NULL,
    changed_at       INTEGER,
    changed_by       TEXT,
    ended_at         INTEGER,
    message          TEXT
) STRICT;

CREATE UNIQUE INDEX backfill_active ON backfill (job_id) WHERE state < 2;
CREATE INDEX backfill_of_job ON backfill (job_id, id);

-- One row. It counts the changes of calendars and windows.
CREATE TABLE fire_rules (revision INTEGER NOT NULL) STRICT;

INSERT INTO fire_rules (revision) VALUES (1);

-- The time zones that next fire times were computed with. The digest changes with the rules of the zone.
CREATE TABLE time_zone (
    name   TEXT    PRIMARY KEY,
    digest INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Scripts. A version is never changed.
CREATE TABLE script (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    name    TEXT    NOT NULL UNIQUE,
    -- The newest version.
    version INTEGER NOT NULL
) STRICT;

CREATE TABLE script_version (
    script_id INTEGER NOT NULL REFERENCES script (id),
    version   INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    saved_by  TEXT    NOT NULL,
    remark    TEXT    NOT NULL,
    language  TEXT    NOT NULL,
    text      TEXT    NOT NULL,
    PRIMARY KEY (script_id, version)
) STRICT;

-- The version that each job with a script runs.
CREATE TABLE job_script (
    job_id    INTEGER PRIMARY KEY REFERENCES job (id),
    script_id INTEGER NOT NULL REFERENCES script (id),
    version   INTEGER NOT NULL,
    -- Whether later versions change nothing for the job.
    pinned    INTEGER NOT NULL
) STRICT;

CREATE INDEX job_script_of ON job_script (script_id);

-- Tokens enrol keys of workers.
CREATE TABLE enrolment_token (
    id              TEXT    PRIMARY KEY,
    -- A secret: its reader can enrol workers.
    verifier        BLOB    NOT NULL,
    -- NULL for all namespaces.
    namespace       TEXT,
    group_name      TEXT,
    executor        TEXT,
    uses_left       INTEGER NOT NULL,
    expires_at      INTEGER,
    created_at      INTEGER NOT NULL,
    created_by      TEXT    NOT NULL,
    -- The idempotency key of the request that created the row, and ends with it. One creator's keys are unique, because
    -- tokens are created one after the other.
    idempotency_key TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX enrolment_token_created ON enrolment_token (created_by, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Public keys of workers. Schedulers read those with a greater number of their last change than the last one that they
-- have read.
CREATE TABLE worker_key (
    group_name  TEXT    NOT NULL,
    executor    TEXT    NOT NULL,
    key_id      TEXT    NOT NULL,
    key         BLOB    NOT NULL,
    allowed     INTEGER NOT NULL,
    enrolled_at INTEGER NOT NULL,
    enrolled_by TEXT    NOT NULL,
    changed_at  INTEGER NOT NULL,
    changed_by  TEXT    NOT NULL,
    change      INTEGER NOT NULL,
    PRIMARY KEY (group_name, executor, key_id)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX worker_key_change ON worker_key (change);
CREATE INDEX worker_key_revoked ON worker_key (change) WHERE allowed = 0;

-- The number of the newest change of a key.
CREATE TABLE worker_key_version (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    number   INTEGER NOT NULL
) STRICT;

INSERT INTO worker_key_version (only_row, number) VALUES (1, 0);

-- Users. Their numbers are never given again.
CREATE TABLE account_user (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    name            TEXT    NOT NULL,
    -- The name in lower case.
    name_key        TEXT    NOT NULL,
    display_name    TEXT    NOT NULL,
    -- An Argon2id hash. Either it is set, or issuer and subject are, or none of the three.
    password_hash   TEXT,
    issuer          TEXT,
    subject         TEXT,
    -- A JSON list.
    grants          TEXT    NOT NULL,
    enabled         INTEGER NOT NULL,
    -- Enabled, can log in, and has all rights everywhere. It follows from other columns.
    is_admin        INTEGER NOT NULL,
    version         INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    created_by      TEXT    NOT NULL,
    last_login_at   INTEGER,
    -- The idempotency key of the request that created the row, and ends with it. One creator's keys are unique, because
    -- users are created one after the other.
    idempotency_key TEXT
) STRICT;

CREATE UNIQUE INDEX account_user_name ON account_user (name_key);
CREATE UNIQUE INDEX account_user_subject ON account_user (issuer, subject) WHERE issuer IS NOT NULL;
CREATE INDEX account_user_admin ON account_user (id) WHERE is_admin = 1;
CREATE INDEX account_user_created ON account_user (created_by, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Sessions of users who are logged in. Their secrets are not stored.
CREATE TABLE session (
    -- SHA-256 of the secret.
    hash         BLOB    PRIMARY KEY,
    user_id      INTEGER NOT NULL REFERENCES account_user (id),
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    -- Noted once a minute.
    last_used_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX session_of_user ON session (user_id);
CREATE INDEX session_expiry ON session (expires_at);

CREATE TABLE api_token (
    id              TEXT    PRIMARY KEY,
    -- SHA-256 of the secret.
    hash            BLOB    NOT NULL,
    name            TEXT    NOT NULL,
    -- NULL for a token of a program.
    owner_id        INTEGER REFERENCES account_user (id),
    -- A JSON list.
    grants          TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    created_by      TEXT    NOT NULL,
    expires_at      INTEGER,
    revoked_at      INTEGER,
    -- Noted once a minute.
    last_used_at    INTEGER,
    -- The idempotency key of the request that created the row, and ends with it. One creator's keys are unique, because
    -- tokens are created one after the other.
    idempotency_key TEXT
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX api_token_hash ON api_token (hash);
CREATE INDEX api_token_of_owner ON api_token (owner_id, id);
CREATE INDEX api_token_end ON api_token (coalesce(revoked_at, expires_at));
CREATE INDEX api_token_created ON api_token (created_by, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Run ids are unique within one store only: executors remember an attempt together with the id of its store.
CREATE TABLE store_identity (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    -- 32 hexadecimal digits.
    id       TEXT    NOT NULL
) STRICT;

INSERT INTO store_identity (only_row, id) VALUES (1, lower(hex(randomblob(16))));

-- Who changed what. Ids ascend with the time. Rows are never changed, and only retention deletes them.
CREATE TABLE audit (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    at            INTEGER NOT NULL,
    -- As it is displayed: `user alice`.
    actor         TEXT    NOT NULL,
    address       TEXT,
    -- `object.verb`, and the part before the dot.
    action        TEXT    NOT NULL,
    action_object TEXT    NOT NULL,
    namespace     TEXT,
    group_name    TEXT,
    object        TEXT    NOT NULL,
    -- `done` or `refused`.
    result        TEXT    NOT NULL,
    detail        TEXT    NOT NULL,
    old_value     TEXT,
    new_value     TEXT
) STRICT;

CREATE INDEX audit_at ON audit (at);
CREATE INDEX audit_actor ON audit (actor);
CREATE INDEX audit_action ON audit (action);
CREATE INDEX audit_action_object ON audit (action_object);
CREATE INDEX audit_object ON audit (object);
CREATE INDEX audit_namespace ON audit (namespace) WHERE namespace IS NOT NULL;
CREATE INDEX audit_group ON audit (group_name) WHERE group_name IS NOT NULL;
CREATE INDEX audit_refused ON audit (result) WHERE result = 'refused';

CREATE TRIGGER audit_unchanged BEFORE UPDATE ON audit BEGIN
    SELECT RAISE(ABORT, 'rows of audit are never changed');
END;

-- The definition of each version of a job, the newest 1,000 of each. A new job removes those of a deleted one of its name,
-- and retention those of jobs that were deleted long ago.
CREATE TABLE job_version (
    job_id     INTEGER NOT NULL REFERENCES job (id),
    version    INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    changed_by TEXT    NOT NULL,
    enabled    INTEGER NOT NULL,
    definition TEXT    NOT NULL,
    PRIMARY KEY (job_id, version)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER job_version_unchanged BEFORE UPDATE ON job_version BEGIN
    SELECT RAISE(ABORT, 'rows of job_version are never changed');
END;
