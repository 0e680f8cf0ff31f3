use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::{Value, json};

use super::*;
use crate::domain::document::{Fault, Node};
use crate::domain::ids::{Name, TenantId, UserId};
use crate::domain::time::Millis;
use crate::ledger::{Ledger, User, Written};
use crate::service::access::identity::Scopes;
use crate::service::access::keys::{MintRequest, NewKey};
use crate::service::entitlement::orgs::OrgChange;
use crate::service::entitlement::profiles::Profile;
use crate::service::entitlement::rights::OverridesPut;
use crate::service::entitlement::users::UserChange;
use crate::service::tenancy::bench::Bench;
use crate::service::tenancy::catalog_writes::{ModelsPut, PlanPut, PoolPut};
use crate::service::tenancy::tenants::TenantChange;

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn id(text: &str) -> UserId {
    UserId::parse(text).unwrap()
}

/// Reads a body with `read`.
fn read<T>(body: &Value, read: impl FnOnce(&Node<'_>) -> Result<T, Vec<Fault>>) -> T {
    read(&Node::from_json(body.to_string().as_bytes()).unwrap()).unwrap()
}

/// Two nodes on one ledger, and a tenant as each of them knows it.
struct Nodes {
    bench: Bench,
    there: Arc<Registry>,
    tenant: Arc<Tenant>,
    tenant_there: Arc<Tenant>,
}

impl Nodes {
    async fn new() -> Self {
        let bench = Bench::new().await;
        let tenant = bench.test_tenant("shop").await;
        let there = bench.other().await;
        let tenant_there = there.tenant(&tenant.id).await.unwrap();
        bench.registry.refresh().await.unwrap();
        Self { bench, there, tenant, tenant_there }
    }

    fn here(&self) -> &Registry {
        &self.bench.registry
    }

    async fn put(&self, user: &str, plan: &str) {
        let change = read(&json!({"plan": plan, "reason": "x"}), UserChange::read);
        self.here().put_user(&self.tenant, &id(user), change, None, None, "test").await.unwrap();
    }

    async fn profile_there(&self, user: &str) -> Arc<Profile> {
        self.there.profile(&self.tenant_there, &id(user)).await.unwrap()
    }

    async fn plan_there(&self, user: &str) -> Option<String> {
        self.profile_there(user).await.plan().map(|plan| plan.as_str().to_owned())
    }

    /// How often the ledger was asked for records meanwhile.
    async fn reads<T>(&self, work: impl Future<Output = T>) -> (T, u64) {
        let before = self.bench.ledger.reads.load(SeqCst);
        let answer = work.await;
        (answer, self.bench.ledger.reads.load(SeqCst) - before)
    }

    /// The other node looks; how much it reads.
    async fn look(&self) -> u64 {
        let (looked, reads) = self.reads(self.there.refresh()).await;
        looked.unwrap();
        reads
    }
}

fn sheet() -> Value {
    json!({
        "limits": [{"name": "per_day", "kind": "window", "meter": "requests", "period": "day", "limit": 5}],
        "reason": "test",
    })
}

#[tokio::test]
async fn a_tenants_records_are_read_again_when_one_of_them_changes() {
    let nodes = Nodes::new().await;
    let (here, tenant) = (nodes.here(), &nodes.tenant);
    let other = nodes.bench.tenant("other").await;
    nodes.look().await;

    let plan = read(&sheet(), |node| PlanPut::read(node, &name("free")));
    here.put_plan(tenant, plan, None, "test").await.unwrap();
    assert_eq!(nodes.look().await, 1, "the records of this tenant");
    let version = |plan: &str| nodes.tenant_there.catalog().plan(&name(plan)).unwrap().newest().version;
    assert_eq!((version("free"), version("pro")), (2, 1));

    let pool = json!({"models": ["opus*"], "limits": [{"name": "calls", "kind": "slots", "limit": 5}]});
    here.put_pool(tenant, read(&pool, |node| PoolPut::read(node, &name("opus"))), None, "test")
        .await
        .unwrap();
    let models = json!({"models": [{"id": "small", "input": 1, "output": 2}]});
    here.put_models(tenant, read(&models, ModelsPut::read), None, "test").await.unwrap();
    let settings = json!({"zone": "Asia/Tokyo", "reason": "we moved"}).to_string();
    let settings = Node::from_json(settings.as_bytes()).unwrap();
    here.put_settings(tenant, &settings, None, "test").await.unwrap();
    assert_eq!(nodes.look().await, 1, "three changes of a tenant are one reading");
    let catalog = nodes.tenant_there.catalog();
    assert!(catalog.pool(&name("opus")).is_some());
    assert_eq!((catalog.models_version, catalog.settings.zone.name()), (2, "Asia/Tokyo"));
    assert_eq!(nodes.there.tenant(&other.id).await.unwrap().catalog().models_version, 1);
}

#[tokio::test]
async fn a_key_that_is_made_or_taken_away_elsewhere_is_so_here() {
    let nodes = Nodes::new().await;
    let body = json!({"kind": "api", "scopes": ["check"]});
    let made = nodes.here().create_key(&nodes.tenant, read(&body, NewKey::read), "test").await.unwrap();
    assert_eq!(nodes.look().await, 1);
    assert!(nodes.there.key(&made.key.kid).is_some());
    nodes.here().delete_key(Some(&nodes.tenant), &made.key.kid, "test").await.unwrap();
    assert_eq!(nodes.look().await, 1);
    assert!(nodes.there.key(&made.key.kid).is_none());

    let request = MintRequest { scopes: Scopes::OPERATOR, user: None, ttl_seconds: 60 };
    nodes.here().mint_token(None, &request).await.unwrap();
    assert_eq!(nodes.look().await, 1, "the operators' keys");
    let keys = nodes.there.list_operator_keys();
    assert_eq!(keys.len(), 1);
    nodes.here().delete_key(None, &keys[0].kid, "test").await.unwrap();
    nodes.look().await;
    assert!(nodes.there.list_operator_keys().is_empty());
}

#[tokio::test]
async fn what_a_tenants_row_says_is_followed_without_its_records() {
    let nodes = Nodes::new().await;
    let noon = Millis::parse("2030-03-10T12:00:00Z").unwrap();
    nodes.here().set_clock(&nodes.tenant, noon, "test").await.unwrap();
    nodes.here().change_tenant(&nodes.tenant, TenantChange::suspension(), "test").await.unwrap();
    assert_eq!(nodes.look().await, 2, "the list of tenants, and again in turn with the tenant's writers");
    assert_eq!((nodes.tenant_there.now(), nodes.tenant_there.is_suspended()), (noon, true));

    let new = nodes.bench.tenant("new").await;
    nodes.look().await;
    let known = nodes.there.known_tenant(&new.id).unwrap();
    nodes.here().delete_tenant(&new, "test").await.unwrap();
    let again = nodes.bench.tenant("new").await;
    nodes.look().await;
    assert!(known.is_deleted());
    assert_eq!(nodes.there.known_tenant(&new.id).unwrap().number, again.number);
    nodes.here().delete_tenant(&again, "test").await.unwrap();
    nodes.look().await;
    assert!(nodes.there.known_tenant(&TenantId::parse("new").unwrap()).is_none());
}

#[tokio::test]
async fn of_users_only_the_one_who_changed_is_read_again() {
    let nodes = Nodes::new().await;
    for user in ["a", "b", "c"] {
        nodes.put(user, "free").await;
    }
    nodes.look().await;
    for user in ["a", "b", "c"] {
        nodes.plan_there(user).await;
    }
    nodes.put("b", "pro").await;
    assert_eq!(nodes.look().await, 0);
    for (user, plan, read) in [("a", "free", 0), ("b", "pro", 1), ("c", "free", 0), ("b", "pro", 0)] {
        let (found, reads) = nodes.reads(nodes.plan_there(user)).await;
        assert_eq!((found.as_deref(), reads), (Some(plan), read), "{user}");
    }
    let put = json!({"overrides": {"tokens_per_month": {"limit": 500}}, "reason": "x"});
    let put = read(&put, OverridesPut::read);
    nodes.here().put_overrides(&nodes.tenant, &id("c"), &put, None, "test").await.unwrap();
    assert_eq!(nodes.look().await, 0);
    assert_eq!(nodes.profile_there("c").await.rights().overrides.len(), 1);
    assert_eq!(nodes.reads(nodes.profile_there("a")).await.1, 0);
}

#[tokio::test]
async fn an_org_that_changed_is_read_again() {
    let nodes = Nodes::new().await;
    let org_there = async || nodes.there.org_profile(&nodes.tenant_there, &name("acme")).await.unwrap();
    assert!(org_there().await.org().is_none());
    let change = read(&json!({"plan": "pro", "reason": "x"}), OrgChange::read);
    nodes.here().put_org(&nodes.tenant, &name("acme"), &change, None, "test").await.unwrap();
    assert_eq!(nodes.look().await, 0);
    assert_eq!(org_there().await.org().and_then(|org| org.plan.clone()), Some(name("pro")));
    assert_eq!(nodes.reads(org_there()).await.1, 0);
}

#[tokio::test]
async fn own_writes_are_not_read_again_beside_those_of_others() {
    let nodes = Nodes::new().await;
    let change = || read(&json!({"zone": "UTC"}), UserChange::read);
    for user in ["x", "y"] {
        nodes.there.put_user(&nodes.tenant_there, &id(user), change(), None, None, "test").await.unwrap();
        nodes.profile_there(user).await;
    }
    nodes.put("a", "free").await;
    assert_eq!(nodes.look().await, 0);
    for user in ["x", "y"] {
        assert_eq!(nodes.reads(nodes.profile_there(user)).await.1, 0, "{user}");
    }
}

#[tokio::test]
async fn an_own_write_of_which_nobody_saw_the_end_is_read_again() {
    let nodes = Nodes::new().await;
    nodes.put("a", "free").await;
    let known = async || nodes.here().profile(&nodes.tenant, &id("a")).await.unwrap();
    let user = known().await.user().unwrap().clone();
    // On record, and whoever asked for it went away.
    let moved = User { plan: name("pro"), version: 2, ..user };
    let written = Written { at: Millis(0), by: "test".into(), reason: None };
    nodes.bench.ledger.put_user(nodes.tenant.number, moved, written).await.unwrap();
    assert_eq!(known().await.plan(), Some(&name("free")));
    nodes.here().refresh().await.unwrap();
    assert_eq!(known().await.plan(), Some(&name("pro")));
}

#[tokio::test]
async fn a_row_read_before_a_change_is_not_believed_after_it() {
    let nodes = Nodes::new().await;
    nodes.put("a", "free").await;
    nodes.look().await;
    // The row is on its way while the other node changes it and we look.
    nodes.bench.ledger.slow.store(true, SeqCst);
    let reading = nodes.profile_there("a");
    let mut reading = std::pin::pin!(reading);
    tokio::select! {
        biased;
        _ = &mut reading => panic!("the answer is on its way"),
        () = std::future::ready(()) => {}
    }
    nodes.bench.ledger.slow.store(false, SeqCst);
    nodes.put("a", "pro").await;
    nodes.look().await;
    assert_eq!(reading.await.plan(), Some(&name("free")), "it was so when it was asked for");
    assert_eq!(nodes.plan_there("a").await.as_deref(), Some("pro"));
}

#[tokio::test]
async fn whoever_is_too_far_behind_reads_everything() {
    let nodes = Nodes::new().await;
    nodes.put("a", "free").await;
    nodes.look().await;
    assert_eq!(nodes.plan_there("a").await.as_deref(), Some("free"));
    nodes.put("a", "pro").await;
    nodes.bench.ledger.prune_log();
    let plan = read(&sheet(), |node| PlanPut::read(node, &name("free")));
    nodes.here().put_plan(&nodes.tenant, plan, None, "test").await.unwrap();
    assert_eq!(nodes.look().await, 3, "operators, tenants and the one tenant");
    assert_eq!(nodes.plan_there("a").await.as_deref(), Some("pro"));
    assert_eq!(nodes.tenant_there.catalog().plan(&name("free")).unwrap().newest().version, 2);
    assert_eq!(nodes.look().await, 0);
}

#[tokio::test]
async fn a_look_that_failed_half_way_is_made_again() {
    let nodes = Nodes::new().await;
    let plan = read(&sheet(), |node| PlanPut::read(node, &name("free")));
    nodes.here().put_plan(&nodes.tenant, plan, None, "test").await.unwrap();
    nodes.bench.ledger.records_down.store(true, SeqCst);
    assert!(nodes.there.refresh().await.is_err());
    nodes.bench.ledger.records_down.store(false, SeqCst);
    assert_eq!(nodes.look().await, 1);
    assert_eq!(nodes.tenant_there.catalog().plan(&name("free")).unwrap().newest().version, 2);
}

#[tokio::test]
async fn doubt_that_comes_up_during_a_look_outlives_it() {
    let nodes = Nodes::new().await;
    nodes.put("a", "free").await;
    let look = nodes.there.writer.look().await.unwrap().unwrap();
    nodes.there.writer.distrust();
    nodes.there.writer.accept(look);
    assert!(nodes.look().await > 1, "everything is read");
    assert_eq!(nodes.look().await, 0);
}

#[tokio::test]
async fn who_is_not_on_record_is_not_looked_for_at_every_call() {
    let nodes = Nodes::new().await;
    assert_eq!(nodes.reads(nodes.profile_there("new")).await.1, 1);
    assert_eq!(nodes.reads(nodes.profile_there("new")).await.1, 0);
    let asked = nodes.reads(nodes.there.user(&nodes.tenant_there, &id("new"))).await;
    assert_eq!((asked.0.is_err(), asked.1), (true, 1), "the record itself is looked for");
    // The other node puts them on record, and tells.
    nodes.put("new", "pro").await;
    nodes.look().await;
    assert_eq!(nodes.plan_there("new").await.as_deref(), Some("pro"));
    // So do we.
    nodes.profile_there("own").await;
    let change = read(&json!({"plan": "pro", "reason": "x"}), UserChange::read);
    nodes.there.put_user(&nodes.tenant_there, &id("own"), change, None, None, "test").await.unwrap();
    assert_eq!(nodes.plan_there("own").await.as_deref(), Some("pro"));
}

#[tokio::test]
async fn others_hear_of_own_writes_at_once_and_look_when_told() {
    let nodes = Nodes::new().await;
    let there = Arc::clone(&nodes.there);
    nodes.here().on_written(move || there.look_now());
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    nodes.there.on_written(move || {
        count.fetch_add(1, SeqCst);
    });
    nodes.put("a", "free").await;
    nodes.profile_there("a").await;
    let polling = nodes.there.start_polling();
    nodes.put("a", "pro").await;
    while nodes.plan_there("a").await.as_deref() != Some("pro") {
        tokio::task::yield_now().await;
    }
    assert_eq!(told.load(SeqCst), 0, "what others wrote is not told again");
    let change = read(&json!({"zone": "UTC"}), UserChange::read);
    nodes.there.put_user(&nodes.tenant_there, &id("b"), change, None, None, "test").await.unwrap();
    assert_eq!(told.load(SeqCst), 1);
    polling.abort();
}
