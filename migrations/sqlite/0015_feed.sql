-- What finished, in the order in which it came on record, for those who hand usage on.
-- A row has some events of a tenant, packed: hold, part, figures. Events are numbered one
-- after the other; `number` is that of the row's first. Whose a hold is stands in the
-- hold alone, so that an erasure need not look here.
CREATE TABLE feed (
    tenant   INTEGER NOT NULL,
    number   INTEGER NOT NULL CHECK (number > 0),
    -- When the first of them finished, by the tenant's clock: the row goes before any
    -- of its holds does.
    ended_at INTEGER NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (tenant, number)
) STRICT;

-- The number of the newest event, also where all of the feed has gone.
CREATE TABLE feeds (
    tenant INTEGER NOT NULL PRIMARY KEY,
    newest INTEGER NOT NULL
) STRICT;
