-- The schema of a store.
--
-- A run has a row in run until it is deleted, and a second row in run_live until it has ended. Only run_live changes
-- while the run is live. Its rows are small and few. The normal path changes no indexed column of it, so updates stay
-- on their page. The end of a run deletes the row in run_live and completes the row in run. run, run_event and run_log
-- are partitioned by the day in the id of a run (see partitions.rs). Times are milliseconds since 1970-01-01T00:00:00Z.
-- States and kinds are codes of cueline-model: a state from 10 on is terminal.

CREATE TABLE job (
    id             bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name           text    COLLATE "C" NOT NULL,
    version        bigint  NOT NULL,
    created_at     bigint  NOT NULL,
    deleted_at     bigint,
    startup        boolean NOT NULL,
    -- The longest that an attempt takes: timeout and kill grace.
    max_attempt_ms bigint,
    group_name     text    NOT NULL,
    definition     text    NOT NULL,
    -- False once retention has deleted the versions of a deleted job, so that it looks for them only once.
    keeps_versions boolean NOT NULL DEFAULT true,
    -- Its retention. NULL is what its group or the server says.
    keep_age_ms     bigint,
    keep_runs       bigint,
    keep_logs_ms    bigint,
    keep_outputs_ms bigint
);

CREATE UNIQUE INDEX job_name ON job (name) WHERE deleted_at IS NULL;
CREATE INDEX job_ever_named ON job (name, id);
CREATE INDEX job_group ON job (group_name, name);
CREATE INDEX job_keeps_versions ON job (deleted_at) WHERE deleted_at IS NOT NULL AND keeps_versions;
CREATE INDEX job_startup ON job (id) WHERE startup AND deleted_at IS NULL;
CREATE INDEX job_retention_rule ON job (keep_age_ms, keep_runs, keep_logs_ms, keep_outputs_ms)
    WHERE coalesce(keep_age_ms, keep_runs, keep_logs_ms, keep_outputs_ms) IS NOT NULL;

-- Which jobs run after which ones; only jobs that are not deleted. The flags follow from the definition of the child. A
-- transaction that changes the links of a parent changes its row in job_due too, so whoever has locked that sees them all.
CREATE TABLE job_parent (
    parent_id     bigint  NOT NULL,
    child_id      bigint  NOT NULL,
    -- The child waits for all of its parents.
    waits_for_all boolean NOT NULL,
    -- A failure of the parent may start the child.
    after_failure boolean NOT NULL,
    PRIMARY KEY (parent_id, child_id)
);

CREATE INDEX job_parent_child ON job_parent (child_id, parent_id);

-- One row for each job that is not deleted. Its row lock is the lock of the job. A transaction takes it first if it
-- changes the definition, the next fire time, or what follows from runs of the job. It locks rows of run_live after it.
CREATE TABLE job_due (
    job_id       bigint  PRIMARY KEY,
    version      bigint  NOT NULL,
    next_fire_at bigint,
    run_count    bigint  NOT NULL DEFAULT 0,
    enabled      boolean NOT NULL,
    fixed_delay  boolean NOT NULL,
    -- 1 if jobs run after this one, 2 if one of them may start after a failure.
    children     smallint NOT NULL DEFAULT 0,
    -- That of the job, so that ingest reads one row of each job only.
    group_name   text    NOT NULL,
    -- The revision of the fire rules that a plan needs at least; 0 if no calendar and no window is about the job.
    rules        bigint  NOT NULL DEFAULT 0,
    -- The first excluded fire time without a run. Until next_fire_at, all fire times without a run are excluded.
    excluded_from bigint,
    -- When the last pause of the job's scope ends. Until then only manual runs of it are dispatched.
    paused_until bigint
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX job_due_next ON job_due (next_fire_at, job_id) WHERE next_fire_at IS NOT NULL;
CREATE INDEX job_due_idle ON job_due (job_id) WHERE fixed_delay AND enabled AND next_fire_at IS NULL;

-- The retention of groups.
CREATE TABLE group_retention (
    group_name text   COLLATE "C" PRIMARY KEY,
    age_ms     bigint,
    runs       bigint,
    logs_ms    bigint,
    outputs_ms bigint
);

-- The last fire time of each job whose run was deleted. Job 0 is for all jobs.
CREATE TABLE pruned_until (
    job_id  bigint PRIMARY KEY,
    fire_at bigint NOT NULL
);

-- The lower part of run ids; the upper part is the day. The sequence restarts after 10^10 runs, long after that day is
-- over.
CREATE SEQUENCE run_number MINVALUE 0 MAXVALUE 9999999999 CYCLE;

CREATE TABLE run (
    id                 bigint   PRIMARY KEY,
    job_id             bigint   NOT NULL,
    -- What the shards of one fire have in common. It is the fire time (schedule, startup), the first run of the trigger
    -- request (manual), or the flow run: the first run of the fire that it began with (child). Each partition has a unique index on (fire_key, job_id,
    -- kind, shard_index), and runs with the same key are in the same partition.
    fire_key           bigint   NOT NULL,
    fire_at            bigint   NOT NULL,
    created_at         bigint   NOT NULL,
    -- Number of the run among all runs of its job.
    sequence           bigint   NOT NULL,
    parent             bigint,
    -- A skipped run accounts for all fire times from here to its own.
    skipped_since      bigint,
    shard_index        integer  NOT NULL DEFAULT 0,
    shard_total        integer  NOT NULL DEFAULT 1,
    kind               smallint NOT NULL,
    -- The end of the run sets the columns from here on. Until then they are in run_live.
    state              smallint,
    -- The state again, unless it is success: so a success changes no indexed column.
    unsuccessful_state smallint,
    cancel_requested   boolean  NOT NULL DEFAULT false,
    attempt            integer  NOT NULL DEFAULT 1,
    retries            integer  NOT NULL DEFAULT 0,
    exit_status        integer,
    due_at             bigint   NOT NULL,
    queued_at          bigint,
    started_at         bigint,
    ended_at           bigint,
    progress           double precision,
    executor           text,
    -- The group that the attempt was published to, if the job has moved to another one since.
    published_group    text,
    shard_item         text,
    params             text,
    message            text,
    output             text
) PARTITION BY RANGE (id);

-- Runs of a job, by blocks of 16,384 ids: the new entries of all jobs are close together.
CREATE INDEX run_by_job ON run ((id >> 14), job_id);
CREATE INDEX run_unsuccessful ON run (unsuccessful_state, id) WHERE unsuccessful_state IS NOT NULL;
CREATE INDEX run_skipped ON run (job_id, fire_at) WHERE skipped_since IS NOT NULL;

CREATE TABLE run_live (
    id               bigint   PRIMARY KEY,
    job_id           bigint   NOT NULL,
    -- The node that dispatches the run. NULL only while any node may claim it; without meaning from `queued` on.
    claimed_by       bigint,
    due_at           bigint   NOT NULL,
    -- When the attempt was marked `dispatching`: before any publication of its trigger. It stays when the trigger is
    -- published again.
    dispatched_at    bigint,
    queued_at        bigint,
    started_at       bigint,
    -- In `running`: when timeout and kill grace are over. NULL without a timeout, and in all other states.
    overdue_at       bigint,
    attempt          integer  NOT NULL DEFAULT 1,
    retries          integer  NOT NULL DEFAULT 0,
    reruns           integer  NOT NULL DEFAULT 0,
    exit_status      integer,
    kind             smallint NOT NULL,
    state            smallint NOT NULL,
    -- The job is fixed_delay: its next fire time counts from the end of the run.
    delays_next_fire boolean  NOT NULL DEFAULT false,
    -- In `dispatching`: an earlier publication of the attempt may be in the queue.
    maybe_published  boolean  NOT NULL DEFAULT false,
    cancel_requested boolean  NOT NULL DEFAULT false,
    pinned           boolean  NOT NULL DEFAULT false,
    -- The shard and the fire time of the run, for its place in the lane of its group. They never change.
    shard_index      integer  NOT NULL,
    fire_at          bigint   NOT NULL,
    progress         double precision,
    executor         text,
    published_group  text,
    message          text
) WITH (fillfactor = 35, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);

CREATE INDEX run_live_job ON run_live (job_id);
CREATE INDEX run_live_waiting ON run_live (due_at, id) WHERE claimed_by IS NULL;
CREATE INDEX run_live_delays_next_fire ON run_live (job_id) WHERE delays_next_fire;
CREATE INDEX run_live_cancelling ON run_live (id) WHERE cancel_requested;
-- Not on the normal path: a run becomes `running` only when it takes long.
CREATE INDEX run_live_overdue ON run_live (overdue_at, id) WHERE overdue_at IS NOT NULL;

CREATE SEQUENCE run_event_number;

CREATE TABLE run_event (
    run_id  bigint  NOT NULL,
    number  bigint  NOT NULL DEFAULT nextval('run_event_number'),
    at      bigint  NOT NULL,
    attempt integer NOT NULL,
    event   text    NOT NULL,
    detail  text    NOT NULL,
    -- The executor of an attempt that another one follows: late reports about the attempt have to come from it.
    group_name text,
    executor   text,
    PRIMARY KEY (run_id, number)
) PARTITION BY RANGE (run_id);

-- The cursor has the attempt in its upper and the number of the line in its lower 32 bits.
CREATE TABLE run_log (
    run_id bigint NOT NULL,
    cursor bigint NOT NULL,
    at     bigint NOT NULL,
    stream text   NOT NULL,
    text   text   NOT NULL,
    PRIMARY KEY (run_id, cursor)
) PARTITION BY RANGE (run_id);

-- Idempotency keys of trigger requests. They are deleted with the runs of the request.
CREATE TABLE trigger_key (
    job_id    bigint NOT NULL,
    key       text   COLLATE "C" NOT NULL,
    first_run bigint NOT NULL,
    PRIMARY KEY (job_id, key)
);

CREATE INDEX trigger_key_run ON trigger_key (first_run);

CREATE TABLE executor (
    group_name        text    COLLATE "C" NOT NULL,
    name              text    COLLATE "C" NOT NULL,
    incarnation       text    NOT NULL,
    session           bigint  NOT NULL,
    capabilities      text[]  NOT NULL,
    capacity          bigint  NOT NULL,
    -- A JSON object.
    labels            text    NOT NULL,
    weight            smallint NOT NULL,
    held              bigint  NOT NULL,
    running           bigint  NOT NULL,
    draining          boolean NOT NULL,
    gone              boolean NOT NULL,
    refusal           text,
    last_heartbeat_at bigint  NOT NULL,
    PRIMARY KEY (group_name, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE node (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text    COLLATE "C" NOT NULL,
    lease_until bigint  NOT NULL,
    -- The lease has expired, and the node has no claims any more.
    cleared     boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

CREATE TABLE dead_letter (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        bigint NOT NULL,
    key       text   COLLATE "C" NOT NULL,
    queue     text   NOT NULL,
    topic     text   NOT NULL,
    reason    text   NOT NULL,
    payload   bytea  NOT NULL,
    -- Who refused the message. NULL if that is not verified.
    origin    text,
    -- NULL if it is not verified to which namespace the letter belongs.
    namespace text   COLLATE "C"
);

CREATE UNIQUE INDEX dead_letter_key ON dead_letter (key);
CREATE INDEX dead_letter_of_namespace ON dead_letter (namespace, id) WHERE namespace IS NOT NULL;

-- Quotas of namespaces. A namespace needs no row to be used. NULL is no limit.
CREATE TABLE namespace (
    name                    text   COLLATE "C" PRIMARY KEY,
    max_jobs                bigint,
    max_waiting_runs        bigint,
    max_triggers_per_minute bigint,
    version                 bigint NOT NULL,
    created_at              bigint NOT NULL
);

-- Limits of dispatches: one row for each limit in use, by what shares it. Only dispatches of runs that have limits read or
-- change it, and its row lock lets them decide one after the other.
CREATE TABLE run_limit (
    name    text   COLLATE "C" PRIMARY KEY,
    -- A JSON object: the dispatches of the last interval, the runs that were dispatched, and the first waiting runs.
    state   text   NOT NULL,
    used_at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The rate limits of groups.
CREATE TABLE group_rate (
    group_name text   COLLATE "C" PRIMARY KEY,
    count      bigint NOT NULL,
    -- `second`, `minute` or `hour`.
    per        text   NOT NULL
);

-- Calendars and maintenance windows. A definition is JSON.
CREATE TABLE calendar (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text   COLLATE "C" NOT NULL UNIQUE,
    version    bigint NOT NULL,
    definition text   NOT NULL
);

CREATE TABLE maintenance_window (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    definition   text   NOT NULL,
    -- When a person ended it. The row is kept until all its jobs have their new plans.
    ended_at     bigint,
    -- When it was added or ended.
    changed_at   bigint NOT NULL,
    -- The last job that has its new plan; NULL once all have.
    replan_after bigint,
    -- When the last jobs got theirs.
    replanned_at bigint NOT NULL
);

-- Runs for the fire times of past windows, which are created a few at a time.
CREATE TABLE backfill (
    id               bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id           bigint   NOT NULL,
    -- That of the job at the start: its schedule names the fire times.
    definition       text     NOT NULL,
    from_at          bigint   NOT NULL,
    to_at            bigint   NOT NULL,
    parallel         integer  NOT NULL,
    include_excluded boolean  NOT NULL,
    -- Codes of BackfillState: from 2 on it has ended.
    state            smallint NOT NULL DEFAULT 0,
    total            bigint   NOT NULL,
    -- Fire times that have their runs. It also numbers them for their fire keys.
    fires            bigint   NOT NULL DEFAULT 0,
    excluded         bigint   NOT NULL DEFAULT 0,
    -- The last fire time that was looked at.
    cursor_at        bigint,
    started_at       bigint   NOT NULL,
    started_by       text     NOT NULL,
    changed_at       bigint,
    changed_by       text,
    ended_at         bigint,
    message          text
);

CREATE UNIQUE INDEX backfill_active ON backfill (job_id) WHERE state < 2;
CREATE INDEX backfill_of_job ON backfill (job_id, id);

-- One row. It counts the changes of calendars and windows.
CREATE TABLE fire_rules (revision bigint NOT NULL);

INSERT INTO fire_rules (revision) VALUES (1);

-- The time zones that next fire times were computed with. The digest changes with the rules of the zone.
CREATE TABLE time_zone (
    name   text   COLLATE "C" PRIMARY KEY,
    digest bigint NOT NULL
);

-- Scripts. A version is never changed.
CREATE TABLE script (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    text   COLLATE "C" NOT NULL UNIQUE,
    -- The newest version.
    version bigint NOT NULL
);

CREATE TABLE script_version (
    script_id bigint NOT NULL REFERENCES script (id),
    version   bigint NOT NULL,
    at        bigint NOT NULL,
    saved_by  text   NOT NULL,
    remark    text   NOT NULL,
    language  text   NOT NULL,
    text      text   NOT NULL,
    PRIMARY KEY (script_id, version)
);

-- The version that each job with a script runs.
CREATE TABLE job_script (
    job_id    bigint  PRIMARY KEY REFERENCES job (id),
    script_id bigint  NOT NULL REFERENCES script (id),
    version   bigint  NOT NULL,
    -- Whether later versions change nothing for the job.
    pinned    boolean NOT NULL
);

CREATE INDEX job_script_of ON job_script (script_id);

-- Tokens enrol keys of workers.
CREATE TABLE enrolment_token (
    id              text    COLLATE "C" PRIMARY KEY,
    -- A secret: its reader can enrol workers.
    verifier        bytea   NOT NULL,
    -- NULL for all namespaces.
    namespace       text    COLLATE "C",
    group_name      text    COLLATE "C",
    executor        text    COLLATE "C",
    uses_left       bigint  NOT NULL,
    expires_at      bigint,
    created_at      bigint  NOT NULL,
    created_by      text    NOT NULL,
    -- The idempotency key of the request that created the row, and ends with it. One creator's keys are unique, because
    -- tokens are created one after the other.
    idempotency_key text    COLLATE "C"
);

CREATE INDEX enrolment_token_created ON enrolment_token (created_by, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Public keys of workers. Schedulers read those with a greater number of their last change than the last one that they
-- have read.
CREATE TABLE worker_key (
    group_name  text    COLLATE "C" NOT NULL,
    executor    text    COLLATE "C" NOT NULL,
    key_id      text    COLLATE "C" NOT NULL,
    key         bytea   NOT NULL,
    allowed     boolean NOT NULL,
    enrolled_at bigint  NOT NULL,
    enrolled_by text    NOT NULL,
    changed_at  bigint  NOT NULL,
    changed_by  text    NOT NULL,
    change      bigint  NOT NULL,
    PRIMARY KEY (group_name, executor, key_id)
);

CREATE UNIQUE INDEX worker_key_change ON worker_key (change);
CREATE INDEX worker_key_revoked ON worker_key (change) WHERE NOT allowed;

-- The number of the newest change. Each transaction that changes keys locks this row first, so that changes become
-- visible in the order of their numbers.
CREATE TABLE worker_key_version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    number   bigint  NOT NULL
);

INSERT INTO worker_key_version (number) VALUES (0);

-- Users. Their numbers are never given again.
CREATE TABLE account_user (
    id              bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            text    COLLATE "C" NOT NULL,
    -- The name in lower case.
    name_key        text    COLLATE "C" NOT NULL,
    display_name    text    NOT NULL,
    -- An Argon2id hash. Either it is set, or issuer and subject are, or none of the three.
    password_hash   text,
    issuer          text    COLLATE "C",
    subject         text    COLLATE "C",
    -- A JSON list.
    grants          text    NOT NULL,
    enabled         boolean NOT NULL,
    -- Enabled, can log in, and has all rights everywhere. It follows from other columns.
    is_admin        boolean NOT NULL,
    version         bigint  NOT NULL,
    created_at      bigint  NOT NULL,
    created_by      text    NOT NULL,
    last_login_at   bigint,
    -- The idempotency key of the request that created the row, and ends with it. One creator's keys are unique, because
    -- users are created one after the other.
    idempotency_key text    COLLATE "C"
);

CREATE UNIQUE INDEX account_user_name ON account_user (name_key);
CREATE UNIQUE INDEX account_user_subject ON account_user (issuer, subject) WHERE issuer IS NOT NULL;
CREATE INDEX account_user_admin ON account_user (id) WHERE is_admin;
CREATE INDEX account_user_created ON account_user (created_by, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Sessions of users who are logged in. Their secrets are not stored.
CREATE TABLE session (
    -- SHA-256 of the secret.
    hash         bytea  PRIMARY KEY,
    user_id      bigint NOT NULL REFERENCES account_user (id),
    created_at   bigint NOT NULL,
    expires_at   bigint NOT NULL,
    -- Noted once a minute.
    last_used_at bigint NOT NULL
);

CREATE INDEX session_of_user ON session (user_id);
CREATE INDEX session_expiry ON session (expires_at);

CREATE TABLE api_token (
    id              text   COLLATE "C" PRIMARY KEY,
    -- SHA-256 of the secret.
    hash            bytea  NOT NULL,
    name            text   NOT NULL,
    -- NULL for a token of a program.
    owner_id        bigint REFERENCES account_user (id),
    -- A JSON list.
    grants          text   NOT NULL,
    created_at      bigint NOT NULL,
    created_by      text   NOT NULL,
    expires_at      bigint,
    revoked_at      bigint,
    -- Noted once a minute.
    last_used_at    bigint,
    -- The idempotency key of the request that created the row, and ends with it. One creator's keys are unique, because
    -- tokens are created one after the other.
    idempotency_key text   COLLATE "C"
);

CREATE UNIQUE INDEX api_token_hash ON api_token (hash);
CREATE INDEX api_token_of_owner ON api_token (owner_id, id);
CREATE INDEX api_token_end ON api_token (coalesce(revoked_at, expires_at));
CREATE INDEX api_token_created ON api_token (created_by, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Transactions that change users, or create or revoke API tokens, lock this row first. So there is one first user, one
-- administrator is left, and no bound is exceeded.
CREATE TABLE account_lock (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row)
);

INSERT INTO account_lock DEFAULT VALUES;

-- Run ids are unique within one store only: executors remember an attempt together with the id of its store.
CREATE TABLE store_identity (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- 32 hexadecimal digits.
    id       text    COLLATE "C" NOT NULL,
    -- The history of the database under which ids are allocated (see history.rs). NULL until the first allocation.
    history  text    COLLATE "C",
    system_identifier bigint
);

INSERT INTO store_identity (id) VALUES (replace(gen_random_uuid()::text, '-', ''));

-- Who changed what. Ids ascend nearly with the time: a transaction that began earlier may write later. Rows are never
-- changed, and only retention deletes them.
CREATE TABLE audit (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at            bigint NOT NULL,
    -- As it is displayed: `user alice`.
    actor         text   COLLATE "C" NOT NULL,
    address       text,
    -- `object.verb`, and the part before the dot.
    action        text   COLLATE "C" NOT NULL,
    action_object text   COLLATE "C" NOT NULL,
    namespace     text   COLLATE "C",
    group_name    text   COLLATE "C",
    object        text   COLLATE "C" NOT NULL,
    -- `done` or `refused`.
    result        text   COLLATE "C" NOT NULL,
    detail        text   NOT NULL,
    old_value     text,
    new_value     text
);

CREATE INDEX audit_at ON audit (at);
CREATE INDEX audit_actor ON audit (actor, id);
CREATE INDEX audit_action ON audit (action, id);
CREATE INDEX audit_action_object ON audit (action_object, id);
CREATE INDEX audit_object ON audit (object, id);
CREATE INDEX audit_namespace ON audit (namespace, id) WHERE namespace IS NOT NULL;
CREATE INDEX audit_group ON audit (group_name, id) WHERE group_name IS NOT NULL;
CREATE INDEX audit_refused ON audit (id) WHERE result = 'refused';

-- The definition of each version of a job, the newest 1,000 of each. A new job removes those of a deleted one of its name,
-- and retention those of jobs that were deleted long ago.
CREATE TABLE job_version (
    job_id     bigint  NOT NULL,
    version    bigint  NOT NULL,
    at         bigint  NOT NULL,
    enabled    boolean NOT NULL,
    changed_by text    NOT NULL,
    definition text    NOT NULL,
    PRIMARY KEY (job_id, version)
);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME;
END
$$;

CREATE TRIGGER audit_unchanged BEFORE UPDATE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER job_version_unchanged BEFORE UPDATE ON job_version
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
