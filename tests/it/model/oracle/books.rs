//! The sums: what windows show is what the holds, one by one, have taken.

use std::collections::BTreeMap;

use super::cells::Cell;
use super::window::{Book, Span};
use super::{CellKey, Oracle, holding};

impl Oracle {
    /// Adds all holds and all booked use up again, and holds the sums against the books.
    pub fn add_up(&self) -> Result<(), String> {
        let mut sums: BTreeMap<(CellKey, Span), Book> = BTreeMap::new();
        for hold in &self.holds {
            for receipt in &hold.receipts {
                let Some(span) = receipt.window else { continue };
                let book = sums.entry((receipt.key.clone(), span)).or_default();
                match &hold.counted {
                    Some(counted) => book.used += counted.get(&receipt.limit.meter).unwrap_or(&0),
                    None if holding(&receipt.limit.meter) => book.held += receipt.reserved,
                    None => book.used += receipt.reserved,
                }
            }
        }
        for (key, span, amount) in &self.booked {
            sums.entry((key.clone(), *span)).or_default().used += amount;
        }
        for (key, (cell, _)) in &self.cells {
            let Cell::Window(window) = cell else { continue };
            for (span, book) in &window.books {
                let sum = sums.remove(&(key.clone(), *span)).unwrap_or_default();
                if sum != *book {
                    return Err(format!("{key:?} {span:?}: {book:?} where its holds add up to {sum:?}"));
                }
            }
        }
        match sums.into_iter().find(|(_, sum)| *sum != Book::default()) {
            Some((key, sum)) => Err(format!("{key:?}: {sum:?} in holds, and no book")),
            None => Ok(()),
        }
    }
}
