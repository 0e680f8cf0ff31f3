//! How long answers are, and what a check with `max_output_tokens: "auto"`
//! reserves by that.
//!
//! Learned from what callers settle with, by feature and model, over the last days
//! and all nodes: each node counts its own, adds that to the ledger now and then,
//! and reads there what all have counted. A check reads a figure that is at hand.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ahash::RandomState;
use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::domain::charge::TenantRef;
use crate::domain::spread::{ENOUGH, Spread};
use crate::ledger::{Ledger, LedgerError, OTHERS, Output, Tally};

/// Days of which outputs are kept, today included.
pub(super) const KEPT_DAYS: i32 = 7;
/// Features, by model, that are counted one by one; beyond that together.
const MOST: usize = 256;
/// So many stay when a day begins: the most used ones. Others may come.
const STAY: usize = 192;
/// Of the last this many calls at least, and twice as many at most, the figure is
/// looked at by itself: answers that become longer must not wait until a week's
/// calls are outweighed.
const RECENT: u64 = 512;
/// Calls after which the figure is found anew.
const EVERY: u32 = 16;
/// Features written in one transaction.
const AT_ONCE: usize = 64;
/// Between two readings of a ledger that does not answer.
const RETRY: Duration = Duration::from_secs(10);

type Map<K, V> = HashMap<K, V, RandomState>;

/// What is known of one tenant's answers.
pub struct Outputs {
    /// Replaced when a feature or a model comes or goes; whoever reads never waits.
    known: ArcSwap<Known>,
    adding: Mutex<()>,
    /// Taken from the features and not on record yet. Held by whoever writes or reads,
    /// so that nothing is counted twice.
    writing: tokio::sync::Mutex<VecDeque<Arc<Tally>>>,
    /// Somebody asked for a figure since the ledger was read.
    asked: AtomicBool,
    failed: Mutex<Option<Instant>>,
}

#[derive(Clone, Default)]
struct Known {
    /// The local day on which the ledger was read; `None`: never.
    read_on: Option<i32>,
    models: Map<Arc<str>, OfModel>,
}

#[derive(Clone, Default)]
struct OfModel {
    all: Arc<Learned>,
    features: Map<Arc<str>, Arc<Learned>>,
}

#[derive(Default)]
struct Learned {
    /// What the next call is likely to take at most; 0: too little is known.
    likely: AtomicU64,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// All of the days that are kept.
    days: Spread,
    /// The last calls, and those before them.
    recent: [Spread; 2],
    /// By day: not on its way to the ledger yet.
    unwritten: BTreeMap<i32, Spread>,
    /// Calls since the figure was found.
    since: u32,
}

impl Default for Outputs {
    fn default() -> Self {
        Self {
            known: ArcSwap::default(),
            adding: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
            asked: AtomicBool::new(false),
            failed: Mutex::default(),
        }
    }
}

impl std::fmt::Debug for Outputs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outputs")
    }
}

impl Outputs {
    /// What a call is likely to take at most, by its feature and model, else by its
    /// model. `None`: too little is known. No name is the empty one.
    pub fn likely(&self, feature: &str, model: &str) -> Option<u64> {
        let known = self.known.load();
        let of_model = known.models.get(model)?;
        let of_feature = of_model.features.get(feature).and_then(|feature| feature.likely());
        of_feature.or_else(|| of_model.all.likely())
    }

    /// Counts a call that was settled.
    pub fn note(&self, feature: &str, model: &str, day: i32, reserved: u64, used: u64) {
        let known = self.known.load();
        let (of_feature, of_model) = match known.find(feature, model) {
            Some(found) => found,
            None => self.admit(feature, model),
        };
        of_feature.note(Some(day), reserved, used);
        of_model.note(None, reserved, used);
    }

    /// Begins to count a feature by itself, if there is room.
    fn admit(&self, feature: &str, model: &str) -> (Arc<Learned>, Arc<Learned>) {
        let _adding = self.adding.lock();
        let known = self.known.load();
        let has_room = known.features().count() < MOST;
        let (feature, model) = match has_room {
            true => (feature, model),
            false if known.models.contains_key(model) => (OTHERS, model),
            false => (OTHERS, OTHERS),
        };
        if let Some(found) = known.find(feature, model) {
            return found;
        }
        let mut more = Known::clone(&known);
        let of_model = more.models.entry(model.into()).or_default();
        let of_feature = of_model.features.entry(feature.into()).or_default();
        let found = (Arc::clone(of_feature), Arc::clone(&of_model.all));
        self.known.store(Arc::new(more));
        found
    }

    /// Sees to it that what the ledger has of today and the days before is known. Only
    /// who comes first ever waits for it.
    pub async fn know(&self, ledger: &dyn Ledger, tenant: TenantRef, today: i32) {
        if !self.asked.load(Relaxed) {
            self.asked.store(true, Relaxed);
        }
        let read_on = || self.known.load().read_on;
        let failed_now = || self.failed.lock().is_some_and(|at| at.elapsed() < RETRY);
        if read_on() == Some(today) || failed_now() {
            return;
        }
        let mut writing = match read_on() {
            None => self.writing.lock().await,
            Some(_) => match self.writing.try_lock() {
                Ok(writing) => writing,
                Err(_) => return,
            },
        };
        if read_on() == Some(today) || failed_now() {
            return;
        }
        if let Err(error) = self.read_into(&mut writing, ledger, tenant, today).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot read how long answers were");
            *self.failed.lock() = Some(Instant::now());
        }
    }

    /// Reads what all nodes have counted, if it matters: figures are asked for, or
    /// a day has begun.
    pub async fn refresh(
        &self,
        ledger: &dyn Ledger,
        tenant: TenantRef,
        today: i32,
    ) -> Result<(), LedgerError> {
        let known = self.known.load_full();
        let has_turned = !known.models.is_empty() && known.read_on != Some(today);
        if !self.asked.swap(false, Relaxed) && !has_turned {
            return Ok(());
        }
        self.read_into(&mut *self.writing.lock().await, ledger, tenant, today).await
    }

    /// Puts on record all that was counted before this was called. What cannot be
    /// written stays and is tried again.
    pub async fn flush(&self, ledger: &dyn Ledger, tenant: TenantRef) -> Result<(), LedgerError> {
        self.flush_into(&mut *self.writing.lock().await, ledger, tenant).await
    }

    async fn flush_into(
        &self,
        writing: &mut VecDeque<Arc<Tally>>,
        ledger: &dyn Ledger,
        tenant: TenantRef,
    ) -> Result<(), LedgerError> {
        write(writing, ledger).await?;
        let mut outputs = Vec::new();
        for (feature, model, learned) in self.known.load().features() {
            let unwritten = std::mem::take(&mut learned.told.lock().unwritten);
            let output = |spread| Output { feature: Arc::clone(feature), model: Arc::clone(model), spread };
            outputs.extend(unwritten.into_iter().map(|(day, spread)| (tenant, day, output(spread))));
        }
        let portions =
            outputs.chunks(AT_ONCE).map(|some| Tally { outputs: some.to_vec(), ..Tally::default() });
        writing.extend(portions.map(Arc::new));
        write(writing, ledger).await
    }

    async fn read_into(
        &self,
        writing: &mut VecDeque<Arc<Tally>>,
        ledger: &dyn Ledger,
        tenant: TenantRef,
        today: i32,
    ) -> Result<(), LedgerError> {
        self.flush_into(writing, ledger, tenant).await?;
        let rows = ledger.outputs(tenant, today - KEPT_DAYS + 1).await?;
        self.replace(rows, today);
        Ok(())
    }

    /// Puts what is on record in the place of what was known, with what was counted
    /// here since it was written.
    fn replace(&self, mut rows: Vec<Output>, today: i32) {
        let _adding = self.adding.lock();
        let before = self.known.load();
        rows.sort_by_key(|row| Reverse(row.spread.count()));
        let mut next = Known { read_on: Some(today), ..Known::default() };
        for row in rows.iter().take(STAY) {
            next.keep(&before, &row.feature, &row.model);
        }
        if before.read_on == Some(today) {
            before.features().for_each(|(feature, model, _)| next.keep(&before, feature, model));
        }
        let is_old = before.read_on.is_some_and(|day| today - day >= KEPT_DAYS);
        for (model, of_model) in &next.models {
            let mut all = Spread::default();
            rows.iter().filter(|row| row.model == *model).for_each(|row| all.merge(&row.spread));
            for (feature, learned) in &of_model.features {
                let row = rows.iter().find(|row| row.model == *model && row.feature == *feature);
                let on_record = row.map(|row| row.spread.clone()).unwrap_or_default();
                all.merge(&learned.replace(on_record, is_old));
            }
            of_model.all.replace(all, is_old);
        }
        self.known.store(Arc::new(next));
    }
}

async fn write(writing: &mut VecDeque<Arc<Tally>>, ledger: &dyn Ledger) -> Result<(), LedgerError> {
    while let Some(tally) = writing.front() {
        ledger.add_tally(Arc::clone(tally)).await?;
        writing.pop_front();
    }
    Ok(())
}

impl Known {
    fn find(&self, feature: &str, model: &str) -> Option<(Arc<Learned>, Arc<Learned>)> {
        let of_model = self.models.get(model)?;
        let of_feature = of_model.features.get(feature)?;
        Some((Arc::clone(of_feature), Arc::clone(&of_model.all)))
    }

    fn features(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, &Arc<Learned>)> {
        self.models.iter().flat_map(|(model, of_model)| {
            of_model.features.iter().map(move |(feature, learned)| (feature, model, learned))
        })
    }

    /// Goes on counting a feature by itself.
    fn keep(&mut self, before: &Self, feature: &Arc<str>, model: &Arc<str>) {
        let known = before.models.get(model);
        let of_model = self.models.entry(Arc::clone(model)).or_insert_with(|| OfModel {
            all: known.map(|known| Arc::clone(&known.all)).unwrap_or_default(),
            features: Map::default(),
        });
        let learned = known.and_then(|known| known.features.get(feature));
        let learned = || learned.cloned().unwrap_or_default();
        of_model.features.entry(Arc::clone(feature)).or_insert_with(learned);
    }
}

impl Learned {
    fn likely(&self) -> Option<u64> {
        Some(self.likely.load(Relaxed)).filter(|likely| *likely > 0)
    }

    /// `day`: under which the ledger counts it.
    fn note(&self, day: Option<i32>, reserved: u64, used: u64) {
        let mut told = self.told.lock();
        told.days.note(reserved, used);
        if told.recent[0].count() >= RECENT {
            told.recent[1] = std::mem::take(&mut told.recent[0]);
        }
        told.recent[0].note(reserved, used);
        if let Some(day) = day {
            told.unwritten.entry(day).or_default().note(reserved, used);
        }
        told.since += 1;
        if told.since >= EVERY || told.days.count() < 2 * ENOUGH {
            self.find_figure(&mut told);
        }
    }

    fn find_figure(&self, told: &mut Told) {
        told.since = 0;
        let mut recent = told.recent[0].clone();
        recent.merge(&told.recent[1]);
        let likely = told.days.suggests().max(recent.suggests());
        self.likely.store(likely.unwrap_or(0), Relaxed);
    }

    /// Answers what is not on record.
    fn replace(&self, on_record: Spread, forget_recent: bool) -> Spread {
        let mut told = self.told.lock();
        let mut unwritten = Spread::default();
        told.unwritten.values().for_each(|spread| unwritten.merge(spread));
        told.days = on_record;
        told.days.merge(&unwritten);
        if forget_recent {
            told.recent = Default::default();
        }
        self.find_figure(&mut told);
        unwritten
    }
}
