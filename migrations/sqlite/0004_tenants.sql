-- Tenants that were deleted. Their rows leave portion by portion; whatever of
-- them is still under way to the tables is left out by their numbers, which
-- are never given again.
CREATE TABLE deleted_tenants (
    number     INTEGER NOT NULL PRIMARY KEY,
    deleted_at INTEGER NOT NULL,
    -- Holds up to this row are gone: no index has the holds of a tenant.
    holds_done INTEGER NOT NULL DEFAULT 0,
    -- Nothing is left, nor can anything come.
    purged     INTEGER NOT NULL DEFAULT 0 CHECK (purged IN (0, 1))
) STRICT;
