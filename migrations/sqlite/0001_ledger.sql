-- The ledger's first schema.
--
-- Texts are compared byte for byte (the binary collation), so two spellings of
-- an id never share anything. Tenants appear by number, times as milliseconds
-- since 1970, days as days since 1970. An absent name is NULL, except in keys,
-- where it is the empty text: no name is empty.

-- 'Appo': tells our files from other programs' databases.
PRAGMA application_id = 1097887855;

-- Grows by one with every write to tenants, users and records.
CREATE TABLE revision (
    only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    value    INTEGER NOT NULL
) STRICT;
INSERT INTO revision VALUES (1, 0);

-- AUTOINCREMENT: a number is never given twice, whatever is deleted.
CREATE TABLE tenants (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    id        TEXT NOT NULL UNIQUE,
    test      INTEGER NOT NULL CHECK (test IN (0, 1)),
    suspended INTEGER NOT NULL DEFAULT 0 CHECK (suspended IN (0, 1)),
    clock     INTEGER
) STRICT;

-- Tenants with a hold on record, ever.
CREATE TABLE taken (
    tenant INTEGER NOT NULL PRIMARY KEY
) STRICT;

-- Commits that are on record and not in the tables below yet: holds, accounts
-- and usage, packed. A commit appends one row; a few thousand changes later all
-- of them are written to the tables together, and their rows leave. The newest
-- stays, without a body: numbers never come twice. Row 0, while it is there, says
-- how far usage has been added.
CREATE TABLE journal (
    number INTEGER PRIMARY KEY,
    body   BLOB NOT NULL
) STRICT;

-- A hold's body holds all of it; the columns beside it exist to find it by.
-- A table with rowids, since bodies are several hundred bytes; ids ascend, so
-- the table and the index of ids grow near their ends.
CREATE TABLE holds (
    id            BLOB NOT NULL PRIMARY KEY,
    tenant        INTEGER NOT NULL,
    user_id       TEXT NOT NULL,
    org           TEXT,
    request       INTEGER,
    finished_at   INTEGER,
    doubtful_from INTEGER,
    body          BLOB NOT NULL
) STRICT;
-- Holds that are neither settled nor released are few: these indexes stay
-- small and warm, and a finished hold costs them nothing any more.
CREATE INDEX holds_open_by_user ON holds (tenant, user_id) WHERE finished_at IS NULL;
CREATE INDEX holds_open_by_org ON holds (tenant, org) WHERE finished_at IS NULL AND org IS NOT NULL;
CREATE INDEX holds_open_by_time ON holds (tenant, doubtful_from) WHERE finished_at IS NULL;
-- Request ids of finished holds, newest part of one user in one place, and
-- with the hold's id, so that an account's are read without their holds.
CREATE INDEX holds_requests ON holds (tenant, user_id, finished_at, request, id)
    WHERE finished_at IS NOT NULL AND request IS NOT NULL;

-- The packed cells of an account (scope: 0 user, 1 org, 2 tenant, 3 pool).
CREATE TABLE accounts (
    tenant INTEGER NOT NULL,
    scope  INTEGER NOT NULL,
    owner  TEXT NOT NULL,
    state  BLOB NOT NULL,
    PRIMARY KEY (tenant, scope, owner)
) STRICT, WITHOUT ROWID;

-- Totals of a day. Sums may be negative between a correction and what it
-- corrects; they saturate at +-(2^53 - 1).
CREATE TABLE usage (
    tenant        INTEGER NOT NULL,
    day           INTEGER NOT NULL,
    user_id       TEXT NOT NULL,
    model         TEXT NOT NULL,
    org           TEXT NOT NULL,
    plan          TEXT NOT NULL,
    feature       TEXT NOT NULL,
    requests      INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    total_tokens  INTEGER NOT NULL,
    credits       INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, user_id, model, org, plan, feature)
) STRICT, WITHOUT ROWID;

CREATE TABLE users (
    tenant        INTEGER NOT NULL,
    id            TEXT NOT NULL,
    plan          TEXT NOT NULL,
    plan_since    INTEGER NOT NULL,
    plan_sequence INTEGER,
    org           TEXT,
    verified      INTEGER NOT NULL CHECK (verified IN (0, 1)),
    suspended     INTEGER NOT NULL CHECK (suspended IN (0, 1)),
    zone          TEXT,
    anchor_day    INTEGER CHECK (anchor_day BETWEEN 1 AND 31),
    signals       TEXT,
    created_at    INTEGER NOT NULL,
    version       INTEGER NOT NULL CHECK (version > 0),
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX users_by_plan ON users (tenant, plan, id);
CREATE INDEX users_by_org ON users (tenant, org, id) WHERE org IS NOT NULL;

-- Every version of every plan, pool, model list, settings and key. Tenant 0
-- stands for what belongs to no tenant. A NULL body is a deletion.
CREATE TABLE records (
    tenant       INTEGER NOT NULL,
    kind         TEXT NOT NULL,
    id           TEXT NOT NULL,
    version      INTEGER NOT NULL CHECK (version > 0),
    body         TEXT,
    effective_at INTEGER NOT NULL,
    written_at   INTEGER NOT NULL,
    written_by   TEXT NOT NULL,
    reason       TEXT,
    PRIMARY KEY (tenant, kind, id, version)
) STRICT;

-- Who changed what, when and why. Rows only ever come.
CREATE TABLE audit (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant     INTEGER NOT NULL,
    written_at INTEGER NOT NULL,
    written_by TEXT NOT NULL,
    action     TEXT NOT NULL,
    target     TEXT NOT NULL,
    old        TEXT,
    new        TEXT,
    reason     TEXT
) STRICT;
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit cannot be changed');
END;
CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit cannot be deleted');
END;
-- INSERT OR REPLACE deletes without asking the trigger above.
CREATE TRIGGER audit_is_never_replaced BEFORE INSERT ON audit
WHEN EXISTS (SELECT 1 FROM audit WHERE number = NEW.number)
BEGIN
    SELECT RAISE(ABORT, 'the audit cannot be changed');
END;
