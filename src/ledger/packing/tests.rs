use proptest::prelude::*;

use super::*;
use crate::domain::charge::{CellId, MeterCode};
use crate::domain::hold::Opening;
use crate::domain::plan::{PerCall, Scope};
use crate::ledger::encoding::{pack_hold, unpack_hold};

fn name(text: &str) -> Option<Name> {
    Some(Name::parse(text).unwrap())
}

fn mark(id: &str) -> RequestMark {
    RequestMark { id: RequestId::parse(id).unwrap(), fingerprint: [9; 16] }
}

/// A bucket, slots, and windows of a day and of a month.
fn receipts(created_at: Millis) -> Vec<Receipt> {
    let day = Millis(created_at.0 - created_at.0.rem_euclid(DAY_MS));
    let window = |days_before: i64, days: i64| {
        let start = day.plus_ms(-days_before * DAY_MS);
        Some((start, start.plus_ms(days * DAY_MS)))
    };
    let receipt = |cell: u64, meter, reserved, window| {
        let cell = CellId(cell.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Receipt { scope: Scope::User, cell, meter, reserved, window, opens: None }
    };
    vec![
        receipt(1, MeterCode::REQUESTS, 1, None),
        receipt(2, MeterCode::SLOTS, 1, None),
        receipt(3, MeterCode::REQUESTS, 1, window(0, 1)),
        receipt(4, MeterCode::TOTAL, 1712, window(28, 31)),
    ]
}

/// A call as most are.
fn usual() -> Hold {
    let created_at = Millis(1_764_454_800_123);
    let tokens =
        Amounts { requests: 1, input_tokens: 1200, output_tokens: 512, total_tokens: 1712, credits: 0 };
    let counted = Amounts { output_tokens: 380, total_tokens: 1580, credits: 9300, ..tokens };
    let upstream = Upstream {
        request_id: Some("req_0123456789abcdef01234567".into()),
        status: Some(200),
        latency_ms: Some(2100),
    };
    Hold {
        id: HoldId::from_parts(created_at.0, [0xa7; 16]),
        tenant: TenantRef(1),
        user: UserId::parse("user_12345").unwrap(),
        org: None,
        pool: name("default"),
        request: Some(mark("e8b8fdb2-f49d-4e5d-a1ab-60efafe2fed9")),
        plan: name("pro").unwrap(),
        plan_version: 1,
        admits_user: false,
        models_version: 1,
        model: name("sonnet"),
        feature: Some(Label::parse("chat").unwrap()),
        bulk: false,
        created_at,
        expires_at: created_at.plus_ms(600_000),
        lease_seconds: 600,
        lives_until: created_at.plus_ms(3_600_000),
        day: 20_421,
        caps: Caps {
            per_call: PerCall { max_input_tokens: Some(20_000), max_output_tokens: Some(4096) },
            max_tokens_per_call: 200_000,
        },
        cache_read_weight: Ppm(100_000),
        granted: Granted { input_tokens: 1200, max_output_tokens: 512, is_final: false },
        reserved: tokens,
        amounts: Vec::new(),
        receipts: receipts(created_at),
        progress: 0,
        extends: Vec::new(),
        stage: Stage::Settled(Box::new(Settlement {
            at: created_at.plus_ms(2300),
            late: false,
            by: FinishedBy::Caller,
            reported: Reported {
                input_tokens: 1200,
                output_tokens: 380,
                model: name("sonnet"),
                outcome: Some("completed".into()),
                upstream: Some(upstream),
                ..Reported::default()
            },
            counted,
            amounts: Vec::new(),
        })),
    }
}

#[test]
fn a_usual_hold_takes_few_bytes() {
    let packed = pack_hold(&usual()).unwrap();
    let second = postcard::to_allocvec(&second_form()).unwrap();
    let plain = postcard::to_allocvec(&usual()).unwrap();
    assert_eq!(unpack_hold(&packed).unwrap(), usual());
    let lengths = [packed.len(), second.len(), plain.len()];
    assert!(lengths[0] < 256 && lengths[1] > 268 && lengths[2] > 330, "{lengths:?}");
}

#[test]
fn holds_of_the_second_form_stay_readable() {
    let bytes = postcard::to_extend(&second_form(), vec![2]).unwrap();
    assert_eq!(unpack_hold(&bytes).unwrap(), usual());
}

fn second_form() -> Packed<Receipt> {
    let Packed { head, rest, .. } = Packed::of(&usual());
    Packed { head, receipts: usual().receipts, rest }
}

#[test]
fn holds_of_the_first_form_stay_readable() {
    let plain = postcard::to_extend(&usual(), vec![1]).unwrap();
    assert_eq!(unpack_hold(&plain).unwrap(), usual());
    assert!(unpack_hold(&plain[..plain.len() - 1]).is_err());
    assert!(unpack_hold(&[plain, vec![0]].concat()).is_err());
}

fn amounts() -> impl Strategy<Value = Amounts> {
    any::<[u64; 5]>().prop_map(|[requests, input_tokens, output_tokens, total_tokens, credits]| Amounts {
        requests,
        input_tokens,
        output_tokens,
        total_tokens,
        credits,
    })
}

fn stage() -> impl Strategy<Value = Stage> {
    let released = (any::<i64>(), any::<bool>()).prop_map(|(at, late)| Stage::Released {
        at: Millis(at),
        late,
        reason: ReleaseReason::UpstreamRefused,
        by: FinishedBy::Rule,
    });
    let models = prop_oneof![Just(None), Just(name("sonnet")), Just(name("opus"))];
    let outcomes = prop_oneof![Just(None), Just(Some("completed")), Just(Some("")), Just(Some("aborted"))];
    let told = (any::<(i64, u64, u64, u64, u64)>(), models, outcomes, amounts());
    let settled = told.prop_map(|((at, input, output, read, write), model, outcome, counted)| {
        Stage::Settled(Box::new(Settlement {
            at: Millis(at),
            late: true,
            by: FinishedBy::Admin,
            reported: Reported {
                input_tokens: input,
                output_tokens: output,
                cache_read_tokens: read,
                cache_write_tokens: write,
                model,
                outcome: outcome.map(str::to_owned),
                upstream: None,
            },
            counted,
            amounts: vec![(Label::parse("images").unwrap(), output)],
        }))
    });
    prop_oneof![
        Just(Stage::Held),
        any::<i64>().prop_map(|since| Stage::InDoubt { since: Millis(since) }),
        released,
        settled
    ]
}

/// At full minutes, or anywhere.
fn window() -> impl Strategy<Value = (Millis, Millis)> {
    let minutes = (-100_000_000_i64..100_000_000, -50_000_i64..50_000);
    prop_oneof![
        minutes.prop_map(|(start, length)| (Millis(start * 60_000), Millis((start + length) * 60_000))),
        any::<(i64, i64)>().prop_map(|(start, end)| (Millis(start), Millis(end))),
    ]
}

proptest! {
    #[test]
    fn any_hold_comes_back_as_it_was(
        id in any::<u128>(),
        times in any::<[i64; 3]>(),
        (day, lease_seconds, flags) in any::<(i32, u32, [bool; 3])>(),
        request in prop_oneof![
            Just("e8b8fdb2-f49d-4e5d-a1ab-60efafe2fed9"), Just("E8B8fdb2-f49d-4e5d-a1ab-60efafe2fed9"),
            Just("e8b8fdb2f49d4e5da1ab60efafe2fed9"), Just("e8b8fdb2-f49d-4e5d-a1ab-60efafe2fedé"), Just("r1"),
        ],
        (granted, reserved, stage) in (any::<(u64, u64)>(), amounts(), stage()),
        asked in prop_oneof![Just(None), Just(name("sonnet"))],
        windows in proptest::collection::vec(proptest::option::of(window()), 0..4),
    ) {
        let hold = Hold {
            id: HoldId(id),
            created_at: Millis(times[0]),
            expires_at: Millis(times[1]),
            lives_until: Millis(times[2]),
            day,
            lease_seconds,
            admits_user: flags[0],
            bulk: flags[1],
            model: asked,
            request: Some(mark(request)),
            extends: vec![mark(request), mark("x")],
            granted: Granted { input_tokens: granted.0, max_output_tokens: granted.1, is_final: flags[2] },
            reserved,
            stage,
            receipts: (0..).zip(windows).map(|(cell, window)| Receipt {
                window,
                cell: CellId(cell),
                opens: (cell == 1).then_some(Opening::Session { len: 5 }),
                ..usual().receipts[0]
            }).collect(),
            ..usual()
        };
        prop_assert_eq!(unpack_hold(&pack_hold(&hold).unwrap()).unwrap(), hold);
    }
}
