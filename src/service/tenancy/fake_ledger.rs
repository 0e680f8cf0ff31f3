//! A ledger in memory, for tests of what is kept at hand. It holds no holds.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;

use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::Hold;
use crate::domain::ids::{HoldId, Name, RequestId, TenantId, UserId};
use crate::domain::slot::{Fence, Slot};
use crate::domain::time::Millis;
use crate::ledger::{
    Answer, AuditEntry, AuditQuery, Bucket, Change, Changed, Changes, Comparison, DoubtPage, DoubtQuery,
    Duplicate, DuplicatesQuery, Erasure, Group, History, HistoryQuery, KeptPart, Ledger, LedgerError,
    MinuteRow, MinutesQuery, Mover, MoversQuery, Note, Org, Output, PlanRefusals, PoolCondition, Pruned,
    Pruning, Ranking, RankingQuery, Record, RecordKind, RefusalCount, RefusedCall, Reports, SpreadQuery,
    StoredAccount, Tally, TenantRow, Told, UsageRow, User, UserQuery, What, Written,
};

/// One process's way to a store that several may share.
#[derive(Default)]
pub struct FakeLedger {
    pub(super) store: Arc<FakeStore>,
    origin: usize,
}

#[derive(Default)]
pub struct FakeStore {
    tenants: Mutex<Vec<TenantRow>>,
    records: Mutex<Vec<(Option<TenantRef>, Record)>>,
    users: Mutex<Vec<(TenantRef, User)>>,
    orgs: Mutex<Vec<(TenantRef, Org)>>,
    conditions: Mutex<Vec<(TenantRef, PoolCondition)>>,
    /// By whom and what, a revision each.
    log: Mutex<Vec<(usize, Changed)>>,
    openings: AtomicUsize,
    /// What was counted, in the order in which it came.
    pub tallies: Mutex<Vec<Arc<Tally>>>,
    /// How often `records`, `user`, `org` and `tenants` were asked.
    pub reads: AtomicU64,
    /// How often an account was, of which there is none.
    pub accounts_read: AtomicU64,
    pub taken: AtomicBool,
    pub down: AtomicBool,
    /// Records cannot be read, all else can.
    pub records_down: AtomicBool,
    /// Answers are made at once and arrive later.
    pub slow: AtomicBool,
    /// What was told up to this revision is not known any more.
    pruned: AtomicU64,
}

impl Deref for FakeLedger {
    type Target = FakeStore;

    fn deref(&self) -> &FakeStore {
        &self.store
    }
}

impl FakeLedger {
    pub fn open(store: &Arc<FakeStore>) -> Arc<Self> {
        let origin = store.openings.fetch_add(1, SeqCst);
        Arc::new(Self { store: Arc::clone(store), origin })
    }

    fn tell(&self, tenant: Option<TenantRef>, what: What) {
        self.log.lock().push((self.origin, Changed { tenant, what }));
    }
}

impl FakeStore {
    fn revision_now(&self) -> u64 {
        self.log.lock().len() as u64
    }

    fn answer<T: Send + 'static>(&self, act: impl FnOnce() -> Result<T, LedgerError>) -> Answer<'_, T> {
        let result = match self.down.load(SeqCst) {
            true => Err(LedgerError::Unavailable("switched off".into())),
            false => act(),
        };
        let is_slow = self.slow.load(SeqCst);
        Box::pin(async move {
            if is_slow {
                tokio::task::yield_now().await;
            }
            result
        })
    }

    /// Forgets what was written until now.
    pub fn prune_log(&self) {
        self.pruned.store(self.revision_now(), SeqCst);
    }

    fn newest(&self, tenant: Option<TenantRef>, kind: RecordKind, id: &str) -> u32 {
        let records = self.records.lock();
        let versions = records
            .iter()
            .filter(|(owner, record)| (*owner, record.kind, record.id.as_str()) == (tenant, kind, id));
        versions.map(|(_, record)| record.version).max().unwrap_or(0)
    }
}

impl Ledger for FakeLedger {
    fn commit(&self, _: Vec<Change>) -> Answer<'_, ()> {
        unreachable!("no test takes anything")
    }
    fn commit_fenced(&self, _: Vec<Change>, _: Fence) -> Answer<'_, ()> {
        unreachable!("no test takes anything")
    }
    fn slot(&self, _: TenantRef) -> Answer<'_, Slot> {
        unreachable!("no test takes anything")
    }
    fn renew_slot(&self, _: TenantRef, _: u64) -> Answer<'_, Slot> {
        unreachable!("no test takes anything")
    }
    fn account(&self, _: AccountKey, _: Millis) -> Answer<'_, StoredAccount> {
        self.accounts_read.fetch_add(1, SeqCst);
        self.answer(|| Ok(StoredAccount::default()))
    }
    fn hold(&self, _: TenantRef, _: HoldId) -> Answer<'_, Option<Hold>> {
        self.answer(|| Ok(None))
    }
    fn hold_by_request(&self, _: TenantRef, _: UserId, _: RequestId) -> Answer<'_, Option<Hold>> {
        self.answer(|| Ok(None))
    }
    fn doubts(&self, _: TenantRef, _: DoubtQuery) -> Answer<'_, DoubtPage> {
        self.answer(|| Ok(DoubtPage::default()))
    }
    fn ever_taken(&self, _: TenantRef) -> Answer<'_, bool> {
        self.answer(|| Ok(self.taken.load(SeqCst)))
    }

    fn user(&self, tenant: TenantRef, id: UserId) -> Answer<'_, Option<User>> {
        self.reads.fetch_add(1, SeqCst);
        self.answer(|| {
            let users = self.users.lock();
            Ok(users
                .iter()
                .find(|(owner, user)| (*owner, &user.id) == (tenant, &id))
                .map(|(_, user)| user.clone()))
        })
    }
    fn users(&self, tenant: TenantRef, query: UserQuery) -> Answer<'_, Vec<User>> {
        self.answer(|| {
            let users = self.users.lock();
            let mut users: Vec<User> =
                users.iter().filter(|(owner, _)| *owner == tenant).map(|(_, user)| user.clone()).collect();
            users.sort_by(|a, b| a.id.cmp(&b.id));
            users.retain(|user| query.after.as_deref().is_none_or(|after| user.id.as_str() > after));
            users.truncate(query.limit as usize);
            Ok(users)
        })
    }
    fn nth_user(&self, _: TenantRef, _: UserQuery, _: u32) -> Answer<'_, Option<String>> {
        unreachable!("no test searches")
    }
    fn put_users(&self, _: TenantRef, _: Vec<(User, User)>, _: Written) -> Answer<'_, ()> {
        unreachable!("no test changes many")
    }
    fn put_user(&self, tenant: TenantRef, user: User, _: Written) -> Answer<'_, ()> {
        self.answer(|| {
            let mut users = self.users.lock();
            let place = users.iter().position(|(owner, known)| (*owner, &known.id) == (tenant, &user.id));
            let version = place.map_or(0, |place| users[place].1.version);
            if user.version != version + 1 {
                return Err(LedgerError::Conflict);
            }
            let what = What::User(Bucket::of(tenant, user.id.as_str()));
            match place {
                Some(place) => users[place].1 = user,
                None => users.push((tenant, user)),
            }
            self.tell(Some(tenant), what);
            Ok(())
        })
    }

    fn erase_user(&self, _: TenantRef, _: Erasure, _: Option<u32>, _: Written) -> Answer<'_, ()> {
        unreachable!("no test erases anybody")
    }
    fn erasures(&self, _: TenantRef) -> Answer<'_, Vec<Erasure>> {
        self.answer(|| Ok(Vec::new()))
    }
    fn rename_history(&self, _: TenantRef, _: Erasure, _: u32) -> Answer<'_, Option<Vec<HoldId>>> {
        unreachable!("no test erases anybody")
    }
    fn end_erasure(&self, _: TenantRef, _: Erasure, _: Option<Millis>) -> Answer<'_, ()> {
        unreachable!("no test erases anybody")
    }
    fn begin_return(&self, _: TenantRef, _: Erasure, _: Millis) -> Answer<'_, ()> {
        unreachable!("no test erases anybody")
    }
    fn return_user(&self, _: TenantRef, _: Erasure, _: Written) -> Answer<'_, ()> {
        unreachable!("no test erases anybody")
    }
    fn erased_due(&self, _: TenantRef, _: Millis, _: u32) -> Answer<'_, Vec<User>> {
        self.answer(|| Ok(Vec::new()))
    }
    fn look_at_erased(&self, _: TenantRef, _: UserId, _: Option<Millis>) -> Answer<'_, ()> {
        unreachable!("no test erases anybody")
    }
    fn forget_erased(&self, _: TenantRef, _: UserId) -> Answer<'_, ()> {
        unreachable!("no test erases anybody")
    }

    fn users_to_move(&self, _: TenantRef, _: Millis, _: u32) -> Answer<'_, Vec<User>> {
        self.answer(|| Ok(Vec::new()))
    }
    fn org(&self, tenant: TenantRef, id: Name) -> Answer<'_, Option<Org>> {
        self.reads.fetch_add(1, SeqCst);
        self.answer(|| {
            let orgs = self.orgs.lock();
            Ok(orgs
                .iter()
                .find(|(owner, org)| (*owner, &org.id) == (tenant, &id))
                .map(|(_, org)| org.clone()))
        })
    }
    fn put_org(&self, tenant: TenantRef, org: Org, _: Written) -> Answer<'_, ()> {
        self.answer(|| {
            self.tell(Some(tenant), What::Org(Bucket::of(tenant, org.id.as_str())));
            let mut orgs = self.orgs.lock();
            orgs.retain(|(owner, known)| (*owner, &known.id) != (tenant, &org.id));
            orgs.push((tenant, org));
            Ok(())
        })
    }

    fn tenants(&self) -> Answer<'_, Vec<TenantRow>> {
        self.reads.fetch_add(1, SeqCst);
        self.answer(|| Ok(self.tenants.lock().clone()))
    }
    fn create_tenant(&self, id: TenantId, test: bool, records: Vec<Record>) -> Answer<'_, TenantRow> {
        self.answer(|| {
            let mut tenants = self.tenants.lock();
            if tenants.iter().any(|tenant| tenant.id == id) {
                return Err(LedgerError::Conflict);
            }
            // Never given twice: the revision has grown with every tenant.
            let number = TenantRef(self.revision_now() as u32 + 1);
            let row = TenantRow { number, id, test, suspended: false, clock: None, has_erased: false };
            tenants.push(row.clone());
            self.records.lock().extend(records.into_iter().map(|record| (Some(number), record)));
            self.tell(Some(number), What::Tenant);
            Ok(row)
        })
    }
    fn set_clock(&self, tenant: TenantRef, now: Millis, _: Written) -> Answer<'_, ()> {
        self.answer(|| {
            let mut tenants = self.tenants.lock();
            if let Some(row) = tenants.iter_mut().find(|row| row.number == tenant) {
                row.clock = Some(now);
            }
            self.tell(Some(tenant), What::Tenant);
            Ok(())
        })
    }

    fn suspend_tenant(&self, tenant: TenantRef, suspended: bool, _: Written) -> Answer<'_, ()> {
        self.answer(|| {
            let mut tenants = self.tenants.lock();
            let row = tenants.iter_mut().find(|row| row.number == tenant).ok_or(LedgerError::Conflict)?;
            row.suspended = suspended;
            self.tell(Some(tenant), What::Tenant);
            Ok(())
        })
    }
    fn delete_tenant(&self, tenant: TenantRef, _: Written) -> Answer<'_, ()> {
        self.answer(|| {
            let mut tenants = self.tenants.lock();
            let place = tenants.iter().position(|row| row.number == tenant).ok_or(LedgerError::Conflict)?;
            tenants.remove(place);
            self.tell(Some(tenant), What::Tenant);
            Ok(())
        })
    }
    fn deleted_tenants(&self) -> Answer<'_, Vec<(TenantRef, Millis)>> {
        self.answer(|| Ok(Vec::new()))
    }
    fn purge_tenant(&self, _: TenantRef, _: u32) -> Answer<'_, bool> {
        self.answer(|| Ok(false))
    }
    fn end_purge(&self, _: TenantRef) -> Answer<'_, ()> {
        self.answer(|| Ok(()))
    }

    fn records(&self, tenant: Option<TenantRef>) -> Answer<'_, Vec<Record>> {
        self.reads.fetch_add(1, SeqCst);
        self.answer(|| {
            let all: Vec<Record> = {
                let records = self.records.lock();
                records
                    .iter()
                    .filter(|(owner, _)| *owner == tenant)
                    .map(|(_, record)| record.clone())
                    .collect()
            };
            if self.records_down.load(SeqCst) {
                return Err(LedgerError::Unavailable("switched off".into()));
            }
            let is_newest = |record: &Record| record.version == self.newest(tenant, record.kind, &record.id);
            Ok(all.into_iter().filter(|record| is_newest(record) && record.body.is_some()).collect())
        })
    }
    fn versions(&self, tenant: Option<TenantRef>, kind: RecordKind, id: String) -> Answer<'_, Vec<Record>> {
        self.answer(|| {
            let records = self.records.lock();
            let mut versions: Vec<Record> = records
                .iter()
                .filter(|(owner, record)| (*owner, record.kind, &record.id) == (tenant, kind, &id))
                .map(|(_, record)| record.clone())
                .collect();
            versions.sort_by_key(|record| std::cmp::Reverse(record.version));
            Ok(versions)
        })
    }
    fn put_record(&self, tenant: Option<TenantRef>, record: Record) -> Answer<'_, ()> {
        self.answer(|| {
            if record.version != self.newest(tenant, record.kind, &record.id) + 1 {
                return Err(LedgerError::Conflict);
            }
            self.tell(tenant, What::Record(record.kind, record.id.clone()));
            self.records.lock().push((tenant, record));
            Ok(())
        })
    }
    fn conditions(&self, tenant: TenantRef) -> Answer<'_, Vec<PoolCondition>> {
        let of_tenant =
            |(of, condition): &(TenantRef, PoolCondition)| (*of == tenant).then(|| condition.clone());
        self.answer(|| Ok(self.conditions.lock().iter().filter_map(of_tenant).collect()))
    }
    fn put_condition(
        &self,
        tenant: TenantRef,
        condition: PoolCondition,
        _: Option<(Note, Written)>,
    ) -> Answer<'_, ()> {
        self.answer(|| {
            let mut conditions = self.conditions.lock();
            let place =
                conditions.iter().position(|(of, known)| (*of, &known.pool) == (tenant, &condition.pool));
            if place.map_or(0, |place| conditions[place].1.version) + 1 != condition.version {
                return Err(LedgerError::Conflict);
            }
            self.tell(Some(tenant), What::Record(RecordKind::Pool, condition.pool.clone()));
            match place {
                Some(place) => conditions[place].1 = condition,
                None => conditions.push((tenant, condition)),
            }
            Ok(())
        })
    }
    fn note(&self, _: TenantRef, _: Note, _: Written) -> Answer<'_, ()> {
        self.answer(|| Ok(()))
    }
    fn audit(&self, _: TenantRef, _: AuditQuery) -> Answer<'_, Vec<AuditEntry>> {
        unreachable!("no test reads the audit")
    }
    fn history(&self, _: TenantRef, _: HistoryQuery) -> Answer<'_, History> {
        unreachable!("no test reads a history")
    }
    fn prune_holds(&self, _: Pruning) -> Answer<'_, Pruned> {
        unreachable!("no test prunes")
    }
    fn takes_writes(&self) -> Answer<'_, ()> {
        self.answer(|| Ok(()))
    }
    fn revision(&self) -> Answer<'_, u64> {
        self.answer(|| Ok(self.revision_now()))
    }
    fn changes_since(&self, revision: u64, limit: u32) -> Answer<'_, Changes> {
        self.answer(|| {
            let log = self.log.lock();
            let upto = log.len() as u64;
            let told = (1..).zip(&*log).filter(|(at, _)| *at > revision).map(|(at, (origin, changed))| {
                Told { revision: at, ours: *origin == self.origin, changed: changed.clone() }
            });
            let known = self.pruned.load(SeqCst)..=upto;
            let is_whole = known.contains(&revision) && upto - revision <= u64::from(limit);
            let told = is_whole.then(|| told.collect());
            Ok(Changes { upto, told })
        })
    }
    fn close(&self) -> futures_util::future::BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

impl crate::ledger::Exports for FakeLedger {
    fn feed(&self, _: TenantRef, _: crate::ledger::FeedQuery) -> Answer<'_, crate::ledger::FeedPage> {
        unreachable!("no test reads the feed")
    }
    fn orgs(&self, _: TenantRef, _: Option<Name>, _: u32) -> Answer<'_, Vec<Org>> {
        unreachable!("no test lists orgs")
    }
}

impl Reports for FakeLedger {
    fn unfinished(&self, _: Vec<(TenantRef, Millis)>) -> Answer<'_, [u64; 2]> {
        self.answer(|| Ok([0; 2]))
    }
    fn add_tally(&self, tally: Arc<Tally>) -> Answer<'_, ()> {
        self.answer(|| {
            self.tallies.lock().push(tally);
            Ok(())
        })
    }
    fn refusals(&self, _: TenantRef, _: UserId, _: Range<i32>) -> Answer<'_, Vec<RefusalCount>> {
        unreachable!("no test reads counters back")
    }
    fn comparisons(&self, _: TenantRef, _: Range<i32>) -> Answer<'_, Vec<Comparison>> {
        unreachable!("no test reads counters back")
    }
    fn active_peaks(&self, _: TenantRef, _: Range<i64>) -> Answer<'_, Vec<(Name, u64)>> {
        self.answer(|| Ok(Vec::new()))
    }
    fn prune_tallies(&self, _: TenantRef, _: i32) -> Answer<'_, bool> {
        unreachable!("no test prunes")
    }
    fn minutes(&self, _: TenantRef, _: MinutesQuery) -> Answer<'_, Vec<MinuteRow>> {
        unreachable!("no test reads minutes")
    }
    fn prune_minutes(&self, _: TenantRef, _: i64) -> Answer<'_, bool> {
        unreachable!("no test prunes")
    }
    fn duplicates(&self, _: TenantRef, _: DuplicatesQuery) -> Answer<'_, Vec<Duplicate>> {
        unreachable!("no test looks for duplicates")
    }
    fn refused_users(
        &self,
        _: TenantRef,
        _: Range<i32>,
        _: Option<String>,
        _: u32,
    ) -> Answer<'_, Vec<UserId>> {
        unreachable!("no test makes good")
    }
    fn last_refusals(&self, _: TenantRef, _: UserId) -> Answer<'_, Vec<RefusedCall>> {
        unreachable!("no test asks why")
    }
    fn holds_made(
        &self,
        _: TenantRef,
        _: UserId,
        _: Range<Millis>,
        _: Option<HoldId>,
        _: u32,
    ) -> Answer<'_, Vec<Hold>> {
        unreachable!("no test reads back")
    }
    fn usage(&self, _: TenantRef, _: Group, _: Range<i32>) -> Answer<'_, Vec<UsageRow>> {
        unreachable!("no test adds up")
    }
    fn movers(&self, _: TenantRef, _: MoversQuery) -> Answer<'_, Vec<Mover>> {
        unreachable!("no test looks at movers")
    }
    fn prune_user_slots(&self, _: TenantRef, _: i64) -> Answer<'_, bool> {
        unreachable!("no test prunes")
    }
    fn spread(&self, _: TenantRef, _: SpreadQuery) -> Answer<'_, Vec<(u64, u64)>> {
        unreachable!("no test tunes")
    }
    fn plan_refusals(&self, _: TenantRef, _: Name, _: Range<i32>, _: u32) -> Answer<'_, Vec<PlanRefusals>> {
        unreachable!("no test tunes")
    }
    fn ranking(&self, _: TenantRef, _: RankingQuery, _: i32, _: u32) -> Answer<'_, Ranking> {
        unreachable!("no test ranks")
    }
    fn keep_ranking(&self, _: TenantRef, _: u128, _: Arc<[KeptPart]>, _: Millis) -> Answer<'_, ()> {
        unreachable!("no test ranks")
    }
    fn ranking_part(&self, _: TenantRef, _: u128, _: u32) -> Answer<'_, Option<KeptPart>> {
        unreachable!("no test ranks")
    }
    fn outputs(&self, tenant: TenantRef, day: i32) -> Answer<'_, Vec<Output>> {
        self.answer(|| {
            let tallies = self.tallies.lock();
            let all = tallies.iter().flat_map(|tally| &tally.outputs);
            let mut told: Vec<Output> = Vec::new();
            for (.., output) in all.filter(|(of, on, _)| *of == tenant && *on >= day) {
                let known = told
                    .iter_mut()
                    .find(|known| (&known.feature, &known.model) == (&output.feature, &output.model));
                match known {
                    Some(known) => known.spread.merge(&output.spread),
                    None => told.push(output.clone()),
                }
            }
            Ok(told)
        })
    }
    fn prune_outputs(&self, _: TenantRef, _: i32) -> Answer<'_, bool> {
        unreachable!("no test prunes")
    }
}
