-- What webhooks are to be told, and what became of it. `state` is 0 (waits), 1
-- (delivered) or 2 (put aside); times are those of the clock on the wall.
CREATE TABLE deliveries (
    tenant  INTEGER NOT NULL,
    webhook TEXT NOT NULL,
    id      TEXT NOT NULL,
    kind    TEXT NOT NULL,
    user_id TEXT,
    body    TEXT NOT NULL,
    made_at INTEGER NOT NULL,
    state   INTEGER NOT NULL,
    tries   INTEGER NOT NULL,
    next_at INTEGER,
    last_at INTEGER,
    status  INTEGER,
    error   TEXT,
    PRIMARY KEY (tenant, webhook, id)
) STRICT;

CREATE INDEX deliveries_due ON deliveries (next_at) WHERE state = 0;
CREATE INDEX deliveries_ended ON deliveries (made_at) WHERE state > 0;
CREATE INDEX deliveries_in_order ON deliveries (tenant, webhook, made_at, id);
CREATE INDEX deliveries_of_users ON deliveries (tenant, user_id) WHERE user_id IS NOT NULL;

-- Thresholds that were told of: once in a window, and again when the limit was
-- raised. One row a threshold, written over.
CREATE TABLE alerts (
    tenant    INTEGER NOT NULL,
    scope     INTEGER NOT NULL,
    owner     TEXT NOT NULL,
    cell      INTEGER NOT NULL,
    threshold INTEGER NOT NULL,
    begun_at  INTEGER NOT NULL,
    figure    INTEGER NOT NULL,
    PRIMARY KEY (tenant, scope, owner, cell, threshold)
) STRICT;

-- Up to which hold in doubt webhooks were told.
CREATE TABLE doubts_told (
    tenant INTEGER NOT NULL PRIMARY KEY,
    since  INTEGER NOT NULL,
    hold   BLOB NOT NULL
) STRICT;
