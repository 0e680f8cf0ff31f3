-- The ledger's schema: what SQLite's steps 1 to 8 come to, for Postgres.
--
-- Texts are compared byte for byte (the collation "C"), so two spellings of an
-- id never share anything. Tenants appear by number, times as milliseconds
-- since 1970, days as days since 1970, flags as 0 and 1, so that statements are
-- the same for every back end. An absent name is NULL, except in keys, where it
-- is the empty text: no name is empty.

-- Grows by one with every write to tenants, users and records.
CREATE TABLE revision (
    only_row smallint NOT NULL PRIMARY KEY CHECK (only_row = 1),
    value    bigint NOT NULL CHECK (value >= 0)
) WITH (fillfactor = 10);
INSERT INTO revision VALUES (1, 0);

-- A sequence gives no number twice, whatever is deleted.
CREATE TABLE tenants (
    number    bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (MAXVALUE 4294967295),
    id        text COLLATE "C" NOT NULL UNIQUE,
    test      smallint NOT NULL CHECK (test IN (0, 1)),
    suspended smallint NOT NULL DEFAULT 0 CHECK (suspended IN (0, 1)),
    clock     bigint
);

-- Tenants that were deleted: their rows leave portion by portion.
CREATE TABLE deleted_tenants (
    number     bigint NOT NULL PRIMARY KEY,
    deleted_at bigint NOT NULL,
    -- Nothing is left, nor can anything come.
    purged     smallint NOT NULL DEFAULT 0 CHECK (purged IN (0, 1))
);

-- Tenants with a hold on record, ever.
CREATE TABLE taken (
    tenant bigint NOT NULL PRIMARY KEY
);

-- A hold's body holds all of it; the columns beside it exist to find it by.
-- Only young rows are ever changed, so that vacuum looks at few pages; it is
-- told to come early, since a share of a thousand million rows is never reached.
CREATE TABLE holds (
    id            bytea NOT NULL PRIMARY KEY CHECK (octet_length(id) = 16),
    tenant        bigint NOT NULL,
    user_id       text COLLATE "C" NOT NULL,
    org           text COLLATE "C",
    request       bigint,
    finished_at   bigint,
    doubtful_from bigint,
    body          bytea NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_analyze_scale_factor = 0.02
);
-- A user's holds in the order in which they were made, and in the order in
-- which they ended. The second one finds request ids as well. (SQLite saves most
-- of its entries by a condition that this planner cannot be told to use.)
CREATE INDEX holds_by_user ON holds (tenant, user_id, id);
CREATE INDEX holds_by_end ON holds (tenant, user_id, finished_at, id, request);
-- Holds that are neither settled nor released are few.
CREATE INDEX holds_open_by_user ON holds (tenant, user_id) WHERE finished_at IS NULL;
CREATE INDEX holds_open_by_org ON holds (tenant, org) WHERE finished_at IS NULL AND org IS NOT NULL;
CREATE INDEX holds_open_by_time ON holds (tenant, doubtful_from, id) WHERE finished_at IS NULL;

-- The packed cells of an account (scope: 0 user, 1 org, 2 tenant, 3 pool). The
-- same rows are written over and over: with room in each page that is cheap.
CREATE TABLE accounts (
    tenant bigint NOT NULL,
    scope  smallint NOT NULL CHECK (scope BETWEEN 0 AND 3),
    owner  text COLLATE "C" NOT NULL,
    state  bytea NOT NULL,
    PRIMARY KEY (tenant, scope, owner)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- Totals of a day. Sums may be negative between a correction and what it
-- corrects; they saturate at +-(2^53 - 1).
CREATE TABLE usage (
    tenant        bigint NOT NULL,
    day           integer NOT NULL,
    user_id       text COLLATE "C" NOT NULL,
    model         text COLLATE "C" NOT NULL,
    org           text COLLATE "C" NOT NULL,
    plan          text COLLATE "C" NOT NULL,
    feature       text COLLATE "C" NOT NULL,
    requests      bigint NOT NULL,
    input_tokens  bigint NOT NULL,
    output_tokens bigint NOT NULL,
    total_tokens  bigint NOT NULL,
    credits       bigint NOT NULL,
    PRIMARY KEY (tenant, day, user_id, model, org, plan, feature)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000);

-- Rights (moves to come, overrides, grants) are JSON; NULL is nothing.
-- `changes_at` is the next move to come. `born` and `moved` are revisions: when
-- the row came, and when its plan was last changed. An erased user's id is a
-- pseudonym; at `look_at` the record may go.
CREATE TABLE users (
    tenant        bigint NOT NULL,
    id            text COLLATE "C" NOT NULL,
    plan          text COLLATE "C" NOT NULL,
    plan_since    bigint NOT NULL,
    plan_sequence bigint,
    org           text COLLATE "C",
    verified      smallint NOT NULL CHECK (verified IN (0, 1)),
    suspended     smallint NOT NULL CHECK (suspended IN (0, 1)),
    zone          text COLLATE "C",
    anchor_day    smallint CHECK (anchor_day BETWEEN 1 AND 31),
    signals       text COLLATE "C",
    created_at    bigint NOT NULL,
    version       bigint NOT NULL CHECK (version > 0),
    rights        text COLLATE "C",
    changes_at    bigint,
    born          bigint NOT NULL DEFAULT 0 CHECK (born >= 0),
    moved         bigint NOT NULL DEFAULT 0 CHECK (moved >= 0),
    erased        smallint NOT NULL DEFAULT 0 CHECK (erased IN (0, 1)),
    look_at       bigint,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX users_by_plan ON users (tenant, plan, id);
CREATE INDEX users_by_org ON users (tenant, org, id) WHERE org IS NOT NULL;
CREATE INDEX users_by_change ON users (tenant, changes_at) WHERE changes_at IS NOT NULL;
CREATE INDEX users_erased ON users (tenant, look_at) WHERE erased = 1;

-- Erasures under way, so that whoever starts after a crash goes on. The row goes
-- when nothing else holds the id any more.
CREATE TABLE erasures (
    tenant    bigint NOT NULL,
    user_id   text COLLATE "C" NOT NULL,
    pseudonym text COLLATE "C" NOT NULL,
    begun_at  bigint NOT NULL,
    PRIMARY KEY (tenant, user_id)
);

CREATE TABLE orgs (
    tenant     bigint NOT NULL,
    id         text COLLATE "C" NOT NULL,
    plan       text COLLATE "C",
    plan_since bigint NOT NULL,
    zone       text COLLATE "C",
    rights     text COLLATE "C",
    created_at bigint NOT NULL,
    born       bigint NOT NULL CHECK (born >= 0),
    moved      bigint NOT NULL CHECK (moved >= 0),
    version    bigint NOT NULL CHECK (version > 0),
    PRIMARY KEY (tenant, id)
);

-- Every version of every plan, pool, model list, settings and key. Tenant 0
-- stands for what belongs to no tenant. A NULL body is a deletion.
CREATE TABLE records (
    tenant       bigint NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    id           text COLLATE "C" NOT NULL,
    version      bigint NOT NULL CHECK (version > 0),
    body         text COLLATE "C",
    effective_at bigint NOT NULL,
    written_at   bigint NOT NULL,
    written_by   text COLLATE "C" NOT NULL,
    reason       text COLLATE "C",
    revision     bigint NOT NULL DEFAULT 0 CHECK (revision >= 0),
    PRIMARY KEY (tenant, kind, id, version)
);

-- Who changed what, when and why. Rows only ever come.
CREATE TABLE audit (
    number     bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    tenant     bigint NOT NULL,
    written_at bigint NOT NULL,
    written_by text COLLATE "C" NOT NULL,
    action     text COLLATE "C" NOT NULL,
    target     text COLLATE "C" NOT NULL,
    old        text COLLATE "C",
    new        text COLLATE "C",
    reason     text COLLATE "C"
);
-- Each of them ends with the row's number: newest first without sorting.
CREATE INDEX audit_by_tenant ON audit (tenant, number);
CREATE INDEX audit_by_target ON audit (tenant, target, number);
CREATE INDEX audit_by_author ON audit (tenant, written_by, number);
CREATE INDEX audit_by_time ON audit (tenant, written_at, number);

CREATE FUNCTION audit_is_never_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit cannot be changed';
END
$$;
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_is_never_changed();

-- Refusals of a local day, by user and code. The empty user stands for all who
-- were not counted one by one since too many were refused at once.
CREATE TABLE refusals (
    tenant  bigint NOT NULL,
    day     integer NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    code    text COLLATE "C" NOT NULL,
    count   bigint NOT NULL CHECK (count >= 0),
    PRIMARY KEY (tenant, day, user_id, code)
) WITH (fillfactor = 80);

-- The last refusals of a user, packed: one row however many there were.
CREATE TABLE refused (
    tenant  bigint NOT NULL,
    user_id text COLLATE "C" NOT NULL,
    recent  bytea NOT NULL,
    PRIMARY KEY (tenant, user_id)
) WITH (fillfactor = 80);

-- Checks of a local day by our decision and by another limiter's.
CREATE TABLE comparisons (
    tenant bigint NOT NULL,
    day    integer NOT NULL,
    ours   text COLLATE "C" NOT NULL,
    theirs text COLLATE "C" NOT NULL,
    checks bigint NOT NULL CHECK (checks >= 0),
    PRIMARY KEY (tenant, day, ours, theirs)
) WITH (fillfactor = 80);

-- What every revision changed, so that other processes read just that again. The
-- rows of the last 100,000 revisions stay; whoever is further behind reads
-- everything. Users and orgs appear by buckets, never by their ids.
CREATE TABLE changes (
    revision bigint NOT NULL,
    -- Whose tenant, 0 for none. Not named `tenant`: that a tenant was deleted
    -- must outlive the purge of its rows.
    owner    bigint NOT NULL,
    kind     text COLLATE "C" NOT NULL,
    id       text COLLATE "C" NOT NULL,
    -- The process that wrote it.
    origin   bigint NOT NULL,
    PRIMARY KEY (revision, owner, kind, id)
);

-- How far the changes of an engine that runs apart are on record, by tenant.
CREATE TABLE slots (
    tenant  bigint NOT NULL PRIMARY KEY,
    epoch   bigint NOT NULL CHECK (epoch > 0),
    drained bigint NOT NULL CHECK (drained >= 0)
) WITH (fillfactor = 50);
