"""A product with many users, put straight into the database of a service that is not running."""

import datetime
import sqlite3
import time

DAY_MS = 86_400_000
SLOT_MS = 300_000


def fill(service, tenant, users):
    """Users `user_0000000` and so on, with what they used today, this month and in the last hours."""
    service.stop()
    now = int(time.time() * 1000)
    today = datetime.date.today()
    month = (today.year - 1970) * 12 + today.month - 1
    starts = {
        "day_totals": now // DAY_MS,
        "pentad_totals": month * 6 + min((today.day - 1) // 5, 5),
        "month_totals": month,
    }
    with sqlite3.connect(service.data / "apportion.db") as database:
        number, = database.execute("SELECT number FROM tenants WHERE id = ?", [tenant.name]).fetchone()
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {users - 1})"
        name = "'user_' || printf('%07d', i)"
        database.execute(
            f"""{numbers} INSERT INTO users
                (tenant, id, plan, plan_since, verified, suspended, created_at, version)
                SELECT {number}, {name}, CASE i % 10 WHEN 0 THEN 'pro' WHEN 1 THEN 'standard' ELSE 'free' END,
                       {now - 30 * DAY_MS}, 1, 0, {now - 30 * DAY_MS}, 1 FROM n"""
        )
        for table, start in starts.items():
            database.execute(
                f"""{numbers} INSERT INTO {table}
                    SELECT {number}, 0, {start}, {name}, 3, i * 7919 % 4001, i * 104729 % 997,
                           i * 7919 % 4001 + i * 104729 % 997, i * 31 % 7001, i % 50 = 0 FROM n"""
            )
            for kind, of in ((1, ""), (2, "chat"), (3, "sonnet"), (4, "free")):
                database.execute(
                    f"""INSERT INTO {table}
                        SELECT {number}, {kind}, {start}, '{of}', sum(requests), sum(input_tokens),
                               sum(output_tokens), sum(total_tokens), sum(credits), sum(refusals)
                        FROM {table} WHERE tenant = {number} AND kind = 0 AND start = {start}"""
                )
        slot = now // SLOT_MS
        for of, tokens in ((slot - 300, "1 + i * 7919 % 4001"), (slot - 1, "CASE i % 1000 WHEN 0 THEN 90000 ELSE 40 END")):
            database.execute(
                f"""{numbers} INSERT INTO user_slots
                    (tenant, user_id, slot, requests, input_tokens, output_tokens, total_tokens, credits)
                    SELECT {number}, {name}, {of}, 1, 30, 10, {tokens}, 5 FROM n"""
            )
    database.close()
    service.start()
