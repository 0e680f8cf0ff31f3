-- What a user or an org has besides the plan: moves to come, overrides, grants
-- (JSON; NULL is nothing). `changes_at` is the next move to come, so that moves
-- that have come are found without reading every user.
--
-- `born` and `moved` are revisions: when the row came, and when its plan was
-- last changed. They order users against versions of plans exactly, also where
-- a clock stands still.
ALTER TABLE users ADD COLUMN rights TEXT;
ALTER TABLE users ADD COLUMN changes_at INTEGER;
ALTER TABLE users ADD COLUMN born INTEGER NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN moved INTEGER NOT NULL DEFAULT 0;
CREATE INDEX users_by_change ON users (tenant, changes_at) WHERE changes_at IS NOT NULL;

ALTER TABLE records ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;

CREATE TABLE orgs (
    tenant     INTEGER NOT NULL,
    id         TEXT NOT NULL,
    plan       TEXT,
    plan_since INTEGER NOT NULL,
    zone       TEXT,
    rights     TEXT,
    created_at INTEGER NOT NULL,
    born       INTEGER NOT NULL,
    moved      INTEGER NOT NULL,
    version    INTEGER NOT NULL CHECK (version > 0),
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
