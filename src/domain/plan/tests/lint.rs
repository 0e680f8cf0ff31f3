use super::*;

fn warned(limits: &str) -> Vec<String> {
    let (sheet, alone) = Sheet::read(&node(&with_limits(limits))).expect("a valid sheet");
    let all = sheet.lint(&known_models());
    assert!(alone.iter().all(|warning| all.contains(warning)));
    all.into_iter().map(|warning| warning.pointer).collect()
}

#[test]
fn a_daily_limit_above_what_the_bucket_lets_through_is_warned_of() {
    let day = |limit: u64| {
        warned(&format!(
            r#"{{ name = "r", kind = "bucket", meter = "requests", capacity = 10, refill_per_minute = 2 }},
               {{ name = "d", kind = "window", meter = "requests", period = "day", limit = {limit} }}"#
        ))
    };
    // A day has up to 25 hours: 10 + 2 x 1500.
    assert_eq!(day(3_010), ["/limits/1/limit"]);
    assert_eq!(day(3_009), [""; 0]);
}

#[test]
fn a_token_window_above_what_the_calls_can_take_is_warned_of() {
    let month = |limit: u64| {
        warned(&format!(
            r#"{{ name = "m", kind = "window", meter = "total_tokens", period = "month", limit = {limit} }},
               {{ name = "d", kind = "window", meter = "requests", period = "day", limit = 10 }}"#
        ))
    };
    // 31 days of 10 calls of 150 tokens.
    assert_eq!(month(46_500), ["/limits/0/limit"]);
    assert_eq!(month(46_499), [""; 0]);
}

#[test]
fn a_limit_is_no_warning_when_another_binds_it_only_in_part() {
    for other in [r#", models = ["opus*"]"#, r#", features = ["chat"]"#, r#", enforce = "soft""#] {
        let found = warned(&format!(
            r#"{{ name = "d", kind = "window", meter = "requests", period = "day", limit = 100 }},
               {{ name = "x", kind = "window", meter = "requests", period = "month", limit = 1{other} }}"#
        ));
        assert!(!found.contains(&"/limits/0/limit".to_owned()), "{other}: {found:?}");
    }
    let narrower = r#"
        { name = "d", kind = "window", meter = "requests", period = "day", limit = 100, models = ["haiku"] },
        { name = "m", kind = "window", meter = "requests", period = "month", limit = 50, scope = "org", zone = "UTC" }"#;
    assert_eq!(warned(narrower), ["/limits/0/limit"], "two months touch a day in another zone: 100");
}

#[test]
fn of_two_limits_alike_the_later_is_warned_of() {
    let found = warned(
        r#"{ name = "a", kind = "slots", limit = 2 }, { name = "b", kind = "slots", limit = 2 },
           { name = "c", kind = "bucket", meter = "requests", capacity = 5, refill_per_minute = 5 },
           { name = "d", kind = "bucket", meter = "requests", capacity = 5, refill_per_minute = 4 }"#,
    );
    assert_eq!(found, ["/limits/1/limit", "/limits/2/capacity"]);
}

#[test]
fn filters_that_match_no_known_model_are_warned_of() {
    let found = warned(
        r#"{ name = "a", kind = "slots", limit = 2,
             models = ["*", "claude*", "OPUS", "opus*", "gpt-4", "haiku"] }"#,
    );
    assert_eq!(found, ["/limits/0/models/3", "/limits/0/models/4"]);
    let pool = pool("id = \"p\"\nmodels = [\"haiku*\", \"gpt*\"]");
    assert_eq!(pool.lint(&known_models())[0].pointer, "/models/1");
}

#[test]
fn credits_are_checked_against_the_prices() {
    let credits = |limit: u64, models: &str| {
        warned(&format!(
            r#"{{ name = "c", kind = "window", meter = "credits", period = "day", limit = {limit}, models = ["{models}"] }}"#
        ))
    };
    // 100 x 15 + 50 x 75
    assert_eq!(credits(5_250, "claude-opus"), [""; 0]);
    assert_eq!(credits(5_249, "opus"), ["/limits/0/limit"]);
    assert_eq!(credits(5_250, "haiku"), ["/limits/0/limit"], "it has no price");
}

#[test]
fn a_zone_that_has_no_effect_is_warned_of() {
    let found = warned(
        r#"{ name = "a", kind = "window", meter = "requests", period = { hours = 5 }, limit = 9, zone = "UTC" }"#,
    );
    assert_eq!(found, ["/limits/0/zone"]);
}
