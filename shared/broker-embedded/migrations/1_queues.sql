-- How many times the file was opened; receipts of earlier openings are told apart by it.
CREATE TABLE opening (times INTEGER NOT NULL);
INSERT INTO opening (times) VALUES (0);

CREATE TABLE queue (
    key INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    grp TEXT NOT NULL,
    executor TEXT NOT NULL
);

-- The id holds the queue's key in its high bits and counts up within the queue: each queue's messages lie together and
-- in order of publication, without an index. What is handed out is not written here; a row is a message not settled.
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    payload BLOB NOT NULL
);
