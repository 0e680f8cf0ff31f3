-- What each user used in each five minutes (of the admission; `slot` counts them
-- since 1970), for eight days: who uses far more than they are used to, and what
-- short limits see. Counted beside the commits, and of erased users gone at once.
CREATE TABLE user_slots (
    tenant        bigint NOT NULL,
    user_id       text COLLATE "C" NOT NULL,
    slot          bigint NOT NULL,
    requests      bigint NOT NULL,
    input_tokens  bigint NOT NULL,
    output_tokens bigint NOT NULL,
    total_tokens  bigint NOT NULL,
    credits       bigint NOT NULL,
    PRIMARY KEY (tenant, user_id, slot)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000);
CREATE INDEX user_slots_by_time ON user_slots (tenant, slot, user_id);
