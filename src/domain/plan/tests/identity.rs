use super::*;

fn cells(limits: &str) -> Vec<u64> {
    sheet(&format!("id = \"p\"\nlimits = [{limits}]")).limits.iter().map(|limit| limit.cell().0).collect()
}

fn cell(limit: &str) -> u64 {
    cells(limit)[0]
}

#[test]
fn the_encoding_of_a_cell_never_changes() {
    // Stored accounts are found by these values: a change here loses them.
    let known: Vec<u64> = shipped().sheets[0].limits.iter().map(|limit| limit.cell().0).collect();
    assert_eq!(
        known,
        [
            16935841371297561732,
            3249062101556091235,
            14102132783203166623,
            10618611669175813320,
            14086952304709439448
        ]
    );
    assert_eq!(
        cell(
            r#"{ name = "w", kind = "window", meter = "images", period = { days = 30 }, limit = 1, scope = "org", models = ["opus*"], features = ["chat"] }"#
        ),
        12205527660816642223
    );
}

#[test]
fn plans_share_the_cells_of_limits_with_the_same_name() {
    let shipped = shipped();
    let cells = |sheet: &Sheet| sheet.limits.iter().map(Limit::cell).collect::<Vec<_>>();
    assert_eq!(cells(&shipped.sheets[0]), cells(&shipped.sheets[1]));
    assert_eq!(cells(&shipped.sheets[0]), cells(&shipped.sheets[2]));
}

#[test]
fn figures_and_borders_do_not_make_another_limit() {
    let base = cell(r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 1 }"#);
    for same in [
        r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 9, warn_at = [0.5] }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 1, anchor = "user" }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 1, zone = "Asia/Tokyo" }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 1, enforce = "soft" }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 1, models = ["*"] }"#,
    ] {
        assert_eq!(cell(same), base, "{same}");
    }
}

#[test]
fn everything_else_makes_another_limit() {
    let mut known = cells(
        r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 1 },
           { name = "w2", kind = "window", meter = "requests", period = "month", limit = 1 }"#,
    );
    for other in [
        r#"{ name = "w", kind = "window", meter = "images", period = "month", limit = 1 }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = "day", limit = 1 }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = { hours = 5 }, limit = 1 }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = { session_hours = 5 }, limit = 1 }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = { days = 5 }, limit = 1 }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = { days = 6 }, limit = 1 }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 1, scope = "org" }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 1, models = ["a"] }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 1, features = ["a"] }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 1, models = ["a", "b"] }"#,
        r#"{ name = "w", kind = "window", meter = "requests", period = "month", limit = 1, models = ["ab"] }"#,
        r#"{ name = "w", kind = "bucket", meter = "requests", capacity = 1, refill_per_minute = 1 }"#,
        r#"{ name = "w", kind = "slots", limit = 1 }"#,
    ] {
        let cell = cell(other);
        assert!(!known.contains(&cell), "{other}");
        known.push(cell);
    }
}

#[test]
fn the_order_of_a_filter_does_not_matter() {
    let cell =
        |models: &str| cell(&format!(r#"{{ name = "s", kind = "slots", limit = 1, models = [{models}] }}"#));
    assert_eq!(cell(r#""a", "B""#), cell(r#""b", "A", "a""#));
}

#[test]
fn an_alias_in_a_filter_counts_the_model_it_stands_for() {
    let sheet = sheet(
        r#"
        id = "p"
        limits = [{ name = "s", kind = "slots", limit = 1, models = ["Opus", "haiku*"] }]
        "#,
    );
    let filter = &sheet.limits[0].filter;
    let resolved = filter.resolved(&known_models());
    assert!(!filter.matches(Some("claude-opus"), None));
    assert!(resolved.matches(Some("claude-opus"), None));
    assert!(resolved.matches(Some("haiku-4"), None));
    assert!(!resolved.matches(Some("sonnet"), None));
    let pool = pool("id = \"p\"\nmodels = [\"OPUS\"]");
    assert_eq!(pool.filter().resolved(&known_models()).specificity(Some("claude-opus")), Some(11));
    assert_eq!(pool.specificity(Some("claude-opus")), None);
}
