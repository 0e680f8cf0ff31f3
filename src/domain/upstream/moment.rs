//! Waits and instants as vendors write them.

use crate::domain::time::Millis;

/// A bare number from here on is seconds since 1970, and no wait.
const EPOCH_SECONDS: f64 = 1e9;
const EPOCH_MS: f64 = 1e12;
/// Beyond this a wait is no wait.
pub const MOST_MS: f64 = 1e14;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Milliseconds, rounded up: earlier would be too early.
    After(i64),
    At(Millis),
}

/// Reads seconds (`1`, `0.5`), a duration (`974ms`, `6m0s`), seconds or
/// milliseconds since 1970, RFC 3339, or a date of HTTP. `None`: it tells
/// nothing; -1 is such.
pub fn read_when(text: &str) -> Option<When> {
    let text = text.trim().trim_matches('"');
    if let Ok(number) = text.parse::<f64>() {
        return of_number(number);
    }
    if let Some(ms) = read_duration(text) {
        return Some(When::After(ms));
    }
    Millis::parse(text).ok().or_else(|| read_date(text)).map(When::At)
}

fn of_number(number: f64) -> Option<When> {
    match number {
        // The bounds leave out what is no number, too.
        _ if !(0.0..MOST_MS).contains(&number) => None,
        _ if number >= EPOCH_MS => Some(When::At(Millis(number as i64))),
        _ if number >= EPOCH_SECONDS => Some(When::At(Millis((number * 1000.0) as i64))),
        _ => Some(When::After((number * 1000.0).ceil() as i64)),
    }
}

/// Milliseconds of a duration such as `1h2m3.5s`, `974ms` or `38.2s`.
pub fn read_duration(text: &str) -> Option<i64> {
    let mut rest = text;
    let mut ms = 0.0;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (digits, from_unit) = rest.split_at(unit_at);
        let end = from_unit.find(|c: char| c.is_ascii_digit()).unwrap_or(from_unit.len());
        let (unit, next) = from_unit.split_at(end);
        let scale = match unit {
            "ns" => 1e-6,
            "us" | "µs" | "μs" => 1e-3,
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 6e4,
            "h" => 3.6e6,
            "d" => 8.64e7,
            _ => return None,
        };
        ms += digits.parse::<f64>().ok()? * scale;
        rest = next;
    }
    (!text.is_empty() && ms < MOST_MS).then_some(ms.ceil() as i64)
}

/// A date as HTTP writes it, in any of the three forms that it has had:
/// `Tue, 10 Mar 2026 12:00:30 GMT`; also with another zone, as mail has it.
pub fn read_date(text: &str) -> Option<Millis> {
    if let Ok(time) = httpdate::parse_http_date(text) {
        let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
        return i64::try_from(since.as_millis()).ok().map(Millis);
    }
    let zoned = jiff::fmt::rfc2822::parse(text).ok()?;
    Some(Millis(zoned.timestamp().as_millisecond()))
}
