use super::*;
use crate::domain::ids::Name;

fn figures(sheet: &Sheet) -> Vec<(&str, Rule)> {
    sheet.limits.iter().map(|limit| (limit.name.as_str(), limit.rule.clone())).collect()
}

#[test]
fn the_shipped_sheets_hold_the_figures_that_plans_are_sold_by() {
    let table = [
        // id, tokens a month, requests a day, request bucket, output refill,
        // output capacity, in flight, input cap, output cap
        ("free", 200_000, 30, 3, 300, 1_024, 1, 4_000, 512),
        ("standard", 3_000_000, 300, 10, 1_500, 3_000, 2, 16_000, 1_024),
        ("pro", 15_000_000, 1_000, 20, 4_000, 8_192, 4, 64_000, 2_048),
    ];
    let shipped = shipped();
    assert_eq!(shipped.sheets.len(), table.len());
    for (sheet, (id, month, day, requests, refill, capacity, slots, input, output)) in
        shipped.sheets.iter().zip(table)
    {
        let window = |meter, limit, period| Rule::Window {
            meter,
            limit,
            period,
            anchor: Anchor::Calendar,
            zone: None,
        };
        assert_eq!(sheet.id.as_str(), id);
        assert!(!sheet.requires_verified);
        assert_eq!(sheet.cache_read_weight, Ppm::ONE);
        let caps = PerCall { max_input_tokens: Some(input), max_output_tokens: Some(output) };
        assert_eq!(sheet.per_call, caps);
        let wanted = [
            (
                "requests_per_minute",
                Rule::Bucket { meter: Meter::Requests, capacity: requests, refill_per_minute: requests },
            ),
            (
                "output_tokens_per_minute",
                Rule::Bucket { meter: Meter::OutputTokens, capacity, refill_per_minute: refill },
            ),
            ("concurrency", Rule::Slots { limit: slots }),
            ("requests_per_day", window(Meter::Requests, day, Period::Day)),
            ("tokens_per_month", window(Meter::TotalTokens, month, Period::Month)),
        ];
        assert_eq!(figures(sheet), wanted, "{id}");
        let plain = |limit: &Limit| limit.scope == Scope::User && limit.enforce == Enforce::Hard;
        assert!(sheet.limits.iter().all(plain), "{id}");
        assert_eq!(sheet.lint(&shipped.models), [], "{id}");
    }
}

#[test]
fn what_is_left_out_has_its_default() {
    let sheet = sheet("id = \"p\"");
    assert_eq!(sheet.name, "p");
    assert!(!sheet.requires_verified);
    assert_eq!(sheet.cache_read_weight, Ppm::ONE);
    assert_eq!(sheet.per_call, PerCall::default());
    assert!(sheet.limits.is_empty());
}

#[test]
fn every_field_of_a_limit_is_read() {
    let text = with_limits(
        r#"{ name = "a", kind = "window", meter = "images", period = "month", anchor = "user", limit = 9,
             zone = "Asia/Tokyo", enforce = "soft", models = ["OPUS*"], features = ["chat"],
             warn_at = [0.95, 0.8, 0.8] },
           { name = "b", kind = "window", meter = "credits", period = { session_hours = 5 }, limit = 7,
             scope = "org", enforce = "shadow" }"#,
    );
    let sheet = sheet(&text);
    let [a, b] = &sheet.limits[..] else { panic!("two limits") };
    let zone = Zone::parse("Asia/Tokyo").expect("a zone");
    let images = Meter::parse("images").expect("a meter");
    assert_eq!(
        a.rule,
        Rule::Window {
            meter: images,
            limit: 9,
            period: Period::Month,
            anchor: Anchor::User,
            zone: Some(zone)
        }
    );
    assert_eq!((a.enforce, a.scope), (Enforce::Soft, Scope::User));
    assert_eq!((&a.filter.models[..], &a.filter.features[..]), (&["opus*".into()][..], &["chat".into()][..]));
    assert_eq!(a.warn_at, [Ppm(800_000), Ppm(950_000)]);
    assert_eq!((b.enforce, b.scope), (Enforce::Shadow, Scope::Org));
    assert!(matches!(b.rule, Rule::Window { period: Period::SessionHours(5), .. }));
}

#[test]
fn all_faults_are_told_at_once() {
    let faults = sheet_faults(
        r#"
        id = "not a name"
        surprise = 1
        cache_read_weight = 1.5
        [per_call]
        max_input_tokens = -1
        [[limits]]
        name = "Bad"
        kind = "bucket"
        meter = "requests"
        capacity = 3
        [[limits]]
        name = "w"
        kind = "window"
        meter = "requests"
        period = "fortnight"
        limit = 9007199254740992
        zone = "Mars/Olympus"
        [[limits]]
        name = "k"
        kind = "sieve"
        capacity = 3
        "#,
    );
    let mut found = pointers(&faults);
    found.sort_unstable();
    let mut wanted = vec![
        "/id",
        "/surprise",
        "/cache_read_weight",
        "/per_call/max_input_tokens",
        "/limits/0/name",
        "/limits/0/refill_per_minute",
        "/limits/1/period",
        "/limits/1/limit",
        "/limits/1/zone",
        "/limits/2/kind",
    ];
    wanted.sort_unstable();
    assert_eq!(found, wanted);
}

#[test]
fn faulty_limits_are_refused() {
    let cases = [
        (
            r#"{ name = "r", kind = "bucket", meter = "requests", capacity = 5, refill_per_minute = 0 }"#,
            "refill_per_minute",
        ),
        (
            r#"{ name = "r", kind = "bucket", meter = "requests", capacity = 100000000001, refill_per_minute = 1 }"#,
            "capacity",
        ),
        (
            r#"{ name = "r", kind = "bucket", meter = "requests", capacity = 1, refill_per_minute = 0.5 }"#,
            "refill_per_minute",
        ),
        (
            r#"{ name = "r", kind = "bucket", meter = "requests", capacity = -1, refill_per_minute = 1 }"#,
            "capacity",
        ),
        (
            r#"{ name = "r", kind = "bucket", meter = "output_tokens", capacity = 49, refill_per_minute = 1 }"#,
            "capacity",
        ),
        (
            r#"{ name = "r", kind = "bucket", meter = "Images", capacity = 1, refill_per_minute = 1 }"#,
            "meter",
        ),
        (
            r#"{ name = "r", kind = "bucket", meter = "requests", capacity = 1, refill_per_minute = 1, warn_at = [0.5] }"#,
            "warn_at",
        ),
        (
            r#"{ name = "r", kind = "bucket", meter = "requests", capacity = 1, refill_per_minute = 1, zone = "UTC" }"#,
            "zone",
        ),
        (
            r#"{ name = "r", kind = "bucket", meter = "requests", capacity = 1, refill_per_minute = 1, vendor_limit = 5 }"#,
            "vendor_limit",
        ),
        (r#"{ name = "w", kind = "window", meter = "total_tokens", period = "day", limit = 149 }"#, "limit"),
        (r#"{ name = "w", kind = "window", meter = "requests", period = "day" }"#, "limit"),
        (r#"{ name = "w", kind = "window", meter = "requests", period = {}, limit = 1 }"#, "period"),
        (
            r#"{ name = "w", kind = "window", meter = "requests", period = { hours = 0 }, limit = 1 }"#,
            "period/hours",
        ),
        (
            r#"{ name = "w", kind = "window", meter = "requests", period = { hours = 1, days = 1 }, limit = 1 }"#,
            "period",
        ),
        (
            r#"{ name = "w", kind = "window", meter = "requests", period = "day", anchor = "user", limit = 1 }"#,
            "anchor",
        ),
        (
            r#"{ name = "w", kind = "window", meter = "requests", period = "month", anchor = "user", limit = 1, scope = "org" }"#,
            "anchor",
        ),
        (
            r#"{ name = "w", kind = "window", meter = "requests", period = "lifetime", anchor = "calendar", limit = 1 }"#,
            "anchor",
        ),
        (
            r#"{ name = "w", kind = "window", meter = "requests", period = "day", limit = 1, zone = "+09:00" }"#,
            "zone",
        ),
        (
            r#"{ name = "w", kind = "window", meter = "requests", period = "day", limit = 1, warn_at = [0] }"#,
            "warn_at",
        ),
        (r#"{ name = "s", kind = "slots", limit = 1000001 }"#, "limit"),
        (r#"{ name = "s", kind = "slots", limit = 1, meter = "requests" }"#, "meter"),
        (r#"{ name = "s", kind = "slots", limit = 1, scope = "pool" }"#, "scope"),
        (r#"{ name = "s", kind = "slots", limit = 1, enforce = "maybe" }"#, "enforce"),
        (r#"{ name = "s", kind = "slots", limit = 1, models = ["a b"] }"#, "models/0"),
        (r#"{ name = "s", kind = "slots", limit = 1, features = ["Chat"] }"#, "features/0"),
        (r#"{ name = "o", kind = "rolling", meter = "requests", limit = 5, window_seconds = 60 }"#, "kind"),
    ];
    for (limit, field) in cases {
        let faults = sheet_faults(&with_limits(limit));
        assert_eq!(pointers(&faults), [format!("/limits/0/{field}")], "{limit}");
    }
}

#[test]
fn what_users_are_shown_is_one_of_three_words() {
    let limit = |word: &str| {
        with_limits(&format!(r#"{{ name = "s", kind = "slots", limit = 1, visibility = "{word}" }}"#))
    };
    assert_eq!(
        sheet(&with_limits(r#"{ name = "s", kind = "slots", limit = 1 }"#)).limits[0].visibility,
        Visibility::Exact
    );
    assert_eq!(sheet(&limit("percent")).limits[0].visibility, Visibility::Percent);
    assert_eq!(sheet(&limit("hidden")).limits[0].visibility, Visibility::Hidden);
    assert_eq!(pointers(&sheet_faults(&limit("some"))), ["/limits/0/visibility"]);
}

#[test]
fn rolling_limits_are_for_pools() {
    let text = with_limits(
        r#"{ name = "o", kind = "rolling", meter = "requests", limit = 5, window_seconds = 60 }"#,
    );
    assert!(sheet_faults(&text)[0].message.contains("rolling limits are for pools"));
}

#[test]
fn two_limits_of_one_name_are_refused() {
    let slots = r#"{ name = "s", kind = "slots", limit = 1 }"#;
    let faults = sheet_faults(&with_limits(&format!("{slots}, {slots}")));
    assert_eq!(pointers(&faults), ["/limits/1/name"]);
}

#[test]
fn a_sheet_has_at_most_32_limits() {
    let limits = |count: usize| {
        let slots = |n| format!("{{ name = \"s{n}\", kind = \"slots\", limit = 1 }}");
        with_limits(&(0..count).map(slots).collect::<Vec<_>>().join(","))
    };
    assert_eq!(sheet(&limits(32)).limits.len(), 32);
    assert_eq!(pointers(&sheet_faults(&limits(33))), ["/limits"]);
}

#[test]
fn a_limit_of_zero_is_kept_and_null_leaves_the_limit_out() {
    let limits = |number: &str| {
        let text = format!(
            r#"{{"id":"p","per_call":{{"max_input_tokens":100,"max_output_tokens":{number}}},"limits":[
                {{"name":"dr","kind":"window","meter":"requests","period":"day","limit":{number}}},
                {{"name":"mt","kind":"window","meter":"total_tokens","period":"month","limit":{number}}},
                {{"name":"rb","kind":"bucket","meter":"requests","capacity":{number},"refill_per_minute":{number}}},
                {{"name":"cc","kind":"slots","limit":{number}}}]}}"#
        );
        Sheet::read(&Node::from_json(text.as_bytes()).expect("JSON"))
    };
    let (zero, _) = limits("0").expect("zero is a limit");
    assert_eq!(zero.limits.len(), 4);
    assert_eq!(zero.per_call.max_output_tokens, Some(0));
    let (null, _) = limits("null").expect("null is no limit");
    assert_eq!(null.limits, []);
    assert_eq!(null.per_call.max_output_tokens, None);
    assert_eq!(limits("-1").expect_err("negative").len(), 6);
    assert_eq!(limits("1.0").expect_err("not whole").len(), 6);
}

#[test]
fn a_limit_left_out_is_still_read_for_faults() {
    let text = r#"{"id":"p","limits":[
        {"name":"a","kind":"bucket","meter":"requests","capacity":null,"refill_per_minute":-1},
        {"name":"a","kind":"slots","limit":null,"colour":"red"}]}"#;
    let faults = Sheet::read(&Node::from_json(text.as_bytes()).expect("JSON")).expect_err("faults");
    assert_eq!(pointers(&faults), ["/limits/0/refill_per_minute", "/limits/1/colour"]);
}

#[test]
fn what_never_refuses_may_be_smaller_than_the_largest_call() {
    for enforce in ["soft", "shadow"] {
        let limit = format!(
            r#"{{ name = "w", kind = "window", meter = "total_tokens", period = "day", limit = 1, enforce = "{enforce}" }}"#
        );
        assert_eq!(sheet(&with_limits(&limit)).limits.len(), 1);
    }
}

#[test]
fn a_sheet_without_caps_has_a_largest_call_without_tokens() {
    let text = r#"
        id = "p"
        limits = [{ name = "o", kind = "bucket", meter = "output_tokens", capacity = 1, refill_per_minute = 1 }]
    "#;
    assert_eq!(sheet(text).limits.len(), 1);
}

#[test]
fn the_address_gives_the_id_and_other_fields_may_stand_beside() {
    let read = |json: &str| {
        let node = Node::from_json(json.as_bytes()).expect("JSON");
        let id = Name::parse("gold").expect("a name");
        node.read(|r| {
            let reason = r.required("reason").text()?.to_owned();
            Some((Sheet::fields(r, Some(&id))?, reason))
        })
    };
    let (sheet, reason) = read(r#"{"reason":"new","name":"Gold"}"#).expect("valid");
    assert_eq!((sheet.id.as_str(), sheet.name.as_str(), reason.as_str()), ("gold", "Gold", "new"));
    assert!(read(r#"{"reason":"new","id":"gold"}"#).is_ok());
    assert_eq!(pointers(&read(r#"{"reason":"new","id":"lead"}"#).expect_err("another id")), ["/id"]);
}
