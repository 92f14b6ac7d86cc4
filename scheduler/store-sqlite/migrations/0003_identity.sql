-- Which store this is: what executors remember of a run, they remember of the run of this store.

CREATE TABLE store_identity (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    -- 32 hexadecimal digits.
    id       TEXT    NOT NULL
) STRICT;

INSERT INTO store_identity (only_row, id) VALUES (1, lower(hex(randomblob(16))));
