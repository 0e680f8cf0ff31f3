-- How long answers were, by local day, feature, model and place on a logarithmic
-- scale: what calls are likely to take is learned from the last days. The empty
-- name stands for calls without one, * for those that were not counted one by one.
CREATE TABLE outputs (
    tenant   INTEGER NOT NULL,
    day      INTEGER NOT NULL,
    feature  TEXT NOT NULL,
    model    TEXT NOT NULL,
    place    INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    cut      INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    used     INTEGER NOT NULL,
    most     INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, feature, model, place)
) STRICT, WITHOUT ROWID;
