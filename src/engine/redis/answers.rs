//! What the scripts answer.

use redis::Value;
use smallvec::SmallVec;

use super::bytes::{Reader, Unreadable};
use super::state::{Open, Packed, read_open};
use crate::domain::account::Account;
use crate::domain::ids::HoldId;
use crate::domain::time::Millis;

/// A script's answer, taken apart.
#[derive(Debug)]
pub(super) enum Answer {
    /// It went through, or was refused by limits: `Found` tells which.
    Done(Found),
    Refused(Found),
    /// The same operation again; nothing was done twice.
    Repeated(Found),
    Known(HoldId),
    /// Places of the accounts that are not here, and the slot's last number.
    Missing {
        places: SmallVec<[usize; 4]>,
        seq: u64,
    },
    Unsure,
    Clock(Millis),
    Overloaded,
    Moved,
    /// A border lies between the caller's time and this one.
    Again(Millis),
    /// The hold is another one by now.
    Changed,
    NotOpen,
}

/// What a script decided on.
#[derive(Debug)]
pub(super) struct Found {
    pub now: Millis,
    pub seq: u64,
    /// The hold's record, where asked for.
    pub record: Vec<u8>,
    pub accounts: SmallVec<[Account; 3]>,
    /// What they became, where asked for.
    pub after: Vec<Vec<u8>>,
}

pub(super) fn read(value: Value) -> Result<Answer, Unreadable> {
    let Value::Array(items) = value else { return Err(Unreadable) };
    let mut items = items.into_iter();
    let code = int(items.next())?;
    Ok(match code {
        0 => Answer::Done(found(items)?),
        1 => Answer::Refused(found(items)?),
        2 => {
            let id = bytes(items.nth(2))?;
            Answer::Known(HoldId(Reader(&id).u128_be()?))
        }
        3 => {
            let seq = int(items.next())? as u64;
            let places =
                items.map(|place| Ok(int(Some(place))? as usize)).collect::<Result<_, Unreadable>>()?;
            Answer::Missing { places, seq }
        }
        4 => Answer::Unsure,
        5 => Answer::Clock(Millis(int(items.next())?)),
        6 => Answer::Overloaded,
        7 => Answer::Moved,
        8 => Answer::Again(Millis(int(items.next())?)),
        9 => Answer::Changed,
        10 => Answer::NotOpen,
        11 => Answer::Repeated(found(items)?),
        _ => return Err(Unreadable),
    })
}

fn found(mut items: impl Iterator<Item = Value>) -> Result<Found, Unreadable> {
    let (now, seq) = (Millis(int(items.next())?), int(items.next())? as u64);
    let record = items.next().map_or(Ok(Vec::new()), |record| bytes(Some(record)))?;
    let (mut accounts, mut after) = (SmallVec::new(), Vec::new());
    while let Some(raw) = items.next() {
        let packed = Packed::read(&bytes(Some(raw))?)?;
        let mut open = opens(items.next())?;
        open.extend(opens(items.next())?);
        accounts.push(packed.account(open));
        after.push(bytes(items.next())?);
    }
    Ok(Found { now, seq, record, accounts, after })
}

/// Members with their scores, as `ZRANGEBYSCORE .. WITHSCORES` lists them.
pub(super) fn opens(value: Option<Value>) -> Result<Vec<Open>, Unreadable> {
    let Some(Value::Array(items)) = value else { return Err(Unreadable) };
    let mut items = items.into_iter();
    let mut open = Vec::with_capacity(items.len() / 2);
    while let Some(member) = items.next() {
        let score = bytes(items.next())?;
        let score: f64 =
            std::str::from_utf8(&score).ok().and_then(|text| text.parse().ok()).ok_or(Unreadable)?;
        open.push(read_open(&bytes(Some(member))?, score)?);
    }
    Ok(open)
}

pub(super) fn int(value: Option<Value>) -> Result<i64, Unreadable> {
    match value {
        Some(Value::Int(number)) => Ok(number),
        _ => Err(Unreadable),
    }
}

pub(super) fn bytes(value: Option<Value>) -> Result<Vec<u8>, Unreadable> {
    match value {
        Some(Value::BulkString(bytes)) => Ok(bytes),
        _ => Err(Unreadable),
    }
}
