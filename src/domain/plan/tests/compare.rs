use super::*;

const LIMITS: &str = r#"
    { name = "r", kind = "bucket", meter = "requests", capacity = 10, refill_per_minute = 5 },
    { name = "m", kind = "window", meter = "total_tokens", period = "month", limit = 1000 },
    { name = "s", kind = "slots", limit = 3, enforce = "soft" }"#;

fn is_downgrade(from: &str, to: &str) -> bool {
    sheet(&with_limits(from)).is_downgrade_to(&sheet(&with_limits(to)))
}

#[test]
fn a_smaller_figure_or_a_new_hard_limit_makes_a_downgrade() {
    let changed = |from: &str, to: &str| is_downgrade(LIMITS, &LIMITS.replace(from, to));
    assert!(!changed("", ""), "the same sheet takes nothing away");
    for (from, to) in [
        ("capacity = 10", "capacity = 9"),
        ("refill_per_minute = 5", "refill_per_minute = 4"),
        ("limit = 1000", "limit = 999"),
        ("limit = 3", "limit = 2"),
        (r#", enforce = "soft""#, ""),
        // Another limit, whatever its figures: a hard one appears.
        (r#"period = "month""#, r#"period = "week""#),
        (r#"name = "m""#, r#"name = "n""#),
    ] {
        assert!(changed(from, to), "{to}");
    }
    for (from, to) in [
        ("capacity = 10", "capacity = 11"),
        ("limit = 1000", "limit = 1001"),
        (r#"enforce = "soft""#, r#"enforce = "shadow""#),
        (r#"period = "month""#, r#"period = "month", anchor = "user", zone = "Asia/Tokyo""#),
        (r#"name = "s""#, r#"name = "t""#),
    ] {
        assert!(!changed(from, to), "{to}");
    }
    assert!(changed("capacity = 10, refill_per_minute = 5", "capacity = 100, refill_per_minute = 4"));
}

#[test]
fn limits_that_go_are_an_upgrade_and_come_back_as_a_downgrade() {
    let without = LIMITS.lines().filter(|line| !line.contains("\"m\"")).collect::<Vec<_>>().join("\n");
    assert!(!is_downgrade(LIMITS, &without));
    assert!(is_downgrade(&without, LIMITS));
}

#[test]
fn a_smaller_cap_makes_a_downgrade_and_a_new_one_does_not() {
    let caps = |input: Option<u64>, output: Option<u64>| Sheet {
        per_call: PerCall { max_input_tokens: input, max_output_tokens: output },
        ..sheet(&with_limits(""))
    };
    assert!(caps(Some(10), None).is_downgrade_to(&caps(Some(9), Some(9))));
    assert!(caps(None, Some(10)).is_downgrade_to(&caps(None, Some(9))));
    assert!(!caps(None, Some(10)).is_downgrade_to(&caps(Some(1), Some(10))));
    assert!(!caps(Some(10), Some(10)).is_downgrade_to(&caps(None, Some(11))));
}

#[test]
fn the_first_month_of_a_users_own_says_when_a_month_ends() {
    let month = |limits: &str| {
        sheet(&with_limits(limits)).month_limit(Scope::User).map(|limit| limit.name.to_string())
    };
    assert_eq!(month(LIMITS).as_deref(), Some("m"));
    assert_eq!(month(r#"{ name = "s", kind = "slots", limit = 3 }"#), None);
    let other = r#"
        { name = "d", kind = "window", meter = "requests", period = "day", limit = 9 },
        { name = "o", kind = "window", meter = "requests", period = "month", limit = 9, scope = "org" },
        { name = "x", kind = "window", meter = "requests", period = "month", limit = 9, enforce = "soft" },
        { name = "y", kind = "window", meter = "requests", period = "month", limit = 9 }"#;
    assert_eq!(month(other).as_deref(), Some("x"));
}
