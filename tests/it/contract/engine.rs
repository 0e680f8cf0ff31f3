//! What every engine must do, whatever it keeps its accounts in.
//!
//! A further engine is one line more in `engines.rs`.

mod engines;
mod lines;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use apportion::domain::account::Account;
use apportion::domain::charge::{AccountKey, CellId, Charge, Demand, Figures, MeterCode, TenantRef};
use apportion::domain::hold::{
    Amounts, Caps, FinishedBy, Granted, Hold, ReleaseReason, Reported, RequestMark, Settlement, Stage,
};
use apportion::domain::ids::{HoldId, Name, RequestId, UserId};
use apportion::domain::plan::{Enforce, PerCall, Scope};
use apportion::domain::quantity::Ppm;
use apportion::domain::step::Ask;
use apportion::domain::taking::Taking;
use apportion::domain::time::Millis;
use apportion::engine::{
    Engine, EngineError, Extend, Extended, Finish, Finished, How, Loaded, Step, Take, Taken,
};

use engines::{engines, in_memory};

const NOW: Millis = Millis(1_770_000_000_000);

fn key(tenant: u32, scope: Scope, owner: &str) -> AccountKey {
    AccountKey { tenant: TenantRef(tenant), scope, owner: owner.into() }
}

fn bucket(account: u8, capacity: u64) -> Charge {
    Charge {
        account,
        cell: CellId(u64::from(account) + 1),
        meter: MeterCode::OUTPUT,
        figures: Figures::Bucket { capacity, refill: 60, since: NOW },
        demand: Demand { fixed: 0, per_output: 1, unit: 1 },
        enforce: Enforce::Hard,
        asked: true,
        earlier: None,
        grants: None,
        to_come: None,
        switches: true,
        keep: 0,
    }
}

/// A take of `output` from the user's bucket of 100 and the pool's of 150.
fn take(user: &str, id: u128, output: u64, request: Option<&str>) -> Take {
    let draft = Hold {
        id: HoldId(id),
        tenant: TenantRef(1),
        user: UserId::parse(user).expect("valid"),
        org: None,
        pool: Some(Name::parse("p").expect("valid")),
        request: request
            .map(|id| RequestMark { id: RequestId::parse(id).expect("valid"), fingerprint: [1; 16] }),
        plan: Name::parse("free").expect("valid"),
        plan_version: 1,
        admits_user: false,
        bulk: false,
        models_version: 1,
        model: None,
        feature: None,
        created_at: NOW,
        expires_at: NOW,
        lease_seconds: 10,
        lives_until: NOW,
        day: 0,
        caps: Caps { per_call: PerCall::default(), max_tokens_per_call: 1_000 },
        cache_read_weight: Ppm::ONE,
        granted: Granted { input_tokens: 0, max_output_tokens: output, is_final: false },
        reserved: Amounts::default(),
        amounts: vec![],
        receipts: vec![],
        progress: 0,
        extends: vec![],
        stage: Stage::Held,
    };
    Take {
        accounts: [key(1, Scope::User, user), key(1, Scope::Pool, "p")].into_iter().collect(),
        ask: Ask {
            charges: [bucket(0, 100), bucket(1, 150)].into_iter().collect(),
            output_max: output,
            output_min: output,
            taking: Taking::Enforced,
        },
        credits: Demand::NONE,
        draft,
        lease_ms: 10_000,
        max_hold_ms: 60_000,
        dry_run: false,
        quiet: false,
        place: None,
    }
}

fn settle(user: &str, id: u128, output: u64) -> Finish {
    finish(
        user,
        id,
        How::Settle(Box::new(Settlement {
            at: NOW,
            late: false,
            by: FinishedBy::Caller,
            reported: Reported { output_tokens: output, ..Reported::default() },
            counted: Amounts {
                requests: 1,
                output_tokens: output,
                total_tokens: output,
                ..Amounts::default()
            },
            amounts: vec![],
        })),
    )
}

fn finish(user: &str, id: u128, how: How) -> Finish {
    Finish {
        hold: HoldId(id),
        found: None,
        accounts: [key(1, Scope::User, user), key(1, Scope::Pool, "p")].into_iter().collect(),
        show: [Charge { asked: false, ..bucket(0, 100) }].into_iter().collect(),
        how,
        ended_by_rule: None,
    }
}

/// Runs an operation, loading what is missing as never touched.
macro_rules! done {
    ($engine:expr, $operation:expr) => {
        loop {
            match $operation.await.expect("the engine is up") {
                Step::Done(outcome) => break outcome,
                Step::Missing(missing) => {
                    let nothing = missing.keys.iter().map(|_| Loaded::default()).collect();
                    $engine.load(&missing, nothing).await.expect("the engine is up");
                }
            }
        }
    };
}

async fn taken(engine: &Arc<dyn Engine>, take: &Take, now: Millis) -> Taken {
    done!(engine, engine.take(take, now))
}

async fn admitted(engine: &Arc<dyn Engine>, take: &Take, now: Millis) -> Arc<Hold> {
    match taken(engine, take, now).await {
        Taken::Hold { hold, .. } => hold,
        _ => panic!("must fit"),
    }
}

async fn left(engine: &Arc<dyn Engine>, key: &AccountKey, charge: Charge, now: Millis) -> u64 {
    let charge = Charge { account: 0, asked: true, ..charge };
    let probed = engine.probe(std::slice::from_ref(key), &[charge], now).await.expect("the engine is up");
    probed[0].as_ref().expect("known").probes[0].shown.standing.remaining()
}

async fn left_to_user(engine: &Arc<dyn Engine>, user: &str, now: Millis) -> u64 {
    left(engine, &key(1, Scope::User, user), bucket(0, 100), now).await
}

async fn left_in_pool(engine: &Arc<dyn Engine>, now: Millis) -> u64 {
    let pool = Charge { cell: CellId(2), ..bucket(0, 150) };
    left(engine, &key(1, Scope::Pool, "p"), pool, now).await
}

async fn commit(engine: &Arc<dyn Engine>) -> Vec<HoldId> {
    let batch = engine.changes().await;
    let ids = batch.changes.iter().filter_map(|change| change.hold.as_ref()).map(|hold| hold.id).collect();
    engine.committed(batch).await;
    ids
}

#[tokio::test]
async fn an_account_is_asked_for_before_anything_is_decided() {
    for (name, engine) in engines().await {
        let Step::Missing(missing) = engine.take(&take("u", 1, 10, None), NOW).await.expect("up") else {
            panic!("{name} decided on accounts it never saw");
        };
        assert_eq!(missing.keys.len(), 2, "{name}");
        let probed = engine.probe(&[key(1, Scope::User, "u")], &[], NOW).await.expect("up");
        assert!(probed[0].is_none(), "{name}");
    }
}

#[tokio::test]
async fn takes_from_every_account_or_from_none() {
    for (name, engine) in engines().await {
        admitted(&engine, &take("u", 1, 90, None), NOW).await;
        let refused = taken(&engine, &take("v", 2, 80, None), NOW).await;
        let Taken::Refused { shortfalls, .. } = refused else { panic!("{name}: the pool has 60 left") };
        assert_eq!((shortfalls.len(), shortfalls[0].charge, shortfalls[0].would_fit), (1, 1, 60), "{name}");
        assert_eq!(left_to_user(&engine, "v", NOW).await, 100, "{name}");
        assert_eq!(left_in_pool(&engine, NOW).await, 60, "{name}");
    }
}

#[tokio::test]
async fn a_dry_run_takes_nothing() {
    for (name, engine) in engines().await {
        let dry = Take { dry_run: true, ..take("u", 1, 90, Some("r")) };
        assert!(matches!(taken(&engine, &dry, NOW).await, Taken::Fits { .. }), "{name}");
        assert_eq!(left_to_user(&engine, "u", NOW).await, 100, "{name}");
        assert!(engine.hold(TenantRef(1), HoldId(1)).await.expect("up").is_none(), "{name}");
    }
}

#[tokio::test]
async fn a_request_id_stands_for_one_hold() {
    for (name, engine) in engines().await {
        admitted(&engine, &take("u", 1, 10, Some("r")), NOW).await;
        let again = taken(&engine, &take("u", 2, 10, Some("r")), NOW).await;
        assert!(matches!(again, Taken::Known(HoldId(1))), "{name}");
        admitted(&engine, &take("v", 3, 10, Some("r")), NOW).await;
        assert_eq!(left_to_user(&engine, "u", NOW).await, 90, "{name}");
        // Kept for a day after the finish, then free again.
        let _ = done!(engine, engine.finish(&settle("u", 1, 10), NOW));
        let almost = NOW.plus_ms(24 * 3_600_000 - 1);
        let known = taken(&engine, &take("u", 4, 10, Some("r")), almost).await;
        assert!(matches!(known, Taken::Known(HoldId(1))), "{name}");
        admitted(&engine, &take("u", 5, 10, Some("r")), NOW.plus_ms(24 * 3_600_000)).await;
    }
}

#[tokio::test]
async fn a_hold_finishes_once() {
    for (name, engine) in engines().await {
        admitted(&engine, &take("u", 1, 50, None), NOW).await;
        let first = done!(engine, engine.finish(&settle("u", 1, 30), NOW));
        let Finished::Done { hold, standings, .. } = first else { panic!("{name}") };
        assert!(hold.is_finished(), "{name}");
        assert_eq!(standings[0].standing.remaining(), 70, "{name}");
        let second = done!(engine, engine.finish(&settle("u", 1, 99), NOW));
        assert!(matches!(second, Finished::Already(_)), "{name}");
        assert_eq!(left_to_user(&engine, "u", NOW).await, 70, "{name}");
        commit(&engine).await;
        let on_record = done!(engine, engine.finish(&settle("u", 1, 99), NOW));
        match name {
            "memory" => assert!(matches!(on_record, Finished::NotOpen), "the ledger knows it now"),
            _ => assert!(matches!(on_record, Finished::Already(_)), "{name}: known for a while"),
        }
    }
}

#[tokio::test]
async fn a_release_gives_everything_back_unless_progress_was_told() {
    for (name, engine) in engines().await {
        let release = || How::Release { reason: ReleaseReason::NotSent, by: FinishedBy::Caller };
        admitted(&engine, &take("u", 1, 50, None), NOW).await;
        let released = done!(engine, engine.finish(&finish("u", 1, release()), NOW));
        assert!(matches!(released, Finished::Done { .. }), "{name}");
        assert_eq!(
            (left_to_user(&engine, "u", NOW).await, left_in_pool(&engine, NOW).await),
            (100, 150),
            "{name}"
        );
        let hold = admitted(&engine, &take("u", 2, 50, None), NOW).await;
        let told = Extend { progress: 7, ..extend("u", &hold, 0, None) };
        let _ = done!(engine, engine.extend(&told, NOW));
        let refused = done!(engine, engine.finish(&finish("u", 2, release()), NOW));
        assert!(matches!(refused, Finished::HasProgress(_)), "{name}");
    }
}

fn extend(user: &str, hold: &Hold, add: u64, mark: Option<(&str, u8)>) -> Extend {
    let more =
        |account, capacity| Charge { demand: Demand::fixed(add), asked: false, ..bucket(account, capacity) };
    static LAST: AtomicU64 = AtomicU64::new(0);
    Extend {
        hold: hold.id,
        operation: u128::from(LAST.fetch_add(1, Relaxed)) + 1,
        found: None,
        accounts: [key(1, Scope::User, user), key(1, Scope::Pool, "p")].into_iter().collect(),
        charges: [more(0, 100), more(1, 150)].into_iter().collect(),
        receipts: hold.receipts.len(),
        add_output: add,
        add_credits: 0,
        reserved_before: hold.reserved.output_tokens,
        lease_seconds: 10,
        progress: 0,
        mark: mark.map(|(id, body)| RequestMark {
            id: RequestId::parse(id).expect("valid"),
            fingerprint: [body; 16],
        }),
        taking: Taking::Enforced,
    }
}

#[tokio::test]
async fn an_extend_renews_the_lease_and_reserves_under_the_rules_of_a_take() {
    for (name, engine) in engines().await {
        let hold = admitted(&engine, &take("u", 1, 50, None), NOW).await;
        let later = NOW.plus_ms(9_000);
        let more = done!(engine, engine.extend(&extend("u", &hold, 20, Some(("k", 1))), later));
        let Extended::Done { hold: longer, .. } = more else { panic!("{name}") };
        assert_eq!(longer.expires_at, later.plus_ms(10_000), "{name}");
        assert_eq!(longer.reserved.output_tokens, 70, "{name}");
        let again = done!(engine, engine.extend(&extend("u", &hold, 20, Some(("k", 1))), later));
        assert!(matches!(again, Extended::Replayed(_)), "{name}");
        let reused = done!(engine, engine.extend(&extend("u", &hold, 21, Some(("k", 2))), later));
        assert!(matches!(reused, Extended::MarkReused), "{name}");
        let blind = done!(engine, engine.extend(&extend("u", &hold, 5, None), later));
        assert!(matches!(blind, Extended::Changed), "{name}: made for the hold as it was");
        let large = done!(engine, engine.extend(&extend("u", &longer, 60, None), later));
        assert!(matches!(large, Extended::Refused { .. }), "{name}");
        let over = done!(engine, engine.extend(&extend("u", &longer, 0, None), longer.expires_at));
        assert!(matches!(over, Extended::LeaseEnded(_)), "{name}");
    }
}

#[tokio::test]
async fn unknown_usage_ends_the_lease_and_keeps_the_charge() {
    for (name, engine) in engines().await {
        admitted(&engine, &take("u", 1, 60, None), NOW).await;
        let doubt = done!(engine, engine.finish(&finish("u", 1, How::Doubt), NOW));
        assert!(matches!(doubt, Finished::Done { .. }), "{name}");
        let minute = NOW.plus_ms(60_000);
        assert_eq!(left_to_user(&engine, "u", minute).await, 100, "{name}: refill has its place back");
        let late = done!(engine, engine.finish(&settle("u", 1, 10), minute));
        let Finished::Done { hold, .. } = late else { panic!("{name}") };
        assert!(matches!(&hold.stage, Stage::Settled(settled) if settled.late), "{name}");
    }
}

#[tokio::test]
async fn changes_come_in_the_order_they_happened() {
    for (name, engine) in engines().await {
        let mut waiting = Vec::new();
        for id in 1..=20 {
            match taken(&engine, &take(&format!("u{id}"), id, 1, None), NOW).await {
                Taken::Hold { ticket, .. } => waiting.push(ticket),
                _ => panic!("{name}"),
            }
        }
        let ids = commit(&engine).await;
        assert_eq!(ids, (1..=20).map(HoldId).collect::<Vec<_>>(), "{name}");
        for ticket in waiting {
            assert!(ticket.recorded().await, "{name}");
        }
    }
}

#[tokio::test]
async fn what_could_not_be_recorded_never_happened() {
    for (name, engine) in in_memory() {
        admitted(&engine, &take("u", 1, 40, None), NOW).await;
        let recorded = engine.changes().await;
        let state = recorded.changes[0].accounts[0].1.clone();
        engine.committed(recorded).await;
        let lost = taken(&engine, &take("u", 2, 30, None), NOW).await;
        let batch = engine.changes().await;
        // Built on what is being lost, so it is lost with it.
        let later = taken(&engine, &take("u", 3, 10, None), NOW).await;
        engine.failed(batch).await;
        for outcome in [lost, later] {
            let Taken::Hold { ticket, .. } = outcome else { panic!("{name}") };
            assert!(!ticket.recorded().await, "{name}");
        }
        assert!(engine.hold(TenantRef(1), HoldId(2)).await.expect("up").is_none(), "{name}");
        let Step::Missing(missing) = engine.take(&take("u", 4, 60, None), NOW).await.expect("up") else {
            panic!("{name}: it must be loaded again");
        };
        let stored = missing.keys.iter().map(|key| {
            let packed = (key.scope == Scope::User).then_some(&*state);
            let account = Account::unpack(packed, key.scope, std::iter::empty()).expect("readable");
            Loaded { account, ..Loaded::default() }
        });
        engine.load(&missing, stored.collect()).await.expect("up");
        assert_eq!(left_to_user(&engine, "u", NOW).await, 60, "{name}: as last recorded");
    }
}

#[tokio::test]
async fn the_first_of_two_loaders_wins() {
    for (name, engine) in engines().await {
        let ask = take("u", 1, 10, None);
        let (Step::Missing(one), Step::Missing(two)) =
            (engine.take(&ask, NOW).await.expect("up"), engine.take(&ask, NOW).await.expect("up"))
        else {
            panic!("{name}")
        };
        engine.load(&one, vec![Loaded::default(), Loaded::default()]).await.expect("up");
        admitted(&engine, &ask, NOW).await;
        engine.load(&two, vec![Loaded::default(), Loaded::default()]).await.expect("up");
        assert_eq!(left_to_user(&engine, "u", NOW).await, 90, "{name}");
    }
}

#[tokio::test]
async fn tenants_share_nothing() {
    for (name, engine) in engines().await {
        admitted(&engine, &take("u", 1, 90, None), NOW).await;
        assert!(engine.hold(TenantRef(2), HoldId(1)).await.expect("up").is_none(), "{name}");
        let mut other = take("u", 2, 90, None);
        other.draft.tenant = TenantRef(2);
        other.accounts.iter_mut().for_each(|key| key.tenant = TenantRef(2));
        admitted(&engine, &other, NOW).await;
    }
}

#[tokio::test]
async fn a_tenant_that_is_no_more_is_forgotten_with_its_holds() {
    for (name, engine) in engines().await {
        admitted(&engine, &take("u", 1, 90, None), NOW).await;
        let mut other = take("u", 2, 90, None);
        other.draft.tenant = TenantRef(2);
        other.accounts.iter_mut().for_each(|key| key.tenant = TenantRef(2));
        admitted(&engine, &other, NOW).await;
        engine.forget_tenant(TenantRef(1)).await.expect("up");
        let gone = engine.hold(TenantRef(1), HoldId(1)).await;
        assert!(matches!(gone, Ok(None) | Err(EngineError::Unsure(TenantRef(1)))), "{name}");
        assert!(
            engine.hold(TenantRef(2), HoldId(2)).await.expect("up").is_some(),
            "{name}: the other one's stays"
        );
        // What it had queued is handed over, and confirmed like the rest.
        commit(&engine).await;
        if name == "memory" {
            assert_eq!(engine.sweep(NOW).await, 2, "the other one's user and pool");
        }
        let anew = engine.take(&take("u", 3, 90, None), NOW).await;
        match name {
            "memory" => assert!(matches!(anew, Ok(Step::Missing(_)))),
            _ => assert!(matches!(anew, Err(EngineError::Unsure(TenantRef(1)))), "{name}"),
        }
    }
}

#[tokio::test]
async fn idle_accounts_leave_and_busy_ones_stay() {
    for (name, engine) in in_memory() {
        admitted(&engine, &take("idle", 1, 10, None), NOW).await;
        let _ = done!(engine, engine.finish(&settle("idle", 1, 10), NOW));
        admitted(&engine, &take("busy", 2, 10, None), NOW).await;
        let sweep_twice = async || (engine.sweep(NOW).await, engine.sweep(NOW).await).1;
        assert_eq!(sweep_twice().await, 3, "{name}: nothing goes before it is on record");
        commit(&engine).await;
        assert_eq!(sweep_twice().await, 2, "{name}: a lease runs in one user's account and the pool's");
        let ended = NOW.plus_ms(10_000);
        engine.sweep(ended).await;
        assert_eq!(engine.sweep(ended).await, 0, "{name}");
    }
}

#[tokio::test]
async fn parallel_takes_admit_exactly_what_there_is() {
    for (name, engine) in engines().await {
        let tasks = (0..200u128).map(|id| {
            let engine = Arc::clone(&engine);
            tokio::spawn(async move {
                let user = format!("u{}", id % 40);
                matches!(taken(&engine, &take(&user, id, 10, None), NOW).await, Taken::Hold { .. })
            })
        });
        let mut admitted = 0;
        for task in tasks.collect::<Vec<_>>() {
            admitted += u32::from(task.await.expect("no panic"));
        }
        assert_eq!(admitted, 15, "{name}: 150 tokens in the pool");
    }
}

mod apart;
mod moving;
mod rolling;

#[tokio::test]
async fn what_others_used_of_a_bucket_is_gone_once_however_often_it_is_told() {
    for (name, engine) in engines().await {
        let pool = key(1, Scope::Pool, "p");
        let charge =
            |keep| Charge { account: 0, cell: CellId(2), demand: Demand::fixed(1), keep, ..bucket(0, 150) };
        // An account that nobody has ever called is brought, too.
        for keep in [90, 90, 120] {
            let ticket = done!(engine, engine.touch(&pool, &[charge(keep)], NOW));
            assert!(ticket.is_some(), "{name}");
            assert_eq!(left_in_pool(&engine, NOW).await, 90, "{name}");
        }
        admitted(&engine, &take("u", 1, 60, None), NOW).await;
        done!(engine, engine.touch(&pool, &[charge(10)], NOW));
        assert_eq!(left_in_pool(&engine, NOW).await, 10, "{name}");
        done!(engine, engine.touch(&pool, &[Charge { asked: false, ..charge(0) }], NOW));
        assert_eq!(left_in_pool(&engine, NOW).await, 10, "{name}: nothing was asked");
        // What is held comes back as ever.
        done!(engine, engine.finish(&settle("u", 1, 20), NOW));
        assert_eq!(left_in_pool(&engine, NOW).await, 50, "{name}");
    }
}
