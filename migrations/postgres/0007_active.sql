-- How many users of a plan were active in each five minutes, so that the peak is
-- known. `seen` holds digests of some of them, by which several nodes count each
-- user once; rows go after eight days.
CREATE TABLE active (
    tenant bigint NOT NULL,
    slot   bigint NOT NULL,
    plan   text COLLATE "C" NOT NULL,
    users  bigint NOT NULL,
    seen   bytea NOT NULL,
    PRIMARY KEY (tenant, slot, plan)
) WITH (fillfactor = 50);
