-- Users whose identity is erased: their records, accounts and amounts go on under
-- a pseudonym, so that nobody gets a second allowance by coming back. At
-- `look_at` the record may go: what was taken may not count any more then.
ALTER TABLE users ADD COLUMN erased INTEGER NOT NULL DEFAULT 0 CHECK (erased IN (0, 1));
ALTER TABLE users ADD COLUMN look_at INTEGER;
CREATE INDEX users_erased ON users (tenant, look_at) WHERE erased = 1;

-- Erasures under way, so that whoever starts after a crash goes on. The row goes
-- when nothing else holds the id any more.
CREATE TABLE erasures (
    tenant    INTEGER NOT NULL,
    user_id   TEXT NOT NULL,
    pseudonym TEXT NOT NULL,
    begun_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant, user_id)
) STRICT, WITHOUT ROWID;
