//! Who used most, page by page.
//!
//! The first page fixes the order and the figures of the pages after it: they are
//! kept in the ledger for some minutes, so that no row comes twice and none is left
//! out while calls go on, at whichever node the next page is asked for.

use std::ops::Range;
use std::sync::Arc;

use crate::domain::ids::Name;
use crate::domain::plan::{Meter, Rule, Scope, Sheet};
use crate::domain::time::{Millis, Period};
use crate::ledger::{Figure, Group, KeptPart, PART_ROWS, Ranked, Ranking, RankingQuery, Sums};
use crate::service::tenancy::catalog::{Catalog, Tenant};
use crate::service::{Service, ServiceError, random};

/// Rows that pages reach.
pub const PAGED_MAX: u32 = 10_000;
/// Rows of a list that comes at once.
pub const LISTED_MAX: u32 = 100_000;
/// How long later pages can be asked for.
const KEPT_MS: i64 = 10 * 60_000;

/// Where a page of a ranking that was kept begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub ranking: u128,
    pub row: u32,
}

/// What a caller who comes back with a place says about the ranking.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expected {
    pub from: Option<i32>,
    pub to: Option<i32>,
    pub group: Option<Group>,
    pub by: Option<Figure>,
}

/// A part of a ranking.
#[derive(Debug)]
pub struct Consumers {
    pub query: RankingQuery,
    /// Rows before these.
    pub before: u32,
    pub rows: Vec<Consumer>,
    pub total: Sums,
    /// Of all rows.
    pub count: u64,
    /// Where the next page begins.
    pub next: Option<Place>,
}

#[derive(Debug)]
pub struct Consumer {
    pub ranked: Ranked,
    /// How much of all that was used, from 0 to 1.
    pub share: f64,
    /// How much of its plan's longest window of this meter; `None`: the plan has
    /// none, or there is no plan.
    pub quota_share: Option<f64>,
}

impl Service {
    /// The first page: `limit` rows.
    pub async fn consumers(
        &self,
        tenant: &Tenant,
        query: RankingQuery,
        limit: u32,
    ) -> Result<Consumers, ServiceError> {
        let mut ranking = self.ranking(tenant, &query, PAGED_MAX).await?;
        let mut next = None;
        if ranking.rows.len() > limit as usize {
            let id = u128::from_be_bytes(random::bytes());
            self.keep(tenant, id, &query, &ranking).await?;
            ranking.rows.truncate(limit as usize);
            next = Some(Place { ranking: id, row: limit });
        }
        Ok(page(tenant, query, 0, ranking, next))
    }

    /// All rows at once, [`LISTED_MAX`] of them at most.
    pub async fn all_consumers(
        &self,
        tenant: &Tenant,
        query: RankingQuery,
        limit: Option<u32>,
    ) -> Result<Consumers, ServiceError> {
        let ranking = self.ranking(tenant, &query, limit.unwrap_or(LISTED_MAX)).await?;
        Ok(page(tenant, query, 0, ranking, None))
    }

    /// A later page of the ranking whose first page was told.
    ///
    /// # Errors
    /// `CursorExpired`; `Invalid` where the ranking is not the one expected.
    pub async fn more_consumers(
        &self,
        tenant: &Tenant,
        place: Place,
        expected: Expected,
        limit: u32,
    ) -> Result<Consumers, ServiceError> {
        let mut rows = Vec::with_capacity(limit as usize);
        let mut head: Option<(RankingQuery, Ranking)> = None;
        let end = place.row.saturating_add(limit);
        let parts = place.row / PART_ROWS as u32..=end / PART_ROWS as u32;
        let mut more = false;
        for number in parts {
            let found = self.ledger.ranking_part(tenant.number, place.ranking, number).await?;
            let Some(part) = found.filter(|part| part.made_at >= tenant.now().plus_ms(-KEPT_MS)) else {
                break;
            };
            let KeptPart { query, mut ranking, .. } = part;
            let first = number * PART_ROWS as u32;
            for (row, ranked) in (first..).zip(std::mem::take(&mut ranking.rows)) {
                match row {
                    row if row >= end => more = true,
                    row if row >= place.row => rows.push(ranked),
                    _ => {}
                }
            }
            head = Some((query, ranking));
        }
        let Some((query, ranking)) = head else { return Err(ServiceError::CursorExpired) };
        expected.check(&query)?;
        let next = more.then_some(Place { row: end, ..place });
        Ok(page(tenant, query, place.row, Ranking { rows, ..ranking }, next))
    }

    async fn ranking(
        &self,
        tenant: &Tenant,
        query: &RankingQuery,
        limit: u32,
    ) -> Result<Ranking, ServiceError> {
        self.flush_tallies().await?;
        let today = tenant.catalog().settings.zone.local_day(tenant.now());
        Ok(self.ledger.ranking(tenant.number, query.clone(), today, limit).await?)
    }

    async fn keep(
        &self,
        tenant: &Tenant,
        id: u128,
        query: &RankingQuery,
        ranking: &Ranking,
    ) -> Result<(), ServiceError> {
        let made_at = tenant.now();
        let part = |rows: &[Ranked]| KeptPart {
            made_at,
            query: query.clone(),
            ranking: Ranking { rows: rows.to_vec(), ..Ranking { rows: Vec::new(), ..*ranking } },
        };
        let parts: Arc<[KeptPart]> = ranking.rows.chunks(PART_ROWS).map(part).collect();
        let since = made_at.plus_ms(-KEPT_MS);
        Ok(self.ledger.keep_ranking(tenant.number, id, parts, since).await?)
    }
}

impl Expected {
    fn check(&self, query: &RankingQuery) -> Result<(), ServiceError> {
        let Range { start, end } = query.days;
        let differs = |name: &str| {
            let message = format!("belongs to another `{name}`: leave it out or begin anew");
            Err(ServiceError::invalid("/cursor", message))
        };
        match self {
            Self { from: Some(from), .. } if *from != start => differs("from"),
            Self { to: Some(to), .. } if *to != end => differs("to"),
            Self { group: Some(group), .. } if *group != query.group => differs("group"),
            Self { by: Some(by), .. } if *by != query.by => differs("by"),
            _ => Ok(()),
        }
    }
}

fn page(
    tenant: &Tenant,
    query: RankingQuery,
    before: u32,
    ranking: Ranking,
    next: Option<Place>,
) -> Consumers {
    let (catalog, now) = (tenant.catalog(), tenant.now());
    let total = ranking.total.of(query.by);
    let rows = ranking.rows.into_iter().map(|ranked| {
        let used = ranked.sums.of(query.by);
        let quota = quota(&catalog, &query, &ranked, now);
        Consumer {
            share: ratio(used, total).unwrap_or(0.0),
            quota_share: quota.and_then(|q| ratio(used, q)),
            ranked,
        }
    });
    Consumers { before, rows: rows.collect(), total: ranking.total, count: ranking.count, next, query }
}

pub(super) fn ratio(part: u64, whole: u64) -> Option<f64> {
    // To a millionth: more digits would be noise.
    (whole > 0).then(|| (part as f64 / whole as f64 * 1e6).round() / 1e6)
}

/// The figure of the longest calendar window that counts all of this meter in the
/// plan of a user or org.
fn quota(catalog: &Catalog, query: &RankingQuery, ranked: &Ranked, now: Millis) -> Option<u64> {
    let scope = match query.group {
        Group::User => Scope::User,
        Group::Org => Scope::Org,
        _ => return None,
    };
    let plan = Name::parse(ranked.plan.as_deref()?).ok()?;
    longest_window(&catalog.plan(&plan)?.current(now).sheet, scope, &meter(query.by)?)
}

fn longest_window(sheet: &Sheet, scope: Scope, of: &Meter) -> Option<u64> {
    let figures = sheet.limits.iter().filter(|limit| limit.scope == scope && limit.filter.is_empty());
    let windows = figures.filter_map(|limit| match &limit.rule {
        Rule::Window { meter, limit, period, .. } if meter == of => Some((length(*period)?, *limit)),
        _ => None,
    });
    windows.max_by_key(|(length, _)| *length).map(|(_, limit)| limit)
}

fn meter(figure: Figure) -> Option<Meter> {
    Some(match figure {
        Figure::Requests => Meter::Requests,
        Figure::InputTokens => Meter::InputTokens,
        Figure::OutputTokens => Meter::OutputTokens,
        Figure::TotalTokens => Meter::TotalTokens,
        Figure::Credits => Meter::Credits,
        Figure::Refusals => return None,
    })
}

/// In hours, as far as it tells which of two calendar windows is the longer one.
fn length(period: Period) -> Option<u32> {
    match period {
        Period::Day => Some(24),
        Period::Week => Some(7 * 24),
        Period::Month => Some(30 * 24),
        Period::Hours(_) | Period::Days(_) | Period::SessionHours(_) | Period::Lifetime => None,
    }
}
