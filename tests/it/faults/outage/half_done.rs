//! A check that the engine took while its answer was lost, and one that it had no room for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use apportion::domain::charge::{AccountKey, Charge, TenantRef};
use apportion::domain::document::Node;
use apportion::domain::hold::{Hold, Reported};
use apportion::domain::ids::{HoldId, RequestId, TenantId, UserId};
use apportion::domain::time::Millis;
use apportion::engine::{
    Batch, Engine, EngineError, Extend, Extended, Finish, Finished, LineStep, Loaded, MemoryEngine, Missing,
    Moved, Plain, Probed, Reply, Rest, Step, Stood, Take, Taken, Ticket,
};
use apportion::ledger::{Durability, SqliteLedger};
use apportion::service::tenancy::clock::WallClock;
use apportion::service::{
    Allowed, CheckCommand, CheckReply, FinishReply, Journal, MaxOutput, Outage, Registry, RegistryOptions,
    Service, SettleCommand, SettleUsage, Tenant,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

/// Takes what it is told to, and then does not answer.
struct Lossy {
    engine: MemoryEngine,
    loses: AtomicBool,
    is_crowded: AtomicBool,
}

impl Lossy {
    /// What was done is done.
    fn lose<T>(&self, answer: Result<T, EngineError>) -> Result<T, EngineError> {
        if self.loses.load(SeqCst) { Err(EngineError::Unavailable) } else { answer }
    }
}

impl Engine for Lossy {
    fn take<'a>(&'a self, take: &'a Take, now: Millis) -> Reply<'a, Taken> {
        if self.is_crowded.load(SeqCst) {
            return std::future::ready(Err(EngineError::Overloaded)).boxed();
        }
        let answer = |taken| match taken {
            Ok(Step::Missing(missing)) => Ok(Step::Missing(missing)),
            taken => self.lose(taken),
        };
        self.engine.take(take, now).map(answer).boxed()
    }
    fn finish<'a>(&'a self, finish: &'a Finish, now: Millis) -> Reply<'a, Finished> {
        self.engine.finish(finish, now)
    }
    fn extend<'a>(&'a self, extend: &'a Extend, now: Millis) -> Reply<'a, Extended> {
        self.engine.extend(extend, now)
    }
    fn touch<'a>(
        &'a self,
        key: &'a AccountKey,
        charges: &'a [Charge],
        now: Millis,
    ) -> Reply<'a, Option<Ticket>> {
        self.engine.touch(key, charges, now)
    }
    fn move_account<'a>(
        &'a self,
        tenant: TenantRef,
        from: &'a UserId,
        to: &'a UserId,
        now: Millis,
    ) -> Reply<'a, Moved> {
        self.engine.move_account(tenant, from, to, now)
    }
    fn reopen<'a>(&'a self, key: &'a AccountKey) -> Plain<'a, ()> {
        self.engine.reopen(key)
    }
    fn stand<'a>(&'a self, pool: &'a AccountKey, step: &'a LineStep) -> Plain<'a, Stood> {
        self.engine.stand(pool, step)
    }
    fn rest<'a>(&'a self, key: &'a AccountKey, now: Millis) -> Reply<'a, Rest> {
        self.engine.rest(key, now)
    }
    fn probe<'a>(
        &'a self,
        accounts: &'a [AccountKey],
        charges: &'a [Charge],
        now: Millis,
    ) -> Plain<'a, Vec<Option<Probed>>> {
        self.engine.probe(accounts, charges, now)
    }
    fn hold(&self, tenant: TenantRef, id: HoldId) -> Plain<'_, Option<Arc<Hold>>> {
        self.engine.hold(tenant, id).map(|hold| self.lose(hold)).boxed()
    }
    fn request<'a>(&'a self, user: &'a AccountKey, digest: u64, now: Millis) -> Reply<'a, Option<HoldId>> {
        self.engine.request(user, digest, now)
    }
    fn load<'a>(&'a self, missing: &'a Missing, loaded: Vec<Loaded>) -> Plain<'a, ()> {
        self.engine.load(missing, loaded)
    }
    fn changes(&self) -> BoxFuture<'_, Batch> {
        self.engine.changes()
    }
    fn committed(&self, batch: Batch) -> BoxFuture<'_, ()> {
        self.engine.committed(batch)
    }
    fn failed(&self, batch: Batch) -> BoxFuture<'_, ()> {
        self.engine.failed(batch)
    }
    fn ready(&self) -> Plain<'_, ()> {
        std::future::ready(self.lose(Ok(()))).boxed()
    }
    fn barrier(&self, tenant: TenantRef) -> Ticket {
        self.engine.barrier(tenant)
    }
    fn forget_tenant(&self, tenant: TenantRef) -> Plain<'_, ()> {
        self.engine.forget_tenant(tenant)
    }
    fn sweep(&self, now: Millis) -> BoxFuture<'_, usize> {
        self.engine.sweep(now)
    }
}

struct Stage {
    _kept: tempfile::TempDir,
    _journal: Journal,
    service: Arc<Service>,
    engine: Arc<Lossy>,
    tenant: Arc<Tenant>,
}

impl Stage {
    async fn new() -> Self {
        let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let ledger = SqliteLedger::open(&kept.path().join("ledger.db"), Durability::Os).await.expect("opens");
        let ledger = Arc::new(ledger);
        let options = RegistryOptions {
            keys_dir: kept.path().join("keys"),
            server_key: None,
            accept_generated_keys: false,
            allow_private_targets: false,
        };
        let registry = Registry::open(ledger.clone(), Arc::new(WallClock::new()), options).await.unwrap();
        let id = TenantId::parse("t").unwrap();
        let tenant = registry.create_tenant(&id, true, None, "test").await.unwrap();
        let engine = Arc::new(Lossy {
            engine: MemoryEngine::new(1000),
            loses: AtomicBool::new(false),
            is_crowded: AtomicBool::new(false),
        });
        let outage = Outage::open(&kept.path().join("outage")).unwrap();
        let service = Service::new(registry.clone(), engine.clone(), ledger, outage);
        let journal = service.start_journal();
        let settings =
            Node::from_json(br#"{"on_outage":"bounded","outage_share":1,"enforcement":"shadow"}"#).unwrap();
        service.put_settings(&tenant, &settings, None, "test").await.unwrap();
        let stage = Self { _kept: kept, _journal: journal, service, engine, tenant };
        stage.set_clock("2026-03-10T12:00:00Z").await;
        stage
    }

    async fn set_clock(&self, at: &str) {
        self.service.set_clock(&self.tenant, Millis::parse(at).unwrap(), "test").await.unwrap();
    }

    async fn check(&self, request: &str) -> Option<Allowed> {
        let command = CheckCommand {
            user: UserId::parse("u").unwrap(),
            request_id: Some(RequestId::parse(request).unwrap()),
            model: None,
            models: None,
            feature: None,
            bulk: false,
            input_tokens: 100,
            max_output: MaxOutput::Tokens(10),
            min_output_tokens: None,
            lease_seconds: None,
            wait_ms: 0,
            dry_run: false,
            amounts: Vec::new(),
            their_decision: None,
        };
        match self.service.check(&self.tenant, command).await {
            Ok(CheckReply::Allowed(allowed)) => Some(allowed),
            Ok(CheckReply::Refused(refusal)) => panic!("{refusal:?}"),
            Err(_) => None,
        }
    }

    /// The calls that count, and the tokens used and held.
    async fn figures(&self) -> (u64, u64) {
        let view = self.service.quota(&self.tenant, UserId::parse("u").unwrap()).await.unwrap();
        let taken = |name: &str| {
            let (row, _) = view.limits.iter().find(|(row, _)| row.name.as_str() == name).expect("a limit");
            row.standing.limit() - row.standing.remaining()
        };
        (taken("requests_per_day"), taken("tokens_per_month"))
    }
}

#[tokio::test]
async fn what_the_engine_has_already_is_not_taken_twice() {
    let stage = Stage::new().await;
    stage.engine.loses.store(true, SeqCst);
    let allowed = stage.check("a").await.expect("the share has room");
    assert!(allowed.degraded);
    assert_eq!(stage.figures().await, (1, 110), "the engine has it");
    // The engine has this one, too, under an id of which nobody was told.
    assert!(stage.check("b").await.is_none(), "the share is used up");
    stage.engine.loses.store(false, SeqCst);
    stage.service.book_outage().await;
    assert_eq!(stage.figures().await, (2, 220));
    let again = stage.check("b").await.expect("the engine knows it");
    assert!(again.replayed && !again.degraded);
    let id = allowed.hold.expect("a hold").id;
    let reported = Reported { input_tokens: 70, ..Reported::default() };
    let usage = SettleUsage::Reported { reported, amounts: Vec::new() };
    let reply = stage.service.settle(&stage.tenant, SettleCommand { id, usage }).await.unwrap();
    assert!(matches!(reply, FinishReply::Done(_)), "{reply:?}");
    assert_eq!(stage.figures().await, (2, 180));
}

#[tokio::test]
async fn too_much_work_is_no_outage_unless_the_store_is_missed_already() {
    let stage = Stage::new().await;
    let outage = &stage.service.outage;
    stage.engine.is_crowded.store(true, SeqCst);
    assert!(stage.check("a").await.is_none());
    assert!(!outage.is_away() && outage.admissions() == 0, "nobody missed the store");
    stage.engine.is_crowded.store(false, SeqCst);
    stage.engine.loses.store(true, SeqCst);
    assert!(stage.check("b").await.is_some_and(|allowed| allowed.degraded));
    stage.engine.is_crowded.store(true, SeqCst);
    stage.set_clock("2026-03-10T12:01:00Z").await;
    assert!(stage.check("c").await.is_some_and(|allowed| allowed.degraded), "a new minute's share");
    assert_eq!(outage.admissions(), 2);
}
