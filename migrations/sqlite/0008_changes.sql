-- What every revision changed, so that other processes read just that again. The
-- rows of the last 100,000 revisions stay; whoever is further behind reads
-- everything. Users and orgs appear by buckets, never by their ids: an id must not
-- outlive its erasure here.
CREATE TABLE changes (
    revision INTEGER NOT NULL,
    -- Whose tenant, 0 for none. Not named `tenant`: that a tenant was deleted
    -- must outlive the purge of its rows.
    owner    INTEGER NOT NULL,
    kind     TEXT NOT NULL,
    id       TEXT NOT NULL,
    -- The process that wrote it.
    origin   INTEGER NOT NULL,
    PRIMARY KEY (revision, owner, kind, id)
) STRICT, WITHOUT ROWID;
