-- Totals of users (kind 0), orgs (1), features (2), models (3) and plans (4), by
-- local day and by month (days and months since 1970), in place of `usage`, which
-- had one row for every combination of them. Sums may be negative between a
-- correction and what it corrects; they saturate at +-(2^53 - 1).
CREATE TABLE day_totals (
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

CREATE TABLE month_totals (
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

-- Sums as doubles: those of many figures would overflow otherwise.
INSERT INTO day_totals
SELECT tenant, kind, day, name,
       CAST(min(9007199254740991, max(-9007199254740991, total(requests))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(input_tokens))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(output_tokens))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(total_tokens))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(credits))) AS INTEGER),
       CAST(min(9007199254740991, total(refusals)) AS INTEGER)
FROM (SELECT tenant, day, 0 AS kind, user_id AS name, requests, input_tokens, output_tokens, total_tokens,
             credits, 0 AS refusals FROM usage
      UNION ALL
      SELECT tenant, day, 1, org, requests, input_tokens, output_tokens, total_tokens, credits, 0 FROM usage
      UNION ALL
      SELECT tenant, day, 2, feature, requests, input_tokens, output_tokens, total_tokens, credits, 0 FROM usage
      UNION ALL
      SELECT tenant, day, 3, model, requests, input_tokens, output_tokens, total_tokens, credits, 0 FROM usage
      UNION ALL
      SELECT tenant, day, 4, plan, requests, input_tokens, output_tokens, total_tokens, credits, 0 FROM usage
      UNION ALL
      SELECT tenant, day, 0, user_id, 0, 0, 0, 0, 0, count FROM refusals)
GROUP BY tenant, kind, day, name;

INSERT INTO month_totals
SELECT tenant, kind, month, name,
       CAST(min(9007199254740991, max(-9007199254740991, total(requests))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(input_tokens))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(output_tokens))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(total_tokens))) AS INTEGER),
       CAST(min(9007199254740991, max(-9007199254740991, total(credits))) AS INTEGER),
       CAST(min(9007199254740991, total(refusals)) AS INTEGER)
FROM (SELECT *, 12 * (CAST(strftime('%Y', start * 86400, 'unixepoch') AS INTEGER) - 1970)
                + CAST(strftime('%m', start * 86400, 'unixepoch') AS INTEGER) - 1 AS month
      FROM day_totals)
GROUP BY tenant, kind, month, name;

DROP TABLE usage;
