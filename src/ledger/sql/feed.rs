//! The feed: events are packed in rows, numbered by a row that a commit keeps to its
//! end, and read together with their holds.

use std::collections::{BTreeMap, HashMap};

use super::Kind::{Bytes, Int};
use super::batch::Totals;
use super::read::holds;
use super::{Columns, Failure, ManyRows, Sql, Value, get, listed, values};
use crate::domain::charge::TenantRef;
use crate::domain::hold::Hold;
use crate::domain::ids::HoldId;
use crate::ledger::feed::{FeedEntry, Served};
use crate::ledger::{FeedEvent, FeedMark, FeedPage, FeedQuery, LedgerError, Pruning, UsageDelta};

/// Events of a row: so many that a row costs an event next to nothing, so few that
/// pages are filled well.
const IN_A_ROW: usize = 24;
/// Rows that are taken out in one transaction.
const PRUNED_AT_ONCE: u32 = 500;
const HOUR_MS: i64 = 3_600_000;
const FORMAT: u8 = 1;

/// Events by tenant, in their order; with each, when its hold finished.
pub type Feed = BTreeMap<u32, Vec<(i64, FeedEntry)>>;

/// The event that a step of a hold is.
pub fn entry(hold: &Hold, mark: &FeedMark, usage: Option<&UsageDelta>) -> FeedEntry {
    let model = match usage.map(|delta| &delta.model) {
        Some(model) if *model != hold.model => Served::Other(model.clone()),
        _ => Served::AsAsked,
    };
    FeedEntry {
        hold: hold.id.0.to_be_bytes(),
        part: mark.part,
        figures: usage.map(Totals::of).unwrap_or_default().0,
        model,
        amounts: mark.amounts.clone(),
    }
}

static FEED: ManyRows = ManyRows::new(
    "feed",
    &[("tenant", Int), ("number", Int), ("ended_at", Int), ("body", Bytes)],
    "ON CONFLICT (tenant, number) DO NOTHING",
);

/// A deleted tenant has no feed any more.
const NUMBER: &str = "INSERT INTO feeds (tenant, newest)
     SELECT CAST($1 AS bigint), CAST($2 AS bigint) WHERE $1 NOT IN (SELECT number FROM deleted_tenants)
     ON CONFLICT (tenant) DO UPDATE SET newest = feeds.newest + excluded.newest RETURNING newest";

/// Numbers the events and appends them. It comes last in a transaction: until its end,
/// other commits of the tenant wait here.
pub async fn append(connection: &mut impl Sql, feed: &Feed) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for (tenant, events) in feed {
        let count = events.len() as i64;
        let numbered = connection.rows(NUMBER, values![*tenant, count]).await?;
        let Some(newest) = numbered.first().map(|row| get::<i64>(row, 0)).transpose()? else { continue };
        let mut number = newest - count + 1;
        // What ended at different times goes at different times.
        let hour = |event: &(i64, FeedEntry)| event.0.div_euclid(HOUR_MS);
        let of_an_hour = events.chunk_by(|one, next| hour(one) == hour(next));
        for part in of_an_hour.flat_map(|part| part.chunks(IN_A_ROW)) {
            let ended_at = part.iter().map(|(ended_at, _)| *ended_at).min();
            rows.extend(values![*tenant, number, ended_at, pack(part.iter().map(|(_, entry)| entry))?]);
            number += part.len() as i64;
        }
    }
    Ok(connection.write_rows(&FEED, rows).await?)
}

fn pack<'e>(entries: impl Iterator<Item = &'e FeedEntry>) -> Result<Vec<u8>, LedgerError> {
    let mut bytes = vec![FORMAT];
    for entry in entries {
        bytes = postcard::to_extend(entry, bytes)
            .map_err(|error| LedgerError::Corrupt(format!("the feed cannot be packed: {error}")))?;
    }
    Ok(bytes)
}

fn unpack(bytes: &[u8]) -> Result<Vec<FeedEntry>, LedgerError> {
    let Some((&FORMAT, mut rest)) = bytes.split_first() else {
        return Err(LedgerError::Corrupt("a row of the feed in an unknown form".into()));
    };
    let mut entries = Vec::with_capacity(IN_A_ROW);
    while !rest.is_empty() {
        let (entry, left) = postcard::take_from_bytes(rest)
            .map_err(|error| LedgerError::Corrupt(format!("a row of the feed: {error}")))?;
        entries.push(entry);
        rest = left;
    }
    Ok(entries)
}

/// Where the page begins and the number of the newest event, then the rows from the one
/// that has its first event. Without a place to begin (`$2`) that is the oldest event.
pub const FEED_PAGE: &str = "
WITH wanted (first) AS (SELECT coalesce(CAST($2 AS bigint),
    (SELECT min(number) FROM feed WHERE tenant = $1), (SELECT newest + 1 FROM feeds WHERE tenant = $1), 1))
SELECT first, coalesce((SELECT newest FROM feeds WHERE tenant = $1), 0), CAST(NULL AS bytea) FROM wanted
UNION ALL SELECT number, 0, body FROM wanted CROSS JOIN feed WHERE tenant = $1
    AND number >= coalesce((SELECT max(number) FROM feed WHERE tenant = $1 AND number <= first), first)
    AND number < first + CAST($3 AS bigint)";

pub fn statement(tenant: TenantRef, query: FeedQuery) -> (&'static str, Vec<Value>) {
    // With the event that is known already, if its seal is to be compared.
    let known = u64::from(query.seal == 0);
    let first = query.after.map(|after| after.saturating_add(known).min(i64::MAX as u64 / 2).cast_signed());
    (FEED_PAGE, values![tenant.0, first, query.limit.saturating_add(1)])
}

/// Events without their holds.
pub struct Found {
    first: u64,
    newest: u64,
    entries: Vec<FeedEntry>,
    /// Of the event before the first one, if it is known.
    seal: u64,
    /// The number was given to another event.
    is_other: bool,
}

/// Tells events of one number apart. Ids of holds end in what nobody can guess.
fn seal_of(hold: u128, part: u8) -> u64 {
    (hold as u64).rotate_left(part.into()).max(1)
}

/// Reads the rows of [`FEED_PAGE`].
pub fn found<R: Columns>(rows: &[R], query: FeedQuery) -> Result<Found, LedgerError> {
    let number = |row: &R, at| get::<i64>(row, at).map(i64::cast_unsigned);
    let mut found = Found { first: 1, newest: 0, entries: Vec::new(), seal: query.seal, is_other: false };
    let mut parts = BTreeMap::new();
    for row in rows {
        match get::<Option<&[u8]>>(row, 2)? {
            None => (found.first, found.newest) = (number(row, 0)?, number(row, 1)?),
            Some(body) => _ = parts.insert(number(row, 0)?, unpack(body)?),
        }
    }
    let is_sealed = query.after.is_some() && query.seal != 0;
    // What is not kept any more cannot be compared.
    let is_compared = is_sealed && parts.first_key_value().is_some_and(|(number, _)| *number <= found.first);
    if is_sealed && !is_compared {
        found.first += 1;
    }
    for (number, entries) in parts {
        let next = found.first + found.entries.len() as u64;
        if number > next {
            break;
        }
        found.entries.extend(entries.into_iter().skip((next - number) as usize));
    }
    if is_compared && !found.entries.is_empty() {
        let known = found.entries.remove(0);
        found.is_other = seal_of(u128::from_be_bytes(known.hold), known.part) != query.seal;
        found.first += 1;
    } else if is_compared {
        // The number is beyond the newest.
        found.first += 1;
    }
    found.entries.truncate(query.limit as usize);
    Ok(found)
}

impl Found {
    /// The events with their holds. One whose hold has gone is not kept any more.
    pub async fn with_holds(self, connection: &mut impl Sql, tenant: TenantRef) -> Result<FeedPage, Failure> {
        let ids: Vec<HoldId> = self.entries.iter().map(id_of).collect();
        let holds = holds_of_many(connection, tenant, &ids).await?;
        let events: Vec<FeedEvent> = (self.first..)
            .zip(self.entries)
            .map_while(|(number, entry)| Some(event(number, holds.get(&id_of(&entry))?, entry)))
            .collect();
        let last = self.first - 1 + events.len() as u64;
        // Numbers beyond the newest were given before a backup was restored.
        let is_beyond = self.first > self.newest + 1 || (events.is_empty() && last < self.newest);
        let seal = events.last().map_or(self.seal, |event| seal_of(event.hold.id.0, event.part));
        Ok(match is_beyond || self.is_other {
            true => FeedPage::Gone,
            false => FeedPage::Events { events, last, seal, more: last < self.newest },
        })
    }
}

fn id_of(entry: &FeedEntry) -> HoldId {
    HoldId(u128::from_be_bytes(entry.hold))
}

fn event(number: u64, hold: &Hold, entry: FeedEntry) -> FeedEvent {
    let [requests, input_tokens, output_tokens, total_tokens, credits] = entry.figures;
    let model = match entry.model {
        Served::AsAsked => hold.model.clone(),
        Served::Other(model) => model,
    };
    FeedEvent {
        number,
        part: entry.part,
        hold: hold.clone(),
        model,
        requests,
        input_tokens,
        output_tokens,
        total_tokens,
        credits,
        amounts: entry.amounts,
    }
}

/// Holds by their ids, as many as there are.
pub async fn holds_of_many<C: Sql>(
    connection: &mut C,
    tenant: TenantRef,
    ids: &[HoldId],
) -> Result<HashMap<HoldId, Hold>, Failure> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let ids = listed(ids.iter().copied());
    let rows = connection.rows(C::HOLDS_OF_MANY, values![tenant.0, ids]).await?;
    Ok(holds(rows)?.into_iter().map(|hold| (hold.id, hold)).collect())
}

/// Tenants whose holds among some ids are old, and when those that are kept ended at
/// the earliest.
pub const OLD: &str = "SELECT DISTINCT tenants.number, coalesce(tenants.clock, $3) - CAST($4 AS bigint)
     FROM holds JOIN tenants ON tenants.number = holds.tenant
     WHERE holds.id >= $1 AND holds.id < $2 AND finished_at < coalesce(tenants.clock, $3) - $4";
pub const OLDEST: &str = "SELECT number, ended_at FROM feed WHERE tenant = $1 ORDER BY number LIMIT $2";
pub const PRUNE: &str = "DELETE FROM feed WHERE tenant = $1 AND number <= $2";

/// Takes events of what is old out, before the holds from `from` to `to` go. `false`:
/// there are more, and the holds have to wait.
pub async fn prune(
    connection: &mut impl Sql,
    (from, to): (u128, u128),
    asked: &Pruning,
) -> Result<bool, Failure> {
    let mut values = values![from.to_be_bytes(), to.to_be_bytes()];
    values.extend(values![asked.now.0, asked.keep_ms]);
    for row in connection.rows(OLD, values).await? {
        let (tenant, kept_from): (u32, i64) = (get(&row, 0)?, get(&row, 1)?);
        let mut last = None;
        let rows = connection.rows(OLDEST, values![tenant, PRUNED_AT_ONCE]).await?;
        let mut old = 0;
        for row in &rows {
            if get::<i64>(row, 1)? >= kept_from {
                break;
            }
            last = Some(get::<i64>(row, 0)?);
            old += 1;
        }
        if let Some(last) = last {
            connection.execute(PRUNE, values![tenant, last]).await?;
        }
        if old == PRUNED_AT_ONCE {
            return Ok(false);
        }
    }
    Ok(true)
}
