//! Random lives of an account: what is brought to now at the end alone is what
//! is brought to every hour, and no right is minted or burned on the way.

use super::grants::days;
use super::*;
use crate::domain::cell::Standing;
use crate::domain::charge::{Earlier, FigureStep, SpanStep};
use crate::domain::grant::Grant;

const HOUR: i64 = 3_600_000;
/// Hours that a life lasts.
const LIFE: i64 = 150;
const SHOWN: usize = 5;

fn hour(n: i64) -> Millis {
    T0.plus_ms(n * HOUR)
}

/// What an admin does to one user's limits.
#[derive(Debug, Clone)]
struct Rules {
    /// Limit from an hour on; ascending, the first at hour 0.
    limits: Vec<(i64, u64)>,
    /// Hours by which days are shifted, from an hour on; likewise.
    shifts: Vec<(i64, i64)>,
    grants: Vec<Grant>,
}

fn holding<T: Copy>(steps: &[(i64, T)], at: Millis) -> usize {
    steps.iter().rposition(|(from, _)| hour(*from) <= at).unwrap_or(0)
}

impl Rules {
    fn limit_at(&self, at: Millis) -> u64 {
        self.limits[holding(&self.limits, at)].1
    }

    /// The charges of a call of `amount` by the rules in force at `rule_of`,
    /// with the borders around `now`. With `history` they tell what was before.
    fn charges(&self, amount: u64, rule_of: Millis, now: Millis, history: bool) -> Vec<Charge> {
        let limit = holding(&self.limits, rule_of);
        let (from, most) = self.limits[limit];
        let since = hour(from);
        let shift = holding(&self.shifts, rule_of);
        let old_limits = &self.limits[..limit];
        let step = |(from, most): &(i64, u64)| FigureStep { most: *most, refill: *most, since: hour(*from) };
        let old_shift = |pair: &[(i64, i64)]| {
            let at = hour(pair[1].0);
            SpanStep { at, span: days(pair[0].1, at) }
        };
        let earlier = |spans: bool| Earlier {
            steps: old_limits.iter().map(step).collect(),
            from: Millis(0),
            spans: self.shifts[..=shift].windows(2).filter(|_| spans).map(old_shift).collect(),
        };
        let window = |cell, span, is_day: bool| Charge {
            earlier: history.then(|| earlier(is_day)),
            grants: Some(self.grants.iter().filter(|grant| grant.given <= rule_of).copied().collect()),
            ..charge(0, cell, MeterCode::TOTAL, Figures::Window { limit: most, since, span }, total(amount))
        };
        let bucket = Figures::Bucket { capacity: most, refill: most, since };
        let requests = Charge {
            earlier: history.then(|| earlier(false)),
            enforce: Enforce::Soft,
            ..charge(0, 4, MeterCode::INPUT, bucket, Demand::fixed(amount))
        };
        vec![
            window(1, days(self.shifts[shift].1, now), true),
            Charge { grants: None, ..window(2, Span::Tiles { len: 7 * HOUR }, false) },
            Charge { grants: None, ..window(3, Span::Session { len: 5 * HOUR }, false) },
            requests,
            charge(0, 5, MeterCode::SLOTS, Figures::Slots { limit: 4 }, Demand::fixed(1)),
        ]
    }
}

#[derive(Debug, Clone)]
enum Act {
    /// With a lease of so many hours; `true`: by a call that only limits
    /// without a filter count.
    Take {
        amount: u64,
        lease: i64,
        narrow: bool,
    },
    /// What one of the open holds used; `narrow` as above.
    Settle {
        which: usize,
        amount: u64,
        narrow: bool,
    },
    Extend {
        which: usize,
        more: u64,
    },
}

fn rules() -> impl Strategy<Value = Rules> {
    let changes = |value: std::ops::Range<i64>| prop::collection::vec((0..LIFE, value), 0..4);
    let grants = prop::collection::vec((1..80u64, 0..LIFE, prop::option::of(1..60i64)), 0..4);
    (20..100i64, changes(0..100), changes(-12..13), grants).prop_map(|(first, limits, shifts, grants)| {
        let ordered = |first: i64, mut changes: Vec<(i64, i64)>| {
            changes.sort_by_key(|(at, _)| *at);
            changes.dedup_by_key(|(at, _)| *at);
            changes.retain(|(at, _)| *at > 0);
            changes.insert(0, (0, first));
            changes
        };
        let limits = ordered(first, limits).into_iter().map(|(at, limit)| (at, limit as u64)).collect();
        let grant = |(id, (amount, given, lasts)): (usize, (u64, i64, Option<i64>))| Grant {
            id: id as u32,
            amount,
            given: hour(given),
            expires_at: lasts.map(|lasts| hour(given + lasts)),
        };
        let grants = grants.into_iter().enumerate().map(grant).collect();
        Rules { limits, shifts: ordered(0, shifts), grants }
    })
}

fn acts() -> impl Strategy<Value = Vec<(i64, Act)>> {
    let act = prop_oneof![
        4 => (1..60u64, 1..30i64, any::<bool>())
            .prop_map(|(amount, lease, narrow)| Act::Take { amount, lease, narrow }),
        3 => (any::<usize>(), prop_oneof![Just(0), 0..120u64], any::<bool>())
            .prop_map(|(which, amount, narrow)| Act::Settle { which, amount, narrow }),
        1 => (any::<usize>(), 1..40u64).prop_map(|(which, more)| Act::Extend { which, more }),
    ];
    prop::collection::vec((0..20i64, act), 1..40)
}

/// An account with the holds it has open.
struct Life<'r> {
    rules: &'r Rules,
    account: Account,
    holds: Vec<Hold>,
    /// Told what was before instead of being touched in between.
    is_lazy: bool,
}

impl Life<'_> {
    fn charges(&self, amount: u64, now: Millis) -> Vec<Charge> {
        self.rules.charges(amount, now, now, self.is_lazy)
    }

    fn touch(&mut self, charges: &[Charge], now: Millis) {
        let projection = self.account.project(0, charges, now);
        self.account.accept(projection);
    }

    /// Every hour is a moment at which somebody looks: first by the rules up
    /// to then, as before any change, then by those that hold from then on.
    fn pass(&mut self, before: i64, now: i64) {
        for at in before + 1..=now {
            if !self.is_lazy {
                let just_before = Millis(hour(at).0 - 1);
                let old = self.rules.charges(0, just_before, hour(at), false);
                self.touch(&old, hour(at));
                let new = self.charges(0, hour(at));
                self.touch(&new, hour(at));
            }
        }
    }

    /// Whether it went through.
    fn act(&mut self, id: u128, act: &Act, now: Millis) -> bool {
        match *act {
            Act::Take { amount, lease, narrow } => {
                let mut charges = self.charges(amount, now);
                if narrow {
                    charges.drain(..3);
                }
                let hold = take(&mut self.account, &ask(charges, 0, 0), id, now, lease * HOUR);
                let is_taken = hold.is_some();
                self.holds.extend(hold);
                is_taken
            }
            Act::Settle { which, amount, narrow } => {
                if self.holds.is_empty() {
                    return false;
                }
                let hold = self.holds.remove(which % self.holds.len());
                let amounts = Amounts { input_tokens: amount, total_tokens: amount, ..Amounts::default() };
                let before = Before::Reserved { lease_runs: now < hold.expires_at };
                let tally = Tally { amounts, custom: &[] };
                let mut show = self.charges(0, now);
                if narrow {
                    // The windows are gone from the plan for a while.
                    show.drain(..3);
                }
                let accounts = [(Scope::User, &self.account)];
                let (mut projections, _) = step::finish(&accounts, &hold, before, tally, &show, now);
                self.account.remove_open(hold.expires_at, hold.id);
                self.account.accept(projections.remove(0));
                true
            }
            Act::Extend { which, more } => self.extend(which, more, now),
        }
    }

    fn extend(&mut self, which: usize, more: u64, now: Millis) -> bool {
        let running: Vec<usize> =
            (0..self.holds.len()).filter(|index| now < self.holds[*index].expires_at).collect();
        let Some(index) = running.get(which % running.len().max(1)) else { return false };
        let hold = &self.holds[*index];
        let shown = self.charges(0, now);
        let of = |receipt: &Receipt| {
            let known = shown.iter().find(|charge| charge.cell == receipt.cell).expect("of five");
            let demand = if receipt.meter == MeterCode::TOTAL { Demand::fixed(more) } else { Demand::NONE };
            Charge { demand, asked: false, earlier: None, ..known.clone() }
        };
        let charges: Vec<Charge> = hold.receipts.iter().map(of).chain(shown.iter().cloned()).collect();
        let Verdict::Fits { receipts, mut projections, .. } =
            step::extend(&[&self.account], hold, &charges, Taking::Enforced, now)
        else {
            return false;
        };
        self.account.accept(projections.remove(0));
        self.account.remove_open(hold.expires_at, hold.id);
        let hold = &mut self.holds[*index];
        hold.receipts = receipts;
        hold.expires_at = hold.expires_at.plus_ms(HOUR);
        self.account.insert_open(hold.expires_at, hold.id, hold.receipts.iter());
        true
    }

    fn shown(&self, now: Millis) -> step::Standings {
        step::view(&[&self.account], &self.charges(0, now), now)
    }
}

fn day_of(shown: &step::Standings) -> (u64, u64, u64, (Millis, Millis)) {
    match shown[0].standing {
        Standing::Window { granted, used, held, over_by, window, .. } => {
            (granted, used + held, over_by, window.expect("days have borders"))
        }
        _ => panic!("a window"),
    }
}

/// What the grants should come to, told from the amounts alone: what every day
/// had taken when it ended, and who paid for what was beyond.
#[derive(Default)]
struct Books {
    /// By the day's borders, in order.
    days: std::collections::BTreeMap<(Millis, Millis), i64>,
    spent: std::collections::HashMap<u32, u64>,
}

impl Books {
    fn change(&mut self, day: Option<(Millis, Millis)>, amount: i64, now: Millis) {
        if let Some(day) = day.filter(|day| now < day.1) {
            *self.days.entry(day).or_default() += amount;
        }
    }

    fn close(&mut self, rules: &Rules, now: Millis) {
        while let Some(first) = self.days.first_entry().filter(|first| first.key().1 <= now) {
            let ((_, end), taken) = first.remove_entry();
            let last = Millis(end.0 - 1);
            let mut due = (taken as u64).saturating_sub(rules.limit_at(last));
            let mut grants: Vec<&Grant> = rules.grants.iter().filter(|grant| grant.is_alive(last)).collect();
            grants.sort_by_key(|grant| (grant.expires_at.unwrap_or(Millis::MAX), grant.id));
            for grant in grants {
                let spent = self.spent.entry(grant.id).or_default();
                let paid = due.min(grant.amount - *spent);
                *spent += paid;
                due -= paid;
            }
        }
    }

    fn granted(&self, rules: &Rules, now: Millis) -> u64 {
        let alive = rules.grants.iter().filter(|grant| grant.is_alive(now));
        alive.map(|grant| grant.amount - self.spent.get(&grant.id).copied().unwrap_or(0)).sum()
    }
}

fn day_receipt(hold: &Hold) -> Option<&Receipt> {
    hold.receipts.iter().find(|receipt| receipt.cell == CellId(1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn an_account_brought_to_now_at_the_end_is_one_brought_to_every_hour(rules in rules(), acts in acts()) {
        let life = |is_lazy| Life { rules: &rules, account: Account::default(), holds: vec![], is_lazy };
        let (mut lazy, mut eager) = (life(true), life(false));
        let mut books = Books::default();
        let mut now = 0;
        for (id, (pause, act)) in acts.iter().enumerate() {
            eager.pass(now, (now + pause).min(LIFE));
            now = (now + pause).min(LIFE);
            let at = hour(now);
            books.close(&rules, at);
            let settled = match act {
                Act::Settle { which, amount, .. } if !lazy.holds.is_empty() => {
                    Some((lazy.holds[which % lazy.holds.len()].clone(), *amount))
                }
                _ => None,
            };
            let held = |life: &Life<'_>| -> Vec<u64> {
                life.holds.iter().map(|hold| day_receipt(hold).map_or(0, |receipt| receipt.reserved)).collect()
            };
            let before = held(&lazy);
            let (ours, theirs) = (lazy.act(id as u128, act, at), eager.act(id as u128, act, at));
            prop_assert_eq!(ours, theirs, "{:?} at {}", act, now);
            prop_assert_eq!(&lazy.holds, &eager.holds);
            // The books follow what the receipts say.
            if let Some((hold, amount)) = settled {
                let receipt = day_receipt(&hold);
                let change = receipt.map_or(0, |receipt| amount as i64 - receipt.reserved as i64);
                books.change(receipt.and_then(|receipt| receipt.window), change, at);
            } else {
                for (index, hold) in lazy.holds.iter().enumerate() {
                    let Some(receipt) = day_receipt(hold) else { continue };
                    let known = before.get(index).copied().unwrap_or(0);
                    books.change(receipt.window, (receipt.reserved - known) as i64, at);
                }
            }
            let shown = lazy.shown(at);
            prop_assert_eq!(&shown, &eager.shown(at), "{:?} at {}", act, now);
            prop_assert_eq!(shown.len(), SHOWN);
            let (granted, taken, over_by, day) = day_of(&shown);
            prop_assert_eq!(granted, books.granted(&rules, at));
            prop_assert_eq!(taken, books.days.get(&day).map_or(0, |taken| *taken as u64));
            if ours && matches!(act, Act::Take { narrow: false, .. }) {
                prop_assert_eq!(over_by, 0, "what a take fits in is never beyond limit and grants");
            }
        }
        // Long after, all that is left of the grants that last.
        let end = hour(now + 2_000);
        books.close(&rules, end);
        let last = day_of(&lazy.shown(end));
        prop_assert_eq!((last.0, last.1), (books.granted(&rules, end), 0));
        for grant in &rules.grants {
            prop_assert!(books.spent.get(&grant.id).is_none_or(|spent| *spent <= grant.amount));
        }
    }

    /// Plans, zones and grants that come and go within one instant leave
    /// everything as it was.
    #[test]
    fn toggling_mints_and_burns_nothing(
        rules in rules(),
        acts in acts(),
        toggles in prop::collection::vec((0..200u64, -12..13i64), 1..8),
    ) {
        let mut life = Life { rules: &rules, account: Account::default(), holds: vec![], is_lazy: true };
        let mut now = 0;
        for (id, (pause, act)) in acts.iter().enumerate() {
            now = (now + pause).min(LIFE);
            life.act(id as u128, act, hour(now));
        }
        let at = hour(now);
        let own = life.charges(0, at);
        life.touch(&own, at);
        let before = life.shown(at);
        for (limit, shift) in toggles {
            let other = Rules { limits: vec![(0, limit)], shifts: vec![(0, shift)], grants: vec![] };
            let charges = other.charges(0, at, at, false);
            life.touch(&charges, at);
            life.touch(&own, at);
            prop_assert_eq!(&life.shown(at), &before);
        }
        let later = hour(now + 1_000);
        let whole = day_of(&life.shown(later));
        prop_assert_eq!((whole.1, whole.2), (0, 0));
    }
}
