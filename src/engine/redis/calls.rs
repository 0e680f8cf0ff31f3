//! Operations as calls of scripts: their keys and arguments.

use super::asking::{Charges, maybe};
use super::bytes::{NONE, Writer};
use super::keys::Keys;
use super::line;
use super::record;
use super::state::{self, Occupies, occupies};
use crate::domain::charge::{AccountKey, Charge, Span};
use crate::domain::hold::{Hold, Receipt};
use crate::domain::ids::HoldId;
use crate::domain::plan::Scope;
use crate::domain::step::Before;
use crate::domain::taking::Taking;
use crate::domain::time::Millis;
use crate::engine::finishing::Ending;
use crate::engine::{Extend, Take};

/// What every operation tells of its slot and its moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub epoch: u64,
    /// The last number of the slot that this node has seen.
    pub known: u64,
    pub now: Millis,
    /// Events that may wait to be recorded.
    pub longest: u64,
    /// Answers what the accounts became, too.
    pub shows: bool,
}

#[derive(Debug, Default)]
pub(super) struct Call {
    pub keys: Vec<String>,
    pub args: Vec<Vec<u8>>,
}

impl Call {
    pub fn new(keys: &Keys, head: Head, hold: HoldId, accounts: &[AccountKey]) -> Self {
        let mut names = Vec::with_capacity(4 + 2 * accounts.len());
        names.extend([keys.meta(), keys.hold(hold)]);
        names.extend(accounts.iter().map(|key| keys.account(key)));
        names.extend(accounts.iter().map(|key| keys.open(key)));
        names.push(keys.stream());
        names.push(keys.requests(&accounts[0].owner));
        let mut w = Writer::default();
        w.amount(head.epoch).amount(head.known).at(head.now).amount(head.longest);
        w.u8(accounts.len() as u8).flag(head.shows);
        Self { keys: names, args: vec![w.0] }
    }

    pub fn with(mut self, arg: Vec<u8>) -> Self {
        self.args.push(arg);
        self
    }

    fn charges(self, charges: Charges) -> Self {
        self.with(charges.rows).with(charges.demands).with(charges.extras)
    }
}

pub(super) fn take(keys: &Keys, head: Head, take: &Take) -> Call {
    let (least, most) = (take.ask.output_min, take.ask.output_max);
    let (taking, happened) = taking(take.ask.taking);
    let pool = take.accounts.iter().position(|key| key.scope == Scope::Pool).map_or(0, |at| at + 1);
    let mut hold = take.draft.clone();
    let receipt = |charge: &Charge| Receipt {
        scope: take.accounts[usize::from(charge.account)].scope,
        cell: charge.cell,
        meter: charge.meter,
        reserved: 0,
        window: None,
        opens: charge.figures.span().and_then(Span::opening),
    };
    hold.receipts = take.ask.charges.iter().filter(|charge| charge.asked).map(receipt).collect();
    let digest = hold.request.as_ref().map(|mark| mark.id.digest().to_le_bytes().to_vec());
    let mut w = Writer::default();
    w.number(take.lease_ms as f64).number(take.max_hold_ms as f64).amount(least).amount(most);
    let manner = match (take.dry_run, take.quiet) {
        (true, _) => 1,
        (false, true) => 2,
        (false, false) => 0,
    };
    w.u8(taking).at(happened).u8(manner).u8(pool as u8).number(maybe(hold.finished_at()));
    w.u16(take.ask.charges.len());
    line::place(&mut w, take.place.as_ref());
    let mut call = Call::new(keys, head, hold.id, &take.accounts);
    if let (Some(_), Taking::Enforced, Some(pool)) = (take.place, take.ask.taking, take.pool()) {
        call.keys.push(keys.line(pool));
    }
    call.with(w.0)
        .with(id(hold.id))
        .with(digest.unwrap_or_default())
        .with(if take.dry_run { Vec::new() } else { record::body(&hold) })
        .charges(Charges::new(&take.ask.charges, least, most).with_credits(&take.credits, least, most))
}

/// A step of a hold that exists: what it was made from.
pub(super) struct From<'a> {
    pub before: &'a Hold,
    /// 0: there is no record of it in Redis.
    pub version: u32,
    pub operation: [u8; 16],
}

pub(super) fn finish(
    keys: &Keys,
    head: Head,
    accounts: &[AccountKey],
    from: &From<'_>,
    after: &Hold,
    ending: &Ending<'_>,
    show: &[Charge],
) -> Call {
    let before = from.before;
    let (lapses, counted, runs) = match ending {
        Ending::Lapse => (true, false, true),
        Ending::Finish { before: Before::Reserved { lease_runs }, .. } => (false, false, *lease_runs),
        Ending::Finish { before: Before::Counted(_), .. } => (false, true, false),
    };
    let releases = matches!(ending, Ending::Finish { tally, .. } if tally.is_nothing());
    let mut w = Writer::default();
    w.amount(from.version.into()).number(maybe(before.doubtful_from())).at(head.now);
    w.flag(lapses).flag(counted).flag(runs).flag(releases).at(before.created_at);
    w.u16(show.len()).u16(before.receipts.len());
    let mut receipts = Writer::default();
    for receipt in &before.receipts {
        let (reserved, actual) = match ending {
            Ending::Lapse => (receipt.reserved, 0),
            Ending::Finish { before: Before::Reserved { .. }, tally } => {
                (receipt.reserved, tally.of(receipt.meter))
            }
            Ending::Finish { before: Before::Counted(prior), tally } => {
                (prior.of(receipt.meter), tally.of(receipt.meter))
            }
        };
        receipts.u8(account_of(accounts, receipt)).u64(receipt.cell.0).flag(receipt.meter.is_held());
        let (opens, len) = match receipt.opens.map(Span::from) {
            Some(Span::Tiles { len }) => (1, len),
            Some(Span::Session { len }) => (2, len),
            _ => (0, 0),
        };
        receipts.u8(opens).amount(reserved);
        window(&mut receipts, receipt);
        receipts.number(len as f64).amount(actual);
    }
    let digest = before.request.as_ref().map(|mark| mark.id.digest().to_le_bytes().to_vec());
    let call = Call::new(keys, head, before.id, accounts)
        .with(w.0)
        .with(from.operation.to_vec())
        .with(id(before.id))
        .with(if from.version == 0 { record::whole(before) } else { Vec::new() })
        .with(record::body(after))
        .with(receipts.0)
        .with(digest.unwrap_or_default())
        .charges(Charges::new(show, 0, 0));
    members(call, accounts, before)
}

pub(super) fn extend(keys: &Keys, head: Head, from: &From<'_>, after: &Hold, extend: &Extend) -> Call {
    let (before, accounts) = (from.before, &extend.accounts);
    let mut w = Writer::default();
    w.amount(from.version.into()).at(before.expires_at).at(head.now).u8(taking(extend.taking).0);
    w.number(f64::from(extend.lease_seconds) * 1000.0).at(before.lives_until);
    w.u16(extend.charges.len()).u16(before.receipts.len());
    let mut receipts = Writer::default();
    for receipt in &before.receipts {
        receipts.u8(match occupies(receipt) {
            Occupies::Nothing => 0,
            Occupies::Tokens => 1,
            Occupies::Slot => 2,
        });
        receipts.u8(account_of(accounts, receipt)).amount(receipt.reserved);
        window(&mut receipts, receipt);
    }
    let call = Call::new(keys, head, before.id, accounts)
        .with(w.0)
        .with(from.operation.to_vec())
        .with(id(before.id))
        .with(record::body(after))
        .with(receipts.0)
        .charges(Charges::new(&extend.charges, 0, 0));
    members(call, accounts, before)
}

pub(super) fn touch(keys: &Keys, head: Head, key: &AccountKey, charges: &[Charge]) -> Call {
    let mut w = Writer::default();
    w.u16(charges.len());
    Call::new(keys, head, HoldId(0), std::slice::from_ref(key))
        .with(w.0)
        .charges(Charges::new(charges, 0, 0))
        .with(if key.scope == Scope::User { b"1".to_vec() } else { Vec::new() })
}

/// What the ledger has of an account.
pub(super) struct Stored {
    pub key: AccountKey,
    pub state: Vec<u8>,
    /// Unfinished holds: lease end and member.
    pub open: Vec<(f64, Vec<u8>)>,
    /// Request ids: digest, hold, when it finished.
    pub requests: Vec<(u64, HoldId, Millis)>,
}

pub(super) fn load(keys: &Keys, epoch: u64, accounts: &[Stored], records: &[(HoldId, Vec<u8>)]) -> Call {
    let mut call = Call::default();
    let mut w = Writer::default();
    w.amount(epoch).u16(accounts.len()).u32(records.len() as u32);
    call.keys.push(keys.meta());
    call.args.push(w.0);
    for stored in accounts {
        call.keys.extend([
            keys.account(&stored.key),
            keys.open(&stored.key),
            keys.requests(&stored.key.owner),
        ]);
        let mut counts = Writer::default();
        counts.u32(stored.open.len() as u32).u32(stored.requests.len() as u32);
        call.args.extend([stored.state.clone(), counts.0]);
        for (end, member) in &stored.open {
            call.args.extend([end.to_le_bytes().to_vec(), member.clone()]);
        }
        for (digest, hold, finished) in &stored.requests {
            let mut mark = Writer(id(*hold));
            mark.at(*finished);
            call.args.extend([digest.to_le_bytes().to_vec(), mark.0]);
        }
    }
    for (hold, record) in records {
        call.keys.push(keys.hold(*hold));
        call.args.push(record.clone());
    }
    call
}

/// The members that stand for a hold in the accounts' sorted sets.
fn members(mut call: Call, accounts: &[AccountKey], hold: &Hold) -> Call {
    call.args.extend(accounts.iter().map(|key| state::member(hold, key.scope)));
    call
}

fn taking(taking: Taking) -> (u8, Millis) {
    match taking {
        Taking::Enforced => (0, Millis(0)),
        Taking::Shadowed => (1, Millis(0)),
        Taking::Happened(at) => (2, at),
    }
}

fn id(hold: HoldId) -> Vec<u8> {
    hold.0.to_be_bytes().to_vec()
}

fn account_of(accounts: &[AccountKey], receipt: &Receipt) -> u8 {
    accounts.iter().position(|key| key.scope == receipt.scope).map_or(0, |at| at as u8 + 1)
}

fn window(w: &mut Writer, receipt: &Receipt) {
    match receipt.window {
        Some((start, end)) => w.at(start).at(end),
        None => w.number(NONE).number(NONE),
    };
}
