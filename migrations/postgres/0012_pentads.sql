-- Totals between those of days and of months: of five days each (the last ones of a month
-- from the 26th to its end), six to a month, counted from January 1970. Any span of days
-- is a few of these, whole months, and a few days to be added or taken off again.
CREATE TABLE pentad_totals (
    tenant        bigint NOT NULL,
    kind          smallint NOT NULL,
    start         integer NOT NULL,
    name          text COLLATE "C" NOT NULL,
    requests      bigint NOT NULL,
    input_tokens  bigint NOT NULL,
    output_tokens bigint NOT NULL,
    total_tokens  bigint NOT NULL,
    credits       bigint NOT NULL,
    refusals      bigint NOT NULL,
    PRIMARY KEY (tenant, kind, start, name)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 200000);
CREATE INDEX pentad_totals_pages ON pentad_totals USING brin (start)
    WITH (pages_per_range = 32, autosummarize = on);

INSERT INTO pentad_totals
SELECT tenant, kind, pentad, name,
       least(9007199254740991, greatest(-9007199254740991, sum(requests))),
       least(9007199254740991, greatest(-9007199254740991, sum(input_tokens))),
       least(9007199254740991, greatest(-9007199254740991, sum(output_tokens))),
       least(9007199254740991, greatest(-9007199254740991, sum(total_tokens))),
       least(9007199254740991, greatest(-9007199254740991, sum(credits))),
       least(9007199254740991, sum(refusals))
FROM (SELECT *, CAST(6 * (12 * (date_part('year', date '1970-01-01' + start) - 1970)
                          + date_part('month', date '1970-01-01' + start) - 1)
                     + least(5, floor((date_part('day', date '1970-01-01' + start) - 1) / 5))
                     AS integer) AS pentad
      FROM day_totals) AS days
GROUP BY tenant, kind, pentad, name;
