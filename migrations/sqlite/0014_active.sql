-- How many users of a plan were active in each five minutes, so that the peak is
-- known. `seen` holds digests of some of them, by which several nodes count each
-- user once; rows go after eight days.
CREATE TABLE active (
    tenant INTEGER NOT NULL,
    slot   INTEGER NOT NULL,
    plan   TEXT NOT NULL,
    users  INTEGER NOT NULL,
    seen   BLOB NOT NULL,
    PRIMARY KEY (tenant, slot, plan)
) STRICT;
