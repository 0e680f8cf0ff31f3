-- Rankings of consumers whose first page was shown: the later pages come from
-- here for some minutes, whatever is used meanwhile, at whichever node they are asked for.
CREATE TABLE rankings (
    tenant  INTEGER NOT NULL,
    id      BLOB NOT NULL CHECK (length(id) = 16),
    part    INTEGER NOT NULL CHECK (part >= 0),
    made_at INTEGER NOT NULL,
    body    BLOB NOT NULL,
    PRIMARY KEY (tenant, id, part)
) STRICT;
