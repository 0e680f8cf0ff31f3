//! Holds, users and records to try a ledger with.

use std::sync::Arc;

use apportion::domain::charge::{AccountKey, CellId, MeterCode, TenantRef};
use apportion::domain::hold::{
    Amounts, Caps, FinishedBy, Granted, Hold, Receipt, ReleaseReason, Reported, RequestMark, Settlement,
    Stage, Upstream,
};
use apportion::domain::ids::{HoldId, Label, Name, RequestId, UserId};
use apportion::domain::plan::{PerCall, Scope};
use apportion::domain::quantity::{MAX_AMOUNT, Ppm};
use apportion::domain::time::Millis;
use apportion::ledger::{Change, Note, Record, RecordKind, UsageDelta, User, Written};

pub const TENANT: TenantRef = TenantRef(7);
pub const OTHER: TenantRef = TenantRef(8);
pub const START: Millis = Millis(1_790_000_000_000);

pub fn user(id: &str) -> UserId {
    UserId::parse(id).unwrap()
}

pub fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

pub fn at(ms: i64) -> Millis {
    START.plus_ms(ms)
}

pub fn request(id: &str) -> RequestId {
    RequestId::parse(id).unwrap()
}

/// An open hold of `user`, the `number`-th, made at `START + number`.
pub fn hold(user_id: &str, number: i64) -> Hold {
    let random = u128::from_be_bytes([0x5a; 16]) ^ number as u128;
    Hold {
        id: HoldId::from_parts(START.0 + number, random.to_be_bytes()),
        tenant: TENANT,
        user: user(user_id),
        org: None,
        pool: None,
        request: None,
        plan: name("free"),
        plan_version: 3,
        admits_user: false,
        bulk: false,
        models_version: 2,
        model: Some(name("claude-opus-5")),
        feature: Some(Label::parse("chat").unwrap()),
        created_at: at(number),
        expires_at: at(number + 600_000),
        lease_seconds: 600,
        lives_until: at(number + 3_600_000),
        day: 20_717,
        caps: Caps { per_call: PerCall::default(), max_tokens_per_call: 10_000_000 },
        cache_read_weight: Ppm(250_000),
        granted: Granted { input_tokens: 1200, max_output_tokens: 512, is_final: false },
        reserved: Amounts {
            requests: 1,
            input_tokens: 1200,
            output_tokens: 512,
            total_tokens: 1712,
            credits: 0,
        },
        amounts: Vec::new(),
        receipts: vec![receipt(Scope::User)],
        progress: 0,
        extends: Vec::new(),
        stage: Stage::Held,
    }
}

pub fn receipt(scope: Scope) -> Receipt {
    Receipt {
        scope,
        cell: CellId(0x1234_5678_9abc_def0),
        meter: MeterCode::TOTAL,
        reserved: 1712,
        window: Some((START, at(86_400_000))),
        opens: None,
    }
}

/// A hold with something in every field, at the bounds where there are any.
pub fn full_hold() -> Hold {
    Hold {
        org: Some(name("acme/eu")),
        pool: Some(name("default")),
        request: Some(mark("\u{0}req\u{1F600}")),
        amounts: vec![(Label::parse("images").unwrap(), MAX_AMOUNT)],
        receipts: [Scope::User, Scope::Org, Scope::Tenant, Scope::Pool].map(receipt).to_vec(),
        progress: MAX_AMOUNT,
        extends: vec![mark("e1"), mark("e2")],
        day: -1,
        admits_user: true,
        ..hold("u_42", 1)
    }
}

pub fn mark(id: &str) -> RequestMark {
    RequestMark { id: request(id), fingerprint: [0xfe; 16] }
}

/// The stages that a hold can be in, each with all its fields.
pub fn stages() -> [Stage; 4] {
    let settlement = Settlement {
        at: at(5000),
        late: true,
        by: FinishedBy::Admin,
        reported: Reported {
            input_tokens: 1180,
            output_tokens: 380,
            cache_read_tokens: 100,
            cache_write_tokens: 7,
            model: Some(name("claude-opus-5")),
            outcome: Some("completed".into()),
            upstream: Some(Upstream {
                request_id: Some("req_1".into()),
                status: Some(200),
                latency_ms: Some(2100),
            }),
        },
        counted: Amounts {
            requests: 1,
            input_tokens: 1105,
            output_tokens: 380,
            total_tokens: 1485,
            credits: MAX_AMOUNT,
        },
        amounts: vec![(Label::parse("images").unwrap(), 2)],
    };
    [
        Stage::Held,
        Stage::InDoubt { since: at(4000) },
        Stage::Settled(Box::new(settlement)),
        Stage::Released {
            at: at(6000),
            late: false,
            reason: ReleaseReason::UpstreamRefused,
            by: FinishedBy::Caller,
        },
    ]
}

/// The hold, released at `START + ms`.
pub fn finished(hold: &Hold, ms: i64) -> Hold {
    let stage =
        Stage::Released { at: at(ms), late: false, reason: ReleaseReason::NotSent, by: FinishedBy::Caller };
    Hold { stage, ..hold.clone() }
}

pub fn change(hold: &Hold) -> Change {
    Change { hold: Some(Arc::new(hold.clone())), ..Change::default() }
}

pub fn key(scope: Scope, owner: &str) -> AccountKey {
    AccountKey { tenant: TENANT, scope, owner: owner.into() }
}

pub fn delta(requests: i64, tokens: i64) -> UsageDelta {
    UsageDelta {
        model: Some(name("claude-opus-5")),
        requests,
        input_tokens: tokens,
        output_tokens: 2 * tokens,
        total_tokens: 3 * tokens,
        credits: 4 * tokens,
    }
}

pub fn person(id: &str) -> User {
    User {
        id: user(id),
        plan: name("free"),
        plan_since: at(0),
        plan_sequence: None,
        org: None,
        verified: false,
        suspended: false,
        zone: None,
        anchor_day: None,
        signals: None,
        rights: None,
        erased: false,
        born: 0,
        moved: 0,
        created_at: at(0),
        version: 1,
    }
}

pub fn written() -> Written {
    Written { at: at(9), by: "key_1".into(), reason: Some("as agreed".into()) }
}

pub fn note() -> Note {
    let state = |state: &str| Some(serde_json::json!({"state": state}));
    Note {
        action: "hold.resolve",
        target: "hold_1".into(),
        before: state("in_doubt"),
        after: state("settled"),
    }
}

pub fn record(kind: RecordKind, id: &str, version: u32, body: Option<&str>) -> Record {
    Record {
        kind,
        id: id.into(),
        version,
        body: body.map(str::to_owned),
        effective_at: at(i64::from(version)),
        written: written(),
        revision: 0,
    }
}

/// As written: without what the ledger fills in.
pub fn plain(records: Vec<Record>) -> Vec<Record> {
    records.into_iter().map(|record| Record { revision: 0, ..record }).collect()
}

/// As written: without what the ledger fills in.
pub fn as_written(user: User) -> User {
    User { born: 0, moved: 0, ..user }
}
