//! Steps over several accounts: all or nothing, receipts, one end.

mod grants;
mod random;

use proptest::prelude::*;

use super::{self as step, Ask, Before, Remedy, Tally, Verdict};
use crate::domain::account::Account;
use crate::domain::charge::TenantRef;
use crate::domain::charge::{CellId, Charge, Demand, Figures, MeterCode, Span};
use crate::domain::hold::{Amounts, Caps, Granted, Hold, Receipt, Stage};
use crate::domain::ids::{HoldId, Name, UserId};
use crate::domain::plan::{Enforce, PerCall, Scope};
use crate::domain::quantity::Ppm;
use crate::domain::taking::Taking;
use crate::domain::time::Millis;

const T0: Millis = Millis(1_770_000_000_000);
const MONTH: Span = Span::Calendar {
    start: T0,
    end: Millis(T0.0 + 2_592_000_000),
    next_end: Millis(T0.0 + 5_184_000_000),
    min_len: 1,
};

fn charge(account: u8, cell: u64, meter: MeterCode, figures: Figures, demand: Demand) -> Charge {
    Charge {
        account,
        cell: CellId(cell),
        meter,
        figures,
        demand,
        enforce: Enforce::Hard,
        asked: true,
        earlier: None,
        grants: None,
        to_come: None,
        switches: true,
        keep: 0,
    }
}

fn bucket(capacity: u64, refill: u64) -> Figures {
    Figures::Bucket { capacity, refill, since: T0 }
}

fn month(limit: u64) -> Figures {
    Figures::Window { limit, since: T0, span: MONTH }
}

fn output() -> Demand {
    Demand { fixed: 0, per_output: 1, unit: 1 }
}

fn total(input: u64) -> Demand {
    Demand { fixed: u128::from(input), per_output: 1, unit: 1 }
}

fn ask(charges: Vec<Charge>, min: u64, max: u64) -> Ask {
    Ask { charges: charges.into(), output_max: max, output_min: min, taking: Taking::Enforced }
}

fn hold(id: u128, now: Millis, lease_ms: i64, receipts: Vec<Receipt>) -> Hold {
    Hold {
        id: HoldId(id),
        tenant: TenantRef(1),
        user: UserId::parse("u").expect("valid"),
        org: None,
        pool: None,
        request: None,
        plan: Name::parse("p").expect("valid"),
        plan_version: 1,
        admits_user: false,
        bulk: false,
        models_version: 1,
        model: None,
        feature: None,
        created_at: now,
        expires_at: now.plus_ms(lease_ms),
        lease_seconds: 1,
        lives_until: now.plus_ms(lease_ms),
        day: 0,
        caps: Caps { per_call: PerCall::default(), max_tokens_per_call: 1_000 },
        cache_read_weight: Ppm::ONE,
        granted: Granted { input_tokens: 0, max_output_tokens: 0, is_final: false },
        reserved: Amounts::default(),
        amounts: vec![],
        receipts,
        progress: 0,
        extends: vec![],
        stage: Stage::Held,
    }
}

/// Takes on one user account; the hold if it fits.
fn take(account: &mut Account, ask: &Ask, id: u128, now: Millis, lease_ms: i64) -> Option<Hold> {
    match step::take(&[account], &[Scope::User], ask, now) {
        Verdict::Refused { .. } => None,
        Verdict::Fits { receipts, mut projections, .. } => {
            account.accept(projections.remove(0));
            let hold = hold(id, now, lease_ms, receipts);
            account.insert_open(hold.expires_at, hold.id, hold.receipts.iter());
            Some(hold)
        }
    }
}

fn settle(account: &mut Account, hold: &Hold, amounts: Amounts, now: Millis) {
    let lease_runs = now < hold.expires_at;
    let tally = Tally { amounts, custom: &[] };
    let before = Before::Reserved { lease_runs };
    let (mut projections, _) = step::finish(&[(Scope::User, account)], hold, before, tally, &[], now);
    account.remove_open(hold.expires_at, hold.id);
    account.accept(projections.remove(0));
}

#[test]
fn refuses_all_when_one_limit_does_not_fit() {
    let (user, pool) = (Account::default(), Account::default());
    let charges = vec![
        charge(0, 1, MeterCode::REQUESTS, bucket(5, 5), Demand::fixed(1)),
        charge(1, 2, MeterCode::OUTPUT, bucket(100, 60), output()),
    ];
    let verdict = step::take(&[&user, &pool], &[Scope::User, Scope::Pool], &ask(charges, 101, 101), T0);
    let Verdict::Refused { shortfalls, .. } = verdict else { panic!("must not fit") };
    assert_eq!(shortfalls.len(), 1);
    assert_eq!(shortfalls[0].remedy, Remedy::Never { max: 100 });
    assert_eq!(user.pack(), Account::default().pack(), "a refusal changes nothing");
}

#[test]
fn grants_the_largest_output_that_every_limit_allows() {
    let mut account = Account::default();
    let charges = vec![
        charge(0, 1, MeterCode::OUTPUT, bucket(300, 60), output()),
        charge(0, 2, MeterCode::TOTAL, month(1_000), total(800)),
    ];
    let verdict = step::take(&[&account], &[Scope::User], &ask(charges.clone(), 64, 512), T0);
    let Verdict::Fits { output, is_final, .. } = verdict else { panic!("a smaller amount fits") };
    assert_eq!((output, is_final), (200, true), "the month allows 200, and nothing is left then");
    assert!(take(&mut account, &ask(charges, 201, 512), 1, T0, 1_000).is_none());
}

#[test]
fn an_empty_call_passes_an_exhausted_window() {
    let mut account = Account::default();
    let of = |n| ask(vec![charge(0, 1, MeterCode::TOTAL, month(10), total(n))], 0, 0);
    assert!(take(&mut account, &of(10), 1, T0, 1_000).is_some());
    assert!(take(&mut account, &of(1), 2, T0, 1_000).is_none());
    assert!(take(&mut account, &of(0), 3, T0, 1_000).is_some());
}

#[test]
fn slots_free_themselves_when_leases_end_each_on_its_own_clock() {
    let mut account = Account::default();
    let slots =
        || ask(vec![charge(0, 1, MeterCode::SLOTS, Figures::Slots { limit: 2 }, Demand::fixed(1))], 0, 0);
    let mut admitted = Vec::new();
    for second in (0..300).step_by(5) {
        let now = T0.plus_ms(second * 1_000);
        if take(&mut account, &slots(), u128::from(second as u64), now, 29_000).is_some() {
            admitted.push(second);
        }
    }
    assert_eq!(admitted.len(), 20);
    assert_eq!(admitted[..6], [0, 5, 30, 35, 60, 65]);
}

#[test]
fn a_wait_for_a_slot_is_the_lease_end_that_frees_it() {
    let mut account = Account::default();
    let slots =
        |limit| ask(vec![charge(0, 1, MeterCode::SLOTS, Figures::Slots { limit }, Demand::fixed(1))], 0, 0);
    for (id, lease) in [(1, 9_000), (2, 4_000), (3, 7_000)] {
        assert!(take(&mut account, &slots(3), id, T0, lease).is_some());
    }
    let wait = |limit| match step::take(&[&account], &[Scope::User], &slots(limit), T0.plus_ms(1_000)) {
        Verdict::Refused { shortfalls, .. } => shortfalls[0].remedy,
        Verdict::Fits { .. } => panic!("all taken"),
    };
    assert_eq!(wait(3), Remedy::Wait { retry_after_ms: 3_000 });
    assert_eq!(wait(2), Remedy::Wait { retry_after_ms: 6_000 }, "two must end under the smaller limit");
}

#[test]
fn an_account_read_back_is_the_account_written() {
    let mut account = Account::default();
    let charges = vec![
        charge(0, 1, MeterCode::OUTPUT, bucket(300, 60), output()),
        charge(0, 2, MeterCode::TOTAL, month(1_000), total(5)),
        charge(0, 3, MeterCode::SLOTS, Figures::Slots { limit: 2 }, Demand::fixed(1)),
    ];
    let first = take(&mut account, &ask(charges.clone(), 50, 50), 7, T0, 5_000).expect("fits");
    let packed = account.pack();
    let mut again = Account::unpack(Some(&packed), Scope::User, [&first].into_iter()).expect("readable");
    // Both go on alike across the lease end.
    for (id, ms) in [(8, 2_000), (9, 6_000), (10, 7_000)] {
        let now = T0.plus_ms(ms);
        let ours = take(&mut account, &ask(charges.clone(), 90, 90), id, now, 5_000).is_some();
        let theirs = take(&mut again, &ask(charges.clone(), 90, 90), id, now, 5_000).is_some();
        assert_eq!(ours, theirs);
        assert_eq!(account.pack(), again.pack());
    }
    assert!(Account::unpack(Some(&[9, 9]), Scope::User, std::iter::empty()).is_err(), "an unknown format");
}

proptest! {
    /// used + held <= limit whatever comes, unless reported overruns push it;
    /// held = what unfinished holds reserved; slots = open holds.
    #[test]
    fn held_is_the_sum_of_receipts(
        steps in prop::collection::vec((0u8..4, 0u64..60, 0i64..4_000), 1..120),
    ) {
        let charges = |input: u64| vec![
            charge(0, 1, MeterCode::TOTAL, month(2_000), total(input)),
            charge(0, 2, MeterCode::SLOTS, Figures::Slots { limit: 5 }, Demand::fixed(1)),
            charge(0, 3, MeterCode::OUTPUT, bucket(200, 600), output()),
        ];
        let mut account = Account::default();
        let mut unfinished: Vec<Hold> = Vec::new();
        let (mut now, mut used) = (T0, 0);
        for (id, (kind, amount, pause)) in steps.into_iter().enumerate() {
            now = now.plus_ms(pause);
            if kind < 2 || unfinished.is_empty() {
                unfinished.extend(take(&mut account, &ask(charges(amount), amount, amount), id as u128, now, 3_000));
            } else {
                let hold = unfinished.remove(amount as usize % unfinished.len());
                let amounts = Amounts { output_tokens: amount, total_tokens: amount, ..Amounts::default() };
                settle(&mut account, &hold, amounts, now);
                used += amount;
            }
            let shown = step::view(&[&account], &charges(0), now);
            let held: u64 = unfinished.iter().map(|hold| hold.receipts[0].reserved).sum();
            let open = unfinished.iter().filter(|hold| now < hold.expires_at);
            let (slots, places) = open.fold((0, 0), |(n, sum), hold| (n + 1, sum + hold.receipts[2].reserved));
            use crate::domain::cell::Standing;
            let Standing::Window { used: told_used, held: told_held, .. } = shown[0].standing else { panic!() };
            prop_assert_eq!((told_used, told_held), (used, held));
            let Standing::Slots { in_use, .. } = shown[1].standing else { panic!() };
            prop_assert_eq!(in_use, slots);
            let Standing::Bucket { held: told_places, .. } = shown[2].standing else { panic!() };
            prop_assert_eq!(told_places, places);
        }
    }
}
