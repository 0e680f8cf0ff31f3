//! A window: which one runs at an instant, and what each has counted (CONTRACT 2, 13.14, 13.15, 13.71).

use std::collections::BTreeMap;

use super::calendar::{Calendar, Ms};
use super::sheet::Period;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Book {
    pub used: i128,
    pub held: i128,
}

/// Start and end of one window.
pub type Span = (Ms, Ms);

/// The rule by which calendar windows are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub zone: String,
    pub calendar: Option<Calendar>,
}

/// A stretch of time and how windows are cut in it.
#[derive(Clone, Debug)]
struct Piece {
    until: Ms,
    cut: Cut,
}

#[derive(Clone, Debug)]
enum Cut {
    By(Rule),
    /// The one window between the old rule and the new.
    Bridge(Span),
}

#[derive(Clone, Debug)]
pub struct Window {
    pub period: Period,
    /// The newest rule.
    pub rule: Rule,
    /// All rules there ever were, the oldest first: the past stays as it was.
    pieces: Vec<Piece>,
    /// The first take, for windows that tile.
    pub first: Option<Ms>,
    /// The openings of sessions.
    pub sessions: Vec<Ms>,
    pub books: BTreeMap<Span, Book>,
    pub ever_taken: bool,
    /// The limit is not in the plan.
    pub aside: bool,
}

impl Window {
    pub fn new(period: Period, rule: Rule) -> Self {
        Self {
            period,
            pieces: vec![Piece { until: Ms::MAX, cut: Cut::By(rule.clone()) }],
            rule,
            first: None,
            sessions: Vec::new(),
            books: BTreeMap::new(),
            ever_taken: false,
            aside: false,
        }
    }

    /// The window running at `at`; none before a block's first take and between sessions.
    pub fn running(&self, at: Ms) -> Option<Span> {
        match self.period {
            Period::Day | Period::Week | Period::Month => Some(self.calendar_window(at).1),
            Period::Lifetime => Some((Ms::MIN, Ms::MAX)),
            Period::Tiles(length) => {
                let first = self.first?;
                let start = first + (at - first).div_euclid(length) * length;
                Some((start, start + length))
            }
            Period::Session(length) => {
                let start = self.sessions.iter().copied().filter(|s| *s <= at && at < s + length).max()?;
                Some((start, start + length))
            }
        }
    }

    /// The window around `at`, and which piece it lies in.
    fn calendar_window(&self, at: Ms) -> (usize, Span) {
        let place = self.pieces.iter().position(|p| at < p.until).expect("the last piece has no end");
        let span = match &self.pieces[place].cut {
            Cut::Bridge(span) => *span,
            Cut::By(rule) => rule.calendar.expect("a calendar window has a calendar").window(&rule.zone, at),
        };
        (place, span)
    }

    /// The zones that a row may name: while the window of an old rule runs, which one is left open.
    pub fn zones(&self, at: Ms) -> Vec<String> {
        let mut zones = vec![self.rule.zone.clone()];
        let (place, _) = self.calendar_window(at);
        for piece in &self.pieces[place.saturating_sub(1)..] {
            if let Cut::By(rule) = &piece.cut
                && !zones.contains(&rule.zone)
            {
                zones.push(rule.zone.clone());
            }
        }
        zones
    }

    /// Zone or anchor changed: the running window keeps its end, and none is cut short.
    /// With `turning`, the one that ends just now is the running one.
    pub fn change_rule(&mut self, now: Ms, rule: Rule, turning: bool) {
        if self.rule == rule {
            return;
        }
        if let (true, Some(calendar)) = (self.ever_taken, rule.calendar) {
            let before = self.calendar_window(now - 1);
            let (place, running) =
                if turning && before.1.1 == now { before } else { self.calendar_window(now) };
            let next_end = calendar.border_from(&rule.zone, running.1 + calendar.least_ms());
            self.pieces.truncate(place + 1);
            self.pieces[place].until = running.1;
            self.pieces.push(Piece { until: next_end, cut: Cut::Bridge((running.1, next_end)) });
            self.pieces.push(Piece { until: Ms::MAX, cut: Cut::By(rule.clone()) });
        } else {
            self.pieces = vec![Piece { until: Ms::MAX, cut: Cut::By(rule.clone()) }];
        }
        self.rule = rule;
    }

    /// Something is charged in the window of an admission (13.17). If nothing was taken before and
    /// it still lasts, it is the one that runs, whatever has become of the rule since.
    pub fn begin(&mut self, span: Span, now: Ms) {
        let runs = now < span.1;
        if let (true, false, Some(calendar)) = (runs, self.ever_taken, self.rule.calendar)
            && self.running(now) != Some(span)
        {
            let next_end = calendar.border_from(&self.rule.zone, span.1 + calendar.least_ms());
            let by_rule = || Cut::By(self.rule.clone());
            self.pieces = vec![
                Piece { until: span.0, cut: by_rule() },
                Piece { until: span.1, cut: Cut::Bridge(span) },
                Piece { until: next_end, cut: Cut::Bridge((span.1, next_end)) },
                Piece { until: Ms::MAX, cut: by_rule() },
            ];
        }
        self.ever_taken |= runs;
    }

    /// The window that a take at `at` falls into, opened if need be.
    pub fn open(&mut self, at: Ms) -> Span {
        self.ever_taken = true;
        if let Some(span) = self.running(at) {
            return span;
        }
        match self.period {
            Period::Tiles(_) => self.first = Some(at),
            Period::Session(_) => self.sessions.push(at),
            _ => {}
        }
        self.running(at).expect("just opened")
    }

    pub fn sessions_overlap(&self) -> bool {
        let Period::Session(length) = self.period else { return false };
        let mut sorted = self.sessions.clone();
        sorted.sort_unstable();
        sorted.windows(2).any(|pair| pair[1] - pair[0] < length)
    }

    pub fn book(&self, span: Option<Span>) -> Book {
        span.and_then(|s| self.books.get(&s).copied()).unwrap_or_default()
    }

    pub fn book_mut(&mut self, span: Span) -> &mut Book {
        self.books.entry(span).or_default()
    }
}
