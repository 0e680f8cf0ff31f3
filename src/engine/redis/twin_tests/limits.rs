//! Limits as one sheet after the other has them, and dice.

use super::*;

pub fn hours(n: i64) -> Millis {
    Millis(T0 + n * HOUR)
}

/// The day around `at` for those whose midnight is `shift` hours late.
pub fn days(shift: i64, at: Millis) -> Span {
    let start = (at.0 - shift * HOUR).div_euclid(DAY) * DAY + shift * HOUR;
    Span::Calendar {
        start: Millis(start),
        end: Millis(start + DAY),
        next_end: Millis(start + 2 * DAY),
        min_len: 23 * HOUR,
    }
}

/// A limit as one sheet after the other has it.
#[derive(Clone)]
pub struct Limit {
    account: u8,
    pub cell: CellId,
    pub meter: MeterCode,
    kind: u8,
    enforce: Enforce,
    /// Figures from an hour on, ascending.
    figures: Vec<(i64, u64, u64)>,
    shifts: Vec<(i64, i64)>,
    grants: Vec<Grant>,
    switches: bool,
    keep: u64,
}

pub const METERS: [MeterCode; 6] = [
    MeterCode::REQUESTS,
    MeterCode::INPUT,
    MeterCode::OUTPUT,
    MeterCode::TOTAL,
    MeterCode::CREDITS,
    MeterCode(6),
];

impl Limit {
    pub fn random(dice: &mut Dice, account: u8, cell: u64, big: bool) -> Self {
        let kind = dice.pick(&[0, 0, 1, 2, 3, 4, 5, 6, 6]);
        let most = |dice: &mut Dice| match kind {
            0 if big => dice.pick(&[0, 1, MAX_BUCKET - 1, MAX_BUCKET, 7_777_777_777]),
            0 => dice.pick(&[0, 1, 10, 60, 100, 1000]),
            5 => dice.pick(&[0, 1, 2, 5]),
            _ if big => dice.pick(&[1, MAX_AMOUNT - 1, MAX_AMOUNT, MAX_AMOUNT / 2 + 1]),
            _ => dice.pick(&[0, 5, 40, 100, 500]),
        };
        let mut figures = vec![(-10, most(dice), dice.pick(&[0, 1, 30, 600, MAX_BUCKET]))];
        let mut shifts = vec![(-10, 0)];
        for _ in 0..dice.below(4) {
            let hour = figures.last().map_or(0, |last| last.0) + 1 + dice.below(30) as i64;
            figures.push((hour, most(dice), dice.pick(&[0, 1, 30, 600])));
        }
        for _ in 0..dice.below(3) {
            let hour = shifts.last().map_or(0, |last| last.0) + 1 + dice.below(60) as i64;
            shifts.push((hour, dice.below(25) as i64 - 12));
        }
        let grants = (0..if dice.one_in(3) { dice.below(4) } else { 0 }).map(|id| Grant {
            id: (cell * 10 + id) as u32,
            amount: dice.pick(&[1, 10, 70, MAX_AMOUNT]),
            given: hours(dice.below(100) as i64 - 5),
            expires_at: None,
        });
        let mut grants: Vec<Grant> = grants.collect();
        for grant in &mut grants {
            grant.expires_at = dice.one_in(2).then(|| grant.given.plus_ms(dice.below(60) as i64 * HOUR));
        }
        let meter = if kind == 5 { MeterCode::SLOTS } else { dice.pick(&METERS) };
        Self {
            account,
            cell: CellId(cell << 32 | (0xffff_ff00 + cell)),
            meter,
            kind,
            enforce: dice.pick(&[
                Enforce::Hard,
                Enforce::Hard,
                Enforce::Hard,
                Enforce::Soft,
                Enforce::Shadow,
            ]),
            figures,
            shifts,
            grants: if matches!(kind, 1..=4) { grants } else { vec![] },
            switches: account == 0 || dice.one_in(2),
            keep: if account == 2 && dice.one_in(2) { dice.pick(&[0, 1, 3, 10]) } else { 0 },
        }
    }

    pub fn charge(&self, dice: &mut Dice, demand: Demand, asked: bool, now: Millis) -> Charge {
        let at = self.figures.iter().rposition(|(hour, ..)| hours(*hour) <= now).unwrap_or(0);
        let (hour, most, refill) = self.figures[at];
        let shift = self.shifts.iter().rposition(|(hour, _)| hours(*hour) <= now).unwrap_or(0);
        let since = hours(hour);
        let window = |span| Figures::Window { limit: most, since, span };
        let figures = match self.kind {
            0 => Figures::Bucket { capacity: most, refill, since },
            1 => window(days(self.shifts[shift].1, now)),
            2 => window(Span::Tiles { len: 5 * HOUR }),
            3 => window(Span::Session { len: 3 * HOUR }),
            4 => window(Span::Lifetime),
            5 => Figures::Slots { limit: most },
            _ => Figures::Rolling {
                limit: most,
                // Its guard changes with the figures.
                window_ms: [10_000, HOUR, 5 * HOUR][self.cell.0 as usize % 3] + at as i64 * 1_500,
            },
        };
        let step = |(hour, most, refill): &(i64, u64, u64)| FigureStep {
            most: *most,
            refill: *refill,
            since: hours(*hour),
        };
        let old = self.shifts[..=shift].windows(2).filter(|_| self.kind == 1).map(|pair| {
            let at = hours(pair[1].0);
            SpanStep { at, span: days(pair[0].1, at) }
        });
        let earlier = Earlier {
            steps: self.figures[..at].iter().map(step).collect(),
            from: hours(dice.below(40) as i64 - 20),
            spans: old.collect(),
        };
        let figures = if !asked && dice.one_in(6) { Figures::Kept } else { figures };
        Charge {
            account: self.account,
            cell: self.cell,
            meter: self.meter,
            figures,
            demand,
            enforce: self.enforce,
            asked,
            earlier: (!dice.one_in(4) && self.kind < 5).then_some(earlier),
            grants: (!self.grants.is_empty()).then(|| self.grants.clone().into()),
            to_come: None,
            switches: self.switches,
            keep: self.keep,
        }
    }
}
