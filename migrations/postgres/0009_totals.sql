-- Totals of users (kind 0), orgs (1), features (2), models (3) and plans (4), by
-- local day and by month (days and months since 1970), in place of `usage`, which
-- had one row for every combination of them. Sums may be negative between a
-- correction and what it corrects; they saturate at +-(2^53 - 1).
--
-- A day or month stands in pages of its own, since its rows come one after the
-- other: the block range indexes find those pages, for next to nothing.
CREATE TABLE day_totals (
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
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 500000);
CREATE INDEX day_totals_pages ON day_totals USING brin (start) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE month_totals (
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
CREATE INDEX month_totals_pages ON month_totals USING brin (start)
    WITH (pages_per_range = 32, autosummarize = on);

INSERT INTO day_totals
SELECT tenant, kind, day, name,
       least(9007199254740991, greatest(-9007199254740991, sum(requests))),
       least(9007199254740991, greatest(-9007199254740991, sum(input_tokens))),
       least(9007199254740991, greatest(-9007199254740991, sum(output_tokens))),
       least(9007199254740991, greatest(-9007199254740991, sum(total_tokens))),
       least(9007199254740991, greatest(-9007199254740991, sum(credits))),
       least(9007199254740991, sum(refusals))
FROM (SELECT tenant, day, kind, name, requests, input_tokens, output_tokens, total_tokens, credits, 0 AS refusals
      FROM usage CROSS JOIN LATERAL (VALUES (0, user_id), (1, org), (2, feature), (3, model), (4, plan))
          AS named (kind, name)
      UNION ALL SELECT tenant, day, 0, user_id, 0, 0, 0, 0, 0, count FROM refusals) AS used
GROUP BY tenant, kind, day, name;

INSERT INTO month_totals
SELECT tenant, kind, month, name,
       least(9007199254740991, greatest(-9007199254740991, sum(requests))),
       least(9007199254740991, greatest(-9007199254740991, sum(input_tokens))),
       least(9007199254740991, greatest(-9007199254740991, sum(output_tokens))),
       least(9007199254740991, greatest(-9007199254740991, sum(total_tokens))),
       least(9007199254740991, greatest(-9007199254740991, sum(credits))),
       least(9007199254740991, sum(refusals))
FROM (SELECT *, CAST(12 * (date_part('year', date '1970-01-01' + start) - 1970)
                     + date_part('month', date '1970-01-01' + start) - 1 AS integer) AS month
      FROM day_totals) AS days
GROUP BY tenant, kind, month, name;

DROP TABLE usage;
