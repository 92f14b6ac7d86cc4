-- When the node last reached the broker, by its last renewal. NULL if it has not yet, and of older programs.
ALTER TABLE node ADD COLUMN reached_broker_at bigint;
