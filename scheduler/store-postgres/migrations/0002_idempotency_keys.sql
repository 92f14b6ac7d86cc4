-- Idempotency keys of requests that create what has a secret, or a name that may be taken. A key is part of the row that the
-- request created, and ends with it. One creator's keys are unique: rows are created one after the other.

ALTER TABLE account_user ADD COLUMN idempotency_key text COLLATE "C";
ALTER TABLE api_token ADD COLUMN idempotency_key text COLLATE "C";
ALTER TABLE enrolment_token ADD COLUMN idempotency_key text COLLATE "C";

CREATE INDEX account_user_created ON account_user (created_by, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX api_token_created ON api_token (created_by, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX enrolment_token_created ON enrolment_token (created_by, idempotency_key) WHERE idempotency_key IS NOT NULL;
