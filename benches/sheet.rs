//! The sheet of eight limits that everything here is measured with: one of
//! each kind that products combine, so high that nothing is ever refused.

use apportion::domain::account::Account;
use apportion::domain::charge::{Charge, Demand, Figures, MeterCode, Span, TenantRef};
use apportion::domain::document::Node;
use apportion::domain::hold::{Amounts, Caps, FinishedBy, Granted, Hold, Reported, Settlement, Stage};
use apportion::domain::ids::{HoldId, Name, UserId};
use apportion::domain::plan::{Limit, Rule, Scope, Sheet};
use apportion::domain::step::{self, Ask, Before, Tally, Verdict};
use apportion::domain::taking::Taking;
use apportion::domain::time::{Millis, Zone};
use serde_json::{Value, json};
use smallvec::SmallVec;

pub const SHEET: &str = r#"{
  "id": "bench",
  "name": "Bench",
  "per_call": {"max_input_tokens": 200000, "max_output_tokens": 8192},
  "limits": [
    {"name": "requests_per_minute", "kind": "bucket", "meter": "requests",
     "capacity": 1000000000, "refill_per_minute": 1000000000},
    {"name": "input_tokens_per_minute", "kind": "bucket", "meter": "input_tokens",
     "capacity": 100000000000, "refill_per_minute": 100000000000},
    {"name": "output_tokens_per_minute", "kind": "bucket", "meter": "output_tokens",
     "capacity": 100000000000, "refill_per_minute": 100000000000},
    {"name": "concurrency", "kind": "slots", "limit": 1000000},
    {"name": "tokens_per_session", "kind": "window", "meter": "total_tokens",
     "period": {"session_hours": 5}, "limit": 9007199254740991},
    {"name": "requests_per_day", "kind": "window", "meter": "requests",
     "period": "day", "limit": 9007199254740991},
    {"name": "tokens_per_week", "kind": "window", "meter": "total_tokens",
     "period": "week", "limit": 9007199254740991},
    {"name": "tokens_per_month", "kind": "window", "meter": "total_tokens",
     "period": "month", "limit": 9007199254740991, "warn_at": [0.8, 0.95]}
  ]
}"#;

/// What every check here asks, and every settle reports, in tokens.
pub const INPUT_TOKENS: u64 = 1200;
pub const MAX_OUTPUT_TOKENS: u64 = 512;
pub const OUTPUT_TOKENS: u64 = 380;

/// How many it has.
pub const LIMITS: usize = 8;

/// The first so many of its limits, or more like these.
pub fn document(limits: usize) -> Value {
    let mut sheet: Value = serde_json::from_str(SHEET).expect("the sheet is JSON");
    let kinds = sheet["limits"].as_array().expect("a list").clone();
    let named = kinds.iter().cycle().take(limits).enumerate().map(|(index, limit)| {
        let mut limit = limit.clone();
        if index >= kinds.len() {
            limit["name"] = json!(format!("{}_{index}", limit["name"].as_str().unwrap_or_default()));
        }
        limit
    });
    sheet["limits"] = Value::Array(named.collect());
    sheet
}

pub fn sheet(limits: usize) -> Sheet {
    let text = document(limits).to_string();
    let node = Node::from_json(text.as_bytes()).expect("the sheet is JSON");
    Sheet::read(&node).expect("the sheet is valid").0
}

/// The charges of one check of the sheet at `now`, in UTC.
pub fn charges(sheet: &Sheet, now: Millis) -> SmallVec<[Charge; 8]> {
    sheet.limits.iter().map(|limit| charge(limit, now)).collect()
}

fn charge(limit: &Limit, now: Millis) -> Charge {
    let meter = limit.rule.meter().and_then(MeterCode::built_in).unwrap_or(MeterCode::SLOTS);
    let per_output = |fixed: u64| Demand { fixed: u128::from(fixed), per_output: 1, unit: 1 };
    let demand = match meter {
        MeterCode::INPUT => Demand::fixed(INPUT_TOKENS),
        MeterCode::OUTPUT => per_output(0),
        MeterCode::TOTAL => per_output(INPUT_TOKENS),
        _ => Demand::fixed(1),
    };
    Charge {
        account: 0,
        cell: limit.cell(),
        meter,
        figures: figures(&limit.rule, now),
        demand,
        enforce: limit.enforce,
        asked: true,
        earlier: None,
        grants: None,
        to_come: None,
        switches: true,
        keep: 0,
    }
}

fn figures(rule: &Rule, now: Millis) -> Figures {
    match rule {
        Rule::Bucket { capacity, refill_per_minute, .. } => {
            Figures::Bucket { capacity: *capacity, refill: *refill_per_minute, since: Millis(0) }
        }
        Rule::Window { limit, period, .. } => {
            let span = match period.fixed_len_ms() {
                Some(len) => Span::Session { len },
                None => {
                    let borders = Zone::utc().borders(*period, 1, now);
                    let min_len = period.min_len_ms();
                    Span::Calendar {
                        start: borders.start,
                        end: borders.end,
                        next_end: borders.next_end,
                        min_len,
                    }
                }
            };
            Figures::Window { limit: *limit, since: Millis(0), span }
        }
        Rule::Slots { limit } => Figures::Slots { limit: *limit },
        Rule::Rolling { limit, window_seconds, guard_ms, .. } => {
            let window_ms = i64::from(*window_seconds) * 1000 + i64::from(*guard_ms);
            Figures::Rolling { limit: *limit, window_ms }
        }
    }
}

/// A hold as a check begins it: nothing reserved yet.
pub fn draft(sheet: &Sheet, tenant: TenantRef, user: UserId, now: Millis) -> Hold {
    Hold {
        id: HoldId(0),
        tenant,
        user,
        org: None,
        pool: Name::parse("default").ok(),
        request: None,
        plan: sheet.id.clone(),
        plan_version: 1,
        admits_user: false,
        bulk: false,
        models_version: 1,
        model: Name::parse("sonnet").ok(),
        feature: None,
        created_at: now,
        expires_at: now.plus_ms(600_000),
        lease_seconds: 600,
        lives_until: now.plus_ms(3_600_000),
        day: Zone::utc().local_day(now),
        caps: Caps { per_call: sheet.per_call, max_tokens_per_call: 10_000_000 },
        cache_read_weight: sheet.cache_read_weight,
        granted: Granted {
            input_tokens: INPUT_TOKENS,
            max_output_tokens: MAX_OUTPUT_TOKENS,
            is_final: false,
        },
        reserved: Amounts::default(),
        amounts: Vec::new(),
        receipts: Vec::new(),
        progress: 0,
        extends: Vec::new(),
        stage: Stage::Held,
    }
}

/// What a check of the sheet asks at `now`.
pub fn ask(sheet: &Sheet, now: Millis) -> Ask {
    Ask {
        charges: charges(sheet, now),
        output_max: MAX_OUTPUT_TOKENS,
        output_min: MAX_OUTPUT_TOKENS,
        taking: Taking::Enforced,
    }
}

/// Decides a check on one account and puts it in place; `hold` is the draft
/// before and the hold afterwards.
pub fn take(account: &mut Account, ask: &Ask, hold: &mut Hold, now: Millis) {
    match step::take(&[account], &[Scope::User], ask, now) {
        Verdict::Fits { output, is_final, receipts, mut projections, .. } => {
            step::reserve(hold, output, is_final, Demand::NONE);
            hold.receipts = receipts;
            account.accept(projections.remove(0));
            account.insert_open(hold.expires_at, hold.id, hold.receipts.iter());
        }
        Verdict::Refused { .. } => unreachable!("the sheet refuses nothing"),
    }
}

/// Settles a hold on its account.
pub fn finish(
    account: &mut Account,
    hold: &mut Hold,
    settlement: Settlement,
    charges: &[Charge],
    now: Millis,
) {
    let tally = Tally { amounts: settlement.counted, custom: &[] };
    let before = Before::Reserved { lease_runs: true };
    let (mut projections, _) = step::finish(&[(Scope::User, account)], hold, before, tally, charges, now);
    account.remove_open(hold.expires_at, hold.id);
    account.accept(projections.remove(0));
    hold.stage = Stage::Settled(Box::new(settlement));
}

pub fn settlement(now: Millis) -> Settlement {
    Settlement {
        at: now,
        late: false,
        by: FinishedBy::Caller,
        reported: Reported {
            input_tokens: INPUT_TOKENS,
            output_tokens: OUTPUT_TOKENS,
            model: Name::parse("sonnet").ok(),
            ..Reported::default()
        },
        counted: Amounts {
            requests: 1,
            input_tokens: INPUT_TOKENS,
            output_tokens: OUTPUT_TOKENS,
            total_tokens: INPUT_TOKENS + OUTPUT_TOKENS,
            credits: 0,
        },
        amounts: Vec::new(),
    }
}

/// The time of this machine.
pub fn now() -> Millis {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Millis(since.map_or(0, |since| since.as_millis() as i64))
}

/// A well-mixed sequence without a pattern (splitmix64): the same every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
