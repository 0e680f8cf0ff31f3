-- What pools' vendors said of late, and what follows from it: pauses, closures,
-- the rate. One row a pool, written over; the audit keeps who closed and opened.
CREATE TABLE conditions (
    tenant  bigint NOT NULL,
    pool    text COLLATE "C" NOT NULL,
    version bigint NOT NULL CHECK (version > 0),
    body    text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, pool)
) WITH (fillfactor = 50);
