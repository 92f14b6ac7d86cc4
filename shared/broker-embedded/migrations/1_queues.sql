-- How many times the file was opened; receipts of earlier openings are told apart by it.
CREATE TABLE opening (times INTEGER NOT NULL);
INSERT INTO opening (times) VALUES (0);

CREATE TABLE queue (
    key INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    grp TEXT NOT NULL,
    executor TEXT NOT NULL
);

-- The id holds the queue's key in its high bits and counts up within the queue. So each queue's messages are together
-- and in order of publication, without an index. What is handed out is not written here; a row is a message not
-- settled.
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    payload BLOB NOT NULL
);

-- The start logs of executors.
CREATE TABLE start_log (
    key INTEGER PRIMARY KEY,
    grp TEXT NOT NULL,
    executor TEXT NOT NULL,
    UNIQUE (grp, executor)
);

-- Numbers count up within a log without a gap, so the number of the newest record says which ones are past the bound.
CREATE TABLE start_record (
    log INTEGER NOT NULL,
    number INTEGER NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (log, number)
) WITHOUT ROWID;
