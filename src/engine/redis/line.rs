//! A pool's line as it lies in Redis; see `lua/lines.lua`.

use super::answers::int;
use super::bytes::{Reader, Unreadable, Writer};
use super::calls::Call;
use super::engine::{RedisEngine, unreadable};
use crate::domain::charge::AccountKey;
use crate::domain::line::{Ahead, Load, NO_TICKET, Place, Turn, Waiter};
use crate::domain::time::Millis;
use crate::engine::{EngineError, LineStep, Stood};

impl RedisEngine {
    pub(super) async fn stand_now(&self, pool: &AccountKey, step: &LineStep) -> Result<Stood, EngineError> {
        let place = self.place(pool.tenant)?;
        let value = self.call(place.slot, &self.scripts.line, &call(place.keys.line(pool), step)).await?;
        let redis::Value::Array(items) = value else { return Err(unreadable(Unreadable)) };
        let mut items = items.into_iter();
        let stands = int(items.next()).map_err(unreadable)? == 1;
        let of_node = int(items.next()).map_err(unreadable)? as usize;
        Ok(Stood { stands, of_node })
    }
}

pub(super) fn call(line: String, step: &LineStep) -> Call {
    let number = |value: u64| value.to_string().into_bytes();
    let node = |node: u64| {
        let mut w = Writer::default();
        w.amount(node);
        w.0
    };
    let args = match step {
        LineStep::Enter { waiter: who, most } => {
            vec![b"enter".to_vec(), node(who.place.turn.node), number(*most as u64), waiter(who)]
        }
        LineStep::Leave(turn) => {
            let mut w = Writer::default();
            w.at(turn.rank).amount(turn.ticket);
            vec![b"leave".to_vec(), node(turn.node), w.0]
        }
        LineStep::Keep { node: whose } => vec![b"keep".to_vec(), node(*whose)],
    };
    Call { keys: vec![line], args }
}

fn waiter(waiter: &Waiter) -> Vec<u8> {
    let Place { turn, class, bulk, .. } = waiter.place;
    let mut w = Writer::default();
    w.at(turn.rank).amount(turn.ticket).amount(turn.node).at(waiter.deadline).u8(class).flag(bulk);
    w.amount(waiter.input).amount(waiter.output);
    w.0
}

/// Where a check stands, as `take.lua` reads it.
pub(super) fn place(w: &mut Writer, place: Option<&Place>) {
    let nowhere = Turn { rank: Millis(0), ticket: NO_TICKET, node: 0 };
    let place = place.copied().unwrap_or(Place { turn: nowhere, class: 0, bulk: false, stands: false });
    w.at(place.turn.rank).amount(place.turn.ticket).amount(place.turn.node).u8(place.class).flag(place.bulk);
}

/// What a refused check found before it, as `take.lua` tells it.
pub(super) fn ahead(told: &[u8], place: &Place) -> Result<Ahead, Unreadable> {
    if told.is_empty() {
        return Ok(Ahead::default());
    }
    let mut r = Reader(told);
    let blocked = r.u8()? == 1;
    let mut lane = || -> Result<Load, Unreadable> {
        Ok(Load { calls: r.amount()?, input: r.amount()?, output: r.amount()? })
    };
    let (interactive, bulk) = (lane()?, lane()?);
    let load = match (place.stands, place.bulk) {
        (true, _) => Load::default(),
        (false, false) => interactive,
        (false, true) => interactive.with(&bulk),
    };
    Ok(Ahead { blocked, load })
}

/// What both lanes ask for, the nodes, the waiters.
#[cfg(test)]
pub(super) type Parts = ([Load; 2], Vec<u64>, Vec<Waiter>);

/// A line's string, taken apart.
#[cfg(test)]
pub(super) fn read(bytes: &[u8]) -> Result<Parts, Unreadable> {
    let mut r = Reader(bytes);
    let mut lane = || -> Result<Load, Unreadable> {
        Ok(Load { calls: r.amount()?, input: r.amount()?, output: r.amount()? })
    };
    let lanes = [lane()?, lane()?];
    let mut nodes = Vec::new();
    for _ in 0..r.u16()? {
        nodes.push(r.amount()?);
        r.amount()?;
    }
    let mut waiters = Vec::new();
    while !r.0.is_empty() {
        let turn = Turn { rank: r.at()?, ticket: r.amount()?, node: r.amount()? };
        let (deadline, class, bulk) = (r.at()?, r.u8()?, r.u8()? == 1);
        let place = Place { turn, class, bulk, stands: true };
        waiters.push(Waiter { place, deadline, input: r.amount()?, output: r.amount()? });
    }
    Ok((lanes, nodes, waiters))
}
