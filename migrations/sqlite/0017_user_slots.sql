-- What each user used in each five minutes (of the admission; `slot` counts them
-- since 1970), for eight days: who uses far more than they are used to, and what
-- short limits see. Counted beside the commits, and of erased users gone at once.
CREATE TABLE user_slots (
    tenant        INTEGER NOT NULL,
    user_id       TEXT NOT NULL,
    slot          INTEGER NOT NULL,
    requests      INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    total_tokens  INTEGER NOT NULL,
    credits       INTEGER NOT NULL,
    PRIMARY KEY (tenant, user_id, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX user_slots_by_time ON user_slots (tenant, slot, user_id);
