//! `RateLimit-Policy` and `RateLimit` in the syntax of IETF draft -11: RFC 9651
//! lists of quoted names with parameters, one item per limit of user scope.
//!
//! `w` is left out where a window has no constant length (calendar windows)
//! or no length at all (slots). The draft knows no unit for tokens or credits,
//! so the meter goes into our own parameter `quota-unit`.

mod vendors;

use actix_web::http::header::{HeaderName, HeaderValue};

use super::reply::Headers;
use crate::domain::cell::Standing;
use crate::domain::decision::LimitRow;
use crate::domain::plan::{Scope, Visibility};
use crate::domain::time::Millis;
use crate::service::tenancy::settings::Shape;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STANDING: HeaderName = HeaderName::from_static("ratelimit");

/// RFC 9651 integers have at most 15 digits.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Adds both fields for the rows of user scope, if there are any, and those of
/// the vendor in whose form the caller is answered. Such an answer is handed on to
/// users: it tells nothing of limits that they shall not see exactly.
pub fn push_headers(headers: &mut Headers, rows: &[LimitRow], now: Millis, shape: Option<Shape>) {
    if let Some(shape) = shape {
        vendors::push(headers, rows, now, shape);
    }
    let mut policy = Vec::with_capacity(96 * rows.len());
    let mut standing = Vec::with_capacity(64 * rows.len());
    let is_told = |row: &&LimitRow| {
        row.scope == Scope::User && (shape.is_none() || row.visibility == Visibility::Exact)
    };
    for row in rows.iter().filter(is_told) {
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
        Standing::Rolling { limit, .. } => (limit, row.window_seconds.map(u64::from)),
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
        Standing::Slots { .. } | Standing::Rolling { .. } => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::Label;
    use crate::domain::plan::{Enforce, Meter};

    fn row(name: &str, meter: Option<Meter>, standing: Standing) -> LimitRow {
        LimitRow {
            name: Label::parse(name).unwrap(),
            scope: Scope::User,
            meter,
            enforce: Enforce::Hard,
            standing,
            would_refuse: 0,
            visibility: Visibility::Exact,
            zone: None,
            window_seconds: None,
        }
    }

    fn bucket(capacity: u64, refill_per_minute: u64, remaining: u64, next: Option<i64>) -> LimitRow {
        let standing = Standing::Bucket {
            capacity,
            refill_per_minute,
            remaining,
            held: 0,
            in_debt: false,
            full_at: None,
            next_unit_at: next.map(Millis),
        };
        row("requests_per_minute", Some(Meter::Requests), standing)
    }

    fn window(limit: u64, remaining: u64, window: Option<(i64, i64)>) -> LimitRow {
        let window = window.map(|(start, end)| (Millis(start), Millis(end)));
        let standing =
            Standing::Window { limit, granted: 0, used: 0, held: 0, remaining, over_by: 0, window };
        row("tokens_per_month", Some(Meter::TotalTokens), standing)
    }

    fn fields(rows: &[LimitRow], now: i64) -> Option<(String, String)> {
        let mut headers = Headers::new();
        push_headers(&mut headers, rows, Millis(now), None);
        let text = |name: &HeaderName| {
            let value = headers.iter().find(|(key, _)| key == name).map(|(_, value)| value);
            value.map(|value| value.to_str().unwrap().to_owned())
        };
        text(&POLICY).zip(text(&STANDING))
    }

    #[test]
    fn one_item_per_limit_of_user_scope() {
        let slots = row("concurrency", None, Standing::Slots { limit: 1, in_use: 1, remaining: 0 });
        let tenants = LimitRow { scope: Scope::Tenant, ..window(9, 9, None) };
        let rows =
            [bucket(3, 3, 2, Some(20_000)), window(200_000, 33_288, Some((0, 86_400_001))), slots, tenants];
        let (policy, standing) = fields(&rows, 1).unwrap();
        assert_eq!(
            policy,
            "\"requests_per_minute\";q=3;w=60;quota-unit=\"requests\", \
             \"tokens_per_month\";q=200000;quota-unit=\"total_tokens\", \
             \"concurrency\";q=1;qu=\"concurrent-requests\""
        );
        assert_eq!(
            standing,
            "\"requests_per_minute\";r=2;t=20, \"tokens_per_month\";r=33288;t=86400, \"concurrency\";r=0"
        );
    }

    #[test]
    fn waits_are_rounded_up_and_never_negative() {
        assert!(fields(&[bucket(3, 3, 2, Some(1001))], 1).unwrap().1.ends_with(";t=1"));
        assert!(fields(&[bucket(3, 3, 2, Some(1002))], 1).unwrap().1.ends_with(";t=2"));
        assert!(fields(&[bucket(3, 3, 2, Some(0))], 5).unwrap().1.ends_with(";t=0"));
        assert!(fields(&[bucket(3, 3, 3, None)], 5).unwrap().1.ends_with(";r=3"));
    }

    #[test]
    fn lengths_are_told_where_they_are_constant() {
        let tiled = LimitRow { window_seconds: Some(18_000), ..window(5, 5, None) };
        assert!(fields(&[tiled], 0).unwrap().0.contains(";q=5;w=18000;"));
        assert!(fields(&[bucket(1024, 300, 1, None)], 0).unwrap().0.contains(";w=205;"));
        assert!(!fields(&[bucket(0, 0, 0, None)], 0).unwrap().0.contains(";w="));
    }

    #[test]
    fn integers_keep_to_fifteen_digits() {
        let (policy, standing) = fields(&[window((1 << 53) - 1, (1 << 53) - 1, None)], 0).unwrap();
        assert!(policy.contains(";q=999999999999999;") && standing.ends_with(";r=999999999999999"));
    }

    #[test]
    fn no_limit_of_the_users_own_means_no_header() {
        assert_eq!(fields(&[], 0), None);
    }
}
