//! Instants and how they are written.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An instant: milliseconds since 1970-01-01T00:00:00Z.
///
/// Shown, and in JSON, as RFC 3339 in UTC with milliseconds:
/// `2026-11-30T14:59:59.999Z`. In binary records it is the number.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub i64);

const SECOND_MS: i64 = 1000;
const MINUTE_MS: i64 = 60 * SECOND_MS;
const HOUR_MS: i64 = 60 * MINUTE_MS;
/// A day of UTC; local days may be shorter or longer.
pub const DAY_MS: i64 = 24 * HOUR_MS;

/// 0001-01-01, the earliest day that can be shown with four digits.
const FIRST_SHOWN: i64 = -719_162 * DAY_MS;

impl Millis {
    /// The last instant that can be written: 9999-12-31T23:59:59.999Z.
    pub const MAX: Millis = Millis(2_932_897 * DAY_MS - 1);

    /// No id of a hold begins with a later instant.
    pub const OF_LAST_ID: Millis = Millis((1 << 48) - 1);

    /// Parses any RFC 3339 instant of the years 1970 to 9999; digits beyond
    /// milliseconds are cut off.
    pub fn parse(text: &str) -> Result<Self, String> {
        let ms = parse(text.as_bytes()).ok_or("must be an RFC 3339 time such as 2026-11-30T14:59:59.999Z")?;
        if (0..=Self::MAX.0).contains(&ms) {
            return Ok(Self(ms));
        }
        Err("must lie in the years 1970 to 9999".into())
    }

    /// `ms` later (or earlier), staying within 1970 and [`MAX`](Self::MAX).
    pub fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms).clamp(0, Self::MAX.0))
    }

    /// The text that is shown, without allocating; always ASCII.
    pub fn rfc3339(self) -> [u8; 24] {
        let at = self.0.clamp(FIRST_SHOWN, Self::MAX.0);
        let (day, ms) = (at.div_euclid(DAY_MS), at.rem_euclid(DAY_MS) as u32);
        let (year, month, day) = civil_from_days(day);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        two_digits(&mut text, 0, year as u32 / 100);
        two_digits(&mut text, 2, year as u32 % 100);
        two_digits(&mut text, 5, month);
        two_digits(&mut text, 8, day);
        two_digits(&mut text, 11, ms / 3_600_000);
        two_digits(&mut text, 14, ms / 60_000 % 60);
        two_digits(&mut text, 17, ms / 1000 % 60);
        text[20] += (ms / 100 % 10) as u8;
        two_digits(&mut text, 21, ms % 100);
        text
    }
}

fn two_digits(text: &mut [u8; 24], at: usize, value: u32) {
    text[at] = b'0' + (value / 10) as u8;
    text[at + 1] = b'0' + (value % 10) as u8;
}

/// Days since 1970-01-01 to year, month (1..) and day (1..), Gregorian.
///
/// Years are counted from 1 March, so that the leap day is the last of its
/// year and the lengths of the months before it repeat every five months.
pub(super) fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468; // since 0000-03-01
    let cycle = days.div_euclid(146_097); // of 400 years
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // 0 is March
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let year = cycle * 400 + year + month / 10;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year, month as u32, day_of_month as u32)
}

/// The way back: days since 1970-01-01 of a Gregorian date.
pub(super) fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let cycle = year.div_euclid(400);
    let year = year.rem_euclid(400);
    let day_of_year = (153 * i64::from(month) + 2) / 5 + i64::from(day) - 1;
    cycle * 146_097 + 365 * year + year / 4 - year / 100 + day_of_year - 719_468
}

/// Months since January 1970 of a day since 1970-01-01.
pub fn month_of_day(day: i32) -> i32 {
    let (year, month, _) = civil_from_days(day.into());
    ((year - 1970) * 12) as i32 + month as i32 - 1
}

/// The way back: the first day of a month, as far as days go.
pub fn first_day_of_month(month: i32) -> i32 {
    let (year, month) = (1970 + i64::from(month.div_euclid(12)), month.rem_euclid(12));
    days_from_civil(year, month as u32 + 1, 1).clamp(i32::MIN.into(), i32::MAX.into()) as i32
}

/// Pentads of a month: five days each, the last one from the 26th to the month's end.
pub const PENTADS_OF_MONTH: i32 = 6;

/// Pentads since January 1970 of a day since 1970-01-01.
pub fn pentad_of_day(day: i32) -> i32 {
    let month = month_of_day(day);
    let pentad = (day - first_day_of_month(month)) / 5;
    month * PENTADS_OF_MONTH + pentad.min(PENTADS_OF_MONTH - 1)
}

/// The way back: the first day of a pentad, as far as days go.
pub fn first_day_of_pentad(pentad: i32) -> i32 {
    let month = first_day_of_month(pentad.div_euclid(PENTADS_OF_MONTH));
    month.saturating_add(5 * pentad.rem_euclid(PENTADS_OF_MONTH))
}

pub(super) fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 of a date `2026-11-30`.
pub fn parse_date(text: &str) -> Result<i32, String> {
    let bytes = text.as_bytes();
    let day = if bytes.len() == 10 { date(bytes) } else { None };
    match day {
        Some(day @ 0..) if day <= Millis::MAX.0 / DAY_MS => Ok(day as i32),
        Some(_) => Err("must lie in the years 1970 to 9999".into()),
        None => Err("must be a date such as 2026-11-30".into()),
    }
}

fn parse(text: &[u8]) -> Option<i64> {
    let day = date(text)?;
    let time = text.get(10..19)?;
    let separated = matches!(time[0], b'T' | b't') && time[3] == b':' && time[6] == b':';
    let (hour, minute, second) = (digits(&time[1..3])?, digits(&time[4..6])?, digits(&time[7..9])?);
    if !separated || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let (fraction_ms, zone) = fraction(&text[19..])?;
    let ms = hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS + fraction_ms;
    Some(day * DAY_MS + ms - offset(zone)?)
}

fn date(text: &[u8]) -> Option<i64> {
    let text = text.get(..10)?;
    if text[4] != b'-' || text[7] != b'-' {
        return None;
    }
    let (year, month, day) = (digits(&text[..4])?, digits(&text[5..7])?, digits(&text[8..10])?);
    let (month, day) = (month as u32, day as u32);
    let exists = (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
    exists.then(|| days_from_civil(year, month, day))
}

/// Milliseconds of a fraction `.123456`, if there is one, and what follows.
fn fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    let Some(text) = text.strip_prefix(b".") else {
        return Some((0, text));
    };
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (figures, zone) = text.split_at(length);
    let value = |index: usize| figures.get(index).map_or(0, |byte| i64::from(byte - b'0'));
    (length > 0).then(|| (value(0) * 100 + value(1) * 10 + value(2), zone))
}

/// Milliseconds east of UTC.
fn offset(zone: &[u8]) -> Option<i64> {
    if matches!(zone, b"Z" | b"z") {
        return Some(0);
    }
    let [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] = zone else {
        return None;
    };
    let (hours, minutes) = (digits(&[*h1, *h2])?, digits(&[*m1, *m2])?);
    let ms = hours * HOUR_MS + minutes * MINUTE_MS;
    let valid = hours < 24 && minutes < 60;
    valid.then_some(if *sign == b'-' { -ms } else { ms })
}

fn digits(text: &[u8]) -> Option<i64> {
    let digit = |value: i64, byte: &u8| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0'));
    text.iter().try_fold(0, digit)
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.rfc3339()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_i64(self.0);
        }
        let text = self.rfc3339();
        serializer.serialize_str(std::str::from_utf8(&text).map_err(serde::ser::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return i64::deserialize(deserializer).map(Self);
        }
        deserializer.deserialize_str(Text)
    }
}

/// Reads an instant from a text.
struct Text;

impl de::Visitor<'_> for Text {
    type Value = Millis;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an RFC 3339 time")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Millis, E> {
        Millis::parse(text).map_err(E::custom)
    }
}
