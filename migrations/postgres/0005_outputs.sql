-- How long answers were, by local day, feature, model and place on a logarithmic
-- scale: what calls are likely to take is learned from the last days. The empty
-- name stands for calls without one, * for those that were not counted one by one.
CREATE TABLE outputs (
    tenant   bigint NOT NULL,
    day      integer NOT NULL,
    feature  text COLLATE "C" NOT NULL,
    model    text COLLATE "C" NOT NULL,
    place    integer NOT NULL CHECK (place >= 0),
    count    bigint NOT NULL CHECK (count >= 0),
    cut      bigint NOT NULL CHECK (cut >= 0),
    reserved bigint NOT NULL CHECK (reserved >= 0),
    used     bigint NOT NULL CHECK (used >= 0),
    most     bigint NOT NULL CHECK (most >= 0),
    PRIMARY KEY (tenant, day, feature, model, place)
) WITH (fillfactor = 80);
