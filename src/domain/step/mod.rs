//! The four steps of a hold over all accounts it touches: take, extend,
//! finish, lapse. Each looks at accounts and returns what they become; the
//! engine puts all of it in place or nothing.

mod behind;
mod seen;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::account::{Account, Projection};
use super::cell::{Cell, Reserved, Standing};
use super::charge::{Charge, Demand, Figures, MeterCode, Span};
use super::hold::{Amounts, Granted, Hold, Receipt, Stage};
use super::plan::{Enforce, Scope};
use super::quantity::add_saturating;
use super::taking::Taking;
use super::time::Millis;
use seen::{Seen, standings};

pub use behind::behind;

pub type Projections = SmallVec<[Projection; 2]>;
pub type Standings = SmallVec<[Shown; 8]>;
pub type Shortfalls = SmallVec<[Shortfall; 4]>;

/// A limit's figures after a step, in the order of the charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    pub standing: Standing,
    pub would_refuse: u32,
}

/// What a check asks.
#[derive(Debug, Clone)]
pub struct Ask {
    pub charges: SmallVec<[Charge; 8]>,
    /// The output wanted, and the least the caller accepts.
    pub output_max: u64,
    pub output_min: u64,
    pub taking: Taking,
}

/// One charge that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortfall {
    pub charge: usize,
    pub requested: u64,
    /// What is left of the limit; of a window that is over, what was left.
    pub remaining: u64,
    /// `remaining` less what must be left behind.
    pub would_fit: u64,
    pub remedy: Remedy,
}

/// What helps against a charge that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Remedy {
    /// Waiting this long helps, if nothing else happens.
    Wait { retry_after_ms: u64 },
    /// Nothing helps before the window ends; `None`: it never does.
    Reset { resets_at: Option<Millis> },
    /// The amount is more than the limit can ever give (`max`).
    Never { max: u64 },
}

/// What becomes of an ask.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "taken apart at once, never kept")]
pub enum Verdict {
    Fits {
        output: u64,
        is_final: bool,
        receipts: Vec<Receipt>,
        projections: Projections,
        standings: Standings,
        /// What enforcement would have refused it for.
        shortfalls: Shortfalls,
    },
    Refused {
        shortfalls: Shortfalls,
        standings: Standings,
    },
}

/// Decides an ask over all `accounts` (in the order the charges index them).
pub fn take(accounts: &[&Account], scopes: &[Scope], ask: &Ask, now: Millis) -> Verdict {
    let mut projections = project(accounts, &ask.charges, now);
    let mut shortfalls = Shortfalls::new();
    let mut output = ask.output_max;
    if ask.taking.asks() {
        for (index, charge) in asked(&ask.charges) {
            let projection = &projections[usize::from(charge.account)];
            let Some(place) = projection.place(index).filter(|_| charge.enforce == Enforce::Hard) else {
                continue;
            };
            let seen = Seen::new(projection, place, charge, now);
            let room = seen.room();
            let needed = charge.demand.amount(ask.output_min);
            if needed <= room {
                output = output.min(charge.demand.largest_output(room).unwrap_or(0));
            } else {
                let account = accounts[usize::from(charge.account)];
                let remedy = seen.remedy(account, place, needed, needed);
                shortfalls.push(Shortfall {
                    charge: index,
                    requested: needed,
                    remaining: seen.stock(),
                    would_fit: room,
                    remedy,
                });
            }
        }
    }
    if !shortfalls.is_empty() && ask.taking == Taking::Enforced {
        let standings = standings(&projections, &ask.charges, now);
        return Verdict::Refused { shortfalls, standings };
    }
    output = match shortfalls.is_empty() {
        true => output.max(ask.output_min).min(ask.output_max),
        false => ask.output_max,
    };
    let mut receipts = Vec::with_capacity(ask.charges.len());
    let mut is_final = false;
    for (index, charge) in asked(&ask.charges) {
        let projection = &mut projections[usize::from(charge.account)];
        let Some(place) = projection.place(index) else { continue };
        let amount = charge.demand.amount(output);
        let least = charge.demand.amount(ask.output_min);
        let is_asked = ask.taking.asks() && charge.enforce == Enforce::Shadow;
        if is_asked && least > Seen::new(projection, place, charge, now).room() {
            projection.count_would_refuse(place);
        }
        let window = match (ask.taking, projection.cell_mut(place)) {
            (Taking::Happened(at), cell) => take_at(cell, charge, amount, at, now),
            (_, cell) => take_from(cell, charge, amount, now),
        };
        is_final |= amount > 0
            && charge.enforce == Enforce::Hard
            && charge.account_is_callers(scopes)
            && Seen::new(projection, place, charge, now).is_spent();
        receipts.push(Receipt {
            scope: scopes[usize::from(charge.account)],
            cell: charge.cell,
            meter: charge.meter,
            reserved: amount,
            window,
            opens: charge.figures.span().and_then(Span::opening).filter(|_| window.is_none()),
        });
    }
    let standings = standings(&projections, &ask.charges, now);
    Verdict::Fits { output, is_final, receipts, projections, standings, shortfalls }
}

/// Shows the limits at `now`; nothing changes.
pub fn view(accounts: &[&Account], charges: &[Charge], now: Millis) -> Standings {
    standings(&project(accounts, charges, now), charges, now)
}

/// Brings an account to `now` by the figures of the charges. Of a bucket or a
/// rolling limit whose charge asks for something, what there is beyond what
/// must be left behind is gone: somebody else has used it. `None`: there is
/// nothing to bring.
pub fn touch(account: &Account, charges: &[Charge], now: Millis) -> Option<Projection> {
    let drains = |charge: &Charge| charge.asked && charge.demand.amount(0) > 0;
    if account.is_new() && !charges.iter().any(drains) {
        return None;
    }
    let mut projection = account.project(0, charges, now);
    for (index, charge) in charges.iter().enumerate().filter(|(_, charge)| drains(charge)) {
        let Some(place) = projection.place(index) else { continue };
        let gone = Seen::new(&projection, place, charge, now).room();
        match (projection.cell_mut(place), charge.figures) {
            (Cell::Bucket(bucket), _) => bucket.take(gone, false),
            (Cell::Rolling(rolling), Figures::Rolling { limit, .. }) => {
                rolling.take(gone, limit, now);
            }
            _ => {}
        }
    }
    Some(projection)
}

/// A limit's figures, and what would help a call that asks the charge's
/// demand (without output); `None` when it would pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    pub shown: Shown,
    pub remedy: Option<Remedy>,
}

/// Shows the limits of the account that `charges` call `index`, and asks each
/// by itself; nothing changes.
pub fn probe(account: &Account, index: usize, charges: &[Charge], now: Millis) -> Vec<Probe> {
    let own = |charge: &&Charge| usize::from(charge.account) == index;
    let charges: SmallVec<[Charge; 8]> =
        charges.iter().filter(own).map(|charge| Charge { account: 0, ..charge.clone() }).collect();
    let charges = &charges[..];
    let projections = project(&[account], charges, now);
    let shown = standings(&projections, charges, now);
    let ask = |(index, charge): (usize, &Charge)| {
        let needed = charge.demand.amount(0);
        let place = projections[0].place(index)?;
        let seen = Seen::new(&projections[0], place, charge, now);
        (needed > seen.room()).then(|| seen.remedy(account, place, needed, needed))
    };
    shown
        .into_iter()
        .zip(charges.iter().enumerate().map(ask))
        .map(|(shown, remedy)| Probe { shown, remedy })
        .collect()
}

/// The wait until `amount` passes the limit of one charge by itself, if nothing
/// else happens; `None`: nothing says when.
pub fn wait_for(
    account: &Account,
    charges: &[Charge],
    index: usize,
    amount: u64,
    now: Millis,
) -> Option<u64> {
    let projection = account.project(charges[index].account, charges, now);
    let place = projection.place(index)?;
    match Seen::new(&projection, place, &charges[index], now).remedy(account, place, amount, amount) {
        Remedy::Wait { retry_after_ms } => Some(retry_after_ms),
        _ => None,
    }
}

/// What finishing turns the receipts' amounts into.
#[derive(Debug, Clone, Copy)]
pub struct Tally<'a> {
    pub amounts: Amounts,
    /// By custom meter, in the order of the hold's `amounts`.
    pub custom: &'a [(super::ids::Label, u64)],
}

impl Tally<'_> {
    /// Whether nothing was done: not even the request counts.
    pub fn is_nothing(&self) -> bool {
        self.amounts.requests == 0
    }

    /// The amount counted on a meter; 0 for slots.
    pub fn of(&self, meter: MeterCode) -> u64 {
        match meter {
            MeterCode::REQUESTS => self.amounts.requests,
            MeterCode::INPUT | MeterCode::INPUT_AT_START => self.amounts.input_tokens,
            MeterCode::OUTPUT => self.amounts.output_tokens,
            MeterCode::TOTAL => self.amounts.total_tokens,
            MeterCode::CREDITS => self.amounts.credits,
            _ => meter.custom_index().and_then(|i| self.custom.get(i)).map_or(0, |(_, amount)| *amount),
        }
    }
}

/// How the amounts of a hold stand before it is finished (again).
#[derive(Debug, Clone, Copy)]
pub enum Before<'a> {
    /// Reserved by the receipts; the lease runs or has ended.
    Reserved { lease_runs: bool },
    /// Already counted (a rule ended the hold): now corrected.
    Counted(Tally<'a>),
}

/// Finishes a hold: every receipt's cell gets the difference between what was
/// reserved (or counted before) and `tally`. `charges` are the limits to show,
/// whose figures reach the cells first.
pub fn finish(
    accounts: &[(Scope, &Account)],
    hold: &Hold,
    before: Before<'_>,
    tally: Tally<'_>,
    charges: &[Charge],
    now: Millis,
) -> (Projections, Standings) {
    change_receipts(accounts, hold, charges, now, |cell, receipt, span| {
        let end = End { before, actual: tally.of(receipt.meter), releases: tally.is_nothing() };
        finish_cell(cell, receipt, hold.created_at, end, span, now);
    })
}

/// Changes the cell of every receipt and shows the limits afterwards.
fn change_receipts(
    accounts: &[(Scope, &Account)],
    hold: &Hold,
    charges: &[Charge],
    now: Millis,
    change: impl Fn(&mut Cell, &Receipt, Option<Span>),
) -> (Projections, Standings) {
    let bare: SmallVec<[&Account; 4]> = accounts.iter().map(|(_, account)| *account).collect();
    let mut projections = project(&bare, charges, now);
    for receipt in &hold.receipts {
        let Some(index) = accounts.iter().position(|(scope, _)| *scope == receipt.scope) else { continue };
        let projection = &mut projections[index];
        let Some(place) = projection.find(receipt.cell) else { continue };
        let span = projection.span(place, charges);
        change(projection.cell_mut(place), receipt, span);
    }
    let standings = standings(&projections, charges, now);
    (projections, standings)
}

/// What the end of a hold means to one of its receipts.
struct End<'a> {
    before: Before<'a>,
    actual: u64,
    /// Nothing was done.
    releases: bool,
}

fn finish_cell(
    cell: &mut Cell,
    receipt: &Receipt,
    admitted: Millis,
    End { before, actual, releases }: End<'_>,
    span: Option<Span>,
    now: Millis,
) {
    let (reserved, lease_runs) = match before {
        Before::Reserved { lease_runs } => (receipt.reserved, lease_runs),
        Before::Counted(tally) => (tally.of(receipt.meter), false),
    };
    match cell {
        Cell::Bucket(bucket) => bucket.settle(reserved, actual, lease_runs && receipt.meter.is_held(), now),
        Cell::Window(window) => {
            let held = receipt.meter.is_held() && matches!(before, Before::Reserved { .. });
            let reserved = if held { Reserved::Held(reserved) } else { Reserved::Used(reserved) };
            match (receipt.window, receipt.opens.map(Span::from).or(span)) {
                (Some(bounds), _) => window.settle(bounds, reserved, actual, now),
                (None, Some(span)) => {
                    window.settle_first(admitted, actual, span, now);
                }
                (None, None) => {}
            }
        }
        Cell::Slots(slots) if lease_runs => slots.free(),
        Cell::Slots(_) => {}
        Cell::Rolling(rolling) => {
            if let Some(window) = receipt.window {
                rolling.settle(window, reserved, actual, releases, now);
            }
        }
    }
}

/// Ends the lease before its time: the amounts stay counted, slots and places
/// for refill are free.
pub fn lapse(
    accounts: &[(Scope, &Account)],
    hold: &Hold,
    charges: &[Charge],
    now: Millis,
) -> (Projections, Standings) {
    change_receipts(accounts, hold, charges, now, |cell, receipt, _| match cell {
        Cell::Bucket(bucket) if receipt.meter.is_held() => bucket.end_lease(receipt.reserved, now),
        Cell::Slots(slots) => slots.free(),
        Cell::Bucket(_) | Cell::Window(_) | Cell::Rolling(_) => {}
    })
}

/// Reserves more for an open hold. The charges are those of its receipts, in
/// their order (demand: the increase), followed by limits only to be shown.
pub fn extend(
    accounts: &[&Account],
    hold: &Hold,
    charges: &[Charge],
    taking: Taking,
    now: Millis,
) -> Verdict {
    let mut projections = project(accounts, charges, now);
    let mut shortfalls = Shortfalls::new();
    let mut receipts = hold.receipts.clone();
    for (index, (charge, receipt)) in charges.iter().zip(&mut receipts).enumerate() {
        let amount = charge.demand.amount(0);
        let projection = &mut projections[usize::from(charge.account)];
        let Some(place) = projection.find(charge.cell).filter(|_| amount > 0) else { continue };
        let seen = Seen::new(projection, place, charge, now);
        let remaining = receipt.window.map_or_else(|| seen.stock(), |(start, _)| seen.stock_of(start));
        let room = remaining.saturating_sub(charge.keep);
        let whole = add_saturating(receipt.reserved, amount);
        let is_asked = charge.enforce == Enforce::Hard && charge.figures != Figures::Kept;
        if is_asked && (amount > room || whole > seen.most()) {
            let account = accounts[usize::from(charge.account)];
            let mut remedy = seen.remedy(account, place, whole, amount);
            if let (Remedy::Reset { resets_at }, Some((_, end))) = (&mut remedy, receipt.window) {
                *resets_at = Some(end).filter(|end| *end > now && *end != Millis::MAX);
            }
            shortfalls.push(Shortfall {
                charge: index,
                requested: amount,
                remaining,
                would_fit: room,
                remedy,
            });
            if taking == Taking::Enforced {
                continue;
            }
        }
        receipt.reserved = add_saturating(receipt.reserved, amount);
        match (projection.cell_mut(place), receipt.window) {
            (Cell::Window(window), Some(bounds)) => {
                window.take_in(bounds, amount, charge.meter.is_held(), now)
            }
            // What it took at first says where all of it is given back.
            (cell @ Cell::Rolling(_), Some(_)) => {
                take_from(cell, charge, amount, now);
            }
            (cell, _) => receipt.window = take_from(cell, charge, amount, now),
        }
    }
    let standings = standings(&projections, charges, now);
    if !shortfalls.is_empty() && taking == Taking::Enforced {
        return Verdict::Refused { shortfalls, standings };
    }
    Verdict::Fits { output: 0, is_final: hold.granted.is_final, receipts, projections, standings, shortfalls }
}

/// Fills in what a hold reserved once the output is decided.
pub fn reserve(hold: &mut Hold, output: u64, is_final: bool, credits: Demand) {
    let input = hold.granted.input_tokens;
    hold.granted = Granted { input_tokens: input, max_output_tokens: output, is_final };
    hold.reserved = Amounts {
        requests: 1,
        input_tokens: input,
        output_tokens: output,
        total_tokens: add_saturating(input, output),
        credits: credits.amount(output),
    };
    hold.stage = Stage::Held;
}

fn project(accounts: &[&Account], charges: &[Charge], now: Millis) -> Projections {
    accounts.iter().enumerate().map(|(index, account)| account.project(index as u8, charges, now)).collect()
}

fn asked(charges: &[Charge]) -> impl Iterator<Item = (usize, &Charge)> {
    charges.iter().enumerate().filter(|(_, charge)| charge.asked)
}

fn take_from(cell: &mut Cell, charge: &Charge, amount: u64, now: Millis) -> Option<(Millis, Millis)> {
    match (cell, charge.figures) {
        (Cell::Bucket(bucket), _) => {
            bucket.take(amount, charge.meter.is_held());
            None
        }
        (Cell::Window(window), Figures::Window { span, .. }) => {
            window.take(amount, charge.meter.is_held(), span, now)
        }
        (Cell::Slots(slots), _) => {
            if amount > 0 {
                slots.take();
            }
            None
        }
        (Cell::Rolling(rolling), Figures::Rolling { limit, .. }) => Some(rolling.take(amount, limit, now)),
        (Cell::Window(_) | Cell::Rolling(_), _) => None,
    }
}

/// Books use that happened at `at`: used, never held.
fn take_at(
    cell: &mut Cell,
    charge: &Charge,
    amount: u64,
    at: Millis,
    now: Millis,
) -> Option<(Millis, Millis)> {
    match (cell, charge.figures) {
        (Cell::Bucket(bucket), _) => {
            bucket.take(amount, false);
            None
        }
        (Cell::Window(window), Figures::Window { span, .. }) => window.use_at(amount, span, at, now),
        // As with a bucket, it counts from now on.
        (Cell::Rolling(rolling), Figures::Rolling { limit, .. }) => Some(rolling.take(amount, limit, now)),
        // It is over: no slot is taken any more.
        (Cell::Slots(_) | Cell::Window(_) | Cell::Rolling(_), _) => None,
    }
}
