//! The model's own calendar against the table of hard instants.

use super::oracle::calendar::{Calendar, instant};
use crate::harness::vectors::VECTORS;

#[test]
fn the_model_finds_every_window_of_the_table() {
    for v in &VECTORS {
        let now = instant(v.now);
        for (calendar, [start, end]) in [
            (Calendar::Day, v.day),
            (Calendar::Month(1), v.month),
            (Calendar::Month(v.anchor_day), v.anchored),
        ] {
            assert_eq!(
                calendar.window(v.zone, now),
                (instant(start), instant(end)),
                "{} {calendar:?} in {}",
                v.id,
                v.zone
            );
        }
    }
}

#[test]
fn the_models_windows_touch_without_gap_in_a_year_of_changes() {
    for zone in ["Africa/Cairo", "America/Havana", "Australia/Lord_Howe", "Pacific/Apia", "America/St_Johns"]
    {
        for calendar in [Calendar::Day, Calendar::Week, Calendar::Month(31)] {
            let mut at = instant("2026-01-01T00:00:00Z");
            let stop = instant("2027-01-01T00:00:00Z");
            while at < stop {
                let (start, end) = calendar.window(zone, at);
                assert!(start <= at && at < end);
                assert_eq!(calendar.window(zone, end).0, end, "{zone} {calendar:?}");
                assert_eq!(calendar.window(zone, end - 1), (start, end), "{zone} {calendar:?}");
                at = end;
            }
        }
    }
}
