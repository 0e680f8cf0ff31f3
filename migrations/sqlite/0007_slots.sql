-- How far the changes of an engine that runs apart are on record, by tenant. A
-- batch of such changes moves its row in its own transaction.
CREATE TABLE slots (
    tenant  INTEGER NOT NULL PRIMARY KEY,
    epoch   INTEGER NOT NULL CHECK (epoch > 0),
    drained INTEGER NOT NULL CHECK (drained >= 0)
) STRICT;
