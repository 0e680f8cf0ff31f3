use proptest::prelude::*;

use crate::domain::time::{Millis, parse_date};

#[test]
fn instants_are_shown_in_utc_with_milliseconds() {
    let shown = |ms: i64| Millis(ms).to_string();
    assert_eq!(shown(0), "1970-01-01T00:00:00.000Z");
    assert_eq!(shown(1_796_050_799_999), "2026-11-30T14:59:59.999Z");
    assert_eq!(shown(951_782_400_007), "2000-02-29T00:00:00.007Z");
    assert_eq!(Millis::MAX.to_string(), "9999-12-31T23:59:59.999Z");
    assert_eq!(shown(-1), "1969-12-31T23:59:59.999Z");
    assert_eq!(shown(i64::MAX), Millis::MAX.to_string(), "whatever it is, it can be shown");
    assert_eq!(shown(i64::MIN), "0001-01-01T00:00:00.000Z");
}

#[test]
fn every_rfc_3339_offset_and_fraction_is_read() {
    let expected = Millis(1_796_050_799_123);
    for text in [
        "2026-11-30T14:59:59.123Z",
        "2026-11-30t14:59:59.123z",
        "2026-11-30T14:59:59.1239999999Z",
        "2026-11-30T14:59:59.123-00:00",
        "2026-11-30T23:59:59.123+09:00",
        "2026-12-01T04:44:59.123+13:45",
        "2026-11-29T15:00:59.123-23:59",
    ] {
        assert_eq!(Millis::parse(text), Ok(expected), "{text}");
    }
    assert_eq!(Millis::parse("2026-11-30T14:59:59.1Z"), Ok(Millis(1_796_050_799_100)));
}

#[test]
fn what_is_no_instant_is_refused() {
    for text in [
        "",
        "2026-11-30",
        "2026-11-30T14:59:59",
        "2026-11-30 14:59:59Z",
        "2026-11-30T14:59Z",
        "2026-11-30T14:59:59.Z",
        "2026-11-30T14:59:59,5Z",
        "2026-11-30T24:00:00Z",
        "2026-11-30T14:60:00Z",
        "2026-11-30T14:59:60Z",
        "2026-02-29T00:00:00Z",
        "2026-00-10T00:00:00Z",
        "2026-13-10T00:00:00Z",
        "2026-11-31T00:00:00Z",
        "2026-11-30T14:59:59+24:00",
        "2026-11-30T14:59:59+09:60",
        "2026-11-30T14:59:59+0900",
        "2026-11-30T14:59:59Zx",
        "+026-11-30T14:59:59Z",
        "1969-12-31T23:59:59.999Z",
        "1970-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "２026-11-30T14:59:59Z",
    ] {
        assert!(Millis::parse(text).is_err(), "{text}");
    }
}

#[test]
fn dates_are_days_since_1970() {
    assert_eq!(parse_date("1970-01-01"), Ok(0));
    assert_eq!(parse_date("2026-11-30"), Ok(20_787));
    assert_eq!(parse_date("9999-12-31"), Ok(2_932_896));
    for text in ["", "2026-11-31", "1969-12-31", "2026-11-30T", "2026-1-30", "26-11-30"] {
        assert!(parse_date(text).is_err(), "{text}");
    }
}

#[test]
fn sums_stay_within_the_years_that_can_be_written() {
    assert_eq!(Millis(5).plus_ms(7), Millis(12));
    assert_eq!(Millis(5).plus_ms(-7), Millis(0));
    assert_eq!(Millis(5).plus_ms(i64::MAX), Millis::MAX);
    assert_eq!(Millis::MAX.plus_ms(1), Millis::MAX);
    assert_eq!(Millis(i64::MIN).plus_ms(i64::MIN), Millis(0));
}

#[test]
fn json_has_texts_and_binary_records_have_numbers() {
    let instant = Millis(1_796_050_799_999);
    let json = serde_json::to_string(&instant).unwrap();
    assert_eq!(json, r#""2026-11-30T14:59:59.999Z""#);
    assert_eq!(serde_json::from_str::<Millis>(&json).unwrap(), instant);
    assert!(serde_json::from_str::<Millis>("1796050799999").is_err());
    let record = postcard::to_allocvec(&instant).unwrap();
    assert_eq!(record, postcard::to_allocvec(&instant.0).unwrap());
    assert_eq!(postcard::from_bytes::<Millis>(&record).unwrap(), instant);
}

proptest! {
    #[test]
    fn what_is_shown_is_read_back(ms in 0..=Millis::MAX.0) {
        let text = Millis(ms).to_string();
        prop_assert_eq!(Millis::parse(&text), Ok(Millis(ms)));
        let jiff = jiff::Timestamp::from_millisecond(ms).unwrap();
        prop_assert_eq!(text, format!("{jiff:.3}"));
    }

    #[test]
    fn no_text_makes_the_parser_fail(text in r"[0-9TtZz:.+-]{0,32}|\PC{0,32}") {
        let ours = Millis::parse(&text);
        if let Ok(instant) = ours {
            let jiff: jiff::Timestamp = text.parse().unwrap();
            prop_assert_eq!(instant.0, jiff.as_millisecond());
        }
    }

    #[test]
    fn instants_with_offsets_agree_with_another_parser(
        ms in 0..=4_000_000_000_000i64, offset in -1439i32..=1439, digits in 0usize..=9,
    ) {
        let offset = jiff::tz::Offset::from_seconds(offset * 60).unwrap();
        let jiff = jiff::Timestamp::from_millisecond(ms).unwrap();
        let local = offset.to_datetime(jiff);
        let text = match digits {
            0 => format!("{local:.0}{}", show(offset)),
            digits => format!("{local:.digits$}{}", show(offset)),
        };
        let expected: jiff::Timestamp = text.parse().unwrap();
        prop_assert_eq!(Millis::parse(&text), Ok(Millis(expected.as_millisecond())));
    }
}

fn show(offset: jiff::tz::Offset) -> String {
    let minutes = offset.seconds() / 60;
    let sign = if minutes < 0 { '-' } else { '+' };
    format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
}
