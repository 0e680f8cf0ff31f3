//! Probes: always answered, never counted, and silent about tenants.

use serde_json::json;

use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Client, Server, Tenant};

#[tokio::test]
async fn probes_are_never_limited_and_change_nobodys_figures() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    let hold = t.ask("private-user", 0, 0).await.hold_id();
    t.ask("private-user", 0, 0).await.refused(429, "daily_quota_exhausted");
    let before = t.quota("private-user").await.ok();
    let nobody = Client::new(&t.url, "");
    for path in ["/livez", "/readyz", "/metrics"] {
        for _ in 0..50 {
            let reply = Client::send(&nobody, nobody.http.get(format!("{}{path}", nobody.url))).await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.text);
            for secret in ["private-user", &hold, &t.token] {
                assert!(!reply.text.contains(secret), "{path} names {secret}");
            }
        }
    }
    assert_eq!(t.quota("private-user").await.ok(), before);
}

#[tokio::test]
async fn metrics_count_decisions_and_holds_that_are_nobodys() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    t.ask("u", 0, 0).await.ok();
    t.hold("hold_01890a5d-ac96-774b-bcce-b302099a8057").await.refused(404, "not_found");
    let text = t.get("/metrics").await.text;
    for name in ["apportion_decisions_total", "apportion_orphan_holds_total"] {
        assert!(text.contains(name), "no {name} in\n{text}");
    }
}

/// Others settle calls on the same server, so that the sums grow by no less.
#[tokio::test]
async fn metrics_tell_what_settled_calls_had_reserved_and_what_they_used() {
    let t = Tenant::with(Sheet::new().dr(2)).await;
    let sums = async || {
        let text = t.get("/metrics").await.text;
        ["reserved", "used"].map(|word| {
            ["input_tokens", "output_tokens"].map(|meter| {
                let line = format!("apportion_tokens_{word}_total{{meter=\"{meter}\"}} ");
                let value = text.lines().find_map(|text| text.strip_prefix(&line)).expect("such a line");
                value.parse::<u64>().unwrap()
            })
        })
    };
    let before = sums().await;
    let hold = t.ask("u", 5_000_000, 3_000_000).await.hold_id();
    t.finish(&hold, 4_000_000, 1_000_000).await.ok();
    let after = sums().await;
    for (place, grown) in [(0, [5_000_000, 3_000_000]), (1, [4_000_000, 1_000_000])] {
        for meter in 0..2 {
            let by = after[place][meter] - before[place][meter];
            assert!(by >= grown[meter], "{place} {meter}: {by}");
        }
    }
}

/// The value of the line that begins so; 0 where there is none.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

#[tokio::test]
async fn metrics_tell_decisions_by_plan_and_what_commits_come_to() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    let names = [
        "apportion_plan_decisions_total{plan=\"p\",decision=\"allow\",code=\"allow\"}",
        "apportion_plan_decisions_total{plan=\"p\",decision=\"refuse\",code=\"daily_quota_exhausted\"}",
        "apportion_plan_decisions_total{plan=\"none\",decision=\"refuse\",code=\"unknown_user\"}",
        "apportion_commit_changes_count",
        "apportion_commit_seconds_sum",
    ];
    let before = t.get("/metrics").await.text;
    t.ask("u", 0, 0).await.ok();
    t.ask("u", 0, 0).await.refused(429, "daily_quota_exhausted");
    t.check(json!({"user": "u", "dry_run": true})).await.refused(429, "daily_quota_exhausted");
    t.put_settings(json!({"default_plan": null})).await.ok();
    t.ask("stranger", 0, 0).await.refused(404, "unknown_user");
    let after = t.get("/metrics").await.text;
    for name in names {
        // Other tests count beside this one.
        assert!(value(&after, name) > value(&before, name), "{name} in\n{after}");
    }
}

/// Looked at every few seconds.
#[tokio::test]
async fn metrics_tell_what_is_open_or_in_doubt_and_how_full_pools_are() {
    // On a store of its own, whatever those of this run are: holds of others would count, too.
    let server: &'static Server = Box::leak(Box::new(Server::start_on(&[], &[])));
    let t = Tenant::on(server, "UTC", "2026-03-10T12:00:00.000Z").await;
    t.plan(&Sheet::new().dr(9)).await;
    t.pool(&PoolSheet::new("default", &["*"]).places(4)).await;
    let ask = json!({"user": "u", "model": "sonnet", "lease_seconds": 60});
    t.check(ask.clone()).await.ok();
    let until = async |lines: [&str; 3]| loop {
        let text = t.get("/metrics").await.text;
        if lines.iter().all(|line| text.lines().any(|have| have == *line)) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    let load = "apportion_pool_load{pool=\"default\",limit=\"pool_places\"}";
    until([
        "apportion_holds{state=\"open\"} 1",
        "apportion_holds{state=\"in_doubt\"} 0",
        &format!("{load} 0.25"),
    ])
    .await;
    t.set_clock("2026-03-10T12:02:00.000Z").await;
    t.check(ask.clone()).await.ok();
    t.check(ask).await.ok();
    until([
        "apportion_holds{state=\"open\"} 2",
        "apportion_holds{state=\"in_doubt\"} 1",
        &format!("{load} 0.5"),
    ])
    .await;
}

#[tokio::test]
async fn the_documents_are_served() {
    let t = Tenant::with(Sheet::new().dr(1)).await;
    let openapi = t.get("/openapi.json").await.ok();
    let paths = openapi["paths"].as_object().expect("paths");
    for path in
        ["/v1/check", "/v1/check/batch", "/v1/holds/{id}/settle", "/v1/users/{user}/quota", "/v1/usage"]
    {
        assert!(paths.contains_key(path), "no {path} in {:?}", paths.keys().collect::<Vec<_>>());
    }
    assert_eq!(t.get("/docs").await.status / 100, 2);
}

#[tokio::test]
async fn metrics_tell_which_limits_refused_and_what_came_twice() {
    let t = Tenant::with(Sheet::new().rb(1, 1).dr(1)).await;
    let text = async || t.get("/metrics").await.text;
    let value = |text: &str, name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
    };
    let names = [
        "apportion_limit_hits_total{kind=\"bucket\",scope=\"user\"}",
        "apportion_limit_hits_total{kind=\"window\",scope=\"user\"}",
        "apportion_duplicates_total{of=\"check\"}",
        "apportion_duplicates_total{of=\"hold\"}",
        "apportion_duplicates_total{of=\"usage\"}",
    ];
    let before = text().await;
    let ask = json!({"user": "u", "request_id": "r"});
    let hold = t.check(ask.clone()).await.hold_id();
    t.check(ask).await.ok();
    // Both limits are in the way, and both are counted.
    t.ask("u", 0, 0).await.refused(429, "daily_quota_exhausted");
    t.finish(&hold, 1, 1).await.ok();
    t.finish(&hold, 1, 1).await.ok();
    let usage = json!({"id": "x", "user": "v", "input_tokens": 1, "output_tokens": 1});
    t.usage(&usage).await.ok();
    t.usage(&usage).await.ok();
    let after = text().await;
    for name in names {
        // Other tests count beside this one.
        assert!(value(&after, name) > value(&before, name), "{name}");
    }
}
