//! Borders of calendar windows at hand, so that a check computes none.

use std::cell::RefCell;
use std::sync::Arc;

use crate::domain::time::{Borders, Millis, Period, Zone};

/// Places of a thread's table. Each holds the borders of one zone, period and
/// anchor day; two that fall on one place take turns.
const PLACES: usize = 1_024;

struct Entry {
    zone: Arc<Zone>,
    period: Period,
    anchor_day: u8,
    borders: Borders,
}

thread_local! {
    /// A table per thread: no lock, no waiting, and bounded.
    static TABLE: RefCell<Vec<Option<Entry>>> = const { RefCell::new(Vec::new()) };
}

/// Calendar windows of every zone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Calendar;

impl Calendar {
    /// The borders around `now` of a `Day`, `Week` or `Month` in `zone`; see
    /// [`Zone::borders`]. Computed once per window and thread.
    pub fn borders(self, zone: &Arc<Zone>, period: Period, anchor_day: u8, now: Millis) -> Borders {
        TABLE.with_borrow_mut(|table| {
            if table.is_empty() {
                table.resize_with(PLACES, || None);
            }
            let place = &mut table[place_of(zone, period, anchor_day)];
            if let Some(entry) = place
                && (Arc::ptr_eq(&entry.zone, zone) || entry.zone == *zone)
                && (entry.period, entry.anchor_day) == (period, anchor_day)
                && (entry.borders.start..entry.borders.end).contains(&now)
            {
                return entry.borders;
            }
            let borders = zone.borders(period, anchor_day, now);
            *place = Some(Entry { zone: zone.clone(), period, anchor_day, borders });
            borders
        })
    }
}

fn place_of(zone: &Zone, period: Period, anchor_day: u8) -> usize {
    let period = match period {
        Period::Day => 0,
        Period::Week => 1,
        _ => 2,
    };
    // FNV-1a: names are short, and nobody gains by making two collide.
    let bytes = zone.name().bytes().chain([period, anchor_day]);
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ hash >> 16) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_as_the_zone_does_before_at_and_after_a_border() {
        for name in ["UTC", "Asia/Tokyo", "Africa/Cairo", "America/Havana"] {
            let zone = Zone::parse(name).unwrap();
            for period in [Period::Day, Period::Week, Period::Month] {
                let mut now = Millis::parse("2026-04-20T12:34:56Z").unwrap();
                for _ in 0..40 {
                    let expected = zone.borders(period, 31, now);
                    assert_eq!(Calendar.borders(&zone, period, 31, now), expected);
                    assert_eq!(Calendar.borders(&zone, period, 31, now), expected);
                    for at in [expected.start, Millis(expected.end.0 - 1), expected.end] {
                        assert_eq!(Calendar.borders(&zone, period, 31, at), zone.borders(period, 31, at));
                    }
                    now = expected.end;
                }
            }
        }
    }
}
