-- Totals between those of days and of months: of five days each (the last ones of a month
-- from the 26th to its end), six to a month, counted from January 1970. Any span of days
-- is a few of these, whole months, and a few days to be added or taken off again.
CREATE TABLE pentad_totals (
    tenant        INTEGER NOT NULL,
    kind          INTEGER NOT NULL,
    start         INTEGER NOT NULL,
    name          TEXT NOT NULL,
    requests      INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    total_tokens  INTEGER NOT NULL,
    credits       INTEGER NOT NULL,
    refusals      INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, start, name)
) STRICT, WITHOUT ROWID;

INSERT INTO pentad_totals
SELECT tenant, kind, pentad, name,
       CAST(min(9007199254740991, max(-9007199254740991, total(requests))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(input_tokens))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(output_tokens))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(total_tokens))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(credits))) AS INTEGER),
       CAST(min(9007199254740991, total(refusals)) AS INTEGER)
FROM (SELECT *, 6 * (12 * (CAST(strftime('%Y', start * 86400, 'unixepoch') AS INTEGER) - 1970)
                     + CAST(strftime('%m', start * 86400, 'unixepoch') AS INTEGER) - 1)
                + min(5, (CAST(strftime('%d', start * 86400, 'unixepoch') AS INTEGER) - 1) / 5) AS pentad
      FROM day_totals)
GROUP BY tenant, kind, pentad, name;
