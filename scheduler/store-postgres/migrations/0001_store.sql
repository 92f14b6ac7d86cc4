-- Jobs, runs and who works on them.
--
-- A run has a row in run from its first moment to its retirement, and beside it one in run_live until it has ended. What changes
-- while it lives changes in run_live only: small rows, few of them, none of the columns that change on the normal path in an index, so
-- that their updates stay on their page. The end removes the row there and completes the one in run. run is partitioned by the day
-- that is written in a run's id (see days.rs), and run_event and run_log with it.
-- Times are milliseconds since 1970-01-01T00:00:00Z. States and kinds are the numbers of cueline-model.

CREATE TABLE job (
    id         bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text    COLLATE "C" NOT NULL,
    version    bigint  NOT NULL,
    created_at bigint  NOT NULL,
    deleted_at bigint,
    parent_id  bigint,
    startup    boolean NOT NULL,
    -- How long an attempt can take at the most: timeout and kill grace together.
    longest_ms bigint,
    grp        text    NOT NULL,
    definition text    NOT NULL
);

CREATE UNIQUE INDEX job_name ON job (name) WHERE deleted_at IS NULL;
CREATE INDEX job_ever_named ON job (name);
CREATE INDEX job_children ON job (parent_id) WHERE parent_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX job_startup ON job (id) WHERE startup AND deleted_at IS NULL;

-- One row for each job that is not deleted. Its lock is the lock of the job: whoever changes what a job is, when it is due, or
-- what follows from its runs takes it first, and rows of run_live after it.
CREATE TABLE job_due (
    job_id       bigint  PRIMARY KEY,
    version      bigint  NOT NULL,
    next_fire_at bigint,
    -- Runs so far.
    turn         bigint  NOT NULL DEFAULT 0,
    enabled      boolean NOT NULL,
    fixed_delay  boolean NOT NULL,
    has_children boolean NOT NULL DEFAULT false
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

CREATE INDEX job_due_next ON job_due (next_fire_at, job_id) WHERE next_fire_at IS NOT NULL;
CREATE INDEX job_due_resting ON job_due (job_id) WHERE fixed_delay AND enabled AND next_fire_at IS NULL;

-- The lower part of run ids; the upper is the day. It comes round after 10^10 runs, long after the day is over.
CREATE SEQUENCE run_number MINVALUE 0 MAXVALUE 9999999999 CYCLE;

CREATE TABLE run (
    id               bigint   PRIMARY KEY,
    job_id           bigint   NOT NULL,
    -- What the shards of one fire have in common: the fire time (schedule, startup), the first run of the same trigger request
    -- (manual), or the first run of the parent's fire (child). Each partition has a unique index on (fire_key, job_id, kind,
    -- shard_index), and what has the same key has the same day.
    fire_key         bigint   NOT NULL,
    fire_at          bigint   NOT NULL,
    created_at       bigint   NOT NULL,
    turn             bigint   NOT NULL,
    parent           bigint,
    -- A skipped run stands for the fire times from here to its own.
    skipped_since    bigint,
    shard_index      integer  NOT NULL DEFAULT 0,
    shard_total      integer  NOT NULL DEFAULT 1,
    kind             smallint NOT NULL,
    -- From here on known at the end; until then in run_live.
    state            smallint,
    -- The state again, if it is not success: so that a success changes no column that has an index.
    mishap           smallint,
    cancel_requested boolean  NOT NULL DEFAULT false,
    attempt          integer  NOT NULL DEFAULT 1,
    retries          integer  NOT NULL DEFAULT 0,
    exit_status      integer,
    due_at           bigint   NOT NULL,
    queued_at        bigint,
    started_at       bigint,
    ended_at         bigint,
    progress         double precision,
    executor         text,
    -- The group that it was published to, when its job has moved to another one since.
    sent_to_group    text,
    shard_item       text,
    params           text,
    message          text,
    output           text
) PARTITION BY RANGE (id);

-- Runs of a job, by stretches of 16,384 ids: new entries of all jobs stay close together.
CREATE INDEX run_by_job ON run ((id >> 14), job_id);
CREATE INDEX run_mishap ON run (mishap, id) WHERE mishap IS NOT NULL;
CREATE INDEX run_skipped ON run (job_id, fire_at) WHERE skipped_since IS NOT NULL;

CREATE TABLE run_live (
    id               bigint   PRIMARY KEY,
    job_id           bigint   NOT NULL,
    -- Who works on it. Of no meaning from `queued` on; NULL only while it waits for a node.
    claimed_by       bigint,
    due_at           bigint   NOT NULL,
    queued_at        bigint,
    started_at       bigint,
    attempt          integer  NOT NULL DEFAULT 1,
    retries          integer  NOT NULL DEFAULT 0,
    reruns           integer  NOT NULL DEFAULT 0,
    exit_status      integer,
    kind             smallint NOT NULL,
    state            smallint NOT NULL,
    -- Its job is fixed_delay: the next fire time is counted from its end.
    awaited          boolean  NOT NULL DEFAULT false,
    -- In `dispatching`: an earlier publication of this attempt may have arrived.
    maybe_published  boolean  NOT NULL DEFAULT false,
    cancel_requested boolean  NOT NULL DEFAULT false,
    pinned           boolean  NOT NULL DEFAULT false,
    progress         double precision,
    executor         text,
    sent_to_group    text,
    message          text
) WITH (fillfactor = 35, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);

CREATE INDEX run_live_job ON run_live (job_id);
CREATE INDEX run_live_waiting ON run_live (due_at, id) WHERE claimed_by IS NULL;
CREATE INDEX run_live_awaited ON run_live (job_id) WHERE awaited;
CREATE INDEX run_live_cancelling ON run_live (id) WHERE cancel_requested;

CREATE SEQUENCE run_event_number;

CREATE TABLE run_event (
    run_id  bigint  NOT NULL,
    number  bigint  NOT NULL DEFAULT nextval('run_event_number'),
    at      bigint  NOT NULL,
    attempt integer NOT NULL,
    event   text    NOT NULL,
    detail  text    NOT NULL,
    PRIMARY KEY (run_id, number)
) PARTITION BY RANGE (run_id);

-- The cursor is the attempt in its upper and the line's number in its lower 32 bits.
CREATE TABLE run_log (
    run_id bigint NOT NULL,
    cursor bigint NOT NULL,
    at     bigint NOT NULL,
    stream text   NOT NULL,
    text   text   NOT NULL,
    PRIMARY KEY (run_id, cursor)
) PARTITION BY RANGE (run_id);

-- Keys of trigger requests. They live as long as the runs that they made.
CREATE TABLE trigger_key (
    job_id    bigint NOT NULL,
    key       text   COLLATE "C" NOT NULL,
    first_run bigint NOT NULL,
    PRIMARY KEY (job_id, key)
);

CREATE INDEX trigger_key_run ON trigger_key (first_run);

CREATE TABLE executor (
    grp          text    COLLATE "C" NOT NULL,
    name         text    COLLATE "C" NOT NULL,
    incarnation  text    NOT NULL,
    capabilities text[]  NOT NULL,
    capacity     bigint  NOT NULL,
    held         bigint  NOT NULL,
    running      bigint  NOT NULL,
    draining     boolean NOT NULL,
    gone         boolean NOT NULL,
    last_heartbeat_at    bigint  NOT NULL,
    PRIMARY KEY (grp, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE node (
    id          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text    COLLATE "C" NOT NULL,
    lease_until bigint  NOT NULL,
    -- Its lease is over, and nothing is claimed by it any more.
    cleared     boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- Messages that nobody could take, kept for people.
CREATE TABLE dead_letter (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      bigint NOT NULL,
    key     text   COLLATE "C" NOT NULL,
    queue   text   NOT NULL,
    topic   text   NOT NULL,
    reason  text   NOT NULL,
    payload bytea  NOT NULL
);

CREATE UNIQUE INDEX dead_letter_key ON dead_letter (key);

-- Which store this is: what executors remember of a run, they remember of the run of this store.

CREATE TABLE store_identity (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- 32 hexadecimal digits.
    id       text    COLLATE "C" NOT NULL
);

INSERT INTO store_identity (id) VALUES (replace(gen_random_uuid()::text, '-', ''));
