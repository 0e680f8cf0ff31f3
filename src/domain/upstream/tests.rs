use super::*;

const NOW: Millis = Millis(1_773_144_000_000); // 2026-03-10T12:00:00Z

fn answer<'a>(status: u16, headers: &[(&str, &str)], body: Option<&'a str>) -> Answer<'a> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let body = body.map(|body| match Node::from_json(body.as_bytes()) {
        Ok(node) => Body::Json(node),
        Err(_) => Body::Text(body),
    });
    Answer { status, headers: Some(headers.iter().map(owned).collect()), body }
}

/// The wait in ms of a 429 with these headers.
fn wait(headers: &[(&str, &str)]) -> Option<i64> {
    wait_of(&answer(429, headers, None))
}

fn wait_of(answer: &Answer<'_>) -> Option<i64> {
    match answer.meaning(NOW) {
        Meaning::Wait { until, .. } => Some(until.0 - NOW.0),
        _ => None,
    }
}

fn is_spent(answer: &Answer<'_>) -> bool {
    matches!(answer.meaning(NOW), Meaning::Spent { .. })
}

#[test]
fn retry_after_is_seconds_or_a_date_or_milliseconds() {
    assert_eq!(wait(&[("retry-after", "20")]), Some(20_000));
    assert_eq!(wait(&[("retry-after", " 1.5 ")]), Some(1500));
    assert_eq!(wait(&[("retry-after", "Tue, 10 Mar 2026 12:00:30 GMT")]), Some(30_000));
    assert_eq!(wait(&[("retry-after-ms", "974")]), Some(974));
    assert_eq!(wait(&[("retry-after", "2"), ("retry-after-ms", "1200")]), Some(1200));
    assert_eq!(wait(&[("retry-after", "Tue, 10 Mar 2026 11:00:00 GMT")]), Some(0), "a moment that is over");
}

#[test]
fn all_three_dates_of_http_are_read() {
    for date in
        ["Tue, 10 Mar 2026 12:00:30 GMT", "Tuesday, 10-Mar-26 12:00:30 GMT", "Tue Mar 10 12:00:30 2026"]
    {
        assert_eq!(wait(&[("retry-after", date)]), Some(30_000), "{date}");
    }
}

#[test]
fn a_wait_that_cannot_be_read_is_a_short_one_and_no_closure() {
    for odd in ["soon", "-5", "NaN", "inf", "99999999999999999999", "", "Tue, 10 Mar"] {
        assert_eq!(wait(&[("retry-after", odd)]), Some(UNTOLD_MS), "{odd}");
        assert_eq!(wait(&[("retry-after-ms", odd)]), Some(UNTOLD_MS), "{odd}");
    }
    assert!(is_spent(&answer(429, &[("content-type", "text/plain")], None)), "none at all");
}

#[test]
fn a_date_is_taken_from_the_answers_own_date() {
    let headers =
        [("date", "Tue, 10 Mar 2026 10:00:00 GMT"), ("retry-after", "Tue, 10 Mar 2026 10:00:07 GMT")];
    assert_eq!(wait(&headers), Some(7000));
    let headers = [
        ("date", "Tue, 10 Mar 2026 10:00:00 GMT"),
        ("anthropic-ratelimit-requests-remaining", "0"),
        ("anthropic-ratelimit-requests-reset", "2026-03-10T10:00:12Z"),
    ];
    assert_eq!(wait(&headers), Some(12_000));
}

#[test]
fn resets_are_durations_seconds_instants_and_epochs() {
    for (reset, ms) in [
        ("12ms", 12),
        ("974ms", 974),
        ("1s", 1000),
        ("6m0s", 360_000),
        ("1m30.951s", 90_951),
        ("1h2m3s", 3_723_000),
        ("1d", 86_400_000),
        ("250us", 1),
        ("9", 9000),
        ("0.2", 200),
        ("1773144042", 42_000),
        ("1773144042000", 42_000),
        ("2026-03-10T12:00:05Z", 5000),
        ("2026-03-10T12:00:05.250+00:00", 5250),
    ] {
        assert_eq!(wait(&[("x-ratelimit-reset-requests", reset)]), Some(ms), "{reset}");
        assert_eq!(wait(&[("anthropic-ratelimit-tokens-reset", reset)]), Some(ms), "{reset}");
    }
    for nothing in ["-1", "", "soon", "NaN", "inf", "6m0", "m", "1x", "1e400"] {
        assert_eq!(read_when(nothing), None, "{nothing}");
    }
}

#[test]
fn of_several_resets_that_of_what_is_used_up_counts() {
    let headers = |requests_left: &'static str, tokens_left: &'static str| {
        [
            ("x-ratelimit-limit-requests", "100"),
            ("x-ratelimit-remaining-requests", requests_left),
            ("x-ratelimit-reset-requests", "6m0s"),
            ("x-ratelimit-limit-tokens", "90000"),
            ("x-ratelimit-remaining-tokens", tokens_left),
            ("x-ratelimit-reset-tokens", "974ms"),
        ]
    };
    assert_eq!(wait(&headers("99", "0")), Some(974));
    assert_eq!(wait(&headers("0", "0")), Some(360_000));
    assert_eq!(wait(&headers("99", "300")), Some(974), "what is nearest to its end");
    assert_eq!(wait(&headers("-1", "300")), Some(360_000), "nothing is known of the one");
    let bare = [("x-ratelimit-reset-requests", "2s"), ("x-ratelimit-reset-tokens", "6m0s")];
    assert_eq!(wait(&bare), Some(360_000));
    let body = r#"{"error":{"type":"requests","code":"rate_limit_exceeded","message":""}}"#;
    assert_eq!(wait_of(&answer(429, &headers("99", "300"), Some(body))), Some(360_000), "the body names it");
}

#[test]
fn a_plans_unified_limits_are_read() {
    let headers = [
        ("anthropic-ratelimit-unified-status", "rejected"),
        ("anthropic-ratelimit-unified-reset", "1773144600"),
        ("anthropic-ratelimit-unified-7d-reset", "1773500000"),
        ("anthropic-ratelimit-unified-7d-status", "allowed"),
    ];
    assert_eq!(wait(&headers), Some(600_000));
}

#[test]
fn a_spent_limit_is_no_wait_whatever_else_is_said() {
    for code in [
        "insufficient_quota",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
    ] {
        let body = format!(
            r#"{{"error":{{"type":"insufficient_quota","code":"{code}","message":"","param":null}}}}"#
        );
        assert!(is_spent(&answer(429, &[("retry-after", "20")], Some(&body))), "{code}");
    }
    let anthropic = r#"{"type":"error","error":{"type":"rate_limit_error","message":"",
        "details":{"error_code":"enforced_spend_limit_reached"}}}"#;
    assert!(is_spent(&answer(429, &[], Some(anthropic))));
    let own = r#"{"type":"error","error":{"type":"invalid_request_error",
        "message":"You have reached your specified API usage limits. You will regain access on 2026-04-01"}}"#;
    assert!(is_spent(&answer(400, &[], Some(own))));
    assert!(is_spent(&answer(402, &[], None)));
    let other =
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: too large"}}"#;
    assert_eq!(answer(400, &[], Some(other)).meaning(NOW), Meaning::Nothing);
}

#[test]
fn a_refusal_that_names_no_wait_is_taken_for_a_spent_limit_only_if_its_headers_are_known() {
    assert!(is_spent(&answer(429, &[("content-type", "application/json")], None)));
    let anthropic = r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request"}}"#;
    assert!(is_spent(&answer(429, &[], Some(anthropic))));
    let left = [
        ("anthropic-ratelimit-requests-remaining", "40"),
        ("anthropic-ratelimit-requests-reset", "2026-03-10T12:00:05Z"),
    ];
    assert!(is_spent(&answer(429, &left, None)), "this vendor names a wait wherever one helps");
    let unknown = Answer { status: 429, ..Answer::default() };
    assert_eq!(wait_of(&unknown), Some(UNTOLD_MS));
    for too_fast in [
        r#"{"error":{"type":"tokens","code":"rate_limit_exceeded","message":"","param":null}}"#,
        r#"{"error":{"code":"429","message":"Requests to this operation exceed the call rate limit"}}"#,
        "<html>Too Many Requests</html>",
        r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":""}}"#,
    ] {
        assert_eq!(wait_of(&answer(429, &[], Some(too_fast))), Some(UNTOLD_MS), "{too_fast}");
    }
}

#[test]
fn googles_body_tells_the_wait_and_its_quota_whether_one_helps() {
    let body = |quota: &str, delay: &str| {
        format!(
            r#"{{"error":{{"code":429,"status":"RESOURCE_EXHAUSTED","message":"","details":[
            {{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{{"quotaMetric":"m","quotaId":"{quota}","quotaValue":"15"}}]}},
            {{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"{delay}"}}]}}}}"#
        )
    };
    let by_minute = body("GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "38.2s");
    assert_eq!(wait_of(&answer(429, &[], Some(&by_minute))), Some(38_200));
    let by_day = body("GenerateRequestsPerDayPerProjectPerModel-FreeTier", "38.2s");
    let meaning = answer(429, &[], Some(&by_day)).meaning(NOW);
    // Midnight in Los Angeles, in summer time.
    let until = Millis::parse("2026-03-11T07:00:00Z").unwrap();
    assert_eq!(meaning, Meaning::Wait { until, because: Because::Day });
}

#[test]
fn an_overload_is_a_wait_only_if_it_says_so() {
    let told = answer(529, &[("retry-after", "3")], None);
    let until = NOW.plus_ms(3000);
    assert_eq!(told.meaning(NOW), Meaning::Wait { until, because: Because::Overload });
    assert_eq!(answer(529, &[], None).meaning(NOW), Meaning::Nothing);
    assert!(answer(529, &[], None).is_rejection() && !answer(503, &[], None).is_rejection());
    assert_eq!(answer(200, &[("retry-after", "3")], None).meaning(NOW), Meaning::Nothing);
}

#[test]
fn no_wait_is_longer_than_a_month() {
    assert_eq!(wait(&[("retry-after", "99999999")]), Some(LONGEST_MS));
    assert_eq!(wait(&[("x-ratelimit-reset-tokens", "9999-01-01T00:00:00Z")]), Some(LONGEST_MS));
}

#[test]
fn what_is_left_is_read_for_what_a_pool_counts() {
    let openai = answer(
        200,
        &[
            ("x-ratelimit-limit-requests", "100"),
            ("x-ratelimit-remaining-requests", "7"),
            ("x-ratelimit-remaining-tokens", "-1"),
            ("x-ratelimit-remaining-tokens_usage_based", "5"),
        ],
        None,
    );
    assert_eq!(openai.left(), [Left { meter: MeterCode::REQUESTS, limit: Some(100), remaining: 7 }]);
    let anthropic = answer(
        200,
        &[
            ("anthropic-ratelimit-input-tokens-limit", "80000"),
            ("anthropic-ratelimit-input-tokens-remaining", "3000"),
            ("anthropic-ratelimit-output-tokens-limit", "16000"),
            ("anthropic-ratelimit-output-tokens-remaining", "3120"),
            ("anthropic-ratelimit-requests-remaining", "1000"),
        ],
        None,
    );
    let left = |meter, limit, remaining| Left { meter, limit, remaining };
    assert_eq!(
        anthropic.left(),
        [
            left(MeterCode::INPUT, Some(80_000), 3500),
            left(MeterCode::OUTPUT, Some(16_000), 3120),
            left(MeterCode::REQUESTS, None, 1000),
        ],
        "whole thousands may have been rounded down"
    );
}
