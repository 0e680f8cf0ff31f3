//! A hold's record: the hold as the node wrote it, and beside it what the
//! script decided, which is filled in when the record is read.

use std::sync::Arc;

use super::bytes::{NONE, Reader, Unreadable, Writer};
use crate::domain::charge::Demand;
use crate::domain::hold::{Hold, Receipt, Stage};
use crate::domain::step;
use crate::domain::time::Millis;

const FORMAT: u8 = 1;
/// The body is the whole hold.
const WHOLE: u8 = 0;
const TAKEN: u8 = 1;
const ENDED: u8 = 2;
const EXTENDED: u8 = 3;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record {
    /// Counts up with every step of the hold.
    pub version: u32,
    /// The operation that wrote it.
    pub operation: [u8; 16],
    /// When that was.
    pub at: Millis,
    pub hold: Hold,
}

/// The part of it that the next step is made from.
#[derive(Debug, Clone)]
pub(super) struct Read {
    pub version: u32,
    pub operation: [u8; 16],
    pub hold: Arc<Hold>,
}

impl Read {
    pub fn of(bytes: &[u8]) -> Result<Self, Unreadable> {
        let Record { version, operation, hold, .. } = Record::read(bytes)?;
        Ok(Self { version, operation, hold: Arc::new(hold) })
    }
}

/// What a receipt reserved, and in which window.
type Part = (u64, Option<(Millis, Millis)>);

/// What a script decided.
struct Decided {
    at: Millis,
    output: u64,
    is_final: bool,
    credits: u64,
    /// In ms.
    lease: i64,
    longest: i64,
    /// One for each receipt: reserved and window.
    parts: Vec<Part>,
}

/// A hold's bytes.
pub(super) fn body(hold: &Hold) -> Vec<u8> {
    postcard::to_stdvec(hold).unwrap_or_default()
}

/// The record of a hold that no script has changed yet.
pub(super) fn whole(hold: &Hold) -> Vec<u8> {
    whole_at(hold, 1)
}

/// The record of a hold in its present form.
pub(super) fn whole_at(hold: &Hold, version: u32) -> Vec<u8> {
    let mut w = Writer::default();
    w.u8(FORMAT).u32(version).u8(WHOLE).raw(&[0; 16]).raw(&[0; 48]).u16(0).raw(&body(hold));
    w.0
}

impl Record {
    pub fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut r = Reader(bytes);
        if r.u8()? != FORMAT {
            return Err(Unreadable);
        }
        let (version, kind) = (r.u32()?, r.u8()?);
        let operation = r.u128_be()?.to_be_bytes();
        let mut decided = Decided {
            at: r.at()?,
            output: r.amount()?,
            is_final: r.amount()? == 1,
            credits: r.amount()?,
            lease: r.signed()?,
            longest: r.signed()?,
            parts: Vec::new(),
        };
        for _ in 0..r.u16()? {
            let (reserved, start, end) = (r.amount()?, r.number()?, r.number()?);
            let window = (start != NONE).then_some((Millis(start as i64), Millis(end as i64)));
            decided.parts.push((reserved, window));
        }
        let mut hold: Hold = postcard::from_bytes(r.0).map_err(|_| Unreadable)?;
        let at = decided.at;
        match kind {
            WHOLE => {}
            TAKEN => decided.fill_taken(&mut hold)?,
            ENDED => fill_ended(&mut hold, at),
            EXTENDED => decided.fill_extended(&mut hold)?,
            _ => return Err(Unreadable),
        }
        Ok(Self { version, operation, at, hold })
    }
}

impl Decided {
    fn fill_taken(&self, hold: &mut Hold) -> Result<(), Unreadable> {
        let (stage, reserved) = (hold.stage.clone(), hold.reserved);
        step::reserve(hold, self.output, self.is_final, Demand::fixed(self.credits));
        if matches!(stage, Stage::Held) {
            hold.created_at = self.at;
            hold.lives_until = self.at.plus_ms(self.longest);
            hold.expires_at = self.at.plus_ms(self.lease).min(hold.lives_until);
        } else {
            (hold.stage, hold.reserved) = (stage, reserved);
        }
        self.fill_receipts(hold)?;
        hold.receipts.iter_mut().filter(|receipt| receipt.window.is_some()).for_each(|r| r.opens = None);
        Ok(())
    }

    fn fill_extended(&self, hold: &mut Hold) -> Result<(), Unreadable> {
        let end = self.at.plus_ms(self.lease).min(hold.lives_until);
        hold.expires_at = hold.expires_at.max(end);
        self.fill_receipts(hold)
    }

    fn fill_receipts(&self, hold: &mut Hold) -> Result<(), Unreadable> {
        if hold.receipts.len() != self.parts.len() {
            return Err(Unreadable);
        }
        let fill = |(receipt, (reserved, window)): (&mut Receipt, &Part)| {
            (receipt.reserved, receipt.window) = (*reserved, *window);
        };
        hold.receipts.iter_mut().zip(&self.parts).for_each(fill);
        Ok(())
    }
}

fn fill_ended(hold: &mut Hold, now: Millis) {
    match &mut hold.stage {
        Stage::Settled(settlement) => settlement.at = now,
        Stage::Released { at, .. } => *at = now,
        Stage::InDoubt { since } => *since = now,
        Stage::Held => {}
    }
}
