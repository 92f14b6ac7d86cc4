-- Alarms: definitions, streaks of failures, and the outbox of events and deliveries.

-- Whether the last runs of the job have failed, and an alarm rule asks how many. It changes with the first failure and with
-- the first success after it only.
ALTER TABLE job_due ADD COLUMN failing INTEGER NOT NULL DEFAULT 0;

CREATE TABLE alarm_definition (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    -- 1 is a rule, 2 a channel, 3 a silence.
    kind       INTEGER NOT NULL,
    -- Empty for a silence.
    name       TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    -- JSON.
    definition TEXT    NOT NULL
) STRICT;

CREATE UNIQUE INDEX alarm_definition_name ON alarm_definition (kind, name) WHERE name <> '';

-- One row. It counts the changes of definitions.
CREATE TABLE alarm_revision (revision INTEGER NOT NULL) STRICT;

INSERT INTO alarm_revision (revision) VALUES (1);

-- Failures of jobs one after the other.
CREATE TABLE alarm_streak (
    job_id    INTEGER PRIMARY KEY,
    failures  INTEGER NOT NULL,
    first_run INTEGER NOT NULL,
    since     INTEGER NOT NULL
) STRICT;

CREATE TABLE alarm_event (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL,
    namespace TEXT    NOT NULL,
    -- 0 for test messages.
    rule_id   INTEGER NOT NULL,
    rule      TEXT    NOT NULL,
    -- A rule has one event with it.
    key       TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    job       TEXT,
    -- JSON.
    facts     TEXT    NOT NULL,
    -- When its message is sent at the latest; NULL once it is decided what becomes of it.
    send_at   INTEGER,
    -- 1 sent, 2 silenced, 3 dropped.
    fate      INTEGER NOT NULL DEFAULT 0,
    -- The batch of deliveries, or the silence.
    reference INTEGER
) STRICT;

CREATE UNIQUE INDEX alarm_event_key ON alarm_event (rule_id, key) WHERE rule_id > 0;
CREATE INDEX alarm_event_due ON alarm_event (send_at) WHERE send_at IS NOT NULL;
CREATE INDEX alarm_event_waiting ON alarm_event (rule_id, id) WHERE send_at IS NOT NULL;
CREATE INDEX alarm_event_batch ON alarm_event (reference, id) WHERE fate = 1;
CREATE INDEX alarm_event_at ON alarm_event (at);
CREATE INDEX alarm_event_of_namespace ON alarm_event (namespace, id);
CREATE INDEX alarm_event_of_rule ON alarm_event (rule, id);
CREATE INDEX alarm_event_of_job ON alarm_event (job, id);

CREATE TABLE alarm_delivery (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The deliveries of one message have the same.
    batch      INTEGER NOT NULL,
    namespace  TEXT    NOT NULL,
    rule       TEXT    NOT NULL,
    channel    TEXT    NOT NULL,
    events     INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    -- 0 pending, 1 delivered, 2 failed.
    state      INTEGER NOT NULL DEFAULT 0,
    attempts   INTEGER NOT NULL DEFAULT 0,
    -- When it is sent next, or its sender counts as gone; NULL at the end.
    next_at    INTEGER,
    ended_at   INTEGER,
    answer     TEXT    NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX alarm_delivery_due ON alarm_delivery (next_at, id) WHERE next_at IS NOT NULL;
CREATE INDEX alarm_delivery_pending ON alarm_delivery (batch) WHERE next_at IS NOT NULL;
CREATE INDEX alarm_delivery_of_channel ON alarm_delivery (channel) WHERE next_at IS NOT NULL;
CREATE INDEX alarm_delivery_ended ON alarm_delivery (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX alarm_delivery_of_namespace ON alarm_delivery (namespace, id);
CREATE INDEX alarm_delivery_of_rule ON alarm_delivery (rule, id);

-- Conditions that hold at present.
CREATE TABLE alarm_level (
    subject       TEXT    PRIMARY KEY,
    since         INTEGER NOT NULL,
    -- In how many checks in succession it has not held. After a few it has ended.
    absent_checks INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- The scheduler that looks at late runs, backlogs and groups.
CREATE TABLE alarm_checker (
    holder TEXT    NOT NULL,
    until  INTEGER NOT NULL
) STRICT;

INSERT INTO alarm_checker (holder, until) VALUES ('', 0);
