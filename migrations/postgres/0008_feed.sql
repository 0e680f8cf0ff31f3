-- What finished, in the order in which it came on record, for those who hand usage on.
-- A row has some events of a tenant, packed: hold, part, figures. Events are numbered one
-- after the other; `number` is that of the row's first. Whose a hold is stands in the
-- hold alone, so that an erasure need not look here.
CREATE TABLE feed (
    tenant   bigint NOT NULL,
    number   bigint NOT NULL CHECK (number > 0),
    -- When the first of them finished, by the tenant's clock: the row goes before any
    -- of its holds does.
    ended_at bigint NOT NULL,
    body     bytea NOT NULL,
    PRIMARY KEY (tenant, number)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000
);

-- The number of the newest event, also where all of the feed has gone. A commit keeps
-- the row to its end, so numbers come to be seen in their order.
CREATE TABLE feeds (
    tenant bigint NOT NULL PRIMARY KEY,
    newest bigint NOT NULL
) WITH (fillfactor = 20);
