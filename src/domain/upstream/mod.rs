//! What a vendor's answer says about the capacity behind it.
//!
//! Every vendor has words of its own for "slower", and two of them use the same
//! status for "wait a moment" and "you have spent your money". Here they become
//! one of few meanings. Reading is lenient: what is missing, negative or no
//! number at all tells nothing, and nothing is a fault.

mod body;
mod moment;

#[cfg(test)]
mod tests;

use self::body::Says;
use self::moment::{MOST_MS, When, read_date, read_when};
use super::charge::MeterCode;
use super::document::Node;
use super::time::{Millis, Period, Zone};

/// A longer wait than this is no wait that a vendor means.
const LONGEST_MS: i64 = 31 * 24 * 3_600_000;
/// How long is waited after a refusal that says "slower" and not for how long.
const UNTOLD_MS: i64 = 5_000;

/// A vendor's answer to a call, as its caller saw it.
#[derive(Debug, Clone, Default)]
pub struct Answer<'a> {
    pub status: u16,
    /// Names in lower case; `None`: the caller did not tell any.
    pub headers: Option<Vec<(String, String)>>,
    pub body: Option<Body<'a>>,
}

#[derive(Debug, Clone)]
pub enum Body<'a> {
    Json(Node<'a>),
    /// No JSON: a proxy's page, say.
    Text(&'a str),
}

/// What an answer means for all calls behind the same capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// Nothing: the vendor took the call, or refused it for its own sake.
    Nothing,
    /// None gets through before this instant.
    Wait { until: Millis, because: Because },
    /// Money is spent: waiting does not help before somebody acts, or the month
    /// turns.
    Spent { why: String },
}

/// Why there is a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// Calls come faster than the vendor lets them.
    Rate,
    /// The day's allowance is used up.
    Day,
    /// The vendor has no capacity, whoever calls.
    Overload,
}

/// What is left by the vendor's own count, of one thing that it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub meter: MeterCode,
    pub limit: Option<u64>,
    /// The most that may be left: figures that are rounded to thousands may
    /// have been rounded down.
    pub remaining: u64,
}

/// One thing that a vendor counts, as far as its headers tell of it.
#[derive(Debug, Default)]
struct Axis {
    name: String,
    /// Its vendor says how long to wait wherever waiting helps, and rounds tokens.
    is_anthropics: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    reset: Option<When>,
    is_rejected: bool,
}

impl Answer<'_> {
    /// Whether the vendor turned the call away for want of capacity.
    pub fn is_rejection(&self) -> bool {
        matches!(self.status, 429 | 529)
    }

    /// What the answer means at `now`. Dates are compared with the answer's own
    /// `date`, where it has one: clocks differ.
    pub fn meaning(&self, now: Millis) -> Meaning {
        match self.status {
            429 => self.refusal(now),
            402 => Meaning::Spent { why: "payment required".into() },
            503 | 529 => match self.told_wait(now) {
                Some(until) => Meaning::Wait { until, because: Because::Overload },
                None => Meaning::Nothing,
            },
            400 | 403 => match self.says() {
                Says::Spent(why) => Meaning::Spent { why },
                _ => Meaning::Nothing,
            },
            _ => Meaning::Nothing,
        }
    }

    fn refusal(&self, now: Millis) -> Meaning {
        let says = self.says();
        let rate = |until| Meaning::Wait { until, because: Because::Rate };
        match &says {
            Says::Spent(why) => return Meaning::Spent { why: why.clone() },
            // The delay told beside it is no hint: it may be seconds.
            Says::DayIsSpent => {
                return Meaning::Wait { until: next_day_of_vendor(now), because: Because::Day };
            }
            Says::Wait(_) | Says::TooFast(_) | Says::Nothing => {}
        }
        if let Some(until) = self.told_wait(now) {
            return rate(until);
        }
        if let Says::Wait(ms) = says {
            return rate(bounded(now.plus_ms(ms), now));
        }
        let named = match &says {
            Says::TooFast(axis) => axis.as_deref(),
            _ => None,
        };
        if let Some(until) = self.reset(named, now) {
            return rate(until);
        }
        match says {
            Says::TooFast(_) => rate(now.plus_ms(UNTOLD_MS)),
            // A refusal that will pass says when; one of which the headers are
            // known and do not say it will not.
            _ if self.headers.is_some() && !self.names_a_wait() => {
                Meaning::Spent { why: "a 429 that names no wait".into() }
            }
            _ => rate(now.plus_ms(UNTOLD_MS)),
        }
    }

    /// What is left by the vendor's count, of what a pool may count, too.
    pub fn left(&self) -> Vec<Left> {
        let of = |axis: &Axis| {
            let meter = match axis.name.as_str() {
                "requests" => MeterCode::REQUESTS,
                // There it is whichever is nearest to its end, and no sum.
                "tokens" if !axis.is_anthropics => MeterCode::TOTAL,
                "input-tokens" => MeterCode::INPUT,
                "output-tokens" => MeterCode::OUTPUT,
                _ => return None,
            };
            let remaining = axis.remaining?;
            let may_be_rounded = axis.is_anthropics
                && axis.name.ends_with("tokens")
                && remaining % 1000 == 0
                && axis.limit.is_none_or(|limit| limit >= 2000);
            let remaining = if may_be_rounded { remaining + 500 } else { remaining };
            Some(Left { meter, limit: axis.limit, remaining })
        };
        self.axes().iter().filter_map(of).collect()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let headers = self.headers.as_deref().unwrap_or_default();
        headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.trim())
    }

    fn says(&self) -> Says {
        match &self.body {
            Some(Body::Json(node)) => body::of_json(node),
            Some(Body::Text(text)) => body::of_text(text),
            None => Says::Nothing,
        }
    }

    /// `retry-after-ms`, else `retry-after`.
    fn told_wait(&self, now: Millis) -> Option<Millis> {
        let ms = self.header("retry-after-ms").and_then(|value| value.parse::<f64>().ok());
        if let Some(ms) = ms.filter(|ms| (0.0..MOST_MS).contains(ms)) {
            return Some(bounded(now.plus_ms(ms.ceil() as i64), now));
        }
        Some(self.at(read_when(self.header("retry-after")?)?, now))
    }

    /// Whether there is such a header, readable or not.
    fn names_a_wait(&self) -> bool {
        self.header("retry-after").is_some() || self.header("retry-after-ms").is_some()
    }

    /// When what is used up is there again by the headers: of what they say is
    /// used up, else of what the body names, else of what they say nothing more
    /// of, else of what is nearest to being used up, where the vendor is one of
    /// whom more cannot be expected.
    fn reset(&self, named: Option<&str>, now: Millis) -> Option<Millis> {
        let axes = self.axes();
        let resets: Vec<(&Axis, Millis)> =
            axes.iter().filter_map(|axis| Some((axis, self.at(axis.reset?, now)))).collect();
        let latest = |which: &dyn Fn(&Axis) -> bool| {
            resets.iter().filter(|(axis, _)| which(axis)).map(|(_, at)| *at).max()
        };
        let share = |axis: &Axis| match (axis.remaining, axis.limit) {
            (Some(left), Some(limit)) if limit > 0 => u128::from(left) * 1_000_000 / u128::from(limit),
            (Some(left), _) => u128::from(left),
            _ => u128::MAX,
        };
        latest(&|axis| axis.is_rejected || axis.remaining == Some(0))
            .or_else(|| latest(&|axis| named.is_some_and(|named| axis.name == named)))
            .or_else(|| latest(&|axis| axis.remaining.is_none()))
            .or_else(|| {
                let vague = resets.iter().filter(|(axis, _)| !axis.is_anthropics);
                vague.min_by_key(|(axis, _)| share(axis)).map(|(_, at)| *at)
            })
    }

    fn at(&self, when: When, now: Millis) -> Millis {
        let at = match when {
            When::After(ms) => now.plus_ms(ms),
            When::At(at) => match self.header("date").and_then(read_date) {
                Some(then) => now.plus_ms(at.0.saturating_sub(then.0).max(0)),
                None => at,
            },
        };
        bounded(at, now)
    }

    fn axes(&self) -> Vec<Axis> {
        let mut axes: Vec<Axis> = Vec::new();
        for (header, value) in self.headers.as_deref().unwrap_or_default() {
            let Some((name, part, is_anthropics)) = parts(header) else { continue };
            let index = axes.iter().position(|axis| axis.name == name).unwrap_or_else(|| {
                axes.push(Axis { name: name.into(), is_anthropics, ..Axis::default() });
                axes.len() - 1
            });
            let (axis, value) = (&mut axes[index], value.trim());
            match part {
                "limit" => axis.limit = number(value),
                "remaining" => axis.remaining = number(value),
                "reset" => axis.reset = read_when(value),
                _ => axis.is_rejected = value == "rejected",
            }
        }
        axes
    }
}

/// What a header tells of: the axis, which part, and whether the vendor is
/// Anthropic.
fn parts(header: &str) -> Option<(&str, &str, bool)> {
    if let Some(rest) = header.strip_prefix("anthropic-ratelimit-") {
        let (name, part) = rest.rsplit_once('-')?;
        let is_known = matches!(part, "limit" | "remaining" | "reset" | "status");
        return is_known.then_some((name, part, true));
    }
    let rest = header.strip_prefix("x-ratelimit-")?;
    let (part, name) = rest.split_once('-').unwrap_or((rest, ""));
    matches!(part, "limit" | "remaining" | "reset").then_some((name, part, false))
}

/// A count; some vendors send -1 for "not told".
fn number(text: &str) -> Option<u64> {
    let value: f64 = text.parse().ok()?;
    (0.0..9e15).contains(&value).then_some(value as u64)
}

fn bounded(at: Millis, now: Millis) -> Millis {
    at.clamp(now, now.plus_ms(LONGEST_MS))
}

/// When the day turns where the vendor that counts by days counts them.
fn next_day_of_vendor(now: Millis) -> Millis {
    match Zone::parse("America/Los_Angeles") {
        Ok(zone) => zone.borders(Period::Day, 1, now).end,
        Err(_) => now.plus_ms(24 * 3_600_000),
    }
}
