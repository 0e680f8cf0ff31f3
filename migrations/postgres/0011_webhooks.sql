-- What webhooks are to be told, and what became of it. `state` is 0 (waits), 1
-- (delivered) or 2 (put aside); times are those of the clock on the wall.
CREATE TABLE deliveries (
    tenant  bigint NOT NULL,
    webhook text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    kind    text COLLATE "C" NOT NULL,
    user_id text COLLATE "C",
    body    text COLLATE "C" NOT NULL,
    made_at bigint NOT NULL,
    state   bigint NOT NULL,
    tries   bigint NOT NULL,
    next_at bigint,
    last_at bigint,
    status  bigint,
    error   text COLLATE "C",
    PRIMARY KEY (tenant, webhook, id)
);

CREATE INDEX deliveries_due ON deliveries (next_at) WHERE state = 0;
CREATE INDEX deliveries_ended ON deliveries (made_at) WHERE state > 0;
CREATE INDEX deliveries_in_order ON deliveries (tenant, webhook, made_at, id);
CREATE INDEX deliveries_of_users ON deliveries (tenant, user_id) WHERE user_id IS NOT NULL;

-- Thresholds that were told of: once in a window, and again when the limit was
-- raised. One row a threshold, written over.
CREATE TABLE alerts (
    tenant    bigint NOT NULL,
    scope     bigint NOT NULL,
    owner     text COLLATE "C" NOT NULL,
    cell      bigint NOT NULL,
    threshold bigint NOT NULL,
    begun_at  bigint NOT NULL,
    figure    bigint NOT NULL,
    PRIMARY KEY (tenant, scope, owner, cell, threshold)
);

-- Up to which hold in doubt webhooks were told.
CREATE TABLE doubts_told (
    tenant bigint NOT NULL PRIMARY KEY,
    since  bigint NOT NULL,
    hold   bytea NOT NULL
);
