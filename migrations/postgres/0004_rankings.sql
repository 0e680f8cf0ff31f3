-- Rankings of consumers whose first page was shown: the later pages come from
-- here for some minutes, whatever is used meanwhile, at whichever node they are asked for.
CREATE TABLE rankings (
    tenant  bigint NOT NULL,
    id      bytea NOT NULL CHECK (octet_length(id) = 16),
    part    bigint NOT NULL CHECK (part >= 0),
    made_at bigint NOT NULL,
    body    bytea NOT NULL,
    PRIMARY KEY (tenant, id, part)
);
