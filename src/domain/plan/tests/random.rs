use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::domain::quantity::{MAX_AMOUNT, MAX_BUCKET, MAX_SLOTS};

fn meter() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "requests",
        "input_tokens",
        "output_tokens",
        "total_tokens",
        "credits",
        "images",
    ])
}

fn period() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::sample::select(vec!["day", "week", "month", "lifetime"]).prop_map(|word| json!(word)),
        (1..=876_000u32).prop_map(|n| json!({ "hours": n })),
        (1..=36_500u32).prop_map(|n| json!({ "days": n })),
        (1..=876_000u32).prop_map(|n| json!({ "session_hours": n })),
    ]
}

/// A figure that the largest call of the sheet (at most 2,000) fits, or 0.
fn number(max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 9 => 2_000..=max]
}

fn rule() -> impl Strategy<Value = Value> {
    prop_oneof![
        (meter(), number(MAX_BUCKET), 1..=MAX_BUCKET).prop_map(|(meter, capacity, refill)| {
            json!({ "kind": "bucket", "meter": meter, "capacity": capacity, "refill_per_minute": refill })
        }),
        number(MAX_SLOTS).prop_map(|limit| json!({ "kind": "slots", "limit": limit })),
        (
            meter(),
            number(MAX_AMOUNT),
            period(),
            prop::option::of(prop::sample::select(vec!["UTC", "Asia/Tokyo", "Cuba"])),
            prop::option::of(prop::collection::vec(
                (1..=1_000_000u32).prop_map(|n| f64::from(n) / 1e6),
                0..5
            )),
            any::<bool>(),
        )
            .prop_map(|(meter, limit, period, zone, warn_at, by_user)| {
                let anchor = if by_user && period == "month" { "user" } else { "calendar" };
                let anchor = ["day", "week", "month"].iter().any(|word| period == *word).then_some(anchor);
                json!({
                    "kind": "window", "meter": meter, "limit": limit, "period": period,
                    "zone": zone, "warn_at": warn_at, "anchor": anchor,
                })
            }),
    ]
}

fn document() -> impl Strategy<Value = Value> {
    let list = |glob: &'static str| prop::option::of(prop::collection::vec(glob, 0..3));
    let limit = (
        rule(),
        prop::sample::select(vec!["hard", "soft", "shadow"]),
        prop::sample::select(vec!["user", "org", "tenant"]),
        prop::sample::select(vec!["exact", "percent", "hidden"]),
        list("[a-zA-Z0-9._:/*?-]{1,8}"),
        list("[a-z0-9_*?]{1,8}"),
    );
    let limits = prop::collection::vec(limit, 0..8);
    let cap = || prop::option::of(0..=1_000u64);
    (limits, cap(), cap(), 0..=1_000_000u32, any::<bool>(), "[A-Za-z0-9._:/-]{1,20}").prop_map(
        |(limits, input, output, weight, verified, id)| {
            let degrade = (0..limits.len()).step_by(2).map(
                |n| json!({ "limit": format!("limit_{n}"), "at": f64::from(weight.max(1)) / 1e6, "max_output_tokens": n }),
            );
            let degrade: Vec<Value> = degrade.collect();
            let limits =
                limits.into_iter().enumerate().map(|(n, (mut limit, enforce, scope, visibility, models, features))| {
                    // Only users have a day on which their months begin.
                    let scope = if limit["anchor"] == "user" { "user" } else { scope };
                    limit["name"] = json!(format!("limit_{n}"));
                    limit["enforce"] = json!(enforce);
                    limit["scope"] = json!(scope);
                    limit["visibility"] = json!(visibility);
                    limit["models"] = json!(models);
                    limit["features"] = json!(features);
                    limit
                });
            json!({
                "id": id,
                "name": "A plan",
                "requires_verified": verified,
                "cache_read_weight": f64::from(weight) / 1e6,
                "per_call": { "max_input_tokens": input, "max_output_tokens": output },
                "limits": limits.collect::<Vec<_>>(),
                "degrade": degrade,
            })
        },
    )
}

fn pool_document() -> impl Strategy<Value = Value> {
    let share = || (0..=1_000_000u32).prop_map(|n| f64::from(n) / 1e6);
    let limit = prop_oneof![
        (meter(), 1_000..=1_000_000u64, 1..=600u32, (0..=900_000u32).prop_map(|n| f64::from(n) / 1e6)).prop_map(
            |(meter, figure, seconds, burst)| json!({
                "kind": "bucket", "meter": meter, "vendor_limit": figure,
                "window_seconds": seconds, "burst_share": burst,
            })
        ),
        rule().prop_map(|mut rule| {
            // Pools warn nobody, and have no users to go by.
            if let Some(fields) = rule.as_object_mut() {
                fields.retain(|name, _| name != "warn_at" && name != "anchor");
            }
            rule
        }),
        (1_000..=MAX_SLOTS).prop_map(|figure| json!({ "kind": "slots", "vendor_limit": figure })),
        (meter(), period(), 1_000..=MAX_AMOUNT).prop_map(
            |(meter, period, figure)| json!({ "kind": "window", "meter": meter, "period": period, "vendor_limit": figure })
        ),
    ];
    let limits = prop::collection::vec(limit, 0..6);
    (limits, 100_000..=1_000_000u32, share(), any::<bool>(), 0..=1_000_000u64).prop_map(
        |(limits, margin, share, enforced, queue)| {
            let limits = limits.into_iter().enumerate().map(|(n, mut limit)| {
                limit["name"] = json!(format!("limit_{n}"));
                limit
            });
            json!({
                "id": "p", "models": ["*", "opus*"], "enforced": enforced, "margin": f64::from(margin) / 1e6,
                "counts": if enforced { "reserved" } else { "actual" }, "interactive_share": share,
                "max_queue": queue, "limits": limits.collect::<Vec<_>>(),
            })
        },
    )
}

/// Anything that JSON can say, with the words of sheets and pools in it.
fn anything() -> impl Strategy<Value = Value> {
    let words = || {
        prop_oneof![
            9 => prop::sample::select(vec![
                "id", "name", "limits", "per_call", "kind", "bucket", "window", "slots", "rolling", "meter",
                "requests", "limit", "capacity", "refill_per_minute", "period", "day", "month", "hours",
                "days", "session_hours", "zone", "anchor", "user", "scope", "enforce", "models", "features",
                "warn_at", "visibility", "percent", "degrade", "at", "vendor_limit", "burst_share", "window_seconds", "margin", "max_input_tokens",
                "cache_read_weight", "aliases", "input", "*",
            ])
            .prop_map(str::to_owned),
            1 => any::<String>(),
        ]
    };
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..5i64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        words().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((words(), inner), 0..8)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

/// A valid sheet of which one value was replaced.
fn damaged() -> impl Strategy<Value = Value> {
    (document(), anything(), any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(
        |(mut sheet, value, at, field)| {
            let limits = sheet["limits"].as_array_mut().map_or(&mut [][..], |limits| &mut limits[..]);
            if !limits.is_empty()
                && let Some(fields) = limits[at.index(limits.len())].as_object_mut()
            {
                let names: Vec<String> = fields.keys().cloned().collect();
                fields.insert(names[field.index(names.len())].clone(), value);
            }
            sheet
        },
    )
}

proptest! {
    #[test]
    fn a_sheet_that_is_shown_is_the_same_sheet_again(document in document()) {
        let text = document.to_string();
        let (sheet, _) = Sheet::read(&Node::from_json(text.as_bytes()).expect("JSON"))
            .map_err(|faults| TestCaseError::fail(format!("{faults:?}")))?;
        let shown = sheet.to_json().to_string();
        let (again, _) = Sheet::read(&Node::from_json(shown.as_bytes()).expect("JSON"))
            .map_err(|faults| TestCaseError::fail(format!("{faults:?}")))?;
        prop_assert_eq!(&again, &sheet);
        prop_assert_eq!(again.to_json(), sheet.to_json());
        sheet.lint(&known_models());
    }

    #[test]
    fn a_pool_that_is_shown_is_the_same_pool_again(document in pool_document()) {
        let text = document.to_string();
        let pool = Pool::read(&Node::from_json(text.as_bytes()).expect("JSON"))
            .map_err(|faults| TestCaseError::fail(format!("{faults:?}")))?;
        let shown = pool.to_json().to_string();
        prop_assert_eq!(Pool::read(&Node::from_json(shown.as_bytes()).expect("JSON")), Ok(pool));
    }

    #[test]
    fn no_window_passes_more_than_the_vendor_allows(
        figure in 10..=1_000_000_000u64,
        seconds in 1..=600u32,
        burst in 0..=1_000_000u32,
        margin in 100_000..=1_000_000u32,
    ) {
        let text = json!({
            "id": "p", "models": ["*"], "margin": f64::from(margin) / 1e6,
            "limits": [{ "name": "o", "kind": "bucket", "meter": "requests", "vendor_limit": figure,
                         "window_seconds": seconds, "burst_share": f64::from(burst) / 1e6 }],
        }).to_string();
        // What cannot be split is refused, which passes nothing either.
        if let Ok(pool) = Pool::read(&Node::from_json(text.as_bytes()).expect("JSON")) {
            let Rule::Bucket { capacity, refill_per_minute, .. } = pool.limits[0].limit.rule else {
                return Err(TestCaseError::fail("a bucket"));
            };
            let worst = u128::from(capacity) * 60 + u128::from(refill_per_minute) * u128::from(seconds);
            let effective = u128::from(figure) * u128::from(margin) / 1_000_000;
            prop_assert!(worst <= effective * 60, "{worst} / 60 > {effective}");
        }
    }

    #[test]
    fn no_document_makes_the_readers_panic(document in prop_oneof![anything(), damaged()]) {
        let text = document.to_string();
        let node = Node::from_json(text.as_bytes()).expect("JSON");
        if let Ok((sheet, _)) = Sheet::read(&node) {
            sheet.lint(&known_models());
            sheet.limits.iter().for_each(|limit| { limit.cell(); });
        }
        let _ = Pool::read(&node);
        let _ = Models::read(&node);
    }
}
