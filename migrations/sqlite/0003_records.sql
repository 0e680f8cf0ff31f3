-- What was refused, how another limiter would have decided, and indexes that
-- read holds and the audit back by user and by time.

-- Refusals of a local day, by user and code. The empty user stands for all who
-- were not counted one by one since too many were refused at once.
CREATE TABLE refusals (
    tenant  INTEGER NOT NULL,
    day     INTEGER NOT NULL,
    user_id TEXT NOT NULL,
    code    TEXT NOT NULL,
    count   INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, user_id, code)
) STRICT, WITHOUT ROWID;

-- The last refusals of a user, packed: one row however many there were.
CREATE TABLE refused (
    tenant  INTEGER NOT NULL,
    user_id TEXT NOT NULL,
    recent  BLOB NOT NULL,
    PRIMARY KEY (tenant, user_id)
) STRICT;

-- Checks of a local day by our decision and by another limiter's.
CREATE TABLE comparisons (
    tenant INTEGER NOT NULL,
    day    INTEGER NOT NULL,
    ours   TEXT NOT NULL,
    theirs TEXT NOT NULL,
    checks INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, ours, theirs)
) STRICT, WITHOUT ROWID;

-- A user's holds in the order in which they were made, and in the order in
-- which they ended. The second one finds unfinished holds (no end) and request
-- ids as well, and takes the place of two that did only that.
CREATE INDEX holds_by_user ON holds (tenant, user_id, id);
CREATE INDEX holds_by_end ON holds (tenant, user_id, finished_at, id, request);
DROP INDEX holds_open_by_user;
DROP INDEX holds_requests;

-- Each of them ends with the row's number: newest first without sorting.
CREATE INDEX audit_by_tenant ON audit (tenant);
CREATE INDEX audit_by_target ON audit (tenant, target);
CREATE INDEX audit_by_author ON audit (tenant, written_by);
CREATE INDEX audit_by_time ON audit (tenant, written_at);
