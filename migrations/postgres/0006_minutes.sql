-- What features used minute by minute (of the admission; minutes since 1970), so
-- that the culprit of a peak is found in one look. The empty feature is none.
-- Refusals are counted beside, like those of users.
CREATE TABLE minutes (
    tenant        bigint NOT NULL,
    minute        bigint NOT NULL,
    feature       text COLLATE "C" NOT NULL,
    requests      bigint NOT NULL DEFAULT 0,
    input_tokens  bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    total_tokens  bigint NOT NULL DEFAULT 0,
    credits       bigint NOT NULL DEFAULT 0,
    refusals      bigint NOT NULL DEFAULT 0 CHECK (refusals >= 0),
    PRIMARY KEY (tenant, minute, feature)
) WITH (fillfactor = 70);
