-- Namespaces with quotas, and dead letters of namespaces.

-- A namespace needs no row to be used; a row has its quotas. NULL is no limit.
CREATE TABLE namespace (
    name                    TEXT    PRIMARY KEY,
    max_jobs                INTEGER,
    max_waiting_runs        INTEGER,
    max_triggers_per_minute INTEGER,
    version                 INTEGER NOT NULL,
    created_at              INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- NULL if it is not verified to which namespace the letter belongs.
ALTER TABLE dead_letter ADD COLUMN namespace TEXT;

CREATE INDEX dead_letter_of_namespace ON dead_letter (namespace, id) WHERE namespace IS NOT NULL;
