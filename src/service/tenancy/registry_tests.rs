use std::sync::atomic::Ordering::SeqCst;

use serde_json::{Value, json};

use super::*;
use crate::domain::document::{Fault, Node};
use crate::domain::ids::Name;
use crate::domain::time::Millis;
use crate::service::entitlement::users::UserChange;
use crate::service::tenancy::bench::Bench;
use crate::service::tenancy::catalog_writes::{ModelsPut, PlanPut, PlanWritten, PoolPut};
use crate::service::tenancy::tenants::TenantChange;
use crate::service::upstream::capacity::CapacityQuestion;

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn at(text: &str) -> Millis {
    Millis::parse(text).unwrap()
}

/// Reads a body with `read`.
fn read<T>(body: &Value, read: impl FnOnce(&Node<'_>) -> Result<T, Vec<Fault>>) -> Result<T, Vec<Fault>> {
    read(&Node::from_json(body.to_string().as_bytes()).unwrap())
}

fn sheet(requests: u64) -> Value {
    json!({
        "limits": [{"name": "per_day", "kind": "window", "meter": "requests", "period": "day", "limit": requests}],
        "reason": "test",
    })
}

async fn put_plan(
    registry: &Registry,
    tenant: &Arc<Tenant>,
    id: &str,
    body: &Value,
    expected: Option<u32>,
) -> Result<PlanWritten, ServiceError> {
    let put = read(body, |node| PlanPut::read(node, &name(id))).map_err(ServiceError::Invalid)?;
    registry.put_plan(tenant, put, expected, "test").await
}

fn pointers(result: Result<impl Sized, ServiceError>) -> Vec<String> {
    match result {
        Err(ServiceError::Invalid(faults)) => faults.into_iter().map(|fault| fault.pointer).collect(),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it is valid"),
    }
}

#[tokio::test]
async fn a_new_tenant_has_the_shipped_plans_pool_and_models_as_version_1() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    let catalog = tenant.catalog();
    let ids: Vec<&str> = catalog.plans.keys().map(Name::as_str).collect();
    assert_eq!(ids, ["free", "pro", "standard"]);
    assert!(catalog.plans.values().all(|plan| plan.newest().version == 1));
    assert_eq!(catalog.pools.len(), 1);
    assert!(!catalog.pools[0].pool.enforced, "for planning only");
    assert_eq!((catalog.models_version, catalog.settings_version), (1, 1));
    assert_eq!(catalog.settings.default_plan, Some(name("free")));
    let plan = catalog.plan(&name("free")).unwrap().newest();
    assert_eq!(plan.cells.len(), plan.sheet.limits.len());
    let again = bench.registry.create_tenant(&tenant.id, false, None, "test").await;
    assert!(matches!(again, Err(ServiceError::AlreadyExists(_))));
    assert!(Arc::ptr_eq(&bench.registry.tenant(&tenant.id).await.unwrap(), &tenant));
}

#[tokio::test]
async fn a_plan_gets_a_new_version_each_time_and_keeps_them_all() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    let before = tenant.catalog();
    let written = put_plan(&bench.registry, &tenant, "free", &sheet(5), None).await.unwrap();
    assert_eq!(written.plan.version, 2);
    let after = tenant.catalog();
    assert_eq!(after.plan(&name("free")).unwrap().newest().version, 2);
    assert_eq!(before.plan(&name("free")).unwrap().newest().version, 1, "a snapshot does not change");
    let same = [&before, &after].map(|catalog| catalog.plan(&name("pro")).unwrap().clone());
    assert!(Arc::ptr_eq(&same[0], &same[1]), "what did not change is not made again");
    put_plan(&bench.registry, &tenant, "new/one", &sheet(5), None).await.unwrap();
    let versions = bench.registry.plan_versions(&tenant, &name("free")).await.unwrap();
    assert_eq!(versions.iter().map(|(plan, _)| plan.version).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(versions[0].0.to_json(&tenant.catalog())["version"], 2);
    let unknown = bench.registry.plan_versions(&tenant, &name("nobody")).await;
    assert!(matches!(unknown, Err(ServiceError::UnknownPlan)));
}

#[tokio::test]
async fn a_write_that_expects_another_version_changes_nothing() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    for (id, expected) in [("free", 2), ("free", 0), ("new", 1)] {
        let put = put_plan(&bench.registry, &tenant, id, &sheet(5), Some(expected)).await;
        assert!(matches!(put, Err(ServiceError::ChangedMeanwhile)), "{id} {expected}");
    }
    assert!(put_plan(&bench.registry, &tenant, "free", &sheet(5), Some(1)).await.is_ok());
    assert!(put_plan(&bench.registry, &tenant, "new", &sheet(5), Some(0)).await.is_ok());
    let body = json!({"max_hold_seconds": 60}).to_string();
    let body = Node::from_json(body.as_bytes()).unwrap();
    let put = bench.registry.put_settings(&tenant, &body, Some(2), "test").await;
    assert!(matches!(put, Err(ServiceError::ChangedMeanwhile)));
    assert_eq!(bench.registry.put_settings(&tenant, &body, Some(1), "test").await.unwrap().version, 2);
}

#[tokio::test]
async fn two_processes_write_one_after_the_other() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    let other = bench.other().await;
    let same = other.tenant(&tenant.id).await.unwrap();
    put_plan(&bench.registry, &tenant, "free", &sheet(5), None).await.unwrap();
    // The other has not looked yet and believes in version 1.
    let late = put_plan(&other, &same, "free", &sheet(6), Some(1)).await;
    assert!(matches!(late, Err(ServiceError::ChangedMeanwhile)));
    let third = put_plan(&other, &same, "free", &sheet(7), None).await.unwrap();
    assert_eq!(third.plan.version, 3);
    bench.registry.refresh().await.unwrap();
    assert_eq!(tenant.catalog().plan(&name("free")).unwrap().newest().version, 3);
}

#[tokio::test]
async fn a_dry_run_looks_and_changes_nothing() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    let mut body = sheet(5);
    body["dry_run"] = true.into();
    body.as_object_mut().unwrap().remove("reason");
    let looked = put_plan(&bench.registry, &tenant, "free", &body, None).await.unwrap();
    assert_eq!(looked.plan.version, 2);
    assert_eq!(tenant.catalog().plan(&name("free")).unwrap().newest().version, 1);
}

#[tokio::test]
async fn a_sheet_says_when_and_for_whom_it_holds_and_why() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    for (field, value) in [("applies", "next_month"), ("applies", "2026-12-01"), ("to", "old_users")] {
        let mut body = sheet(5);
        body[field] = value.into();
        assert_eq!(
            pointers(put_plan(&bench.registry, &tenant, "free", &body, None).await),
            [format!("/{field}")]
        );
    }
    let mut body = sheet(5);
    body["applies"] = "now".into();
    body["to"] = "everyone".into();
    assert!(put_plan(&bench.registry, &tenant, "free", &body, None).await.is_ok());
    let mut body = sheet(5);
    body.as_object_mut().unwrap().remove("reason");
    assert_eq!(pointers(put_plan(&bench.registry, &tenant, "free", &body, None).await), ["/reason"]);
    let mut body = sheet(5);
    body["id"] = "pro".into();
    assert_eq!(pointers(put_plan(&bench.registry, &tenant, "free", &body, None).await), ["/id"]);
}

#[tokio::test]
async fn settings_change_field_by_field_and_name_what_is_wrong() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    let put = async |body: Value| {
        let text = body.to_string();
        bench.registry.put_settings(&tenant, &Node::from_json(text.as_bytes()).unwrap(), None, "test").await
    };
    let settings = put(json!({"zone": "Asia/Tokyo", "reason": "we moved"})).await.unwrap();
    assert_eq!(settings.body["zone"], "Asia/Tokyo");
    assert_eq!(settings.body["default_plan"], "free");
    assert_eq!(settings.body["allow_private_targets"], true, "as the server listens");
    assert_eq!(settings.body["version"], 2);
    assert_eq!(tenant.catalog().settings.zone.name(), "Asia/Tokyo");
    assert_eq!(pointers(put(json!({"default_plan": "gold"})).await), ["/default_plan"]);
    assert_eq!(put(json!({"default_plan": null})).await.unwrap().body["default_plan"], Value::Null);
    assert_eq!(pointers(put(json!({"colour": 1, "zone": "UTC+1"})).await), ["/zone", "/colour"]);
    assert_eq!(bench.registry.settings(&tenant).version, 3);
}

#[tokio::test]
async fn past_models_stay_at_hand_and_aliases_follow_the_new_ones() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    let mut body = sheet(5);
    body["limits"][0]["models"] = json!(["fast"]);
    put_plan(&bench.registry, &tenant, "free", &body, None).await.unwrap();
    let put = async |id: &str| {
        let body = json!({"models": [{"id": id, "aliases": ["fast"], "input": 1, "output": 2}]});
        bench.registry.put_models(&tenant, read(&body, ModelsPut::read).unwrap(), None, "test").await.unwrap()
    };
    assert_eq!(put("small-1").await.version, 2);
    assert_eq!(put("small-2").await.version, 3);
    let filter = |catalog: &Catalog| catalog.plan(&name("free")).unwrap().newest().filters[0].models.clone();
    assert_eq!(filter(&tenant.catalog()), ["small-2"]);
    let second = bench.registry.models_at(&tenant, 2).await.unwrap().unwrap();
    assert_eq!(second.resolve("FAST").unwrap().id.as_str(), "small-1");
    bench.ledger.down.store(true, SeqCst);
    assert!(bench.registry.models_at(&tenant, 2).await.is_ok(), "read once");
    bench.ledger.down.store(false, SeqCst);
    assert!(bench.registry.models_at(&tenant, 9).await.unwrap().is_none());
}

#[tokio::test]
async fn pools_are_written_by_version_too() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    let body = json!({"models": ["opus*"], "limits": [
        {"name": "calls", "kind": "slots", "limit": 5},
    ]});
    let put = read(&body, |node| PoolPut::read(node, &name("opus"))).unwrap();
    let entry = bench.registry.put_pool(&tenant, put, None, "test").await.unwrap();
    assert_eq!((entry.version, entry.pool.enforced), (1, true));
    assert_eq!(entry.cells.len(), 1);
    assert_eq!(tenant.catalog().pools.len(), 2);
    assert_eq!(entry.to_json(tenant.now())["version"], 1);
}

#[tokio::test]
async fn capacity_is_checked_against_the_shipped_pool() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    let ask = |body: Value| {
        let question = read(&body, CapacityQuestion::read).map_err(ServiceError::Invalid)?;
        bench.registry.check_capacity(
            &tenant,
            question.pool.as_ref(),
            &question.active.unwrap_or_default(),
            &[],
        )
    };
    let report = ask(json!({"active": {"free": 60, "standard": 20, "pro": 5}})).unwrap();
    let output = report.meters.iter().find(|row| row.meter == "output_tokens").unwrap();
    assert_eq!((output.demand, output.allowed, output.fits), (Some(68_000), Some(70_000), true));
    assert_eq!(pointers(ask(json!({"active": {"gold": 1}}))), ["/active/gold"]);
    assert_eq!(pointers(ask(json!({"active": {}, "pool": "x"}))), ["/pool"]);
    assert_eq!(pointers(ask(json!({"active": 7}))), ["/active"]);
}

#[tokio::test]
async fn a_test_clock_stands_where_it_is_set_and_goes_forward_only() {
    let bench = Bench::new().await;
    let tenant = bench.test_tenant("lab").await;
    let set = async |text: &str| bench.registry.set_clock(&tenant, at(text), "test").await;
    let machine = bench.registry.wall().now();
    assert!(tenant.now() >= machine && tenant.now().0 - machine.0 < 60_000, "it runs until it is set");
    set("2026-03-10T12:00:00Z").await.unwrap();
    set("2026-03-01T00:00:00Z").await.expect("back, while nothing was taken");
    assert_eq!(tenant.now(), at("2026-03-01T00:00:00Z"));
    bench.ledger.taken.store(true, SeqCst);
    set("2026-03-01T00:00:00Z").await.expect("the same instant again");
    let back = set("2026-02-28T23:59:59.999Z").await;
    assert!(matches!(back, Err(ServiceError::ClockBackwards { now }) if now == at("2026-03-01T00:00:00Z")));
    set("2026-11-30T14:59:59.999Z").await.unwrap();
    assert_eq!(bench.other().await.tenant(&tenant.id).await.unwrap().now(), at("2026-11-30T14:59:59.999Z"));
    let plain = bench.tenant("shop").await;
    let refused = bench.registry.set_clock(&plain, at("2026-03-10T12:00:00Z"), "test").await;
    assert!(matches!(refused, Err(ServiceError::NoTestTenant)));
}

#[tokio::test]
async fn a_clock_set_elsewhere_arrives_and_a_running_one_cannot_go_back() {
    let bench = Bench::new().await;
    let tenant = bench.test_tenant("lab").await;
    let other = bench.other().await;
    let same = other.tenant(&tenant.id).await.unwrap();
    bench.registry.set_clock(&tenant, at("2030-01-01T00:00:00Z"), "test").await.unwrap();
    other.refresh().await.unwrap();
    assert_eq!(same.now(), at("2030-01-01T00:00:00Z"));
    let running = bench.test_tenant("running").await;
    bench.ledger.taken.store(true, SeqCst);
    let back = bench.registry.set_clock(&running, at("2026-01-01T00:00:00Z"), "test").await;
    assert!(matches!(back, Err(ServiceError::ClockBackwards { .. })));
}

#[tokio::test]
async fn own_writes_are_not_taken_for_those_of_others() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    bench.registry.refresh().await.unwrap();
    for user in 0..20 {
        let id = crate::domain::ids::UserId::parse(&format!("u{user}")).unwrap();
        let change = read(&json!({"zone": "UTC"}), UserChange::read).unwrap();
        bench.registry.put_user(&tenant, &id, change, None, None, "test").await.unwrap();
    }
    let reads = bench.ledger.reads.load(SeqCst);
    bench.registry.refresh().await.unwrap();
    assert_eq!(bench.ledger.reads.load(SeqCst), reads, "nothing is read again");
    bench.other().await.create_tenant(&TenantId::parse("new").unwrap(), false, None, "cli").await.unwrap();
    bench.registry.refresh().await.unwrap();
    assert!(bench.registry.known_tenant(&TenantId::parse("new").unwrap()).is_some());
}

#[tokio::test]
async fn a_failed_look_is_made_again() {
    let bench = Bench::new().await;
    let cli = bench.other().await;
    cli.create_tenant(&TenantId::parse("new").unwrap(), false, None, "cli").await.unwrap();
    bench.ledger.down.store(true, SeqCst);
    assert!(bench.registry.refresh().await.is_err());
    bench.ledger.down.store(false, SeqCst);
    bench.registry.refresh().await.unwrap();
    assert!(bench.registry.known_tenant(&TenantId::parse("new").unwrap()).is_some());
    let missing = bench.registry.tenant(&TenantId::parse("nobody").unwrap()).await;
    assert!(matches!(missing, Err(ServiceError::NotFound(_))));
}

#[tokio::test]
async fn a_row_read_before_a_suspension_or_a_setting_of_the_clock_takes_neither_back() {
    let bench = Bench::new().await;
    let tenant = bench.test_tenant("shop").await;
    let rows = bench.ledger.tenants().await.unwrap();
    let older = rows.iter().find(|row| row.number == tenant.number).unwrap();
    bench.registry.change_tenant(&tenant, TenantChange::suspension(), "test").await.unwrap();
    let noon = at("2026-03-10T12:00:00Z");
    bench.registry.set_clock(&tenant, noon, "test").await.unwrap();
    bench.registry.read_row(older).await.unwrap();
    assert!(tenant.is_suspended());
    assert_eq!(tenant.now(), noon);
}
