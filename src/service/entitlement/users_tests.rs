use std::sync::atomic::Ordering::SeqCst;

use serde_json::{Value, json};

use super::*;
use crate::service::entitlement::moving::PlanChange;
use crate::service::tenancy::bench::Bench;

fn id(text: &str) -> UserId {
    UserId::parse(text).unwrap()
}

fn change(body: Value) -> Result<UserChange, Vec<Fault>> {
    UserChange::read(&Node::from_json(body.to_string().as_bytes()).unwrap())
}

/// When every running month ends.
const MONTH_END: Millis = Millis(1_775_001_600_000);

fn plan_change(body: Value) -> Result<PlanChange, Vec<Fault>> {
    PlanChange::read(&Node::from_json(body.to_string().as_bytes()).unwrap())
}

struct Stage {
    bench: Bench,
    tenant: Arc<Tenant>,
}

impl Stage {
    async fn new() -> Self {
        let bench = Bench::new().await;
        let tenant = bench.test_tenant("shop").await;
        let noon = Millis::parse("2026-03-10T12:00:00Z").unwrap();
        bench.registry.set_clock(&tenant, noon, "test").await.unwrap();
        Self { bench, tenant }
    }

    async fn put(&self, user: &str, body: Value, expected: Option<u32>) -> Result<User, ServiceError> {
        let change = change(body).map_err(ServiceError::Invalid)?;
        let profile =
            self.bench.registry.put_user(&self.tenant, &id(user), change, None, expected, "test").await?;
        Ok(profile.user().unwrap().clone())
    }

    async fn move_to(
        &self,
        user: &str,
        plan: &str,
        sequence: Option<u64>,
    ) -> Result<(String, bool), ServiceError> {
        let change =
            plan_change(json!({"plan": plan, "effective": "now", "sequence": sequence, "reason": "paid"}))
                .unwrap();
        let changed =
            self.bench.registry.change_plan(&self.tenant, &id(user), change, MONTH_END, "test").await?;
        Ok((changed.user.plan().unwrap().to_string(), changed.stale))
    }

    async fn profile(&self, user: &str) -> Arc<Profile> {
        self.bench.registry.profile(&self.tenant, &id(user)).await.unwrap()
    }
}

#[tokio::test]
async fn an_unknown_user_has_a_profile_too_and_nobody_is_pushed_out_by_it() {
    let stage = Stage::new().await;
    let profile = stage.profile("nobody").await;
    assert!(!profile.is_known() && !profile.is_verified() && !profile.is_suspended());
    assert_eq!((profile.plan(), profile.org(), profile.holder().anchor_day), (None, None, 1));
    let unknown = stage.bench.registry.user(&stage.tenant, &id("nobody")).await;
    assert!(matches!(unknown, Err(ServiceError::NotFound(_))));
    let query = UserQuery { limit: 10, ..UserQuery::default() };
    assert!(stage.bench.registry.list_users(&stage.tenant, query).await.unwrap().users.is_empty());
}

#[tokio::test]
async fn what_a_put_leaves_out_stays_and_null_takes_away() {
    let stage = Stage::new().await;
    let user = stage
        .put(
            "u",
            json!({"org": "acme", "verified": true, "zone": "Asia/Tokyo", "anchor_day": 31,
            "signals": {"device": "d1"}, "reason": "signed up"}),
            None,
        )
        .await
        .unwrap();
    assert_eq!(user.plan.as_str(), "free", "the tenant's default");
    assert_eq!((user.version, user.created_at), (1, stage.tenant.now()));
    let user = stage.put("u", json!({"plan": "pro", "zone": null, "reason": "paid"}), None).await.unwrap();
    assert_eq!((user.plan.as_str(), user.version, user.verified), ("pro", 2, true));
    assert_eq!((user.zone, user.anchor_day), (None, Some(31)));
    assert_eq!(user.signals.unwrap().device.as_deref(), Some("d1"));
    assert_eq!(user.org.unwrap().as_str(), "acme");
    let user =
        stage.put("u", json!({"org": null, "anchor_day": null, "signals": null, "reason": "x"}), None).await;
    let user = user.unwrap();
    assert_eq!((user.org, user.anchor_day, user.signals), (None, None, None));
}

#[tokio::test]
async fn a_change_is_seen_at_once_here_and_after_a_look_elsewhere() {
    let stage = Stage::new().await;
    stage.put("u", json!({"plan": "free", "reason": "x"}), None).await.unwrap();
    let other = stage.bench.other().await;
    let same = other.tenant(&stage.tenant.id).await.unwrap();
    for registry in [&stage.bench.registry, &other] {
        assert_eq!(registry.profile(&same, &id("u")).await.unwrap().plan().unwrap().as_str(), "free");
    }
    let reads = stage.bench.ledger.reads.load(SeqCst);
    stage.profile("u").await;
    assert_eq!(stage.bench.ledger.reads.load(SeqCst), reads, "known users are at hand");
    stage.put("u", json!({"plan": "pro", "reason": "x"}), None).await.unwrap();
    assert_eq!(stage.profile("u").await.plan().unwrap().as_str(), "pro");
    other.refresh().await.unwrap();
    assert_eq!(other.profile(&same, &id("u")).await.unwrap().plan().unwrap().as_str(), "pro");
}

#[tokio::test]
async fn the_plans_figures_hold_from_the_change_and_staying_changes_nothing() {
    let stage = Stage::new().await;
    let noon = stage.tenant.now();
    stage.put("u", json!({"plan": "free", "reason": "x"}), None).await.unwrap();
    let later = noon.plus_ms(5_000);
    stage.bench.registry.set_clock(&stage.tenant, later, "test").await.unwrap();
    assert_eq!(stage.put("u", json!({"plan": "free", "reason": "x"}), None).await.unwrap().plan_since, noon);
    assert_eq!(stage.put("u", json!({"plan": "pro", "reason": "x"}), None).await.unwrap().plan_since, later);
    assert_eq!(stage.profile("u").await.holder().arrival.came.at, later);
}

#[tokio::test]
async fn of_numbered_changes_the_highest_number_wins() {
    let stage = Stage::new().await;
    assert_eq!(stage.move_to("u", "pro", None).await.unwrap(), ("pro".into(), false));
    assert_eq!(stage.move_to("u", "standard", Some(7)).await.unwrap(), ("standard".into(), false));
    assert_eq!(stage.move_to("u", "free", Some(6)).await.unwrap(), ("standard".into(), true), "older");
    assert_eq!(
        stage.move_to("u", "free", Some(7)).await.unwrap(),
        ("standard".into(), false),
        "the same again"
    );
    let version = stage.profile("u").await.user().unwrap().version;
    assert_eq!(version, 2, "neither wrote anything");
    assert!(matches!(stage.move_to("u", "free", None).await, Err(ServiceError::SequenceRequired)));
    let put = stage.put("u", json!({"plan": "free", "reason": "x"}), None).await;
    assert!(matches!(put, Err(ServiceError::SequenceRequired)));
    assert!(stage.put("u", json!({"verified": true, "reason": "x"}), None).await.is_ok());
    assert_eq!(stage.move_to("u", "free", Some(8)).await.unwrap(), ("free".into(), false));
    assert_eq!(stage.move_to("new", "pro", Some(0)).await.unwrap(), ("pro".into(), false));
    assert!(matches!(stage.move_to("u", "gold", Some(9)).await, Err(ServiceError::UnknownPlan)));
}

#[tokio::test]
async fn changes_of_one_user_at_the_same_time_all_arrive() {
    let stage = Arc::new(Stage::new().await);
    let tasks: Vec<_> = (0..8u8)
        .map(|day| {
            let stage = stage.clone();
            tokio::spawn(async move {
                let body =
                    if day % 2 == 0 { json!({"anchor_day": day + 1}) } else { json!({"zone": "Cuba"}) };
                stage.put("u", body, None).await.map(|user| user.version)
            })
        })
        .collect();
    let mut versions = Vec::new();
    for task in tasks {
        versions.push(task.await.unwrap().unwrap());
    }
    versions.sort_unstable();
    assert_eq!(versions, [1, 2, 3, 4, 5, 6, 7, 8]);
    let user = stage.profile("u").await;
    assert_eq!(user.holder().zone.unwrap().name(), "Cuba");
    assert_ne!(user.user().unwrap().anchor_day, None);
}

#[tokio::test]
async fn a_put_that_expects_another_version_changes_nothing() {
    let stage = Stage::new().await;
    for expected in [1, 5] {
        let put = stage.put("u", json!({"zone": "UTC"}), Some(expected)).await;
        assert!(matches!(put, Err(ServiceError::ChangedMeanwhile)));
    }
    assert_eq!(stage.put("u", json!({"zone": "UTC"}), Some(0)).await.unwrap().version, 1);
    assert_eq!(stage.put("u", json!({"zone": "UTC"}), Some(1)).await.unwrap().version, 2);
    assert!(stage.put("u", json!({"zone": "UTC"}), Some(1)).await.is_err());
}

#[test]
fn bodies_name_every_fault() {
    let pointers = |faults: Vec<Fault>| faults.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>();
    let body = json!({"plan": "a b", "org": 7, "verified": "yes", "suspended": 1, "zone": "+01:00",
        "anchor_day": 32, "signals": {"device": 1, "colour": "red"}, "tenant": "x", "reason": "x"});
    assert_eq!(
        pointers(change(body).unwrap_err()),
        [
            "/plan",
            "/org",
            "/verified",
            "/suspended",
            "/zone",
            "/anchor_day",
            "/signals/device",
            "/signals/colour",
            "/tenant"
        ]
    );
    for rights in ["plan", "org"] {
        assert_eq!(pointers(change(json!({rights: "x"})).unwrap_err()), ["/reason"], "{rights}");
    }
    assert_eq!(pointers(change(json!({"suspended": true, "reason": " "})).unwrap_err()), ["/reason"]);
    assert!(change(json!({"zone": "UTC"})).is_ok());
    assert!(change(json!({"org": null})).is_err(), "leaving an org changes rights too");
    assert_eq!(pointers(plan_change(json!({})).unwrap_err()), ["/plan", "/reason"]);
    let body = json!({"plan": "pro", "effective": "later", "until": "x", "sequence": -1, "reason": "x"});
    assert_eq!(pointers(plan_change(body).unwrap_err()), ["/effective", "/sequence", "/until"]);
    let body = json!({"plan": "pro", "then": "free", "reason": "x"});
    assert_eq!(pointers(plan_change(body).unwrap_err()), ["/until"], "a trial has an end");
}

#[tokio::test]
async fn a_tenant_without_default_plan_wants_a_plan_for_a_new_user() {
    let stage = Stage::new().await;
    let body = Node::from_json(br#"{"default_plan":null}"#).unwrap();
    stage.bench.registry.put_settings(&stage.tenant, &body, None, "test").await.unwrap();
    let Err(ServiceError::Invalid(faults)) = stage.put("u", json!({"zone": "UTC"}), None).await else {
        panic!()
    };
    assert_eq!(faults[0].pointer, "/plan");
    assert!(stage.put("u", json!({"plan": "pro", "reason": "x"}), None).await.is_ok());
}

#[tokio::test]
async fn users_are_listed_page_by_page() {
    let stage = Stage::new().await;
    for user in ["c", "a", "b"] {
        stage.put(user, json!({"zone": "UTC"}), None).await.unwrap();
    }
    let page = async |after: Option<&str>, limit| {
        let query = UserQuery { after: after.map(str::to_owned), limit, ..UserQuery::default() };
        let page = stage.bench.registry.list_users(&stage.tenant, query).await.unwrap();
        (
            page.users.iter().map(|user| user.user().unwrap().id.to_string()).collect::<Vec<_>>().join(""),
            page.next.is_some(),
        )
    };
    assert_eq!(page(None, 2).await, ("ab".into(), true));
    assert_eq!(page(Some("b"), 2).await, ("c".into(), false));
    assert_eq!(page(None, 3).await, ("abc".into(), false));
}
