-- What features used minute by minute (of the admission; minutes since 1970), so
-- that the culprit of a peak is found in one look. The empty feature is none.
-- Refusals are counted beside, like those of users.
CREATE TABLE minutes (
    tenant        INTEGER NOT NULL,
    minute        INTEGER NOT NULL,
    feature       TEXT NOT NULL,
    requests      INTEGER NOT NULL DEFAULT 0,
    input_tokens  INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    total_tokens  INTEGER NOT NULL DEFAULT 0,
    credits       INTEGER NOT NULL DEFAULT 0,
    refusals      INTEGER NOT NULL DEFAULT 0 CHECK (refusals >= 0),
    PRIMARY KEY (tenant, minute, feature)
) STRICT, WITHOUT ROWID;
