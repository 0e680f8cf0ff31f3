-- Old holds go after a time. Where the walk through them has come to, and
-- whose it is, so that of many processes one does it and each can go on.
CREATE TABLE pruning (
    only_row   smallint NOT NULL PRIMARY KEY CHECK (only_row = 1),
    -- Holds with ids below were looked at in this walk; 0: none is under way.
    place      bytea NOT NULL CHECK (octet_length(place) = 16),
    ended_at   bigint NOT NULL,
    holder     bigint NOT NULL,
    held_until bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO pruning VALUES (1, decode(repeat('00', 16), 'hex'), 0, 0, 0);
