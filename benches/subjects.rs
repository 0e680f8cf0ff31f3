//! What is measured without HTTP: the pure step, and the engine around it.

use std::collections::VecDeque;
use std::hint::black_box;

use apportion::domain::account::Account;
use apportion::domain::charge::{AccountKey, Demand, TenantRef};
use apportion::domain::hold::{Hold, Settlement};
use apportion::domain::ids::{HoldId, UserId};
use apportion::domain::plan::Scope;
use apportion::domain::step::Ask;
use apportion::domain::time::Millis;
use apportion::engine::{Engine, Finish, Finished, How, Loaded, MemoryEngine, Reply, Step, Take, Taken};
use futures_util::FutureExt;
use smallvec::smallvec;
use tokio::runtime::Runtime;

use crate::sheet;

/// Steps whose changes are confirmed together, as a journal would.
pub const BATCH: usize = 1000;

/// Something that takes and finishes on one of many accounts.
pub trait Subject {
    fn count(&self) -> usize;
    /// Takes on one account.
    fn take(&mut self, account: usize);
    /// Finishes the oldest hold that is open.
    fn finish(&mut self);
    /// Lets go of what waits to be confirmed.
    fn flush(&mut self);

    /// Uses every account once, and leaves no hold open.
    fn use_all(&mut self) {
        for account in 0..self.count() {
            self.take(account);
            self.finish();
        }
        self.flush();
    }
}

/// The pure step.
pub struct Domain {
    accounts: Vec<Account>,
    ask: Ask,
    draft: Hold,
    settlement: Settlement,
    now: Millis,
    open: VecDeque<(usize, Hold)>,
    next_id: u128,
}

impl Domain {
    pub fn new(limits: usize, count: usize) -> Self {
        let (sheet, now) = (sheet::sheet(limits), sheet::now());
        Self {
            accounts: (0..count).map(|_| Account::default()).collect(),
            ask: sheet::ask(&sheet, now),
            draft: sheet::draft(&sheet, TenantRef(1), user(0), now),
            settlement: sheet::settlement(now),
            now,
            open: VecDeque::new(),
            next_id: 1,
        }
    }
}

impl Subject for Domain {
    fn count(&self) -> usize {
        self.accounts.len()
    }

    fn take(&mut self, account: usize) {
        let mut hold = Hold { id: HoldId(self.next_id), ..self.draft.clone() };
        self.next_id += 1;
        sheet::take(&mut self.accounts[account], &self.ask, &mut hold, self.now);
        self.open.push_back((account, hold));
    }

    fn finish(&mut self) {
        if let Some((account, mut hold)) = self.open.pop_front() {
            let settlement = self.settlement.clone();
            sheet::finish(&mut self.accounts[account], &mut hold, settlement, &self.ask.charges, self.now);
            black_box(hold);
        }
    }

    fn flush(&mut self) {}
}

/// An engine, with everything that it leaves for the ledger.
pub struct Embedded<E> {
    pub engine: E,
    /// Where it has to be waited for.
    runtime: Option<Runtime>,
    ask: Ask,
    draft: Hold,
    settlement: Settlement,
    users: Vec<UserId>,
    open: VecDeque<(usize, HoldId)>,
    next_id: u128,
    unconfirmed: usize,
}

impl Embedded<MemoryEngine> {
    pub fn in_memory(limits: usize, count: usize) -> Self {
        Self::new(MemoryEngine::new(2 * count), None, limits, count)
    }
}

impl<E: Engine> Embedded<E> {
    pub fn new(engine: E, runtime: Option<Runtime>, limits: usize, count: usize) -> Self {
        let (sheet, now) = (sheet::sheet(limits), sheet::now());
        Self {
            engine,
            runtime,
            ask: sheet::ask(&sheet, now),
            draft: sheet::draft(&sheet, TenantRef(1), user(0), now),
            settlement: sheet::settlement(now),
            users: (0..count).map(user).collect(),
            open: VecDeque::new(),
            next_id: 1,
            unconfirmed: 0,
        }
    }

    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        match &self.runtime {
            Some(runtime) => runtime.block_on(future),
            None => future.now_or_never().expect("the engine never waits"),
        }
    }

    fn key(&self, account: usize) -> AccountKey {
        AccountKey { tenant: TenantRef(1), scope: Scope::User, owner: self.users[account].shared() }
    }

    /// Runs an operation; an account that is new is loaded as empty.
    pub fn apply<'e, T>(&'e self, operation: impl Fn() -> Reply<'e, T>) -> T {
        loop {
            match self.wait(operation()).expect("the engine takes changes") {
                Step::Done(outcome) => return outcome,
                Step::Missing(missing) => {
                    let nothing = missing.keys.iter().map(|_| Loaded::default()).collect();
                    self.wait(self.engine.load(&missing, nothing)).expect("the engine is up");
                }
            }
        }
    }

    fn confirm(&mut self) {
        self.unconfirmed += 1;
        if self.unconfirmed == BATCH {
            self.flush();
        }
    }
}

impl<E: Engine> Subject for Embedded<E> {
    fn count(&self) -> usize {
        self.users.len()
    }

    fn take(&mut self, account: usize) {
        // Well mixed, as real ids are: the engine's maps count on it.
        let id = HoldId(self.next_id.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        self.next_id += 1;
        let draft = Hold { id, user: self.users[account].clone(), ..self.draft.clone() };
        let take = take_of(self.key(account), self.ask.clone(), draft);
        match self.apply(|| self.engine.take(&take, sheet::now())) {
            Taken::Hold { hold, .. } => self.open.push_back((account, hold.id)),
            _ => unreachable!("the sheet refuses nothing"),
        }
        self.confirm();
    }

    fn finish(&mut self) {
        let Some((account, hold)) = self.open.pop_front() else { return };
        let finish = Finish {
            hold,
            found: None,
            accounts: smallvec![self.key(account)],
            show: self.ask.charges.clone(),
            how: How::Settle(Box::new(self.settlement.clone())),
            ended_by_rule: None,
        };
        match self.apply(|| self.engine.finish(&finish, sheet::now())) {
            Finished::Done { .. } => {}
            _ => unreachable!("the hold is open"),
        }
        self.confirm();
    }

    fn flush(&mut self) {
        while self.unconfirmed > 0 {
            let batch = self.wait(self.engine.changes());
            self.unconfirmed -= batch.changes.len();
            self.wait(self.engine.committed(batch));
        }
    }
}

/// A check by one account.
pub fn take_of(account: AccountKey, ask: Ask, draft: Hold) -> Take {
    Take {
        accounts: smallvec![account],
        ask,
        credits: Demand::NONE,
        draft,
        lease_ms: 600_000,
        max_hold_ms: 3_600_000,
        dry_run: false,
        quiet: false,
        place: None,
    }
}

pub fn user(number: usize) -> UserId {
    UserId::parse(&format!("u_{number:08}")).expect("a valid id")
}
