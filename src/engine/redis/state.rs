//! An account as it lies in Redis.
//!
//! One string: a head, the cells at 53 bytes each, then the windows that ended
//! and the logs of rolling limits, and what is gone of grants. Its open holds are in a sorted set beside it.

use serde_json::{Value, json};
use smallvec::SmallVec;

use super::bytes::{NONE, Reader, Unreadable, Writer};
use crate::domain::account::{Account, Place};
use crate::domain::cell::{Bucket, Cell, Part, Rolling, Slots, Window};
use crate::domain::charge::{CellId, MeterCode};
use crate::domain::grant::Spent;
use crate::domain::hold::{Hold, Receipt};
use crate::domain::ids::HoldId;
use crate::domain::plan::Scope;
use crate::domain::time::Millis;

const FORMAT: u8 = 1;
const BUCKET: u8 = 0;
const WINDOW: u8 = 1;
const SLOTS: u8 = 2;
const ROLLING: u8 = 3;

/// An account's string, taken apart.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Packed {
    pub cells: Vec<Place>,
    pub advanced_to: Millis,
    pub spent: Spent,
}

/// A lease end with what it frees.
pub(super) type Open = (Millis, HoldId, SmallVec<[(CellId, u64); 2]>);

/// Packs an account that is new to Redis.
pub(super) fn pack(account: &Account) -> Vec<u8> {
    let ends = || account.open().map(|(end, ..)| end.0 as f64);
    let mut w = Writer(Vec::with_capacity(41 + 53 * account.cells().len()));
    w.u8(FORMAT).u32(0).at(account.advanced_to());
    w.number(ends().fold(NONE, f64::min)).number(ends().fold(0.0, f64::max)).number(0.0);
    w.u16(account.cells().len()).u16(account.spent().iter().len());
    for place in account.cells() {
        write_cell(&mut w, place);
    }
    for place in account.cells() {
        match &place.cell {
            Cell::Window(window) => window.parts().skip(1).for_each(|part| write_part(&mut w, part)),
            Cell::Rolling(rolling) => rolling.parts().1.iter().for_each(|(at, amount)| {
                w.at(*at).amount(*amount);
            }),
            Cell::Bucket(_) | Cell::Slots(_) => {}
        }
    }
    for (id, amount) in account.spent().iter() {
        w.u32(id).amount(amount);
    }
    w.0
}

fn write_cell(w: &mut Writer, place: &Place) {
    w.u64(place.id.0);
    match &place.cell {
        Cell::Bucket(bucket) => {
            let (capacity, refill, level, held, at) = bucket.parts();
            w.u8(BUCKET).u32(place.would_refuse);
            w.amount(capacity).amount(refill).number(level as f64).amount(held).at(at);
        }
        Cell::Window(window) => {
            w.u8(WINDOW).u32(place.would_refuse);
            window.parts().take(1).for_each(|part| write_part(w, part));
            w.number((window.parts().count() - 1) as f64);
        }
        Cell::Slots(slots) => {
            w.u8(SLOTS).u32(place.would_refuse).amount(slots.in_use()).raw(&[0; 32]);
        }
        Cell::Rolling(rolling) => {
            let ((limit, window_ms, used), log) = rolling.parts();
            w.u8(ROLLING).u32(place.would_refuse).amount(limit).number(window_ms as f64).amount(used);
            w.number(0.0).number(log.len() as f64);
        }
    }
}

fn write_part(w: &mut Writer, part: Part) {
    w.at(part.start).at(part.end).amount(part.used).amount(part.held);
}

fn read_part(r: &mut Reader<'_>) -> Result<Part, Unreadable> {
    Ok(Part { start: r.at()?, end: r.at()?, used: r.amount()?, held: r.amount()? })
}

impl Packed {
    /// Reads what `pack` or a script wrote.
    pub fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut r = Reader(bytes);
        if r.u8()? != FORMAT {
            return Err(Unreadable);
        }
        r.u32()?;
        let advanced_to = r.at()?;
        r.raw(24)?;
        let (cells, spent) = (r.u16()?, r.u16()?);
        let mut rows = Reader(r.raw(cells * 53)?);
        let mut read = Vec::with_capacity(cells);
        for _ in 0..cells {
            read.push(read_cell(&mut rows, &mut r)?);
        }
        let gone = (0..spent).map(|_| Ok((r.u32()?, r.amount()?))).collect::<Result<Spent, Unreadable>>()?;
        if !r.0.is_empty() {
            return Err(Unreadable);
        }
        Ok(Self { cells: read, advanced_to, spent: gone })
    }

    /// The account, as far as these lease ends tell it.
    pub fn account(self, open: impl IntoIterator<Item = Open>) -> Account {
        Account::from_parts(self.cells, self.advanced_to, self.spent, open)
    }
}

fn read_cell(r: &mut Reader<'_>, tail: &mut Reader<'_>) -> Result<Place, Unreadable> {
    let id = CellId(r.u64()?);
    let kind = r.u8()?;
    let would_refuse = r.u32()?;
    let cell = match kind {
        BUCKET => {
            Cell::Bucket(Bucket::from_parts((r.amount()?, r.amount()?, r.signed()?, r.amount()?, r.at()?)))
        }
        WINDOW => {
            let running = read_part(r)?;
            let past = (0..r.amount()?).map(|_| read_part(tail)).collect::<Result<Vec<_>, _>>()?;
            Cell::Window(Window::from_parts(running, past.into_iter()))
        }
        SLOTS => {
            let in_use = r.amount()?;
            r.raw(32)?;
            Cell::Slots(Slots::new(in_use))
        }
        ROLLING => {
            let figures = (r.amount()?, r.signed()?, r.amount()?);
            r.raw(8)?;
            let log = (0..r.amount()?).map(|_| Ok((tail.at()?, tail.amount()?)));
            Cell::Rolling(Rolling::from_parts(figures, log.collect::<Result<_, Unreadable>>()?))
        }
        _ => return Err(Unreadable),
    };
    Ok(Place { id, cell, would_refuse })
}

/// A member of an account's sorted set: the hold's id, then what its receipts
/// occupy here while the lease runs.
pub(super) fn member(hold: &Hold, scope: Scope) -> Vec<u8> {
    let mut w = Writer(hold.id.0.to_be_bytes().to_vec());
    for receipt in hold.receipts.iter().filter(|receipt| receipt.scope == scope) {
        match occupies(receipt) {
            Occupies::Tokens if receipt.reserved > 0 => w.u64(receipt.cell.0).amount(receipt.reserved),
            Occupies::Slot => w.u64(receipt.cell.0).amount(1),
            Occupies::Tokens | Occupies::Nothing => &mut w,
        };
    }
    w.0
}

/// The same of what is known to be occupied.
pub(super) fn member_of(id: HoldId, parts: &[(CellId, u64)]) -> Vec<u8> {
    let mut w = Writer(id.0.to_be_bytes().to_vec());
    parts.iter().for_each(|(cell, amount)| {
        w.u64(cell.0).amount(*amount);
    });
    w.0
}

/// What a receipt occupies until its lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occupies {
    Nothing,
    Tokens,
    Slot,
}

/// Windows give nothing back when a lease ends; a bucket's receipt is the one
/// that names no window.
pub(super) fn occupies(receipt: &Receipt) -> Occupies {
    match receipt.meter {
        MeterCode::SLOTS => Occupies::Slot,
        meter if meter.is_held() && receipt.window.is_none() && receipt.opens.is_none() => Occupies::Tokens,
        _ => Occupies::Nothing,
    }
}

/// Reads a member and its score.
pub(super) fn read_open(member: &[u8], end: f64) -> Result<Open, Unreadable> {
    let mut r = Reader(member);
    let id = HoldId(r.u128_be()?);
    let mut parts = SmallVec::new();
    while !r.0.is_empty() {
        parts.push((CellId(r.u64()?), r.amount()?));
    }
    Ok((Millis(end as i64), id, parts))
}

/// Shows an account to a person, as its string would.
pub fn inspect_account(account: &Account) -> Option<Value> {
    inspect(&pack(account))
}

/// Shows an account's string to a person.
pub fn inspect(bytes: &[u8]) -> Option<Value> {
    let packed = Packed::read(bytes).ok()?;
    let cell = |place: &Place| {
        let figures = match &place.cell {
            Cell::Bucket(bucket) => {
                let (capacity, refill, level, held, at) = bucket.parts();
                json!({ "kind": "bucket", "capacity": capacity, "refill_per_minute": refill,
                    "level_in_60000ths": level, "held": held, "at": at })
            }
            Cell::Window(window) => {
                let parts: Vec<Value> = window
                    .parts()
                    .map(|part| {
                        let begun = part.end.0 != i64::MIN;
                        json!({ "start": begun.then_some(part.start), "end": begun.then_some(part.end),
                            "used": part.used, "held": part.held })
                    })
                    .collect();
                json!({ "kind": "window", "running": parts[0], "ended": parts[1..] })
            }
            Cell::Slots(slots) => json!({ "kind": "slots", "in_use": slots.in_use() }),
            Cell::Rolling(rolling) => {
                let ((limit, window_ms, used), log) = rolling.parts();
                json!({ "kind": "rolling", "limit": limit, "window_ms": window_ms, "used": used, "log": log })
            }
        };
        json!({ "cell": format!("{:016x}", place.id.0), "would_refuse": place.would_refuse, "figures": figures })
    };
    let spent: Vec<Value> =
        packed.spent.iter().map(|(id, amount)| json!({ "grant": id, "gone": amount })).collect();
    Some(json!({
        "advanced_to": packed.advanced_to,
        "cells": packed.cells.iter().map(cell).collect::<Vec<_>>(),
        "spent": spent,
    }))
}
