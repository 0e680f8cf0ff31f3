use super::*;
use crate::domain::quantity::{MAX_AMOUNT, MAX_BUCKET, MAX_SLOTS};

fn read(toml: &str) -> Result<Override, Vec<Fault>> {
    node(toml).read(Override::read)
}

fn numbers(toml: &str) -> Override {
    read(toml).expect("valid numbers")
}

fn bucket(capacity: u64, refill_per_minute: u64) -> Rule {
    Rule::Bucket { meter: Meter::Requests, capacity, refill_per_minute }
}

fn month(limit: u64) -> Rule {
    Rule::Window { meter: Meter::Requests, limit, period: Period::Month, anchor: Anchor::User, zone: None }
}

#[test]
fn every_bad_number_of_an_override_is_named() {
    let faults = read("limit = -1\ncapacity = 1.5\nrefill_per_minute = \"3\"\nlimits = 3").unwrap_err();
    assert_eq!(pointers(&faults), ["/limit", "/capacity", "/refill_per_minute", "/limits"]);
    assert_eq!(pointers(&read("").unwrap_err()), [""], "an override without a number says nothing");
    assert_eq!(pointers(&read(&format!("limit = {}", MAX_AMOUNT + 1)).unwrap_err()), ["/limit"]);
    assert_eq!(pointers(&read(&format!("capacity = {}", MAX_BUCKET + 1)).unwrap_err()), ["/capacity"]);
    assert_eq!(numbers(&format!("limit = {MAX_AMOUNT}")).limit, Some(MAX_AMOUNT));
    assert_eq!(
        numbers("refill_per_minute = 0"),
        Override { refill_per_minute: Some(0), ..Override::default() }
    );
}

#[test]
fn a_number_of_another_kind_is_named_and_left_aside() {
    let misfit = |text: &str, rule: &Rule| numbers(text).fits(rule).err().map(|misfit| misfit.field);
    let slots = Rule::Slots { limit: 2 };
    for (text, rule, field) in [
        ("limit = 5", bucket(10, 5), "limit"),
        ("capacity = 5", month(100), "capacity"),
        ("limit = 5\nrefill_per_minute = 5", month(100), "refill_per_minute"),
        ("capacity = 5", slots.clone(), "capacity"),
    ] {
        assert_eq!(misfit(text, &rule), Some(field), "{text}");
    }
    assert_eq!(bucket(10, 5).overridden(&numbers("limit = 5")), bucket(10, 5));
    assert_eq!(month(100).overridden(&numbers("limit = 5\nrefill_per_minute = 5")), month(5));
    assert_eq!(misfit(&format!("limit = {}", MAX_SLOTS + 1), &slots), Some("limit"));
    assert_eq!(slots.overridden(&numbers(&format!("limit = {}", MAX_SLOTS + 1))), slots);
    assert_eq!(slots.overridden(&numbers("limit = 0")), Rule::Slots { limit: 0 });
}

#[test]
fn a_bucket_keeps_what_the_override_does_not_name_and_stays_a_bucket() {
    let rule = bucket(10, 5);
    for (text, capacity, refill) in [
        ("capacity = 7", 7, 5),
        ("refill_per_minute = 9", 10, 9),
        ("capacity = 0", 0, 5),
        ("capacity = 0\nrefill_per_minute = 0", 0, 0),
    ] {
        assert_eq!(numbers(text).fits(&rule), Ok(()), "{text}");
        assert_eq!(rule.overridden(&numbers(text)), bucket(capacity, refill), "{text}");
    }
    let stopped = numbers("refill_per_minute = 0");
    assert_eq!(stopped.fits(&rule).map_err(|misfit| misfit.field), Err("refill_per_minute"));
    assert_eq!(rule.overridden(&stopped), rule, "a bucket that never refills is none");
    let opened = numbers("capacity = 5");
    assert_eq!(opened.fits(&bucket(0, 0)).map_err(|misfit| misfit.field), Err("capacity"));
    assert_eq!(bucket(0, 0).overridden(&opened), bucket(0, 0));
}

#[test]
fn an_override_is_kept_as_it_was_given() {
    let numbers = numbers("capacity = 7\nrefill_per_minute = 0");
    let kept = serde_json::to_value(numbers).expect("JSON");
    assert_eq!(kept, serde_json::json!({ "capacity": 7, "refill_per_minute": 0 }));
    assert_eq!(serde_json::from_value::<Override>(kept).expect("as kept"), numbers);
}
