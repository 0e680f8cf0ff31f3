//! Erasures in between everything else: no amount is lost, and none counts twice.

use std::sync::Arc;

use apportion::domain::charge::{AccountKey, TenantRef};
use apportion::domain::hold::Hold;
use apportion::domain::ids::UserId;
use apportion::domain::plan::Scope;
use apportion::domain::time::Millis;
use apportion::ledger::{Change, Durability, Erasure, Group, Ledger, Reports, SqliteLedger, Written};
use serde_json::{Value, json};

use crate::faults::process::Process;
use crate::harness::sheets::Sheet;
use crate::harness::{Client, Tenant, cli, number_from_env, row};
use crate::model::rng::Rng;

fn everything() -> Sheet {
    Sheet::new().rb(12, 30).ob(900, 400).cc(4).dr(40).mt(9_000).per(
        "hours",
        json!({"session_hours": 2}),
        3_000,
    )
}

/// What a reply says, without ids and names.
fn said(reply: &crate::harness::Reply) -> Value {
    json!([
        reply.status,
        reply.code(),
        reply.body["retry_after_ms"],
        reply.body["granted"],
        reply.body["limits"]
    ])
}

/// One is erased now and then, the other never: all that they are told is the same.
#[tokio::test]
async fn a_user_who_is_erased_again_and_again_fares_like_one_who_never_is() {
    for seed in 0..number_from_env("ERASURE_SEEDS", 4) as u64 {
        let t = Tenant::with(everything()).await;
        let mut rng = Rng::new(seed);
        let mut open: Vec<[String; 2]> = Vec::new();
        for step in 0..120 {
            if rng.chance(25) {
                let erased = t.erase("u").await.status;
                assert!([204, 404].contains(&erased), "{erased}");
            }
            let place = usize::try_from(rng.between(0, 1_000_000)).unwrap() % open.len().max(1);
            let (input, output) = (rng.between(0, 300), rng.between(0, 300));
            let mut replies = Vec::new();
            match rng.weighted(&[50, 25, 6, 6, 8, 12]) {
                0 => {
                    let ask = |user| t.ask_for(user, input, output, 100);
                    replies = vec![ask("u").await, ask("v").await];
                    if replies[0].status == 200 {
                        open.push([replies[0].hold_id(), replies[1].hold_id()]);
                    }
                }
                1 if !open.is_empty() => {
                    for hold in open.swap_remove(place) {
                        replies.push(t.finish(&hold, input, output).await);
                    }
                }
                2 if !open.is_empty() => {
                    for hold in open.swap_remove(place) {
                        replies.push(t.release(&hold).await);
                    }
                }
                3 if !open.is_empty() => {
                    for hold in &open[place] {
                        replies.push(
                            t.extend(hold, json!({"lease_seconds": 60, "add_output_tokens": 20})).await,
                        );
                    }
                }
                4 => {
                    for user in ["u", "v"] {
                        let id = format!("{seed}-{step}-{user}");
                        let item = json!({"id": id, "user": user, "input_tokens": input, "output_tokens": 3});
                        replies.push(t.usage(&item).await);
                    }
                }
                _ => t.pass(rng.between(1, 20) * rng.pick(&[1_000, 60_000, 600_000])).await,
            }
            if let [u, v] = &replies[..] {
                assert_eq!(said(u), said(v), "seed {seed}, step {step}");
            }
            let (u, v) = (t.quota("u").await.ok(), t.quota("v").await.ok());
            assert_eq!(u["limits"], v["limits"], "seed {seed}, step {step}");
        }
    }
}

/// Calls of one user while the user is erased all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_flight_while_their_user_is_erased_count_once() {
    let t = Tenant::with(Sheet::new().per("life", json!("lifetime"), 1_000_000).cc(1_000)).await;
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let client = t.client.clone();
            tokio::spawn(async move {
                let mut rng = Rng::new(caller);
                let mut sum = 0;
                for _ in 0..40 {
                    let body = json!({"user": "u", "input_tokens": 10, "max_output_tokens": 10});
                    let hold = client.check(body).await.hold_id();
                    match rng.between(0, 3) {
                        0 => drop(client.release(&hold).await.ok()),
                        1 => sum += 20,
                        _ => {
                            let used = rng.between(0, 20);
                            sum += used;
                            let body = json!({"input_tokens": used, "output_tokens": 0});
                            client.settle(&hold, body).await.ok();
                        }
                    }
                }
                sum
            })
        })
        .collect();
    let mut erased = 0;
    while !callers.iter().all(|caller| caller.is_finished()) {
        erased += i32::from(t.erase("u").await.status == 204);
    }
    let mut sum = 0;
    for caller in callers {
        sum += caller.await.expect("no caller fails");
    }
    assert!(erased > 5, "{erased} erasures are no test");
    let life = t.left("u", "life").await;
    assert_eq!(life["used"].as_i64().unwrap() + life["held"].as_i64().unwrap(), sum, "{life}");
}

/// A service of its own on a directory, with a tenant whose plan counts for ever.
struct Killed {
    kept: tempfile::TempDir,
    token: String,
}

impl Killed {
    fn new() -> Self {
        let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        cli(kept.path(), &["tenant", "create", "crash", "--test"]);
        let scopes = "check quota admin:read admin:write";
        let mint = ["token", "mint", "--tenant", "crash", "--scope", scopes, "--ttl", "24h"];
        Self { token: cli(kept.path(), &mint), kept }
    }

    fn serve(&self) -> (Process, Client) {
        let process = Process::serve(self.kept.path(), "os");
        let client = Client::new(&process.url, &self.token);
        (process, client)
    }

    async fn prepare(&self) -> (Process, Client) {
        let (process, client) = self.serve();
        client.put_clock("2026-03-10T12:00:00.000Z").await.ok();
        client.put_plan(&Sheet::new().per("life", json!("lifetime"), 1_000_000).json()).await.ok();
        client.put_settings(json!({"default_plan": "p"})).await.ok();
        (process, client)
    }

    async fn ledger(&self) -> SqliteLedger {
        SqliteLedger::open(&self.kept.path().join("apportion.db"), Durability::Os).await.unwrap()
    }
}

async fn taken(client: &Client) -> i64 {
    let life = row(&client.quota("u").await.ok(), "life");
    life["held"].as_i64().unwrap() + life["used"].as_i64().unwrap()
}

/// Everything of one user's account goes to another name.
async fn move_account(ledger: &SqliteLedger, tenant: TenantRef, from: &UserId, to: &UserId) {
    let key = |user: &UserId| AccountKey { tenant, scope: Scope::User, owner: user.shared() };
    let account = ledger.account(key(from), Millis(0)).await.unwrap();
    let renamed = |hold: Arc<Hold>| Arc::new(Hold { user: to.clone(), ..Hold::clone(&hold) });
    let state: Arc<[u8]> = account.state.expect("it was used").into();
    let accounts = vec![(key(from), [].into()), (key(to), state)];
    let moved = account.unfinished.into_iter().map(renamed).collect();
    ledger.commit(vec![Change { accounts, moved, ..Change::default() }]).await.unwrap();
}

/// After every single step of an erasure and of a return.
#[tokio::test]
async fn whatever_step_of_an_erasure_was_the_last_before_a_crash() {
    let place = Killed::new();
    let (process, client) = place.prepare().await;
    let call = json!({"user": "u", "input_tokens": 10});
    let open = client.check(call.clone()).await.hold_id();
    client.erase("u").await.ok();
    let audit = client.get("/v1/admin/audit").await.ok();
    let pseudonym = UserId::parse(audit["data"][0]["target"].as_str().unwrap()).unwrap();
    let erasure = Erasure { user: UserId::parse("u").unwrap(), pseudonym };
    process.kill();
    let written = || Written { at: Millis(0), by: "test".into(), reason: None };
    for step in 0..5 {
        let (process, client) = place.serve();
        // Back, with something that is over and something that is not.
        for _ in 0..3 {
            let hold = client.check(call.clone()).await.hold_id();
            client.settle(&hold, json!({"input_tokens": 10, "output_tokens": 0})).await.ok();
        }
        let expected = 10 + 30 * (step + 1);
        assert_eq!(taken(&client).await, expected, "step {step}");
        process.kill();

        let ledger = place.ledger().await;
        let tenant = ledger.tenants().await.unwrap()[0].number;
        let (u, p) = (&erasure.user, &erasure.pseudonym);
        ledger.erase_user(tenant, erasure.clone(), None, written()).await.unwrap();
        if step > 0 {
            move_account(&ledger, tenant, u, p).await;
        }
        if step > 1 {
            assert!(ledger.rename_history(tenant, erasure.clone(), 1).await.unwrap().is_some());
        }
        if step > 2 {
            while ledger.rename_history(tenant, erasure.clone(), 1).await.unwrap().is_some() {}
            ledger.end_erasure(tenant, erasure.clone(), None).await.unwrap();
            ledger.begin_return(tenant, erasure.clone(), Millis(0)).await.unwrap();
        }
        if step > 3 {
            move_account(&ledger, tenant, p, u).await;
        }
        ledger.close().await;

        let (process, client) = place.serve();
        client.get("/v1/admin/users/u").await.refused(404, "not_found");
        assert_eq!(taken(&client).await, expected, "step {step}");
        assert_eq!(client.hold(&open).await.ok()["hold"]["user"], erasure.pseudonym.as_str(), "step {step}");
        process.kill();
        let ledger = place.ledger().await;
        assert!(ledger.erasures(tenant).await.unwrap().is_empty(), "step {step}");
        let usage = ledger.usage(tenant, Group::User, 0..i32::MAX).await.unwrap();
        assert!(
            usage.iter().all(|row| row.name.as_deref() == Some(erasure.pseudonym.as_str())),
            "step {step}: {usage:?}"
        );
        let sum: u64 = usage.iter().map(|row| row.amounts.input_tokens).sum();
        assert_eq!(i64::try_from(sum).unwrap(), expected - 10, "step {step}");
        ledger.close().await;
    }
    let (process, client) = place.serve();
    client.settle(&open, json!({"input_tokens": 4, "output_tokens": 0})).await.ok();
    assert_eq!(taken(&client).await, 4 + 150);
    process.kill();
}

/// Wherever a kill comes in an erasure or a return, the next start makes it good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_that_is_killed_is_made_good() {
    let place = Killed::new();
    let (mut process, mut client) = place.prepare().await;
    let call = json!({"user": "u", "input_tokens": 10});
    let mut held = 0;
    let mut rng = Rng::new(3);
    for round in 0..number_from_env("ERASURE_KILLS", 12) {
        for _ in 0..20 {
            client.check(call.clone()).await.ok();
            held += 10;
        }
        let returns = round % 3 == 2;
        if returns {
            client.erase("u").await.ok();
        }
        // The erasure, or the return by a check, and the kill at once.
        let (other, body) = (client.clone(), call.clone());
        let work = tokio::spawn(async move {
            let request = match returns {
                true => other.request(reqwest::Method::POST, "/v1/check").json(&body),
                false => other.request(reqwest::Method::DELETE, "/v1/admin/users/u"),
            };
            request.send().await.ok().map(|response| response.status())
        });
        for _ in 0..rng.between(0, 12) {
            client.get("/livez").await.ok();
        }
        process.kill();
        let answered = work.await.unwrap();
        (process, client) = place.serve();
        let found = taken(&client).await;
        match (returns, answered) {
            (true, Some(status)) => assert!(status == 200 && found == held + 10, "round {round}: {found}"),
            (true, None) => assert!([held, held + 10].contains(&found), "round {round}: {found} for {held}"),
            (false, _) => assert_eq!(found, held, "round {round}: {answered:?}"),
        }
        held = found;
    }
    client.check(call).await.ok();
    assert_eq!(taken(&client).await, held + 10);
    client.erase("u").await.ok();
    client.erase("u").await.refused(404, "not_found");
}
