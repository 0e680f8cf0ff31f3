//! The ledger against a slow and obvious model of it: random commits and
//! questions, with the journal written out in tiny portions, processes that
//! die without closing, callers that go away, and a second process that looks.

use std::collections::{BTreeMap, HashMap};
use std::task::{Context, Waker};
use std::time::Duration;

use super::super::Portions;
use super::*;
use crate::domain::charge::{CellId, MeterCode};
use crate::domain::hold::{FinishedBy, Receipt, ReleaseReason};
use crate::ledger::{
    DoubtFilter, DoubtKey, DoubtQuery, Exports, FeedMark, FeedPage, FeedQuery, Group, Ledger, Reports,
};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

#[derive(Default, Clone)]
struct Model {
    holds: BTreeMap<HoldId, Hold>,
    accounts: HashMap<AccountKey, Arc<[u8]>>,
    requests: BTreeMap<(i32, UserId), i64>,
    /// Ends, in their order.
    feed: Vec<HoldId>,
}

impl Model {
    fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            let hold = change.hold.as_ref().unwrap();
            self.holds.insert(hold.id, Hold::clone(hold));
            self.accounts.extend(change.accounts.iter().cloned());
            self.feed.extend(change.event.as_ref().map(|_| hold.id));
            if let Some(usage) = &change.usage {
                *self.requests.entry((hold.day, hold.user.clone())).or_default() += usage.requests;
            }
        }
    }

    fn unfinished(&self, key: &AccountKey) -> Vec<HoldId> {
        let is_theirs = |hold: &&Hold| match key.scope {
            Scope::User => hold.user.as_str() == &*key.owner,
            Scope::Org => hold.org.as_ref().is_some_and(|org| org.as_str() == &*key.owner),
            Scope::Tenant | Scope::Pool => true,
        };
        let open = self.holds.values().filter(|hold| !hold.is_finished()).filter(is_theirs);
        open.map(|hold| hold.id).collect()
    }
}

fn key(scope: Scope, owner: &str) -> AccountKey {
    AccountKey { tenant: TENANT, scope, owner: owner.into() }
}

struct World {
    random: Random,
    model: Model,
    next: i64,
}

impl World {
    /// One to four changes: new holds, leases renewed, holds that end.
    fn batch(&mut self) -> Vec<Change> {
        let mut ahead = self.model.clone();
        let changes = (0..=self.random.below(4)).map(|_| {
            let open: Vec<HoldId> = ahead.unfinished(&key(Scope::Tenant, ""));
            let made = match open.len() as u64 {
                count if count > 0 && !self.random.one_in(3) => {
                    let id = open[self.random.below(count) as usize];
                    self.step_of(ahead.holds[&id].clone())
                }
                _ => self.new_hold(),
            };
            ahead.apply(std::slice::from_ref(&made));
            made
        });
        changes.collect()
    }

    fn new_hold(&mut self) -> Change {
        self.next += 1;
        let user = format!("u_{}", self.random.below(6));
        let made = change(&user, self.next);
        let receipt = |scope| Receipt {
            scope,
            cell: CellId(1),
            meter: MeterCode::TOTAL,
            reserved: 1,
            window: None,
            opens: None,
        };
        let hold = Hold {
            org: self.random.one_in(2).then(|| Name::parse("acme").unwrap()),
            receipts: [Scope::User, Scope::Org, Scope::Tenant].map(receipt).to_vec(),
            ..Hold::clone(made.hold.as_ref().unwrap())
        };
        self.with_accounts(hold)
    }

    fn step_of(&mut self, hold: Hold) -> Change {
        self.next += 1;
        let at = Millis(self.next);
        let stage = match self.random.below(4) {
            0 => Stage::InDoubt { since: at },
            1 => Stage::Held,
            _ => Stage::Released { at, late: false, reason: ReleaseReason::NotSent, by: FinishedBy::Caller },
        };
        let expires_at = Millis(at.0 + 5);
        self.with_accounts(Hold { stage, expires_at, ..hold })
    }

    fn with_accounts(&mut self, hold: Hold) -> Change {
        let state: Arc<[u8]> = self.next.to_string().as_bytes().into();
        let user = key(Scope::User, hold.user.as_str());
        let accounts = vec![(user, state.clone()), (key(Scope::Tenant, ""), state)];
        let made = change(hold.user.as_str(), 0);
        let usage = made.usage.filter(|_| hold.is_finished());
        let event = hold.is_finished().then(|| FeedMark { part: 1, amounts: Vec::new() });
        Change { hold: Some(Arc::new(hold)), usage, event, accounts, moved: Vec::new() }
    }

    async fn ask(&mut self, ledger: &SqliteLedger) {
        let model = &self.model;
        match self.random.below(7) {
            0 | 1 => {
                let user = format!("u_{}", self.random.below(6));
                let scope = [key(Scope::User, &user), key(Scope::Org, "acme"), key(Scope::Tenant, "")];
                let key = scope[self.random.below(3) as usize].clone();
                let found = ledger.account(key.clone(), Millis(0)).await.unwrap();
                assert_eq!(found.state.as_deref(), model.accounts.get(&key).map(|state| &**state), "{key:?}");
                let mut ids: Vec<_> = found.unfinished.iter().map(|hold| hold.id).collect();
                ids.sort();
                assert_eq!(ids, model.unfinished(&key), "{key:?}");
                assert!(found.unfinished.iter().all(|hold| model.holds[&hold.id] == **hold), "{key:?}");
                if key.scope == Scope::User {
                    let theirs = model.holds.values().filter(|hold| hold.user.as_str() == user);
                    assert_eq!(found.requests.len(), theirs.count());
                }
            }
            2 | 3 => {
                let number = Millis(self.random.below(self.next as u64 + 2) as i64);
                let id = change("u_0", number.0).hold.unwrap().id;
                assert_eq!(ledger.hold(TENANT, id).await.unwrap().as_ref(), model.holds.get(&id));
                if let Some(hold) = model.holds.get(&id) {
                    let request = hold.request.clone().unwrap().id;
                    let found = ledger.hold_by_request(TENANT, hold.user.clone(), request).await.unwrap();
                    assert_eq!(found.as_ref(), Some(hold));
                }
            }
            4 => {
                let before = Millis(self.random.below(self.next as u64 + 20) as i64);
                self.look_at_doubts(ledger, before).await;
            }
            5 => {
                let after = self.random.below(model.feed.len() as u64 + 1);
                let query =
                    FeedQuery { after: Some(after), seal: 0, limit: 1 + self.random.below(40) as u32 };
                let FeedPage::Events { events, .. } = ledger.feed(TENANT, query).await.unwrap() else {
                    panic!("nothing after {after}")
                };
                let found: Vec<HoldId> = events.iter().map(|event| event.hold.id).collect();
                let rest = &model.feed[after as usize..];
                assert_eq!(found, rest[..rest.len().min(query.limit as usize)]);
            }
            _ => {
                let rows = ledger.usage(TENANT, Group::User, -1..1).await.unwrap();
                let mut found = BTreeMap::new();
                for row in rows {
                    *found.entry((row.day, UserId::parse(&row.name.unwrap()).unwrap())).or_default() +=
                        row.amounts.requests as i64;
                }
                assert_eq!(found, model.requests);
            }
        }
    }

    /// A page from anywhere, of everybody or of one user.
    async fn look_at_doubts(&mut self, ledger: &SqliteLedger, before: Millis) {
        let user = UserId::parse(&format!("u_{}", self.random.below(6))).unwrap();
        let filter = DoubtFilter { user: self.random.one_in(2).then_some(user), ..DoubtFilter::default() };
        let open = self.model.holds.values().filter(|hold| filter.matches(hold)).filter_map(DoubtKey::of);
        let mut all: Vec<_> = open.filter(|key| key.since <= before).collect();
        all.sort();
        let (running, doubtful) = self
            .model
            .holds
            .values()
            .filter_map(Hold::doubtful_from)
            .partition::<Vec<_>, _>(|from| *from > before);
        let counts = [running.len() as u64, doubtful.len() as u64];
        assert_eq!(ledger.unfinished(vec![(TENANT, before)]).await.unwrap(), counts);
        let after = all.get(self.random.below(all.len() as u64 + 3) as usize).copied();
        let limit = 1 + self.random.below(4) as u32;
        let query = DoubtQuery { now: before, filter, after, limit };
        let page = ledger.doubts(TENANT, query).await.unwrap();
        let found: Vec<_> = page.holds.iter().filter_map(DoubtKey::of).collect();
        let rest: Vec<_> = all.into_iter().filter(|key| after.is_none_or(|after| after < *key)).collect();
        assert_eq!(found, rest[..rest.len().min(limit as usize)]);
        assert_eq!(page.next, found.last().copied().filter(|_| rest.len() > found.len()));
        assert!(page.holds.iter().all(|hold| self.model.holds[&hold.id] == *hold));
    }

    /// Commits, and goes away after some steps. Whatever comes of it: all of
    /// the batch or nothing.
    async fn commit_and_leave(&mut self, ledger: &SqliteLedger) {
        let batch = self.batch();
        let mut call = ledger.commit(batch.clone());
        let mut is_done = false;
        for _ in 0..self.random.below(30) {
            if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                is_done = true;
                break;
            }
            tokio::time::sleep(Duration::from_micros(50)).await;
        }
        drop(call);
        // The next commit waits for whatever is under way.
        let next = self.new_hold();
        ledger.commit(vec![next.clone()]).await.unwrap();
        let mut with = self.model.clone();
        with.apply(&batch);
        let last = batch.last().unwrap();
        let is_there = ledger.hold(TENANT, last.hold.as_ref().unwrap().id).await.unwrap().as_ref()
            == with.holds.get(&last.hold.as_ref().unwrap().id);
        assert!(is_there || !is_done, "a finished commit is there");
        if is_there {
            self.model = with;
        }
        self.model.apply(&[next]);
    }
}

async fn run(seed: u64) {
    let dir = Dir::new();
    let mut world = World { random: Random(seed), model: Model::default(), next: 0 };
    let mut ledger = None;
    for _ in 0..400 {
        // Now and then so large that only the test itself writes portions, and
        // a process dies between two of them.
        let freeze_at = if world.random.one_in(2) { 100_000 } else { 1 + world.random.below(30) as usize };
        let rows = 1 + world.random.below(6) as usize;
        let at_leisure = Duration::from_millis([2, 10_000][world.random.below(2) as usize]);
        let portions = Portions { freeze_at, rows, at_leisure };
        let open = match ledger.take() {
            Some(open) => open,
            None => SqliteLedger::open_with(&dir.path(), Durability::Os, portions).await.unwrap(),
        };
        match world.random.below(40) {
            0 => open.close().await,
            // Dies: whatever was in memory is gone.
            1 | 2 => drop(open),
            3 => {
                // Another process looks, and may write the journal out.
                let other = SqliteLedger::open_with(&dir.path(), Durability::Os, portions).await.unwrap();
                world.ask(&other).await;
                ledger = Some(open);
            }
            4 => {
                world.commit_and_leave(&open).await;
                ledger = Some(open);
            }
            5..8 => {
                for _ in 0..world.random.below(25) {
                    open.journal.write_portion().await.unwrap();
                }
                ledger = Some(open).filter(|_| !world.random.one_in(2));
            }
            8..22 => {
                let batch = world.batch();
                open.commit(batch.clone()).await.unwrap();
                world.model.apply(&batch);
                ledger = Some(open);
            }
            _ => {
                world.ask(&open).await;
                ledger = Some(open);
            }
        }
    }
    // At the end all of it is in the tables, as often as it happened.
    if let Some(open) = ledger {
        open.close().await;
    }
    let last = dir.open().await;
    for _ in 0..60 {
        world.ask(&last).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_agrees_with_a_model() {
    // More of them: APPORTION_TEST_SEEDS=500.
    let seeds = std::env::var("APPORTION_TEST_SEEDS").map_or(10, |count| count.parse().unwrap());
    for seed in 1..=seeds {
        println!("seed {seed}");
        run(seed).await;
    }
}

/// Every commit ends a hold and begins the next, and says so in the account.
async fn hand_over(ledger: &SqliteLedger, user: &str, commits: i64) {
    let state_of = |number: i64| vec![(key(Scope::User, user), number.to_string().as_bytes().into())];
    let opened = |number: i64| Hold {
        receipts: vec![Receipt {
            scope: Scope::User,
            cell: CellId(1),
            meter: MeterCode::TOTAL,
            reserved: 1,
            opens: None,
            window: None,
        }],
        ..Hold::clone(change(user, number).hold.as_ref().unwrap())
    };
    for number in 0..commits {
        let at = Millis(number);
        let stage =
            Stage::Released { at, late: false, reason: ReleaseReason::NotSent, by: FinishedBy::Caller };
        let ended = Hold { stage, ..opened(number - 1) };
        let batch = [ended, opened(number)].map(|hold| Change {
            hold: Some(Arc::new(hold)),
            accounts: state_of(number),
            ..Change::default()
        });
        ledger.commit(batch.to_vec()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_is_read_as_of_one_moment() {
    let dir = Dir::new();
    let portions = Portions { freeze_at: 6, rows: 1, ..Portions::default() };
    let ledger = Arc::new(SqliteLedger::open_with(&dir.path(), Durability::Os, portions).await.unwrap());
    let writer = Arc::clone(&ledger);
    let writing = tokio::spawn(async move { hand_over(&writer, "u_1", 400).await });
    let mut answers = 0;
    while !writing.is_finished() {
        let account = ledger.account(key(Scope::User, "u_1"), Millis(i64::MAX)).await.unwrap();
        let Some(state) = account.state else { continue };
        let number: i64 = String::from_utf8(state).unwrap().parse().unwrap();
        let open: Vec<HoldId> = account.unfinished.iter().map(|hold| hold.id).collect();
        assert_eq!(open, [change("u_1", number).hold.unwrap().id], "with the state after commit {number}");
        answers += 1;
    }
    writing.await.unwrap();
    assert!(answers > 0);
}

#[tokio::test]
async fn counting_what_is_open_writes_nothing_to_the_tables() {
    let dir = Dir::new();
    let ledger = dir.open().await;
    for number in 1..=3 {
        ledger.commit(vec![change("u_1", number)]).await.unwrap();
    }
    let open = change("u_1", 1).hold.unwrap().doubtful_from().unwrap();
    let counts = ledger.unfinished(vec![(TENANT, open)]).await.unwrap();
    assert_eq!((counts[1] > 0, counts.iter().sum::<u64>()), (true, 3));
    assert_eq!(count(&dir, "holds").await, 0);
    assert_eq!(count(&dir, "journal WHERE body <> x''").await, 3);
}

#[tokio::test]
async fn few_rows_are_written_to_the_tables_when_they_are_old() {
    let dir = Dir::new();
    let portions = Portions { at_leisure: Duration::from_millis(1), ..Portions::default() };
    let ledger = SqliteLedger::open_with(&dir.path(), Durability::Os, portions).await.unwrap();
    for number in 1..=3 {
        ledger.commit(vec![change("u_1", number)]).await.unwrap();
    }
    while count(&dir, "holds").await < 3 || count(&dir, "journal WHERE body <> x''").await > 0 {
        tokio::task::yield_now().await;
    }
    // And again after that.
    ledger.commit(vec![change("u_1", 4)]).await.unwrap();
    while count(&dir, "holds").await < 4 {
        tokio::task::yield_now().await;
    }
}
