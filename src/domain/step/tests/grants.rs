//! Grants on windows, and what becomes of them when a window ends.

use super::*;
use crate::domain::cell::Standing;
use crate::domain::charge::{Earlier, FigureStep, SpanStep};
use crate::domain::grant::Grant;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

fn hour(n: i64) -> Millis {
    T0.plus_ms(n * HOUR)
}

fn grant(id: u32, amount: u64, given: i64, expires: Option<i64>) -> Grant {
    Grant { id, amount, given: hour(given), expires_at: expires.map(hour) }
}

/// Days of 24 hours that begin `shift` hours after T0.
pub(super) fn days(shift: i64, now: Millis) -> Span {
    let first = T0.0 + shift * HOUR;
    let start = first + (now.0 - first).div_euclid(DAY) * DAY;
    Span::Calendar {
        start: Millis(start),
        end: Millis(start + DAY),
        next_end: Millis(start + 2 * DAY),
        min_len: 23 * HOUR,
    }
}

/// A day of `limit` with grants, asked for `amount`.
fn day(limit: u64, grants: &[Grant], amount: u64, now: Millis) -> Charge {
    let figures = Figures::Window { limit, since: T0, span: days(0, now) };
    let grants = Some(grants.into());
    Charge { grants, ..charge(0, 1, MeterCode::TOTAL, figures, total(amount)) }
}

/// (granted, used + held, remaining, over_by)
fn seen(account: &Account, charge: Charge, now: Millis) -> (u64, u64, u64, u64) {
    match step::view(&[account], &[charge], now)[0].standing {
        Standing::Window { granted, used, held, remaining, over_by, .. } => {
            (granted, used + held, remaining, over_by)
        }
        _ => panic!("a window"),
    }
}

#[test]
fn a_grant_is_used_after_the_plans_own_and_what_was_used_of_it_is_gone_with_the_window() {
    let grants = [grant(1, 50, 0, None)];
    let mut account = Account::default();
    assert_eq!(seen(&account, day(100, &grants, 0, T0), T0), (50, 0, 150, 0), "before anything is taken");
    let of = |amount, now| ask(vec![day(100, &grants, amount, now)], 0, 0);
    assert!(take(&mut account, &of(151, T0), 1, T0, HOUR).is_none());
    take(&mut account, &of(90, T0), 1, T0, HOUR).expect("fits");
    take(&mut account, &of(40, T0), 2, T0, HOUR).expect("the grant counts");
    assert_eq!(seen(&account, day(100, &grants, 0, T0), T0), (50, 130, 20, 0));
    // The next day, and the one after: 30 of 50 are gone, once.
    for later in [24, 25, 48, 500] {
        let now = hour(later);
        assert_eq!(seen(&account, day(100, &grants, 0, now), now), (20, 0, 120, 0), "{later}");
    }
    let now = hour(30);
    take(&mut account, &of(100, now), 3, now, HOUR).expect("the plan's own is used first");
    let now = hour(50);
    assert_eq!(seen(&account, day(100, &grants, 0, now), now), (20, 0, 120, 0));
    take(&mut account, &of(120, now), 4, now, HOUR).expect("the rest of the grant");
    let now = hour(80);
    assert_eq!(seen(&account, day(100, &grants, 0, now), now), (0, 0, 100, 0));
}

#[test]
fn what_a_refusal_says_counts_the_grants() {
    let grants = [grant(1, 50, 0, None)];
    let mut account = Account::default();
    let refused = |account: &Account, amount| {
        let asked = ask(vec![day(100, &grants, amount, T0)], 0, 0);
        match step::take(&[account], &[Scope::User], &asked, T0) {
            Verdict::Refused { shortfalls, .. } => (shortfalls[0].would_fit, shortfalls[0].remedy),
            Verdict::Fits { .. } => panic!("{amount} must not fit"),
        }
    };
    assert_eq!(refused(&account, 151), (150, Remedy::Never { max: 150 }));
    take(&mut account, &ask(vec![day(100, &grants, 110, T0)], 0, 0), 1, T0, HOUR).expect("fits");
    assert_eq!(refused(&account, 41), (40, Remedy::Reset { resets_at: Some(hour(24)) }));
    let probe = step::probe(&account, 0, &[day(100, &grants, 40, T0), day(100, &grants, 41, T0)], T0);
    assert_eq!(probe[0].remedy, None);
    assert!(probe[1].remedy.is_some());
    let last = ask(vec![day(100, &grants, 40, T0)], 0, 0);
    let Verdict::Fits { is_final, .. } = step::take(&[&account], &[Scope::User], &last, T0) else { panic!() };
    assert!(is_final, "nothing is left of limit and grant");
}

#[test]
fn only_grants_alive_when_the_window_ends_pay_the_first_to_expire_first() {
    let grants = [
        grant(1, 30, 0, None),
        grant(2, 30, 0, Some(40)),
        grant(3, 30, 0, Some(24)),
        grant(4, 30, 0, Some(23)),
        grant(5, 30, 24, None),
    ];
    let mut account = Account::default();
    take(&mut account, &ask(vec![day(100, &grants, 220, T0)], 0, 0), 1, T0, HOUR).expect("four grants count");
    let now = hour(23);
    assert_eq!(seen(&account, day(100, &grants, 0, now), now), (90, 220, 0, 30), "one expired");
    // 120 beyond: 30 + 30 + 30 are alive at the day's last instant.
    let now = hour(24);
    assert_eq!(seen(&account, day(100, &grants, 0, now), now), (30, 0, 130, 0), "only the newest is left");
    let mut account = Account::default();
    take(&mut account, &ask(vec![day(100, &grants, 140, T0)], 0, 0), 1, T0, HOUR).expect("fits");
    // 30 of the one that expires with the day, 10 of the next.
    assert_eq!(seen(&account, day(100, &grants, 0, now), now), (20 + 30 + 30, 0, 180, 0));
}

#[test]
fn two_limits_of_one_name_share_their_grants() {
    let grants = [grant(1, 50, 0, None)];
    let mut account = Account::default();
    take(&mut account, &ask(vec![day(100, &grants, 120, T0)], 0, 0), 1, T0, HOUR).expect("fits");
    let now = hour(24);
    let other = |amount| Charge { cell: CellId(2), ..day(100, &grants, amount, now) };
    let both = step::view(&[&account], &[day(100, &grants, 0, now), other(0)], now);
    assert_eq!(both[1].standing.remaining(), 130, "20 are gone, though not of this window");
}

#[test]
fn what_comes_after_a_windows_end_changes_nothing_of_what_its_grants_paid() {
    let grants = [grant(1, 50, 0, None)];
    for (reported, is_carried) in [(0, true), (0, false), (500, true), (500, false)] {
        let mut account = Account::default();
        let asked = ask(vec![day(100, &grants, 130, T0)], 0, 0);
        let hold = take(&mut account, &asked, 1, T0, 30 * HOUR).expect("fits");
        let now = hour(26);
        let amounts = Amounts { total_tokens: reported, ..Amounts::default() };
        let tally = Tally { amounts, custom: &[] };
        let before = Before::Reserved { lease_runs: true };
        // The limit may be gone from the plan, and come back.
        let show = if is_carried { vec![day(100, &grants, 0, now)] } else { vec![] };
        let (mut projections, _) = step::finish(&[(Scope::User, &account)], &hold, before, tally, &show, now);
        account.remove_open(hold.expires_at, hold.id);
        account.accept(projections.remove(0));
        assert_eq!(
            seen(&account, day(100, &grants, 0, now), now),
            (20, 0, 120, 0),
            "{reported} {is_carried}"
        );
    }
}

#[test]
fn the_limit_that_counts_is_that_of_the_windows_last_instant() {
    let grants = [grant(1, 50, 0, None)];
    let mut account = Account::default();
    take(&mut account, &ask(vec![day(100, &grants, 130, T0)], 0, 0), 1, T0, HOUR).expect("fits");
    let now = hour(60);
    // 100 until hour `first`, then 110 until hour `second`, then 1,000.
    let granted = |first, second| {
        let step = |most, since| FigureStep { most, refill: 0, since };
        let steps = [step(100, Millis(0)), step(110, hour(first))].into();
        let earlier = Some(Earlier { steps, from: Millis(0), spans: Box::default() });
        let mut charge = Charge { earlier, ..day(1_000, &grants, 0, now) };
        if let Figures::Window { since, .. } = &mut charge.figures {
            *since = hour(second);
        }
        seen(&account, charge, now).0
    };
    assert_eq!(granted(24, 25), 20, "changed as the next one began");
    assert_eq!(granted(23, 24), 30);
    assert_eq!(granted(10, 23), 50);
}

#[test]
fn an_extend_in_a_window_that_is_over_finds_the_plans_limit_only() {
    let grants = [grant(1, 50, 0, None)];
    let mut account = Account::default();
    let asked = ask(vec![day(100, &grants, 90, T0)], 0, 0);
    let hold = take(&mut account, &asked, 1, T0, 30 * HOUR).expect("fits");
    let fits = |more, now| {
        let more = Charge { asked: false, ..day(100, &grants, more, now) };
        matches!(step::extend(&[&account], &hold, &[more], Taking::Enforced, now), Verdict::Fits { .. })
    };
    assert_eq!([fits(60, hour(1)), fits(61, hour(1))], [true, false], "limit and grant");
    assert_eq!([fits(10, hour(25)), fits(11, hour(25))], [true, false]);
}

#[test]
fn a_zone_change_nobody_called_around_waits_for_the_window_of_the_old_zone() {
    // In the middle of the third day the days begin nine hours later.
    let old = SpanStep { at: hour(60), span: days(0, hour(60)) };
    let charge = |now| {
        let earlier = Some(Earlier { steps: [].into(), from: Millis(0), spans: [old].into() });
        let figures = Figures::Window { limit: 100, since: T0, span: days(9, now) };
        Charge { earlier, ..charge(0, 1, MeterCode::TOTAL, figures, total(5)) }
    };
    let window = |account: &Account, now| match step::view(&[account], &[charge(now)], now)[0].standing {
        Standing::Window { window, used, held, .. } => (window.expect("a day"), used + held),
        _ => panic!("a window"),
    };
    let untouched = Account::default();
    assert_eq!(window(&untouched, hour(61)), ((hour(57), hour(81)), 0), "nothing was taken: at once");
    let mut account = Account::default();
    take(&mut account, &ask(vec![day(100, &[], 5, T0)], 0, 0), 1, T0, HOUR).expect("fits");
    assert_eq!(window(&account, hour(61)), ((hour(48), hour(72)), 0), "the third day ends as it began");
    let longer = (hour(72), hour(105));
    assert_eq!(window(&account, hour(72)), (longer, 0), "33 hours");
    assert_eq!(window(&account, hour(104)), (longer, 0));
    assert_eq!(window(&account, hour(300)), ((hour(297), hour(321)), 0));
    // Once the cell is there, an old rule changes nothing any more.
    let now = hour(104);
    take(&mut account, &ask(vec![charge(now)], 0, 0), 2, now, HOUR).expect("fits");
    assert_eq!(window(&account, now), (longer, 5));
    assert_eq!(window(&account, hour(105)), ((hour(105), hour(129)), 0));
}

#[test]
fn what_is_gone_of_grants_is_kept_and_the_first_format_is_still_read() {
    let grants = [grant(7, 50, 0, None)];
    let mut account = Account::default();
    take(&mut account, &ask(vec![day(100, &grants, 130, T0)], 0, 0), 1, T0, HOUR).expect("fits");
    let before = account.pack();
    let now = hour(24);
    take(&mut account, &ask(vec![day(100, &grants, 1, now)], 0, 0), 2, now, HOUR).expect("fits");
    let read =
        |bytes: &[u8]| Account::unpack(Some(bytes), Scope::User, std::iter::empty()).expect("readable");
    let again = read(&account.pack());
    assert_eq!(again.pack(), account.pack());
    assert_eq!(seen(&again, day(100, &grants, 0, now), now), (20, 1, 119, 0));
    // The first format had nothing of grants, which is one byte now.
    assert_eq!((before[0], before.last()), (2, Some(&0)));
    let first = [&[1], &before[1..before.len() - 1]].concat();
    assert_eq!(first, FIRST);
    assert_eq!(read(&FIRST).pack(), before);
}

/// As the first format had it: 130 held of the day at T0, written then.
const FIRST: [u8; 27] = [
    0x01, 0x01, 0x01, 0x01, 0x80, 0x90, 0xc5, 0xc3, 0x83, 0x67, 0x80, 0x80, 0xf8, 0x95, 0x84, 0x67, 0x00,
    0x82, 0x01, 0x00, 0x00, 0x80, 0x90, 0xc5, 0xc3, 0x83, 0x67,
];
