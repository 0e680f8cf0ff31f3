//! Receipts as they are kept. Their cells are hashes, which are shorter as they are than as
//! numbers of any length; windows begin and end at full minutes, not far from the admission.

use serde::{Deserialize, Serialize};

use super::{after, since};
use crate::domain::charge::{CellId, MeterCode};
use crate::domain::hold::{Opening, Receipt};
use crate::domain::plan::Scope;
use crate::domain::time::Millis;

const MINUTE_MS: i64 = 60_000;

#[derive(Serialize, Deserialize)]
pub(in crate::ledger) struct PackedReceipt {
    scope: Scope,
    cell: [u8; 8],
    meter: MeterCode,
    reserved: u64,
    window: Window,
    opens: Option<Opening>,
}

#[derive(Serialize, Deserialize)]
enum Window {
    None,
    /// In minutes: from the one of admission, and how many.
    Minutes(i64, i64),
    /// In ms: from the admission, and how many.
    Exact(i64, i64),
}

impl PackedReceipt {
    pub fn of(receipt: &Receipt, created: Millis) -> Self {
        let Receipt { scope, cell, meter, reserved, window, opens } = *receipt;
        let window = window.map_or(Window::None, |(start, end)| Window::of(start, end, created));
        Self { scope, cell: cell.0.to_be_bytes(), meter, reserved, window, opens }
    }

    pub fn unpack(self, created: Millis) -> Receipt {
        let Self { scope, cell, meter, reserved, window, opens } = self;
        let cell = CellId(u64::from_be_bytes(cell));
        Receipt { scope, cell, meter, reserved, window: window.unpack(created), opens }
    }
}

impl Window {
    fn of(start: Millis, end: Millis, created: Millis) -> Self {
        let length = since(start, end);
        match start.0.rem_euclid(MINUTE_MS) == 0 && length.rem_euclid(MINUTE_MS) == 0 {
            true => Self::Minutes(start.0.div_euclid(MINUTE_MS) - minute_of(created), length / MINUTE_MS),
            false => Self::Exact(since(created, start), length),
        }
    }

    fn unpack(self, created: Millis) -> Option<(Millis, Millis)> {
        let (start, length) = match self {
            Self::None => return None,
            Self::Minutes(from, minutes) => {
                let start = minute_of(created).wrapping_add(from).wrapping_mul(MINUTE_MS);
                (Millis(start), minutes.wrapping_mul(MINUTE_MS))
            }
            Self::Exact(from, length) => (after(created, from), length),
        };
        Some((start, after(start, length)))
    }
}

fn minute_of(at: Millis) -> i64 {
    at.0.div_euclid(MINUTE_MS)
}
