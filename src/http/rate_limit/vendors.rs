//! How the limits stand in the header fields of a vendor: `x-ratelimit-*` of
//! OpenAI, `anthropic-ratelimit-*`.
//!
//! A vendor tells one figure for requests and one or a few for tokens. Of the
//! user's own hard limits on these, the one with the least left is told. They are
//! made to be handed on, so what users shall not see exactly is left out.

use actix_web::http::header::{HeaderName, HeaderValue};

use crate::domain::cell::Standing;
use crate::domain::decision::LimitRow;
use crate::domain::plan::{Enforce, Meter, Scope, Visibility};
use crate::domain::time::Millis;
use crate::http::reply::Headers;
use crate::service::tenancy::settings::Shape;

/// One of the vendor's figures: which meters it is about, and its three fields.
struct Family {
    counts: fn(&Meter) -> bool,
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

macro_rules! family {
    ($meters:pat, $limit:literal, $remaining:literal, $reset:literal) => {
        Family {
            counts: |meter| matches!(meter, $meters),
            limit: HeaderName::from_static($limit),
            remaining: HeaderName::from_static($remaining),
            reset: HeaderName::from_static($reset),
        }
    };
}

static OPENAI: [Family; 2] = [
    family!(
        Meter::Requests,
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests"
    ),
    family!(
        Meter::TotalTokens | Meter::InputTokens | Meter::OutputTokens,
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens"
    ),
];

static ANTHROPIC: [Family; 4] = [
    family!(
        Meter::Requests,
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset"
    ),
    family!(
        Meter::TotalTokens,
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset"
    ),
    family!(
        Meter::InputTokens,
        "anthropic-ratelimit-input-tokens-limit",
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset"
    ),
    family!(
        Meter::OutputTokens,
        "anthropic-ratelimit-output-tokens-limit",
        "anthropic-ratelimit-output-tokens-remaining",
        "anthropic-ratelimit-output-tokens-reset"
    ),
];

/// Adds the vendor's fields for the rows of user scope.
pub fn push(headers: &mut Headers, rows: &[LimitRow], now: Millis, shape: Shape) {
    let families = match shape {
        Shape::OpenAi => &OPENAI[..],
        Shape::Anthropic => &ANTHROPIC[..],
    };
    for family in families {
        let is_told = |row: &&LimitRow| {
            let counts = row.meter.as_ref().is_some_and(family.counts);
            let is_shown = row.scope == Scope::User && row.visibility == Visibility::Exact;
            counts && is_shown && row.enforce == Enforce::Hard
        };
        let least = rows.iter().filter(is_told).min_by_key(|row| row.standing.remaining());
        let Some(LimitRow { standing, .. }) = least else { continue };
        headers.push((family.limit.clone(), whole(standing).into()));
        headers.push((family.remaining.clone(), standing.remaining().into()));
        let at = whole_at(standing, now).map(|at| at.max(now));
        let reset = at.map(|at| match shape {
            Shape::OpenAi => duration(u64::try_from(at.0.saturating_sub(now.0)).unwrap_or(0)),
            Shape::Anthropic => at.to_string(),
        });
        if let Some(Ok(reset)) = reset.map(HeaderValue::try_from) {
            headers.push((family.reset.clone(), reset));
        }
    }
}

/// What the limit gives when nothing is taken from it.
fn whole(standing: &Standing) -> u64 {
    match standing {
        Standing::Window { limit, granted, .. } => limit.saturating_add(*granted),
        other => other.limit(),
    }
}

/// When the limit is whole again; `None`: never, or nobody knows.
fn whole_at(standing: &Standing, now: Millis) -> Option<Millis> {
    match standing {
        // What is held comes back when the call ends, and nobody knows when that is.
        Standing::Bucket { full_at: Some(at), .. } if *at > now => Some(*at),
        Standing::Window { window: Some((_, end)), .. } => Some(*end),
        untouched => (untouched.remaining() == whole(untouched)).then_some(now),
    }
}

/// As Go writes durations: `974ms`, `1.5s`, `6m0s`, `2h0m0s`.
fn duration(ms: u64) -> String {
    if (1..1000).contains(&ms) {
        return format!("{ms}ms");
    }
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    let mut text = String::new();
    if hours > 0 {
        text += &format!("{hours}h");
    }
    if ms >= 60_000 {
        text += &format!("{minutes}m");
    }
    text += &seconds.to_string();
    if !ms.is_multiple_of(1000) {
        text += format!(".{:03}", ms % 1000).trim_end_matches('0');
    }
    text + "s"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::Label;

    fn row(meter: Meter, standing: Standing) -> LimitRow {
        LimitRow {
            name: Label::parse("a").unwrap(),
            scope: Scope::User,
            meter: Some(meter),
            enforce: Enforce::Hard,
            visibility: Visibility::Exact,
            standing,
            would_refuse: 0,
            zone: None,
            window_seconds: None,
        }
    }

    fn window(limit: u64, remaining: u64, window: Option<(i64, i64)>) -> Standing {
        let window = window.map(|(start, end)| (Millis(start), Millis(end)));
        Standing::Window { limit, granted: 0, used: 0, held: 0, remaining, over_by: 0, window }
    }

    fn told(rows: &[LimitRow], shape: Shape) -> Vec<(String, String)> {
        let mut headers = Headers::new();
        push(&mut headers, rows, Millis(1_000), shape);
        let text =
            |(name, value): (HeaderName, HeaderValue)| (name.to_string(), value.to_str().unwrap().to_owned());
        headers.into_iter().map(text).collect()
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (ms, text) in [
            (0, "0s"),
            (12, "12ms"),
            (1_000, "1s"),
            (1_500, "1.5s"),
            (60_000, "1m0s"),
            (360_000, "6m0s"),
            (7_200_045, "2h0m0.045s"),
        ] {
            assert_eq!(duration(ms), text);
        }
    }

    #[test]
    fn the_limit_with_the_least_left_is_told() {
        let soft = LimitRow { enforce: Enforce::Soft, ..row(Meter::Requests, window(1, 0, None)) };
        let teams = LimitRow { scope: Scope::Org, ..row(Meter::Requests, window(1, 0, None)) };
        let secret = LimitRow { visibility: Visibility::Percent, ..row(Meter::Requests, window(1, 0, None)) };
        let rows = [
            row(Meter::Requests, window(30, 4, Some((0, 3_000)))),
            row(Meter::Requests, window(9, 5, Some((0, 4_000)))),
            row(Meter::OutputTokens, window(50, 7, None)),
            row(Meter::TotalTokens, window(100, 100, None)),
            soft,
            teams,
            secret,
        ];
        let pairs = |told: Vec<(String, String)>| -> Vec<String> {
            told.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
        };
        assert_eq!(
            pairs(told(&rows, Shape::OpenAi)),
            [
                "x-ratelimit-limit-requests: 30",
                "x-ratelimit-remaining-requests: 4",
                "x-ratelimit-reset-requests: 2s",
                "x-ratelimit-limit-tokens: 50",
                "x-ratelimit-remaining-tokens: 7",
            ]
        );
        assert_eq!(
            pairs(told(&rows, Shape::Anthropic)),
            [
                "anthropic-ratelimit-requests-limit: 30",
                "anthropic-ratelimit-requests-remaining: 4",
                "anthropic-ratelimit-requests-reset: 1970-01-01T00:00:03.000Z",
                "anthropic-ratelimit-tokens-limit: 100",
                "anthropic-ratelimit-tokens-remaining: 100",
                "anthropic-ratelimit-tokens-reset: 1970-01-01T00:00:01.000Z",
                "anthropic-ratelimit-output-tokens-limit: 50",
                "anthropic-ratelimit-output-tokens-remaining: 7",
            ]
        );
    }
}
