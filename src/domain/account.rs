//! An account: the cells of one owner and the open holds that fill them.
//!
//! Nothing has to run for a lease to end or a window to turn: a *projection*
//! brings the cells to `now`, and only an operation that goes through puts it
//! in the account's place. So reads and refusals change nothing.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::cell::{Bucket, Cell, Rolling, Slots, Window};
use super::charge::{CellId, Charge, Figures, Span};
use super::grant::Spent;
use super::hold::{Hold, Receipt};
use super::ids::HoldId;
use super::open::{Open, Parts};
use super::plan::Scope;
use super::time::Millis;

/// The limits' state of one user, org, tenant or pool.
#[derive(Debug, Clone, Default)]
pub struct Account {
    cells: Vec<Place>,
    /// Holds whose lease runs, by its end.
    open: Open,
    /// Lease ends up to here are in the cells. Time never runs back behind it.
    advanced_to: Millis,
    /// What is gone of grants.
    spent: Spent,
}

/// A cell with its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub id: CellId,
    pub cell: Cell,
    /// What a limit under `enforce = "shadow"` would have refused so far.
    pub would_refuse: u32,
}

/// The durable form; open holds are on record by themselves.
#[derive(Deserialize)]
struct Packed {
    cells: Vec<Place>,
    advanced_to: Millis,
    spent: Spent,
}

/// Its first format, before there were grants.
#[derive(Deserialize)]
struct Packed1 {
    cells: Vec<Place>,
    advanced_to: Millis,
}

impl From<Packed1> for Packed {
    fn from(Packed1 { cells, advanced_to }: Packed1) -> Self {
        Self { cells, advanced_to, spent: Spent::default() }
    }
}

const FORMAT_1: u8 = 1;
const FORMAT: u8 = 2;

impl Account {
    /// Packs the cells for the ledger.
    pub fn pack(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16 + 40 * self.cells.len());
        bytes.push(FORMAT);
        let packed = PackedRef { cells: &self.cells, advanced_to: self.advanced_to, spent: &self.spent };
        postcard::to_extend(&packed, bytes).unwrap_or_default()
    }

    /// Reads what `pack` wrote, now or in earlier days, and puts the unfinished
    /// holds back.
    pub fn unpack<'h>(
        bytes: Option<&[u8]>,
        scope: Scope,
        unfinished: impl Iterator<Item = &'h Hold>,
    ) -> Result<Self, String> {
        let mut account = match bytes {
            Some(bytes) => Self::unpack_cells(bytes)?,
            // Nothing was ever taken from it, though there may be holds that took nothing.
            None => Self::default(),
        };
        for hold in unfinished {
            if let Some(end) = hold.doubtful_from().filter(|end| *end > account.advanced_to) {
                let receipts = hold.receipts.iter().filter(|receipt| receipt.scope == scope);
                account.insert_open(end, hold.id, receipts);
            }
        }
        Ok(account)
    }

    fn unpack_cells(bytes: &[u8]) -> Result<Self, String> {
        let packed: Result<Packed, postcard::Error> = match bytes.split_first() {
            Some((&FORMAT, rest)) => postcard::from_bytes(rest),
            Some((&FORMAT_1, rest)) => postcard::from_bytes::<Packed1>(rest).map(Packed::from),
            _ => return Err("unknown format of an account".into()),
        };
        let Packed { cells, advanced_to, spent } = packed.map_err(|error| error.to_string())?;
        Ok(Self { cells, open: Open::default(), advanced_to, spent })
    }

    /// An account of what another engine keeps. `open` tells of holds whose
    /// lease runs its end and what it occupies of which cell.
    pub fn from_parts<P: IntoIterator<Item = (CellId, u64)>>(
        cells: Vec<Place>,
        advanced_to: Millis,
        spent: Spent,
        open: impl IntoIterator<Item = (Millis, HoldId, P)>,
    ) -> Self {
        let mut account = Self { cells, open: Open::default(), advanced_to, spent };
        for (end, id, parts) in open {
            let place = |(cell, amount)| Some((Self::find(&account.cells, cell)? as u16, amount));
            let parts = parts.into_iter().filter_map(place).collect();
            account.open.insert((end, id), parts);
        }
        account
    }

    pub fn cells(&self) -> &[Place] {
        &self.cells
    }

    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    /// Holds whose lease runs, by its end, with what each occupies.
    pub fn open(&self) -> impl Iterator<Item = (Millis, HoldId, SmallVec<[(CellId, u64); 2]>)> + '_ {
        self.open.iter().map(|((end, id), parts)| {
            let parts =
                parts.iter().map(|(place, amount)| (self.cells[usize::from(*place)].id, *amount)).collect();
            (*end, *id, parts)
        })
    }

    pub fn advanced_to(&self) -> Millis {
        self.advanced_to
    }

    /// Whether nothing was ever taken from it.
    pub fn is_new(&self) -> bool {
        self.cells.is_empty()
    }

    /// Whether no lease runs at `now`.
    pub fn is_quiet(&self, now: Millis) -> bool {
        self.open.last_end().is_none_or(|end| end <= now)
    }

    /// Whether it is as if it had never been.
    pub fn is_blank(&self) -> bool {
        self.cells.is_empty() && self.open.is_empty() && self.spent == Spent::default()
    }

    /// When it is at rest if nothing else happens: its leases and windows are
    /// over and its buckets full, so that a new one would decide the same.
    /// `None`: never.
    pub fn at_rest(&self) -> Option<Millis> {
        let lease_end = self.open.last_end().unwrap_or(Millis(0));
        let cell_end = |(place, entry): (usize, &Place)| match &entry.cell {
            Cell::Window(window) => window.at_rest(),
            Cell::Bucket(bucket) => bucket.at_rest(self.lease_ends(place, bucket.at())),
            Cell::Slots(_) => Some(Millis(0)),
            Cell::Rolling(rolling) => Some(rolling.at_rest()),
        };
        self.cells.iter().enumerate().try_fold(lease_end, |latest, cell| Some(cell_end(cell)?.max(latest)))
    }

    /// When the next lease ends after `now`.
    pub fn next_lease_end(&self, now: Millis) -> Option<Millis> {
        self.open.after(now).next().map(|((end, _), _)| *end)
    }

    fn find(cells: &[Place], id: CellId) -> Option<usize> {
        cells.iter().position(|place| place.id == id)
    }

    /// The cells at `now` as the charges of account `index` see them.
    pub fn project(&self, index: u8, charges: &[Charge], now: Millis) -> Projection {
        let mut cells = Vec::with_capacity(self.cells.len().max(charges.len()));
        cells.extend_from_slice(&self.cells);
        let known = cells.len();
        let mut at = SmallVec::with_capacity(charges.len());
        let mut charged: SmallVec<[Option<&Charge>; 8]> = SmallVec::from_elem(None, known);
        for charge in charges {
            let found = (charge.account == index).then(|| Self::find(&cells, charge.cell)).flatten();
            if let Some(place) = found.filter(|place| *place < known) {
                charged[place] = Some(charge);
            } else if charge.account == index && found.is_none() && charge.asked {
                cells.push(Place { id: charge.cell, cell: fresh(charge.figures, now), would_refuse: 0 });
            }
            at.push(found.or_else(|| (charge.account == index && charge.asked).then(|| cells.len() - 1)));
        }
        let mut projection = Projection { cells, at, now, spent: self.spent.clone() };
        let keep_past = !self.is_quiet(now);
        for (place, charge) in charged.into_iter().enumerate() {
            match (&mut projection.cells[place].cell, charge) {
                (Cell::Window(window), Some(charge)) => {
                    turn(window, charge, &mut projection.spent, now, keep_past);
                }
                (cell, charge) => self.bring_to(cell, place as u16, charge, now),
            }
        }
        projection
    }

    fn bring_to(&self, cell: &mut Cell, place: u16, charge: Option<&Charge>, now: Millis) {
        let mut ends = self.open.until(now).flat_map(|((end, _), parts)| {
            parts.iter().filter(|(part, _)| *part == place).map(|(_, amount)| (*end, *amount))
        });
        match (cell, charge) {
            (Cell::Bucket(bucket), Some(charge)) => {
                let changes = if charge.switches { charge.steps_after(bucket.at()) } else { SmallVec::new() };
                bucket.advance(&changes, ends, now);
            }
            (Cell::Bucket(bucket), None) => ends.for_each(|(end, amount)| bucket.end_lease(amount, end)),
            (Cell::Rolling(rolling), Some(charge)) => {
                if let Figures::Rolling { window_ms, .. } = charge.figures {
                    rolling.follow(window_ms);
                }
                rolling.advance(now);
            }
            (Cell::Window(_) | Cell::Rolling(_), _) => {}
            (Cell::Slots(slots), _) => ends.by_ref().for_each(|_| slots.free()),
        }
    }

    /// Lease ends after `now` that free something in cell `place`, ascending.
    pub fn lease_ends(&self, place: usize, now: Millis) -> impl Iterator<Item = (Millis, u64)> + '_ {
        self.open.after(now).flat_map(move |((end, _), parts)| {
            let own = parts.iter().filter(move |(part, _)| usize::from(*part) == place);
            own.map(move |(_, amount)| (*end, *amount))
        })
    }

    /// Puts a projection in the account's place.
    pub fn accept(&mut self, projection: Projection) {
        self.cells = projection.cells;
        self.spent = projection.spent;
        if self.cells.capacity() > self.cells.len() + 2 {
            self.cells.shrink_to_fit();
        }
        self.advanced_to = self.advanced_to.max(projection.now);
        self.open.remove_until(projection.now);
    }

    /// Notes that `hold` occupies what its receipts say until `end`.
    pub fn insert_open<'r>(
        &mut self,
        end: Millis,
        hold: HoldId,
        receipts: impl Iterator<Item = &'r Receipt>,
    ) {
        let mut parts: SmallVec<[(u16, u64); 8]> = SmallVec::new();
        for receipt in receipts {
            let Some(place) = Self::find(&self.cells, receipt.cell) else { continue };
            match &self.cells[place].cell {
                Cell::Bucket(_) if receipt.meter.is_held() && receipt.reserved > 0 => {
                    parts.push((place as u16, receipt.reserved));
                }
                Cell::Slots(_) => parts.push((place as u16, 1)),
                Cell::Bucket(_) | Cell::Window(_) | Cell::Rolling(_) => {}
            }
        }
        self.open.insert((end, hold), Parts::from(parts.as_slice()));
    }

    pub fn remove_open(&mut self, end: Millis, hold: HoldId) {
        self.open.remove((end, hold));
    }

    /// Counts what a shadow limit would have refused, where its cell is known.
    pub fn count_would_refuse(&mut self, cell: CellId) {
        if let Some(place) = Self::find(&self.cells, cell) {
            let count = &mut self.cells[place].would_refuse;
            *count = count.saturating_add(1);
        }
    }
}

#[derive(Serialize)]
struct PackedRef<'a> {
    cells: &'a [Place],
    advanced_to: Millis,
    spent: &'a Spent,
}

/// Brings a window to `now` through the rules its borders had since it was
/// last turned. Of a window that ended, what was taken beyond the limit of its
/// last instant is gone from the grants that were alive then; where that was
/// no limit then, nothing is.
fn turn(window: &mut Window, charge: &Charge, spent: &mut Spent, now: Millis, keep_past: bool) {
    for (at, span) in charge.spans_until(now) {
        let Some(ended) = window.roll(span, at, keep_past) else { continue };
        if charge.grants().is_empty() {
            continue;
        }
        let last = Millis(ended.end.0 - 1);
        if let Some(limit) = charge.limit_at(last) {
            spent.pay(charge.grants(), ended.taken.saturating_sub(limit), last);
        }
    }
}

fn fresh(figures: Figures, now: Millis) -> Cell {
    match figures {
        Figures::Bucket { capacity, refill, .. } => Cell::Bucket(Bucket::full(capacity, refill, now)),
        Figures::Window { .. } | Figures::Kept => Cell::Window(Window::default()),
        Figures::Slots { .. } => Cell::Slots(Slots::default()),
        Figures::Rolling { limit, window_ms } => Cell::Rolling(Rolling::new(limit, window_ms)),
    }
}

/// The cells of one account at one instant; `at[i]` is the cell of charge i
/// where that charge belongs to this account.
#[derive(Debug, Clone)]
pub struct Projection {
    cells: Vec<Place>,
    at: SmallVec<[Option<usize>; 8]>,
    now: Millis,
    spent: Spent,
}

impl Projection {
    pub fn place(&self, charge: usize) -> Option<usize> {
        self.at.get(charge).copied().flatten()
    }

    pub fn cell(&self, place: usize) -> &Cell {
        &self.cells[place].cell
    }

    pub fn cell_mut(&mut self, place: usize) -> &mut Cell {
        &mut self.cells[place].cell
    }

    pub fn would_refuse(&self, place: usize) -> u32 {
        self.cells[place].would_refuse
    }

    pub fn count_would_refuse(&mut self, place: usize) {
        let count = &mut self.cells[place].would_refuse;
        *count = count.saturating_add(1);
    }

    /// The cell of a receipt, if the account has it.
    pub fn find(&self, id: CellId) -> Option<usize> {
        Account::find(&self.cells, id)
    }

    /// What grants add to the charge's limit.
    pub fn granted(&self, charge: &Charge) -> u64 {
        self.spent.granted(charge.grants(), self.now)
    }

    /// The span of the charge on `place`, if one of the operation's charges
    /// is on it.
    pub fn span(&self, place: usize, charges: &[Charge]) -> Option<Span> {
        let charge = self.at.iter().position(|at| *at == Some(place))?;
        match charges[charge].figures {
            Figures::Window { span, .. } => Some(span),
            _ => None,
        }
    }
}
