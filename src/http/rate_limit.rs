//! `RateLimit-Policy` and `RateLimit` in the syntax of IETF draft -11: RFC 9651
//! lists of quoted names with parameters, one item per limit of user scope.
//!
//! `w` is left out where a window has no constant length (calendar windows)
//! or no length at all (slots). The draft knows no unit for tokens or credits,
//! so the meter goes into our own parameter `quota-unit`.

use actix_web::http::header::{HeaderName, HeaderValue};

use super::reply::Headers;
use crate::domain::cell::Standing;
use crate::domain::decision::LimitRow;
use crate::domain::plan::Scope;
use crate::domain::time::Millis;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STANDING: HeaderName = HeaderName::from_static("ratelimit");

/// RFC 9651 integers have at most 15 digits.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Adds both fields for the rows of user scope, if there are any.
pub fn push_headers(headers: &mut Headers, rows: &[LimitRow], now: Millis) {
    let mut policy = Vec::with_capacity(256);
    let mut standing = Vec::with_capacity(192);
    for row in rows.iter().filter(|row| row.scope == Scope::User) {
        if !policy.is_empty() {
            policy.extend_from_slice(b", ");
            standing.extend_from_slice(b", ");
        }
        write_policy(&mut policy, row);
        write_standing(&mut standing, row, now);
    }
    if policy.is_empty() {
        return;
    }
    for (name, field) in [(POLICY, policy), (STANDING, standing)] {
        // Names of limits and meters are [a-z0-9_]: always a valid value.
        if let Ok(value) = HeaderValue::from_maybe_shared(actix_web::web::Bytes::from(field)) {
            headers.push((name, value));
        }
    }
}

fn write_policy(field: &mut Vec<u8>, row: &LimitRow) {
    write_name(field, row);
    let (quota, seconds) = match row.standing {
        Standing::Bucket { capacity, refill_per_minute, .. } => {
            (capacity, bucket_seconds(capacity, refill_per_minute))
        }
        Standing::Window { limit, granted, .. } => {
            (limit.saturating_add(granted), row.window_seconds.map(u64::from))
        }
        Standing::Slots { limit, .. } => (limit, None),
    };
    write_parameter(field, b";q=", quota);
    if let Some(seconds) = seconds {
        write_parameter(field, b";w=", seconds);
    }
    match &row.meter {
        Some(meter) => {
            field.extend_from_slice(b";quota-unit=\"");
            field.extend_from_slice(meter.as_str().as_bytes());
            field.push(b'"');
        }
        None => field.extend_from_slice(b";qu=\"concurrent-requests\""),
    }
}

fn write_standing(field: &mut Vec<u8>, row: &LimitRow, now: Millis) {
    write_name(field, row);
    write_parameter(field, b";r=", row.standing.remaining());
    let more_at = match row.standing {
        Standing::Bucket { next_unit_at, .. } => next_unit_at,
        Standing::Window { window, .. } => window.map(|(_, end)| end),
        Standing::Slots { .. } => None,
    };
    if let Some(at) = more_at {
        let wait_ms = u64::try_from(at.0.saturating_sub(now.0)).unwrap_or(0);
        write_parameter(field, b";t=", wait_ms.div_ceil(1000));
    }
}

/// The time in which a bucket gives its capacity anew, in whole seconds.
fn bucket_seconds(capacity: u64, refill_per_minute: u64) -> Option<u64> {
    let seconds = capacity.checked_mul(60)?.checked_div(refill_per_minute)?;
    let exact = seconds * refill_per_minute == capacity * 60;
    Some(if exact { seconds } else { seconds + 1 }.max(1))
}

fn write_name(field: &mut Vec<u8>, row: &LimitRow) {
    field.push(b'"');
    field.extend_from_slice(row.name.as_str().as_bytes());
    field.push(b'"');
}

fn write_parameter(field: &mut Vec<u8>, key: &[u8], value: u64) {
    field.extend_from_slice(key);
    let mut digits = [0u8; 15];
    let mut start = digits.len();
    let mut rest = value.min(MAX_INTEGER);
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    field.extend_from_slice(&digits[start..]);
}
