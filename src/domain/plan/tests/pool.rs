use super::*;

fn pool_faults(toml: &str) -> Vec<Fault> {
    Pool::read(&node(toml)).expect_err("a faulty pool")
}

fn bucket(fields: &str) -> String {
    format!(
        "id = \"p\"\nmodels = [\"*\"]\nmargin = 0.7\n[[limits]]\nname = \"o\"\nkind = \"bucket\"\nmeter = \"output_tokens\"\n{fields}"
    )
}

fn rule(toml: &str) -> Rule {
    pool(toml).limits[0].limit.rule.clone()
}

fn sized(capacity: u64, refill_per_minute: u64) -> Rule {
    Rule::Bucket { meter: Meter::OutputTokens, capacity, refill_per_minute }
}

#[test]
fn the_shipped_pool_is_for_planning_until_it_is_enforced() {
    let shipped = shipped();
    let [pool] = &shipped.pools[..] else { panic!("one pool") };
    assert_eq!(pool.id.as_str(), "default");
    assert!(!pool.enforced);
    assert_eq!(pool.margin, Ppm(700_000));
    assert_eq!(pool.interactive_share, Ppm(300_000));
    assert_eq!((pool.counts, pool.max_queue), (PoolCounts::Reserved, 1000));
    let [limit] = &pool.limits[..] else { panic!("one limit") };
    assert_eq!(limit.vendor_limit, Some(100_000));
    assert_eq!(limit.limit.rule, sized(14_000, 56_000));
    assert_eq!(limit.limit.scope, Scope::Pool);
    assert_eq!(pool.lint(&shipped.models), []);
}

#[test]
fn a_vendors_figure_is_split_into_stock_and_refill() {
    assert_eq!(rule(&bucket("vendor_limit = 100000\nburst_share = 0.2")), sized(14_000, 56_000));
    assert_eq!(rule(&bucket("vendor_limit = 100000\nburst_share = 0")), sized(1, 69_999));
    // 7 a second: 1 in stock, 6 a second in the refill.
    assert_eq!(rule(&bucket("vendor_limit = 10\nwindow_seconds = 1")), sized(1, 360));
    // 70 in 90 s: 14 in stock, 56 x 60 / 90 = 37.3 a minute.
    assert_eq!(rule(&bucket("vendor_limit = 100\nwindow_seconds = 90")), sized(14, 37));
    assert_eq!(rule(&bucket("vendor_limit = 0")), sized(0, 0));
}

#[test]
fn the_margin_does_not_touch_figures_given_outright() {
    assert_eq!(rule(&bucket("capacity = 100\nrefill_per_minute = 50")), sized(100, 50));
    let pool = pool(
        r#"
        id = "p"
        models = ["a*"]
        margin = 0.5
        limits = [
          { name = "own", kind = "window", meter = "requests", period = "day", limit = 101 },
          { name = "day", kind = "window", meter = "requests", period = "day", vendor_limit = 101, zone = "UTC" },
          { name = "places", kind = "slots", vendor_limit = 9 },
          { name = "seats", kind = "slots", limit = 9 },
        ]
        "#,
    );
    let figures: Vec<u64> = pool.limits.iter().map(|limit| limit.limit.rule.most_at_once()).collect();
    assert_eq!(figures, [101, 50, 4, 9]);
}

#[test]
fn what_is_left_out_has_its_default() {
    let named = pool("id = \"p\"\nmodels = [\"OPUS*\"]");
    assert_eq!(named.models, ["opus*"]);
    assert!(named.enforced);
    assert_eq!((named.margin, named.interactive_share), (Ppm::ONE, Ppm(0)));
    assert_eq!((named.counts, named.max_queue), (PoolCounts::Reserved, 1000));
    assert_eq!(pool("id = \"default\"").models, ["*"]);
}

#[test]
fn faulty_pools_are_refused() {
    let cases = [
        ("id = \"p\"".to_owned(), "/models"),
        ("id = \"p\"\nmodels = []".into(), "/models"),
        ("id = \"p\"\nmodels = [\"*\"]\nmargin = 1.1".into(), "/margin"),
        ("id = \"p\"\nmodels = [\"*\"]\ncounts = \"none\"".into(), "/counts"),
        (bucket("vendor_limit = 100\ncapacity = 5"), "/limits/0/capacity"),
        (bucket("vendor_limit = 1"), "/limits/0/vendor_limit"),
        (bucket("vendor_limit = 2"), "/limits/0/vendor_limit"),
        (bucket("vendor_limit = 100\nburst_share = 1"), "/limits/0/vendor_limit"),
        (bucket("vendor_limit = 100\nwindow_seconds = 0"), "/limits/0/window_seconds"),
        (bucket("vendor_limit = 100000000000\nwindow_seconds = 1"), "/limits/0/vendor_limit"),
        (bucket("vendor_limit = 100\nscope = \"user\""), "/limits/0/scope"),
        (bucket("capacity = 5\nrefill_per_minute = 5\nburst_share = 0.5"), "/limits/0/burst_share"),
    ];
    for (text, pointer) in cases {
        assert_eq!(pointers(&pool_faults(&text)), [pointer], "{text}");
    }
    let rolling = |fields: &str| bucket(fields).replace("\"bucket\"", "\"rolling\"");
    let cases = [
        (rolling("limit = 100"), "/limits/0/window_seconds"),
        (rolling("limit = 100\nwindow_seconds = 0"), "/limits/0/window_seconds"),
        (rolling("limit = 100\nwindow_seconds = 86401"), "/limits/0/window_seconds"),
        (rolling("vendor_limit = 100\nburst_share = 0.5"), "/limits/0/burst_share"),
        (rolling("vendor_limit = 100\nlimit = 5"), "/limits/0/limit"),
        (rolling("limit = 100\nwindow_seconds = 10\nguard_ms = 10001"), "/limits/0/guard_ms"),
        (rolling("vendor_limit = 100\nwindow_seconds = 3600\nguard_ms = 60001"), "/limits/0/guard_ms"),
        (bucket("capacity = 5\nrefill_per_minute = 5\nguard_ms = 1"), "/limits/0/guard_ms"),
    ];
    for (text, pointer) in cases {
        assert_eq!(pointers(&pool_faults(&text)), [pointer], "{text}");
    }
}

#[test]
fn a_rolling_limit_is_the_vendors_figure_times_the_margin() {
    let rolling = |fields: &str| pool(&bucket(fields).replace("\"bucket\"", "\"rolling\""));
    for (fields, limit, seconds) in [
        ("vendor_limit = 100", 70, 60),
        ("vendor_limit = 100\nwindow_seconds = 10", 70, 10),
        ("limit = 100\nwindow_seconds = 10", 100, 10),
    ] {
        let pool = rolling(fields);
        let Rule::Rolling { limit: most, window_seconds, .. } = pool.limits[0].limit.rule else {
            panic!("{fields}: {:?}", pool.limits[0].limit.rule)
        };
        assert_eq!((most, window_seconds), (limit, seconds), "{fields}");
        let written = pool.to_json().to_string();
        let read = Node::from_json(written.as_bytes()).ok().and_then(|node| Pool::read(&node).ok());
        assert_eq!(read, Some(pool), "{written}");
    }
}

#[test]
fn a_guard_keeps_room_for_calls_on_their_way() {
    let guarded = bucket("vendor_limit = 100000\nburst_share = 0.2\nguard_ms = 10000");
    let read = pool(&guarded);
    let Rule::Bucket { capacity, refill_per_minute, .. } = read.limits[0].limit.rule else { panic!() };
    // 70,000 within 70 s, of which 14,000 at once.
    assert_eq!((capacity, refill_per_minute), (14_000, 48_000));
    let rolling = guarded.replace("\"bucket\"", "\"rolling\"").replace("burst_share = 0.2\n", "");
    let read_rolling = pool(&rolling);
    let Rule::Rolling { guard_ms, .. } = read_rolling.limits[0].limit.rule else { panic!() };
    assert_eq!(guard_ms, 10_000);
    for pool in [read, read_rolling] {
        let written = pool.to_json().to_string();
        let read = Node::from_json(written.as_bytes()).ok().and_then(|node| Pool::read(&node).ok());
        assert_eq!(read, Some(pool), "{written}");
    }
}

#[test]
fn null_leaves_a_limit_out() {
    for fields in [
        r#""vendor_limit":null"#,
        r#""vendor_limit":null,"burst_share":0.2,"window_seconds":60"#,
        r#""capacity":null,"refill_per_minute":5"#,
    ] {
        let text = format!(
            r#"{{"id":"default","limits":[{{"name":"o","kind":"bucket","meter":"requests",{fields}}}]}}"#
        );
        let pool = Pool::read(&Node::from_json(text.as_bytes()).expect("JSON")).expect(fields);
        assert_eq!(pool.limits, [], "{fields}");
    }
}

#[test]
fn the_most_literal_characters_make_the_most_specific_pool() {
    let specificity = |globs: &str, model: Option<&str>| {
        pool(&format!("id = \"p\"\nmodels = [{globs}]")).specificity(model)
    };
    assert_eq!(specificity(r#""*", "opus*""#, Some("opus-4")), Some(4));
    assert_eq!(specificity(r#""opus-?", "opus*""#, Some("opus-4")), Some(5));
    assert_eq!(specificity(r#""*""#, Some("opus-4")), Some(0));
    assert_eq!(specificity(r#""opus*""#, Some("haiku")), None);
    assert_eq!(specificity(r#""opus*""#, None), None);
    assert_eq!(specificity(r#""*""#, None), Some(0));
}
