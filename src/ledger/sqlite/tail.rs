//! What the journal holds and the tables do not, in memory.
//!
//! A commit appends its batch to the journal: one row, one page or two at the
//! file's end, whoever it is about. Writing the tables at once would touch four
//! or five pages a change, most of them for a single row. So batches are
//! gathered here, and a few thousand changes are written together, in the
//! order of the keys: each page once, and of a hold or an account only its last
//! state.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use ahash::RandomState;

use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::plan::Scope;
use crate::domain::time::Millis;
use crate::ledger::sql::batch::{AccountRow, Batch, Blob, HoldRow, MinuteKey, Totals, UsageKey};
use crate::ledger::sql::feed::Feed;

type Usage = BTreeMap<UsageKey, Totals>;
type Minutes = BTreeMap<MinuteKey, Totals>;

/// The journal's rows that this process knows, in two layers: what is being
/// written to the tables, and what came since.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// The newest row that the journal ever had.
    newest: i64,
    /// The newest row up to which the tables have all.
    written: i64,
    active: Layer,
    frozen: Option<Arc<Frozen>>,
    /// Grows whenever a layer is frozen (from then on the tables may show a
    /// part of it) and when it was written.
    moves: u64,
}

/// Changes by key, the last one of each.
#[derive(Debug, Default)]
struct Layer {
    holds: HashMap<[u8; 16], Arc<HoldRow>, RandomState>,
    accounts: HashMap<AccountRow, Blob, RandomState>,
    users: HashSet<(u32, Arc<str>), RandomState>,
    /// No hold in here is in doubt before.
    earliest_doubt: Option<i64>,
    /// By row of the journal, so that none is added twice or never.
    usage: Vec<(i64, Usage)>,
    minutes: Vec<(i64, Minutes)>,
    feed: Vec<(i64, Feed)>,
}

/// How a hold is that the tables may lack.
pub(super) struct HoldState {
    pub tenant: u32,
    /// From when an unfinished one is in doubt.
    pub doubtful_from: Option<i64>,
}

pub(super) type States = HashMap<[u8; 16], HoldState, RandomState>;

/// A layer to which nothing comes any more.
#[derive(Debug, Default)]
pub(super) struct Frozen {
    layer: Layer,
    /// The newest row of the journal in here.
    pub newest: i64,
}

impl Layer {
    fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.accounts.is_empty() && self.usage.is_empty()
    }

    fn add(&mut self, row: i64, batch: Batch) {
        for (id, hold) in batch.holds {
            self.users.insert((hold.tenant, Arc::clone(&hold.user)));
            self.earliest_doubt = self.earliest_doubt.into_iter().chain(hold.doubtful_from).min();
            self.holds.insert(id, hold);
        }
        self.accounts.extend(batch.accounts);
        if !batch.usage.is_empty() {
            self.usage.push((row, batch.usage));
            self.minutes.push((row, batch.minutes));
        }
        if !batch.feed.is_empty() {
            self.feed.push((row, batch.feed));
        }
    }

    fn len(&self) -> usize {
        self.holds.len() + self.accounts.len()
    }

    fn note_states(&self, states: &mut States) {
        for (id, row) in &self.holds {
            let doubtful_from = row.doubtful_from.filter(|_| row.finished_at.is_none());
            states.entry(*id).or_insert(HoldState { tenant: row.tenant, doubtful_from });
        }
    }
}

impl Frozen {
    /// Adds the holds of which nothing newer is known.
    pub fn note_states(&self, states: &mut States) {
        self.layer.note_states(states);
    }

    /// Everything in one layer, for the writer that found it in the journal.
    pub fn of(rows: Vec<(i64, Batch)>) -> Self {
        let newest = rows.last().map_or(0, |(row, _)| *row);
        let mut layer = Layer::default();
        rows.into_iter().for_each(|(row, batch)| layer.add(row, batch));
        Self { layer, newest }
    }

    /// By user: so neighbours in the large indexes come together.
    pub fn holds_in_order(&self) -> Vec<([u8; 16], Arc<HoldRow>)> {
        let mut holds: Vec<_> = self.layer.holds.iter().map(|(id, hold)| (*id, Arc::clone(hold))).collect();
        holds
            .sort_unstable_by(|(id, a), (other, b)| (a.tenant, &a.user, id).cmp(&(b.tenant, &b.user, other)));
        holds
    }

    pub fn accounts_in_order(&self) -> Vec<(AccountRow, Blob)> {
        let accounts = self.layer.accounts.iter().map(|(key, state)| (key.clone(), state.clone()));
        let mut accounts: Vec<_> = accounts.collect();
        accounts.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        accounts
    }

    /// The sums of what `counts`, by row of the journal and key.
    pub fn usage_in_order(&self, counts: impl Fn(i64, &UsageKey) -> bool) -> Vec<(UsageKey, Totals)> {
        let all = self.layer.usage.iter().flat_map(|(row, usage)| usage.iter().map(move |one| (row, one)));
        let counted = all.filter(|(row, (key, _))| counts(**row, key)).map(|(_, one)| one);
        let mut each: Vec<(&UsageKey, Totals)> = counted.map(|(key, totals)| (key, *totals)).collect();
        each.sort_by_key(|(key, _)| *key);
        let mut sums: Vec<(UsageKey, Totals)> = Vec::with_capacity(each.len());
        for (key, totals) in each {
            match sums.last_mut() {
                Some((last, sum)) if last == key => sum.add(totals),
                _ => sums.push((key.clone(), totals)),
            }
        }
        sums
    }
}

impl Frozen {
    /// The sums of the rows of the journal that count.
    pub fn minutes(&self, counts: impl Fn(i64) -> bool) -> Vec<(MinuteKey, Totals)> {
        let mut sums = Minutes::new();
        for (_, minutes) in self.layer.minutes.iter().filter(|(row, _)| counts(*row)) {
            for (key, totals) in minutes {
                match sums.get_mut(key) {
                    Some(sum) => sum.add(*totals),
                    None => _ = sums.insert(key.clone(), *totals),
                }
            }
        }
        sums.into_iter().collect()
    }
}

impl Frozen {
    /// The events of the rows of the journal that count, in their order.
    pub fn feed(&self, counts: impl Fn(i64) -> bool) -> Feed {
        let mut all = Feed::new();
        for (_, feed) in self.layer.feed.iter().filter(|(row, _)| counts(*row)) {
            for (tenant, events) in feed {
                all.entry(*tenant).or_default().extend_from_slice(events);
            }
        }
        all
    }
}

impl Tail {
    pub fn newest(&self) -> i64 {
        self.newest
    }

    /// Who finds the same number before and after reading the tables knows that
    /// nothing moved from here to there meanwhile.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Notes a batch that is in the journal now.
    pub fn add(&mut self, row: i64, batch: Batch) {
        self.newest = row;
        self.active.add(row, batch);
    }

    /// How much has come since the last freeze, in rows of the tables.
    pub fn rows(&self) -> usize {
        self.active.len()
    }

    pub fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.active.is_empty() && self.frozen.is_none()
    }

    /// What is to be written next: the frozen layer, else all that came since.
    /// `None`: the tables hold everything.
    pub fn next_to_write(&mut self) -> Option<Arc<Frozen>> {
        if self.frozen.is_none() && !self.is_empty() {
            let layer = std::mem::take(&mut self.active);
            self.frozen = Some(Arc::new(Frozen { layer, newest: self.newest }));
            self.moves += 1;
        }
        self.frozen.clone()
    }

    /// The frozen layer is in the tables.
    pub fn written(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            self.written = frozen.newest;
        }
        self.moves += 1;
    }

    /// Whether the tables lack anything up to this row.
    pub fn lacks(&self, row: i64) -> bool {
        self.written < row && !self.is_empty()
    }

    /// Whether the tables may lack anything of a tenant.
    pub fn has(&self, tenant: TenantRef) -> bool {
        self.layers().any(|layer| {
            layer.holds.values().any(|row| row.tenant == tenant.0)
                || layer.accounts.keys().any(|key| key.tenant == tenant.0)
                || layer.usage.iter().any(|(_, usage)| usage.keys().any(|key| key.tenant == tenant.0))
        })
    }

    /// Whether the tables may lack events of a tenant's feed.
    pub fn has_events(&self, tenant: TenantRef) -> bool {
        self.layers().any(|layer| layer.feed.iter().any(|(_, feed)| feed.contains_key(&tenant.0)))
    }

    /// All of the journal up to `newest` is in the tables.
    pub fn all_written(&mut self, newest: i64) {
        let newest = newest.max(self.newest);
        *self = Self { newest, written: newest, moves: self.moves + 1, ..Self::default() };
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        std::iter::once(&self.active).chain(self.frozen.as_deref().map(|frozen| &frozen.layer))
    }

    pub fn hold(&self, id: &[u8; 16]) -> Option<Arc<HoldRow>> {
        self.layers().find_map(|layer| layer.holds.get(id)).cloned()
    }

    /// The holds that came since the last freeze, and the frozen layer, to be gone through
    /// without holding up whoever commits.
    pub fn states(&self) -> (States, Option<Arc<Frozen>>) {
        let mut states = States::default();
        self.active.note_states(&mut states);
        (states, self.frozen.clone())
    }

    /// Whether a hold that the tables may lack came into doubt in that time,
    /// both ends included.
    pub fn doubts(&self, tenant: TenantRef, since: Millis, before: Millis) -> bool {
        let is_doubtful = |row: &Arc<HoldRow>| {
            row.tenant == tenant.0
                && row.doubtful_from.is_some_and(|from| (since.0..=before.0).contains(&from))
        };
        let may_have = |layer: &&Layer| layer.earliest_doubt.is_some_and(|from| from <= before.0);
        self.layers().filter(may_have).any(|layer| layer.holds.values().any(is_doubtful))
    }

    /// Whether the tables lack anything about the account.
    pub fn touches(&self, key: &AccountKey) -> bool {
        match key.scope {
            Scope::User => {
                let user = (key.tenant.0, Arc::clone(&key.owner));
                let account = AccountRow::of(key);
                self.layers()
                    .any(|layer| layer.users.contains(&user) || layer.accounts.contains_key(&account))
            }
            // The holds of all users count in these.
            Scope::Org | Scope::Tenant | Scope::Pool => !self.is_empty(),
        }
    }
}
