//! What an operation asks, as the scripts read it.

use serde::Serialize;

use super::bytes::{NONE, Writer};
use crate::domain::charge::{Charge, Demand, Figures, Span};
use crate::domain::plan::Enforce;
use crate::domain::quantity::MAX_AMOUNT;
use crate::domain::time::Millis;

/// What few charges have: the rules before, the grants.
#[derive(Serialize)]
struct Extra {
    steps: Vec<f64>,
    from: f64,
    spans: Vec<f64>,
    grants: Vec<f64>,
}

/// The three arguments that `read_charges` takes.
pub(super) struct Charges {
    pub rows: Vec<u8>,
    /// Empty, where all is asked for one output only.
    pub demands: Vec<u8>,
    /// Empty, where no charge has any.
    pub extras: Vec<u8>,
}

impl Charges {
    /// `least` and `most`: the outputs that amounts are asked for.
    pub fn new(charges: &[Charge], least: u64, most: u64) -> Self {
        let (mut rows, mut demands) =
            (Writer(Vec::with_capacity(96 * charges.len() + 96)), Writer::default());
        let mut extras = Vec::new();
        for charge in charges {
            let extra = Extra::of(charge).map_or(0, |extra| {
                extras.push(extra);
                extras.len()
            });
            row(&mut rows, charge, extra, least, most);
            if least != most {
                demand(&mut demands, &charge.demand);
            }
        }
        let extras = match extras.is_empty() {
            true => Vec::new(),
            false => rmp_serde::to_vec(&extras).unwrap_or_default(),
        };
        Self { rows: rows.0, demands: demands.0, extras }
    }

    /// One row more, for what reserving costs in credits.
    pub fn with_credits(mut self, credits: &Demand, least: u64, most: u64) -> Self {
        let mut rows = Writer(std::mem::take(&mut self.rows));
        rows.raw(&[0; 17]).raw(&[0; 56]);
        rows.amount(credits.amount(least)).amount(credits.amount(most)).number(0.0);
        self.rows = rows.0;
        if least != most {
            let mut demands = Writer(std::mem::take(&mut self.demands));
            demand(&mut demands, credits);
            self.demands = demands.0;
        }
        self
    }
}

fn row(w: &mut Writer, charge: &Charge, extra: usize, least: u64, most: u64) {
    w.u64(charge.cell.0).u8(charge.account + 1).flag(charge.asked).flag(charge.switches);
    w.flag(charge.meter.is_held());
    w.u8(match charge.enforce {
        Enforce::Hard => 0,
        Enforce::Soft => 1,
        Enforce::Shadow => 2,
    });
    match charge.figures {
        Figures::Kept => w.u8(0).u8(0).u16(extra).raw(&[0; 56]),
        Figures::Bucket { capacity, refill, since } => {
            w.u8(1).u8(0).u16(extra).amount(capacity).amount(refill).at(since).raw(&[0; 32])
        }
        Figures::Window { limit, since, span } => {
            let (kind, figures) = span_parts(span);
            w.u8(2).u8(kind).u16(extra).amount(limit).number(0.0).at(since);
            figures.into_iter().fold(&mut *w, |w, figure| w.number(figure))
        }
        Figures::Slots { limit } => w.u8(3).u8(0).u16(extra).amount(limit).raw(&[0; 48]),
        Figures::Rolling { limit, window_ms } => {
            w.u8(4).u8(0).u16(extra).amount(limit).raw(&[0; 16]).number(window_ms as f64).raw(&[0; 24])
        }
    };
    w.amount(charge.demand.amount(least)).amount(charge.demand.amount(most)).amount(charge.keep);
}

pub(super) fn span_parts(span: Span) -> (u8, [f64; 4]) {
    match span {
        Span::Calendar { start, end, next_end, min_len } => {
            (0, [start.0, end.0, next_end.0, min_len].map(|figure| figure as f64))
        }
        Span::Tiles { len } => (1, [len as f64, 0.0, 0.0, 0.0]),
        Span::Session { len } => (2, [len as f64, 0.0, 0.0, 0.0]),
        Span::Lifetime => (3, [0.0; 4]),
    }
}

/// `ceil((fixed + slope x output) / unit)` in two limbs: whole units and rest.
fn demand(w: &mut Writer, demand: &Demand) {
    let unit = demand.unit.max(1);
    let whole = (demand.fixed / u128::from(unit)).min(u128::from(MAX_AMOUNT) + 1) as u64;
    let rest = (demand.fixed % u128::from(unit)) as u64;
    w.amount(whole).amount(rest).amount(demand.per_output / unit).amount(demand.per_output % unit);
    w.amount(unit);
}

impl Extra {
    fn of(charge: &Charge) -> Option<Self> {
        let grants = charge.grants();
        if charge.earlier.is_none() && grants.is_empty() {
            return None;
        }
        let (mut steps, mut spans) = (Vec::new(), Vec::new());
        let mut from = 0.0;
        if let Some(earlier) = &charge.earlier {
            from = earlier.from.0 as f64;
            for step in earlier.steps.iter() {
                steps.extend([step.most as f64, step.refill as f64, step.since.0 as f64]);
            }
            for step in &earlier.spans {
                let (kind, figures) = span_parts(step.span);
                spans.extend([step.at.0 as f64, f64::from(kind)]);
                spans.extend(figures);
            }
        }
        // In the order in which they pay.
        let mut sorted: Vec<_> = grants.iter().collect();
        sorted.sort_unstable_by_key(|grant| (grant.expires_at.is_none(), grant.expires_at, grant.id));
        let figures = |at: Option<Millis>| at.map_or(-1.0, |at| at.0 as f64);
        let grants = sorted.into_iter().flat_map(|grant| {
            [f64::from(grant.id), grant.amount as f64, grant.given.0 as f64, figures(grant.expires_at)]
        });
        Some(Self { steps, from, spans, grants: grants.collect() })
    }
}

/// An instant that may be none.
pub(super) fn maybe(at: Option<Millis>) -> f64 {
    at.map_or(NONE, |at| at.0 as f64)
}
