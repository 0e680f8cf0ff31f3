use super::*;
use crate::domain::document::Node;
use crate::domain::plan::shipped;

fn sheet(toml: &str) -> Sheet {
    Sheet::read(&Node::from_toml(toml).expect("TOML")).expect("a valid sheet").0
}

fn pool(toml: &str) -> Pool {
    Pool::read(&Node::from_toml(toml).expect("TOML")).expect("a valid pool")
}

fn active(text: &str) -> Vec<(Name, u64)> {
    parse_active(text).expect("PLAN=USERS")
}

fn row<'r>(report: &'r Report, meter: &str) -> &'r MeterReport {
    report.meters.iter().find(|row| row.meter == meter).expect("a row for the meter")
}

fn plan<'r>(row: &'r MeterReport, plan: &str) -> &'r PlanReport {
    row.by_plan.iter().find(|part| part.plan.as_str() == plan).expect("a part for the plan")
}

#[test]
fn the_shipped_plans_fit_the_shipped_pool() {
    let shipped = shipped();
    let report = check(&shipped.sheets, &shipped.pools[0], &active("free=60,standard=20,pro=5"));
    let report = report.expect("known plans");
    assert!(report.fits);
    let output = row(&report, "output_tokens");
    assert_eq!(
        (output.demand, output.vendor_limit, output.allowed),
        (Some(68_000), Some(100_000), Some(70_000))
    );
    let demands: Vec<_> = output.by_plan.iter().map(|part| part.demand).collect();
    assert_eq!(demands, [Some(18_000), Some(30_000), Some(20_000)]);
    // 60 x (1024 + 300) + 20 x (3000 + 1500) + 5 x (8192 + 4000)
    assert_eq!(output.burst, Some(79_440 + 90_000 + 60_960));
    assert!(!output.burst_fits && !report.burst_fits, "bursts are judged apart");
    // (70,000 - 50,000) / 60; (70,000 - 38,000) / 20; (70,000 - 48,000) / 5
    let largest: Vec<_> = output.by_plan.iter().map(|part| part.largest_rate).collect();
    assert_eq!(largest, [Some(333), Some(1_600), Some(4_400)]);
}

#[test]
fn a_larger_rate_for_free_does_not_fit() {
    let mut shipped = shipped();
    for limit in &mut shipped.sheets[0].limits {
        if let Rule::Bucket { meter: Meter::OutputTokens, refill_per_minute, .. } = &mut limit.rule {
            *refill_per_minute = 500;
        }
    }
    let report = check(&shipped.sheets, &shipped.pools[0], &active("free=60,standard=20,pro=5"));
    let report = report.expect("known plans");
    let output = row(&report, "output_tokens");
    assert_eq!((output.demand, output.fits, report.fits), (Some(80_000), false, false));
    assert_eq!(plan(output, "free").largest_rate, Some(333));
}

#[test]
fn exactly_what_is_allowed_fits() {
    let shipped = shipped();
    let fits = |users: &str| {
        let report = check(&shipped.sheets, &shipped.pools[0], &active(users)).expect("known plans");
        (row(&report, "output_tokens").demand, report.fits)
    };
    assert_eq!(fits("free=0,standard=0,pro=17"), (Some(68_000), true));
    assert_eq!(fits("standard=46,free=3"), (Some(69_900), true));
    assert_eq!(fits("standard=44,pro=1"), (Some(70_000), true));
    assert_eq!(fits("standard=44,pro=1,free=1"), (Some(70_300), false));
}

#[test]
fn input_demand_is_calls_times_the_largest_input() {
    let shipped = shipped();
    let report = check(&shipped.sheets, &shipped.pools[0], &active("free=60,standard=20,pro=5"));
    let report = report.expect("known plans");
    let input = row(&report, "input_tokens");
    assert_eq!(input.demand, Some(60 * 3 * 4_000 + 20 * 10 * 16_000 + 5 * 20 * 64_000));
    assert!(input.fits && input.allowed.is_none(), "the pool has no limit on it");
    assert_eq!(plan(input, "free").by.as_deref(), Some("requests_per_minute x max_input_tokens"));
    assert_eq!(row(&report, "requests").demand, Some(60 * 3 + 20 * 10 + 5 * 20));
}

#[test]
fn a_plan_without_a_limit_has_no_bound_and_says_so() {
    let open = sheet("id = \"open\"");
    let shipped = shipped();
    let sheets = [&open, &shipped.sheets[0]];
    let report = check(sheets, &shipped.pools[0], &active("open=1,free=1")).expect("known plans");
    let output = row(&report, "output_tokens");
    assert_eq!((output.demand, output.fits, output.burst_fits), (None, false, false));
    assert!(output.reason.as_deref().is_some_and(|reason| reason.contains("open")));
    assert_eq!(plan(output, "free").largest_rate, None, "no rate of free makes it fit");
    assert_eq!(plan(output, "open").largest_rate, Some(69_700));
    let idle = check(sheets, &shipped.pools[0], &active("open=0,free=1")).expect("known plans");
    assert!(idle.fits, "nobody is on the plan");
}

#[test]
fn the_largest_rate_is_never_negative() {
    let shipped = shipped();
    let report = check(&shipped.sheets, &shipped.pools[0], &active("free=1,pro=100")).expect("known");
    assert_eq!(plan(row(&report, "output_tokens"), "free").largest_rate, Some(0));
}

#[test]
fn unknown_and_repeated_plans_are_faults() {
    let shipped = shipped();
    let faults = check(&shipped.sheets, &shipped.pools[0], &active("gold/x=1,free=1,free=2"));
    let pointers: Vec<String> =
        faults.expect_err("two faults").into_iter().map(|fault| fault.pointer).collect();
    assert_eq!(pointers, ["/active/gold~1x", "/active/free"]);
}

#[test]
fn every_kind_of_pool_limit_is_checked() {
    let pool = pool(
        r#"
        id = "p"
        models = ["*"]
        margin = 0.5
        limits = [
          { name = "rps", kind = "bucket", meter = "requests", vendor_limit = 10, window_seconds = 1 },
          { name = "own", kind = "bucket", meter = "output_tokens", capacity = 500, refill_per_minute = 1000 },
          { name = "rpd", kind = "window", meter = "requests", period = "day", vendor_limit = 100 },
          { name = "tpd", kind = "window", meter = "total_tokens", period = "day", limit = 100 },
          { name = "flight", kind = "slots", vendor_limit = 9 },
        ]
        "#,
    );
    let shipped = shipped();
    let report = check(&shipped.sheets, &pool, &active("free=3,pro=1")).expect("known plans");
    let by_limit = |name: &str| {
        let row = report.meters.iter().find(|row| row.limit.as_deref() == Some(name));
        let row = row.expect("a row for each limit");
        (row.demand, row.allowed, row.fits)
    };
    // 3 x 3 + 20 a minute; 5 a second are 300 a minute.
    assert_eq!(by_limit("rps"), (Some(29), Some(300), true));
    assert_eq!(by_limit("own"), (Some(3 * 300 + 4_000), Some(1_000), false));
    assert_eq!(by_limit("rpd"), (Some(3 * 30 + 1_000), Some(50), false));
    // A day may take the whole month's tokens.
    assert_eq!(by_limit("tpd"), (Some(3 * 200_000 + 15_000_000), Some(100), false));
    assert_eq!(by_limit("flight"), (Some(3 + 4), Some(4), false));
    let rps = row(&report, "requests");
    // Within a second: 3 x (3 + 1) + 20 + 1, of 5.
    assert_eq!((rps.burst, rps.burst_allowed, rps.burst_fits), (Some(33), Some(5), false));
}

#[test]
fn a_limit_on_some_models_bounds_only_a_pool_of_these() {
    let sheet = sheet(
        r#"
        id = "p"
        limits = [
          { name = "opus", kind = "bucket", meter = "requests", capacity = 2, refill_per_minute = 2, models = ["opus*"] },
          { name = "any", kind = "bucket", meter = "requests", capacity = 9, refill_per_minute = 9 },
          { name = "soft", kind = "bucket", meter = "requests", capacity = 1, refill_per_minute = 1, enforce = "soft" },
        ]
        "#,
    );
    let rate = |models: &str| {
        let pool = pool(&format!("id = \"p\"\nmodels = [\"{models}\"]"));
        let report = check([&sheet], &pool, &active("p=1")).expect("known plans");
        row(&report, "requests").demand
    };
    assert_eq!(rate("opus-4*"), Some(2));
    assert_eq!(rate("*"), Some(9));
}

#[test]
fn the_largest_figures_do_not_overflow() {
    let sheet = sheet(
        r#"
        id = "p"
        per_call = { max_input_tokens = 9007199254740991 }
        limits = [{ name = "r", kind = "bucket", meter = "requests", capacity = 100000000000, refill_per_minute = 100000000000 }]
        "#,
    );
    let users = [(sheet.id.clone(), MAX_AMOUNT)];
    let report = check([&sheet], &shipped().pools[0], &users).expect("known plans");
    assert_eq!(row(&report, "input_tokens").demand, Some(MAX_AMOUNT));
}

#[test]
fn active_users_are_read_from_text_and_from_json() {
    assert_eq!(active("free=60, pro=5"), active("free=60,pro=5,"));
    for bad in ["free", "free=", "free=-1", "free=+1", "free=1.5", "=1", "fr ee=1", "free=9007199254740992"] {
        assert!(parse_active(bad).is_err(), "{bad}");
    }
    let read = |json: &str| Node::from_json(json.as_bytes()).expect("JSON").read(read_active);
    assert_eq!(read(r#"{"active":{"free":60,"pro":5}}"#), Ok(active("free=60,pro=5")));
    assert_eq!(read(r#"{"active":{"free":-1,"a b":1,"pro":null}}"#).map_err(|faults| faults.len()), Err(3));
}

#[test]
fn the_report_shows_the_margin_as_a_share() {
    let shipped = shipped();
    let report = check(&shipped.sheets, &shipped.pools[0], &active("free=60")).expect("known plans");
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["meters"][2]["margin"], 0.7);
    assert_eq!(json["meters"][2]["meter"], "output_tokens");
    assert_eq!(json["pool"], "default");
}
