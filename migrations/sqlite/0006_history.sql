-- One entry for each hold under its user instead of two: every commit pays for
-- each of them, on pages that lie far apart.
--
-- Ids begin with the millisecond of a hold's making, so the order of ids is
-- nearly that of ends: a hold that ended within two minutes is found among its
-- neighbours. What took longer, and what has an id that is not made of time
-- (booked usage), is in a second index; so are unfinished holds, in a small one.
-- The condition of `holds_ended_late` stands word for word in the queries.
DROP INDEX holds_by_user;
DROP INDEX holds_by_end;
CREATE INDEX holds_by_user ON holds (tenant, user_id, id, finished_at, request);
CREATE INDEX holds_open_by_user ON holds (tenant, user_id) WHERE finished_at IS NULL;
CREATE INDEX holds_ended_late ON holds (tenant, user_id, finished_at, id, request)
    WHERE finished_at IS NOT NULL
    AND (id < unhex(printf('%012X', finished_at - 120000)) OR id >= unhex(printf('%012X', finished_at + 1)));
