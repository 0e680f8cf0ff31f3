-- What pools' vendors said of late, and what follows from it: pauses, closures,
-- the rate. One row a pool, written over; the audit keeps who closed and opened.
CREATE TABLE conditions (
    tenant  INTEGER NOT NULL,
    pool    TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version > 0),
    body    TEXT NOT NULL,
    PRIMARY KEY (tenant, pool)
) STRICT, WITHOUT ROWID;
