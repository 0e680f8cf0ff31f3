//! What in a sheet can never bite: accepted, and said.
//!
//! A warning is given only where a limit surely refuses nothing, as long as
//! callers report no more than they reserved, in time, and windows have their
//! usual length (the one in which a user changes zone may be longer). What is
//! given to single users (overrides, grants) is no part of a sheet.

use serde::Serialize;

use super::degrade;
use super::filter::{glob_matches, has_wildcard, is_anything, list_matches};
use super::{Enforce, Limit, Meter, Models, Pool, Rule, Scope, Sheet};
use crate::domain::ids::Name;
use crate::domain::price::Prices;
use crate::domain::time::Period;

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Something that is allowed and most likely not meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LintWarning {
    /// RFC 6901, into the sheet as it is shown.
    pub pointer: String,
    /// To be read after the field's name.
    pub message: String,
}

impl Sheet {
    /// Everything that can never bite, given the models that are known.
    pub fn lint(&self, models: &Models) -> Vec<LintWarning> {
        let mut warnings = self.lint_alone();
        for (index, limit) in self.limits.iter().enumerate() {
            let pointer = format!("/limits/{index}/models");
            warnings.extend(lint_globs(&pointer, &limit.filter.models, models));
            if limit.rule.meter() == Some(&Meter::Credits) {
                warnings.extend(self.lint_credits(index, limit, models));
            }
        }
        warnings.extend(degrade::lint_models(&self.limits, models));
        warnings
    }

    /// What the sheet alone tells.
    pub(super) fn lint_alone(&self) -> Vec<LintWarning> {
        let warnings = (0..self.limits.len()).filter_map(|index| {
            let message = self.never_bites(index)?;
            Some(LintWarning { pointer: format!("/limits/{index}/{}", figure(&self.limits[index])), message })
        });
        let zones = self.limits.iter().enumerate().filter_map(|(index, limit)| match &limit.rule {
            Rule::Window { period, zone: Some(_), .. } if !period.is_calendar() => Some(LintWarning {
                pointer: format!("/limits/{index}/zone"),
                message: "has no effect: only days, weeks and months have borders in a zone".into(),
            }),
            _ => None,
        });
        let thresholds = self.limits.iter().enumerate().filter_map(|(index, limit)| {
            let is_idle = limit.rule.most_at_once() == 0 && !limit.warn_at.is_empty();
            is_idle.then(|| LintWarning {
                pointer: format!("/limits/{index}/warn_at"),
                message: "has no effect unless something is granted: the limit is 0".into(),
            })
        });
        let advice = degrade::lint(&self.limits, &self.per_call);
        warnings.chain(zones).chain(thresholds).chain(advice).collect()
    }

    /// Why the limit can never refuse a call, if that is so.
    fn never_bites(&self, index: usize) -> Option<String> {
        let limit = &self.limits[index];
        let most = limit.rule.most_at_once();
        if most == 0 {
            return None;
        }
        if limit.enforce != Enforce::Shadow
            && let Some(stop) = self.others(index).find(|other| stops(other, limit))
        {
            return Some(format!("can never refuse a call: {} refuses every one", stop.name));
        }
        match &limit.rule {
            Rule::Window { meter, period, .. } => {
                let bound = self.bound_within(index, meter, longest_ms(*period))?;
                (bound.amount <= u128::from(most)).then(|| {
                    format!(
                        "can never refuse a call: at most {} can pass {} in that time",
                        bound.amount, bound.by
                    )
                })
            }
            Rule::Bucket { meter, refill_per_minute, .. } => {
                let tighter = |other: &&Limit| match &other.rule {
                    Rule::Bucket { meter: theirs, capacity, refill_per_minute: refill } => {
                        counts_all_of(theirs, meter) && *capacity <= most && refill <= refill_per_minute
                    }
                    Rule::Window { meter: theirs, limit, period, .. } => {
                        counts_all_of(theirs, meter)
                            && (*limit <= most && *period == Period::Lifetime
                                || is_used_up_at_once(meter)
                                    && never_empties(*limit, *period, most, *refill_per_minute))
                    }
                    Rule::Slots { .. } | Rule::Rolling { .. } => false,
                };
                let other = self.others(index).find(tighter);
                other.map(|other| format!("can never refuse a call: {} is tighter", other.name))
            }
            Rule::Slots { .. } => {
                let tighter = |other: &&Limit| matches!(other.rule, Rule::Slots { limit } if limit <= most);
                let other = self.others(index).find(tighter);
                other.map(|other| format!("can never refuse a call: {} is tighter", other.name))
            }
            Rule::Rolling { .. } => None,
        }
    }

    /// The hard limits that every call counted by limit `index` must pass as
    /// well. Of two that are alike, only the earlier binds the later. Not every
    /// user has an org, or one without a sheet of its own.
    fn others(&self, index: usize) -> impl Iterator<Item = &Limit> {
        let limit = &self.limits[index];
        let binding = self.limits.iter().enumerate().filter(move |(place, other)| {
            *place != index
                && other.enforce == Enforce::Hard
                && (other.scope == limit.scope || other.scope == Scope::Tenant)
                && other.filter.covers(&limit.filter)
                && (*place < index || other.rule != limit.rule)
        });
        binding.map(|(_, other)| other)
    }

    /// The most of `meter` that the limits other than `index` let through in
    /// one window of that limit, `ms` long at most (`None`: for ever).
    fn bound_within(&self, index: usize, meter: &Meter, ms: Option<i64>) -> Option<Bound> {
        let own = self.bound_on(index, meter, ms);
        // A token meter is bound by the calls and what each may take, too.
        let (input, output) = (self.per_call.max_input_tokens, self.per_call.max_output_tokens);
        let cap = match meter {
            Meter::InputTokens => input,
            Meter::OutputTokens => output,
            Meter::TotalTokens => input.zip(output).map(|(input, output)| input.saturating_add(output)),
            _ => None,
        };
        let by_calls = cap.and_then(|cap| {
            let calls = self.bound_on(index, &Meter::Requests, ms)?;
            Some(Bound { amount: calls.amount.saturating_mul(u128::from(cap)), by: calls.by })
        });
        // And all tokens are bound by those going in and those coming out.
        let is_total = *meter == Meter::TotalTokens;
        let by_parts = is_total.then(|| self.sum_of_parts(index, ms)).flatten();
        own.into_iter().chain(by_calls).chain(by_parts).min_by_key(|bound| bound.amount)
    }

    fn sum_of_parts(&self, index: usize, ms: Option<i64>) -> Option<Bound> {
        let input = self.bound_within(index, &Meter::InputTokens, ms)?;
        let output = self.bound_within(index, &Meter::OutputTokens, ms)?;
        let by = format!("{} and {}", input.by, output.by);
        Some(Bound { amount: input.amount.saturating_add(output.amount), by })
    }

    fn bound_on(&self, index: usize, meter: &Meter, ms: Option<i64>) -> Option<Bound> {
        let bounds = self.others(index).filter_map(|other| {
            let amount = match &other.rule {
                Rule::Bucket { meter: theirs, capacity, refill_per_minute }
                    if counts_all_of(theirs, meter) =>
                {
                    let refill = u128::from(*refill_per_minute) * u128::from(ms?.unsigned_abs());
                    u128::from(*capacity) + refill.div_ceil(60_000)
                }
                Rule::Window { meter: theirs, limit, .. } if counts_all_of(theirs, meter) => {
                    let windows = windows_within(&self.limits[index], other)?;
                    u128::from(*limit) * u128::from(windows)
                }
                _ => return None,
            };
            Some(Bound { amount, by: other.name.to_string() })
        });
        bounds.min_by_key(|bound| bound.amount)
    }

    /// Credits exist only where models have prices.
    fn lint_credits(&self, index: usize, limit: &Limit, models: &Models) -> Option<LintWarning> {
        let filter = limit.filter.resolved(models);
        let counted = models
            .list()
            .iter()
            .filter(|model| list_matches(&filter.models, Some(&model.id.as_str().to_ascii_lowercase())));
        let prices: Vec<(&str, Prices)> =
            counted.map(|model| (model.id.as_str(), Prices::from(model))).collect();
        let pointer = format!("/limits/{index}/{}", figure(limit));
        if prices.iter().all(|(_, prices)| *prices == Prices::default()) {
            let message = "can never refuse a call: no model that it counts has a price".into();
            return Some(LintWarning { pointer, message });
        }
        let most = limit.rule.most_at_once();
        let input = self.per_call.max_input_tokens.unwrap_or(0);
        let output = self.per_call.max_output_tokens.unwrap_or(0);
        let too_dear = prices
            .iter()
            .map(|(id, prices)| (prices.credits(input, output, 0, 0), id))
            .filter(|(cost, _)| *cost > most && most > 0 && limit.enforce == Enforce::Hard)
            .max()?;
        let (cost, id) = too_dear;
        let message = format!("can never admit the largest call of per_call on {id}, which costs {cost}");
        Some(LintWarning { pointer, message })
    }
}

impl Pool {
    /// Globs that match no known model.
    pub fn lint(&self, models: &Models) -> Vec<LintWarning> {
        let mut warnings = lint_globs("/models", &self.models, models);
        for (index, limit) in self.limits.iter().enumerate() {
            let pointer = format!("/limits/{index}/models");
            warnings.extend(lint_globs(&pointer, &limit.limit.filter.models, models));
        }
        warnings
    }
}

struct Bound {
    amount: u128,
    /// The limit that makes it.
    by: String,
}

/// Whether a limit on `theirs` counts at least as much of every call as one on
/// `ours`.
fn counts_all_of(theirs: &Meter, ours: &Meter) -> bool {
    theirs == ours
        || (*theirs == Meter::TotalTokens && matches!(ours, Meter::InputTokens | Meter::OutputTokens))
}

/// Whether `other`, a limit of 0, refuses whatever `limit` counts anything of.
fn stops(other: &Limit, limit: &Limit) -> bool {
    let is_every_call = matches!(other.rule.meter(), None | Some(Meter::Requests));
    let is_of_ours = other.rule.meter().zip(limit.rule.meter());
    other.rule.most_at_once() == 0
        && (is_every_call || is_of_ours.is_some_and(|(theirs, ours)| counts_all_of(theirs, ours)))
}

/// Whether nothing of this meter is ever held, so that refill never waits.
fn is_used_up_at_once(meter: &Meter) -> bool {
    matches!(meter, Meter::Requests | Meter::Custom(_))
}

/// Whether a bucket lasts through all that windows let through: two of them in
/// a row, and then one for each that has gone by.
fn never_empties(limit: u64, period: Period, capacity: u64, refill_per_minute: u64) -> bool {
    let Some(shortest) = shortest_ms(period) else { return false };
    let refilled = u128::from(refill_per_minute) * u128::from(shortest.unsigned_abs());
    limit.saturating_mul(2) <= capacity && u128::from(limit) * 60_000 <= refilled
}

/// The field that holds the limit's first number.
fn figure(limit: &Limit) -> &'static str {
    match limit.rule {
        Rule::Bucket { .. } => "capacity",
        _ => "limit",
    }
}

fn lint_globs(pointer: &str, globs: &[String], models: &Models) -> Vec<LintWarning> {
    let warnings = globs.iter().enumerate().filter_map(|(place, glob)| {
        let message = lint_glob(glob, models)?;
        Some(LintWarning { pointer: format!("{pointer}/{place}"), message })
    });
    warnings.collect()
}

fn lint_glob(glob: &str, models: &Models) -> Option<String> {
    let matches = |name: &Name| glob_matches(glob, &name.as_str().to_ascii_lowercase());
    let known = match has_wildcard(glob) {
        true => is_anything(glob) || models.list().iter().any(|model| matches(&model.id)),
        false => models.resolve(glob).is_some(),
    };
    if known {
        return None;
    }
    let alias_of = models.list().iter().find(|model| model.aliases.iter().any(matches));
    Some(match alias_of {
        Some(model) => format!("{glob} matches an alias, but globs are compared with ids: see {}", model.id),
        None => format!("{glob} matches no known model"),
    })
}

/// The longest that a window of that period can be; `None`: for ever.
fn longest_ms(period: Period) -> Option<i64> {
    match period {
        Period::Day => Some(DAY_MS + HOUR_MS),
        Period::Week => Some(7 * DAY_MS + HOUR_MS),
        Period::Month => Some(31 * DAY_MS + HOUR_MS),
        _ => period.fixed_len_ms(),
    }
}

/// The shortest that a window of that period can be; `None`: it never ends.
fn shortest_ms(period: Period) -> Option<i64> {
    if period.is_calendar() { Some(period.min_len_ms()) } else { period.fixed_len_ms() }
}

/// How many windows of `theirs` one window of `ours` can touch; `None`: no
/// bound is known.
fn windows_within(ours: &Limit, theirs: &Limit) -> Option<u64> {
    let (
        Rule::Window { period: our_period, zone: our_zone, anchor: our_anchor, .. },
        Rule::Window { period, zone, anchor, .. },
    ) = (&ours.rule, &theirs.rule)
    else {
        return None;
    };
    // Without a zone of their own, users have theirs and others the tenant's.
    let same_zone = our_zone == zone && (zone.is_some() || ours.scope == theirs.scope);
    match (our_period, period) {
        (_, Period::Lifetime) => Some(1),
        (Period::Day, Period::Day | Period::Week | Period::Month) if same_zone => Some(1),
        (Period::Week, Period::Day) if same_zone => Some(7),
        (Period::Week, Period::Week) if same_zone => Some(1),
        (Period::Month, Period::Day) if same_zone => Some(31),
        (Period::Month, Period::Month) if same_zone && our_anchor == anchor => Some(1),
        _ => {
            // One may have begun before, one may end after.
            let touched = (longest_ms(*our_period)? - 1) / shortest_ms(*period)? + 2;
            u64::try_from(touched).ok()
        }
    }
}
