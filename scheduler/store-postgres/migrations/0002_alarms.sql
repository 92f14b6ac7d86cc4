-- Alarms: definitions, streaks of failures, and the outbox of events and deliveries.

-- Whether the last runs of the job have failed, and an alarm rule asks how many. It changes with the first failure and with
-- the first success after it only.
ALTER TABLE job_due ADD COLUMN failing boolean NOT NULL DEFAULT false;

CREATE TABLE alarm_definition (
    id         bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- 1 is a rule, 2 a channel, 3 a silence.
    kind       smallint NOT NULL,
    -- Empty for a silence.
    name       text     COLLATE "C" NOT NULL,
    version    bigint   NOT NULL,
    -- JSON.
    definition text     NOT NULL
);

CREATE UNIQUE INDEX alarm_definition_name ON alarm_definition (kind, name) WHERE name <> '';

-- One row. It counts the changes of definitions. A change of definitions and a collection of events lock it.
CREATE TABLE alarm_revision (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    revision bigint  NOT NULL
);

INSERT INTO alarm_revision (revision) VALUES (1);

-- Failures of jobs one after the other. The lock of the job protects its row.
CREATE TABLE alarm_streak (
    job_id    bigint PRIMARY KEY,
    failures  bigint NOT NULL,
    first_run bigint NOT NULL,
    since     bigint NOT NULL
);

CREATE TABLE alarm_event (
    id        bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        bigint   NOT NULL,
    namespace text     COLLATE "C" NOT NULL,
    -- 0 for test messages.
    rule_id   bigint   NOT NULL,
    rule      text     COLLATE "C" NOT NULL,
    -- A rule has one event with it.
    key       text     COLLATE "C" NOT NULL,
    kind      text     NOT NULL,
    job       text     COLLATE "C",
    -- JSON.
    facts     text     NOT NULL,
    -- When its message is sent at the latest; NULL once it is decided what becomes of it.
    send_at   bigint,
    -- 1 sent, 2 silenced, 3 dropped.
    fate      smallint NOT NULL DEFAULT 0,
    -- The batch of deliveries, or the silence.
    reference bigint
);

CREATE UNIQUE INDEX alarm_event_key ON alarm_event (rule_id, key) WHERE rule_id > 0;
CREATE INDEX alarm_event_due ON alarm_event (send_at) WHERE send_at IS NOT NULL;
CREATE INDEX alarm_event_waiting ON alarm_event (rule_id, id) WHERE send_at IS NOT NULL;
CREATE INDEX alarm_event_batch ON alarm_event (reference, id) WHERE fate = 1;
CREATE INDEX alarm_event_at ON alarm_event (at);
CREATE INDEX alarm_event_of_namespace ON alarm_event (namespace, id);
CREATE INDEX alarm_event_of_rule ON alarm_event (rule, id);
CREATE INDEX alarm_event_of_job ON alarm_event (job, id);

CREATE TABLE alarm_delivery (
    id         bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The deliveries of one message have the same.
    batch      bigint   NOT NULL,
    namespace  text     COLLATE "C" NOT NULL,
    rule       text     COLLATE "C" NOT NULL,
    channel    text     COLLATE "C" NOT NULL,
    events     bigint   NOT NULL,
    created_at bigint   NOT NULL,
    -- 0 pending, 1 delivered, 2 failed.
    state      smallint NOT NULL DEFAULT 0,
    attempts   integer  NOT NULL DEFAULT 0,
    -- When it is sent next, or its sender counts as gone; NULL at the end.
    next_at    bigint,
    ended_at   bigint,
    answer     text     NOT NULL DEFAULT ''
);

CREATE INDEX alarm_delivery_due ON alarm_delivery (next_at, id) WHERE next_at IS NOT NULL;
CREATE INDEX alarm_delivery_pending ON alarm_delivery (batch) WHERE next_at IS NOT NULL;
CREATE INDEX alarm_delivery_of_channel ON alarm_delivery (channel) WHERE next_at IS NOT NULL;
CREATE INDEX alarm_delivery_ended ON alarm_delivery (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX alarm_delivery_of_namespace ON alarm_delivery (namespace, id);
CREATE INDEX alarm_delivery_of_rule ON alarm_delivery (rule, id);

-- Conditions that hold at present.
CREATE TABLE alarm_level (
    subject       text     COLLATE "C" PRIMARY KEY,
    since         bigint   NOT NULL,
    -- In how many checks in succession it has not held. After a few it has ended.
    absent_checks smallint NOT NULL DEFAULT 0
);

-- The scheduler that looks at late runs, backlogs and groups.
CREATE TABLE alarm_checker (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    holder   text    NOT NULL,
    until    bigint  NOT NULL
);

INSERT INTO alarm_checker (holder, until) VALUES ('', 0);
