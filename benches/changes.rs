//! What a ledger is given: a new hold of one of many users with eight receipts, with its
//! account, its usage and its event.

use std::sync::Arc;

use apportion::domain::charge::{AccountKey, CellId, MeterCode, TenantRef};
use apportion::domain::hold::{Amounts, Caps, Granted, Hold, Receipt, RequestMark, Stage};
use apportion::domain::ids::{HoldId, Name, RequestId, UserId};
use apportion::domain::plan::{PerCall, Scope};
use apportion::domain::quantity::Ppm;
use apportion::domain::time::Millis;
use apportion::ledger::{Change, FeedMark, UsageDelta};

const TENANT: TenantRef = TenantRef(1);
const USERS: i64 = 10_000;

/// The `number`-th of all.
pub fn change(number: i64) -> Change {
    let user = format!("user_{}", number.wrapping_mul(7_919).rem_euclid(USERS));
    let receipt = |cell: u64| Receipt {
        scope: Scope::User,
        cell: CellId(cell),
        meter: MeterCode::TOTAL,
        reserved: 1_712,
        window: Some((Millis(0), Millis(86_400_000))),
        opens: None,
    };
    let hold = Hold {
        id: HoldId::from_parts(number, u128::MAX.to_be_bytes()),
        tenant: TENANT,
        user: UserId::parse(&user).expect("a user"),
        org: None,
        pool: None,
        request: RequestId::parse(&format!("req_{number}"))
            .ok()
            .map(|id| RequestMark { id, fingerprint: [7; 16] }),
        plan: Name::parse("free").expect("a name"),
        plan_version: 1,
        admits_user: false,
        bulk: false,
        models_version: 1,
        model: Name::parse("claude-opus-5").ok(),
        feature: None,
        created_at: Millis(number),
        expires_at: Millis(number + 600_000),
        lease_seconds: 600,
        lives_until: Millis(number + 3_600_000),
        day: 20_717,
        caps: Caps { per_call: PerCall::default(), max_tokens_per_call: 1_000_000 },
        cache_read_weight: Ppm::ONE,
        granted: Granted { input_tokens: 1_200, max_output_tokens: 512, is_final: false },
        reserved: Amounts::default(),
        amounts: Vec::new(),
        receipts: (1..=8).map(receipt).collect(),
        progress: 0,
        extends: Vec::new(),
        stage: Stage::Held,
    };
    let model = Name::parse("claude-opus-5").ok();
    let (requests, input_tokens, output_tokens) = (1, 1_200, 512);
    let usage = UsageDelta { model, requests, input_tokens, output_tokens, total_tokens: 1_712, credits: 0 };
    let account = AccountKey { tenant: TENANT, scope: Scope::User, owner: user.as_str().into() };
    Change {
        hold: Some(Arc::new(hold)),
        usage: Some(usage),
        event: Some(FeedMark { part: 1, amounts: Vec::new() }),
        accounts: vec![(account, vec![7; 400].as_slice().into())],
        moved: Vec::new(),
    }
}
