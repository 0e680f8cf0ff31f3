//! `from` and `to` of a query: since when, and until when.
//!
//! Either is an instant or a date in the tenant's zone, and means the first
//! instant of that date. Together they are half-open: `to` is not in it.

use std::ops::Range;

use super::query::Parameters;
use crate::domain::time::{Millis, Zone, parse_date};

/// Before every day and after every day that can be written.
const DAYS: Range<i32> = 0..2_932_897;

/// What a query asks for. An end that was not given is open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    pub from: Option<Border>,
    pub to: Option<Border>,
}

/// One end of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Border {
    pub at: Millis,
    /// Days since 1970-01-01, local. Of `from` the first day that has a part in
    /// the span; of `to` the day after the last one that has.
    pub day: i32,
}

impl Span {
    /// Reads `from` and `to`. A fault: neither an instant nor a date, or
    /// `from` after `to`.
    pub fn read(parameters: &mut Parameters<'_>, zone: &Zone) -> Self {
        let from = parameters.optional("from", |text| border(text, zone, |at| zone.local_day(at)));
        let last = |at: Millis| zone.local_day(at.plus_ms(-1)) + 1;
        let to = parameters.optional("to", |text| border(text, zone, last));
        if let (Some(from), Some(to)) = (from, to)
            && from.at > to.at
        {
            parameters.fault::<()>("to", "must not be before from");
        }
        Self { from, to }
    }

    /// The instants of the span.
    pub fn instants(&self) -> Range<Millis> {
        let from = self.from.map_or(Millis(0), |from| from.at);
        from..self.to.map_or(Millis::MAX, |to| to.at)
    }

    /// The local days that have a part in the span.
    pub fn days(&self) -> Range<i32> {
        let from = self.from.map_or(DAYS.start, |from| from.day);
        from..self.to.map_or(DAYS.end, |to| to.day)
    }

    /// As [`days`](Self::days), but the last `most` of them that are not in the
    /// future; `today` is the tenant's.
    pub fn last_days(&self, today: i32, most: i32) -> Range<i32> {
        let days = self.days();
        let end = days.end.min(today + 1);
        days.start.max(end - most).min(end)..end
    }
}

/// The instant that one end of a span names.
pub fn border_at(text: &str, zone: &Zone) -> Result<Millis, &'static str> {
    border(text, zone, |_| 0).map(|border| border.at)
}

fn border(text: &str, zone: &Zone, day: impl FnOnce(Millis) -> i32) -> Result<Border, &'static str> {
    if let Ok(day) = parse_date(text) {
        return Ok(Border { at: zone.start_of_day(day).plus_ms(0), day });
    }
    let fault = "must be a date such as 2026-11-30 or a time such as 2026-11-30T14:59:59.999Z";
    let at = Millis::parse(text).map_err(|_| fault)?;
    Ok(Border { at, day: day(at) })
}

#[cfg(test)]
mod tests {
    use super::super::query::Query;
    use super::*;

    fn read(query: &str, zone: &str) -> Result<Span, Vec<String>> {
        let zone = Zone::parse(zone).unwrap();
        let span = Query(query).read(|parameters| Some(Span::read(parameters, &zone)));
        span.map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }

    fn at(text: &str) -> Millis {
        Millis::parse(text).unwrap()
    }

    #[test]
    fn dates_begin_at_local_midnight_and_instants_are_what_they_are() {
        let span = read("from=2026-11-30&to=2026-12-01", "Asia/Tokyo").unwrap();
        assert_eq!(span.instants(), at("2026-11-29T15:00:00Z")..at("2026-11-30T15:00:00Z"));
        assert_eq!(span.days(), 20_787..20_788);
        let same = read("from=2026-11-29T15:00:00Z&to=2026-12-01T00:00:00%2B09:00", "Asia/Tokyo").unwrap();
        assert_eq!((same.instants(), same.days()), (span.instants(), span.days()));
        // A part of a day is in it.
        let part = read("from=2026-11-29T14:59:59.999Z&to=2026-11-30T15:00:00.001Z", "Asia/Tokyo").unwrap();
        assert_eq!(part.days(), 20_786..20_789);
    }

    #[test]
    fn ends_that_are_not_given_are_open_and_nothing_is_a_span_too() {
        let open = read("", "UTC").unwrap();
        assert_eq!(open.instants(), Millis(0)..Millis::MAX);
        assert!(open.days().contains(&0) && open.days().contains(&20_788));
        let none = read("from=2026-11-30&to=2026-11-30", "UTC").unwrap();
        assert!(none.instants().is_empty() && none.days().is_empty());
    }

    #[test]
    fn a_date_that_a_zone_left_out_is_empty() {
        // Samoa went from 2011-12-29 to 2011-12-31.
        let span = read("from=2011-12-30&to=2011-12-31", "Pacific/Apia").unwrap();
        assert!(span.instants().is_empty());
        let before = read("from=2011-12-29&to=2011-12-31", "Pacific/Apia").unwrap();
        assert_eq!(before.instants().end.0 - before.instants().start.0, 86_400_000);
    }

    #[test]
    fn what_is_no_time_or_goes_backwards_is_told() {
        let wrong = "must be a date such as 2026-11-30 or a time such as 2026-11-30T14:59:59.999Z";
        for bad in ["", "yesterday", "2026-11-31", "20261130", "1764460800", "2026-11-30T00:00:00"] {
            let faults = read(&format!("from={bad}&to={bad}"), "UTC").unwrap_err();
            assert_eq!(faults, [format!("/from: {wrong}"), format!("/to: {wrong}")], "{bad}");
        }
        let faults = read("from=2026-12-01&to=2026-11-30", "UTC").unwrap_err();
        assert_eq!(faults, ["/to: must not be before from"]);
    }

    #[test]
    fn the_last_days_end_today() {
        let days = |query: &str| read(query, "UTC").unwrap().last_days(20_787, 31);
        assert_eq!(days(""), 20_757..20_788);
        assert_eq!(days("from=2026-11-29"), 20_786..20_788);
        assert_eq!(days("to=2026-11-30"), 20_756..20_787);
        assert!(days("from=2027-01-01").is_empty());
        assert_eq!(days("from=2026-01-01&to=2026-03-01"), 20_482..20_513);
    }
}
