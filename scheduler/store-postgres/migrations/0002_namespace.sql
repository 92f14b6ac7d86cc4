-- Namespaces with quotas, and dead letters of namespaces.

-- A namespace needs no row to be used; a row has its quotas. NULL is no limit.
CREATE TABLE namespace (
    name                    text   COLLATE "C" PRIMARY KEY,
    max_jobs                bigint,
    max_waiting_runs        bigint,
    max_triggers_per_minute bigint,
    version                 bigint NOT NULL,
    created_at              bigint NOT NULL
);

-- NULL if it is not verified to which namespace the letter belongs.
ALTER TABLE dead_letter ADD COLUMN namespace text COLLATE "C";

CREATE INDEX dead_letter_of_namespace ON dead_letter (namespace, id) WHERE namespace IS NOT NULL;
