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
        { name = "m", kind = "window", meter = "requests", period = "month", limit = 50, scope = "tenant", zone = "UTC" }"#;
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

const REQUESTS_10: &str =
    r#"{ name = "d", kind = "window", meter = "requests", period = "day", limit = 10 }"#;

#[test]
fn an_org_limit_binds_no_user_since_not_every_user_has_one() {
    let found = |scope: &str, limit: u64| {
        warned(&format!(
            r#"{{ name = "d", kind = "window", meter = "requests", period = "day", limit = 100{scope} }},
               {{ name = "o", kind = "window", meter = "requests", period = "day", limit = {limit}, scope = "org" }}"#
        ))
    };
    assert_eq!(found("", 50), [""; 0]);
    assert_eq!(found(r#", scope = "org""#, 50), ["/limits/0/limit"]);
    assert_eq!(found(r#", scope = "tenant""#, 50), [""; 0], "there are many orgs");
}

#[test]
fn a_longer_window_above_what_a_shorter_one_lets_through_is_warned_of() {
    let found = |period: &str, limit: u64| {
        warned(&format!(
            r#"{{ name = "w", kind = "window", meter = "requests", period = {period}, limit = {limit} }}, {REQUESTS_10}"#
        ))
    };
    for (period, most) in
        [(r#""week""#, 70), (r#""month""#, 310), ("{ hours = 24 }", 30), ("{ hours = 23 }", 20)]
    {
        assert_eq!(found(period, most), ["/limits/0/limit"], "{period}");
        assert_eq!(found(period, most - 1), [""; 0], "{period}");
    }
    assert_eq!(found(r#""lifetime""#, 1_000_000), [""; 0], "days go on for ever");
    let lives = r#"{ name = "a", kind = "window", meter = "requests", period = "lifetime", limit = 5 },
        { name = "b", kind = "window", meter = "requests", period = "lifetime", limit = 5, models = ["haiku"] }"#;
    assert_eq!(warned(lives), ["/limits/1/limit"]);
}

#[test]
fn token_limits_that_follow_from_each_other_are_warned_of() {
    let day = |name: &str, meter: &str, limit: u64| {
        format!(
            r#"{{ name = "{name}", kind = "window", meter = "{meter}", period = "day", limit = {limit} }}"#
        )
    };
    let found = |first: String, second: String, third: String| warned(&[first, second, third].join(","));
    let parts = |total| {
        found(day("t", "total_tokens", total), day("i", "input_tokens", 500), day("o", "output_tokens", 300))
    };
    assert_eq!(parts(800), ["/limits/0/limit"]);
    assert_eq!(parts(799), [""; 0]);
    let whole =
        found(day("t", "total_tokens", 500), day("i", "input_tokens", 500), day("o", "output_tokens", 499));
    assert_eq!(whole, ["/limits/1/limit"], "what goes in is part of the total");
    let buckets = r#"
        { name = "t", kind = "bucket", meter = "total_tokens", capacity = 500, refill_per_minute = 60 },
        { name = "i", kind = "bucket", meter = "input_tokens", capacity = 500, refill_per_minute = 60 },
        { name = "o", kind = "bucket", meter = "output_tokens", capacity = 500, refill_per_minute = 59 }"#;
    assert_eq!(warned(buckets), ["/limits/1/capacity"]);
}

#[test]
fn a_bucket_that_a_window_never_lets_run_dry_is_warned_of() {
    let found = |meter: &str, capacity: u64, limit: u64, refill: u64| {
        warned(&format!(
            r#"{{ name = "b", kind = "bucket", meter = "{meter}", capacity = {capacity}, refill_per_minute = {refill} }},
               {{ name = "h", kind = "window", meter = "{meter}", period = {{ hours = 1 }}, limit = {limit} }}"#
        ))
    };
    // The end of one hour and the beginning of the next.
    assert_eq!(found("requests", 240, 120, 2), ["/limits/0/capacity"]);
    assert_eq!(found("images", 240, 120, 2), ["/limits/0/capacity"]);
    assert_eq!(found("requests", 239, 120, 2), [""; 0]);
    assert_eq!(found("requests", 240, 120, 1), [""; 0], "it would lose 60 an hour");
    assert_eq!(found("output_tokens", 240, 120, 2), [""; 0], "what is held keeps its place from refill");
}

#[test]
fn what_is_counted_beside_a_stop_is_warned_of() {
    let limits = |stop: &str| {
        format!(
            r#"{{ name = "t", kind = "bucket", meter = "output_tokens", capacity = 500, refill_per_minute = 60 }},
               {{ name = "m", kind = "window", meter = "input_tokens", period = "month", limit = 5000 }},
               {{ name = "x", limit = 0, {stop} }}"#
        )
    };
    let all = ["/limits/0/capacity", "/limits/1/limit"];
    assert_eq!(warned(&limits(r#"kind = "slots""#)), all);
    assert_eq!(warned(&limits(r#"kind = "window", meter = "requests", period = "week""#)), all);
    assert_eq!(warned(&limits(r#"kind = "window", meter = "input_tokens", period = "lifetime""#)), all[1..]);
    assert_eq!(warned(&limits(r#"kind = "slots", enforce = "soft""#)), [""; 0]);
    assert_eq!(warned(&limits(r#"kind = "slots", models = ["haiku"]"#)), [""; 0]);
    assert_eq!(warned(&limits(r#"kind = "window", meter = "images", period = "day""#)), [""; 0]);
}

#[test]
fn thresholds_of_nothing_are_warned_of() {
    let found = |limit: u64| {
        warned(&format!(
            r#"{{ name = "a", kind = "window", meter = "requests", period = "day", limit = {limit}, warn_at = [0.8] }}"#
        ))
    };
    assert_eq!(found(0), ["/limits/0/warn_at"]);
    assert_eq!(found(1), [""; 0]);
}
