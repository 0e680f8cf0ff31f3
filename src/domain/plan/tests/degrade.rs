use super::*;

const LIMITS: &str = r#"
    { name = "month", kind = "window", meter = "total_tokens", period = "month", limit = 1000 },
    { name = "calls", kind = "bucket", meter = "requests", capacity = 5, refill_per_minute = 5 },
    { name = "seen", kind = "slots", limit = 2, enforce = "shadow" }"#;

fn with_advice(advice: &str) -> String {
    with_limits(LIMITS) + &format!("\ndegrade = [{advice}]")
}

fn advised(sheet: &Sheet, limit: usize) -> Vec<(u32, Option<&str>, Option<u64>)> {
    let degrade = sheet.limits[limit].degrade.iter();
    degrade
        .map(|Degrade { at, advice }| {
            (at.0, advice.model.as_ref().map(Name::as_str), advice.max_output_tokens)
        })
        .collect()
}

#[test]
fn advice_stands_with_its_limit_by_share() {
    let text = with_advice(
        r#"{ limit = "month", at = 0.95, max_output_tokens = 20 },
           { limit = "calls", at = 1, model = "haiku" },
           { limit = "month", at = 0.8, model = "haiku", max_output_tokens = 40 }"#,
    );
    let read = sheet(&text);
    let month = [(800_000, Some("haiku"), Some(40)), (950_000, None, Some(20))];
    assert_eq!(advised(&read, 0), month);
    assert_eq!(advised(&read, 1), [(1_000_000, Some("haiku"), None)]);
    let shown = read.to_json();
    assert_eq!(
        shown["degrade"][1],
        serde_json::json!({"limit": "month", "at": 0.95, "max_output_tokens": 20})
    );
    let again = Node::from_json(shown.to_string().as_bytes()).map(|node| Sheet::read(&node)).expect("JSON");
    assert_eq!(again.expect("a valid sheet").0, read);
    assert_eq!(sheet("id = \"p\"").to_json().get("degrade"), None);
}

#[test]
fn faulty_advice_is_refused_by_its_field() {
    let faults = sheet_faults(&with_advice(
        r#"{ limit = "mouth", at = 0.5, model = "haiku" },
           { limit = "month", at = 1.5, model = "haiku" },
           { limit = "month", at = 0, model = "haiku" },
           { limit = "month", at = 0.6 },
           { limit = "month", at = 0.6, model = "haiku" },
           { at = 0.6, model = "two words", max_output_tokens = -1 },
           { limit = "month", at = 0.7, model = "haiku", modell = "x" }"#,
    ));
    let at: Vec<String> = pointers(&faults).iter().map(|pointer| pointer.replace("/degrade", "")).collect();
    let expected = [
        "/0/limit",
        "/1/at",
        "/2/at",
        "/3",
        "/4/at",
        "/5/limit",
        "/5/model",
        "/5/max_output_tokens",
        "/6/modell",
    ];
    assert_eq!(at, expected);
}

#[test]
fn advice_that_says_nothing_is_warned_of() {
    let (sheet, _) = Sheet::read(&node(&with_advice(
        r#"{ limit = "seen", at = 0.5, model = "haiku" },
           { limit = "month", at = 0.5, max_output_tokens = 50 },
           { limit = "month", at = 0.6, max_output_tokens = 49, model = "unheard" },
           { limit = "calls", at = 0.6, model = "opus" }"#,
    )))
    .expect("a valid sheet");
    let warned: Vec<String> =
        sheet.lint(&known_models()).into_iter().map(|warning| warning.pointer).collect();
    // By limit, as the sheet is shown.
    assert_eq!(warned, ["/degrade/0/max_output_tokens", "/degrade/3/limit", "/degrade/1/model"]);
}
