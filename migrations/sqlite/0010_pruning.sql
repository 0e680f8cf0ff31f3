-- Old holds go after a time. Where the walk through them has come to, and
-- whose it is, so that of many processes one does it and each can go on.
CREATE TABLE pruning (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    -- Holds with ids below were looked at in this walk; 0: none is under way.
    place      BLOB NOT NULL,
    ended_at   INTEGER NOT NULL,
    holder     INTEGER NOT NULL,
    held_until INTEGER NOT NULL
) STRICT;
INSERT INTO pruning VALUES (1, x'00000000000000000000000000000000', 0, 0, 0);
