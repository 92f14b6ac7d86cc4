-- Which store this is: what executors remember of a run, they remember of the run of this store.

CREATE TABLE store_identity (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- 32 hexadecimal digits.
    id       text    COLLATE "C" NOT NULL
);

INSERT INTO store_identity (id) VALUES (replace(gen_random_uuid()::text, '-', ''));
