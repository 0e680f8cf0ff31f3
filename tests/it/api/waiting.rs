//! Versions that wait until a user's running month ends, while the rule of the
//! month changes.

use serde_json::json;

use crate::harness::Tenant;
use crate::harness::sheets::Sheet;

/// `anchor`: of the sheet's month.
async fn waiting(anchor: &str) -> Tenant {
    let t = Tenant::at("America/New_York", "2026-03-10T12:00:00.000Z").await;
    let sheet = |limit: u64| {
        let mut sheet = Sheet::named("p").mt(limit).json();
        sheet["limits"][0]["anchor"] = anchor.into();
        sheet
    };
    t.put_plan(&sheet(1000)).await.ok();
    t.put_settings(json!({"default_plan": "p"})).await.ok();
    t.spend("used", 10, 0).await;
    t.put_user("unused", json!({"plan": "p", "reason": "signed up"})).await.ok();
    let mut smaller = sheet(500);
    smaller["applies"] = "next_window".into();
    t.put_plan(&smaller).await.ok();
    t
}

#[tokio::test]
async fn a_change_of_the_anchor_leaves_the_month_that_runs_to_its_end() {
    let t = waiting("user").await;
    let end = "2026-04-01T04:00:00.000Z";
    assert_eq!(t.quota("used").await.ok()["upcoming"]["effective_at"], end);
    t.set_clock("2026-03-12T12:00:00.000Z").await;
    for user in ["used", "unused"] {
        t.put_user(user, json!({"anchor_day": 15})).await.ok();
    }
    assert_eq!(t.left("used", "tokens_per_month").await["resets_at"], end);
    assert_eq!(t.quota("used").await.ok()["upcoming"]["effective_at"], end);
    assert_eq!(
        t.quota("unused").await.ok()["upcoming"]["effective_at"],
        "2026-03-15T04:00:00.000Z",
        "nothing was ever taken: the new rule holds at once"
    );
    t.set_clock("2026-04-01T03:59:59.999Z").await;
    assert_eq!(t.left("used", "tokens_per_month").await["limit"], 1000);
    t.set_clock(end).await;
    let row = t.left("used", "tokens_per_month").await;
    assert_eq!((&row["limit"], &row["resets_at"]), (&json!(500), &json!("2026-05-15T04:00:00.000Z")));
}

#[tokio::test]
async fn a_change_of_zone_whose_ever_leaves_the_month_that_runs_to_its_end() {
    for of_tenant in [true, false] {
        let t = waiting("calendar").await;
        let end = "2026-04-01T04:00:00.000Z";
        t.set_clock("2026-03-12T12:00:00.000Z").await;
        match of_tenant {
            true => t.put_settings(json!({"zone": "Asia/Tokyo"})).await.ok(),
            false => t.put_user("used", json!({"zone": "Asia/Tokyo"})).await.ok(),
        };
        assert_eq!(t.left("used", "tokens_per_month").await["resets_at"], end, "tenant's: {of_tenant}");
        assert_eq!(t.quota("used").await.ok()["upcoming"]["effective_at"], end, "tenant's: {of_tenant}");
        // A version written under the new rule waits for the same end.
        let mut smaller = Sheet::named("p").mt(400).json();
        smaller["limits"][0]["anchor"] = "calendar".into();
        smaller["applies"] = "next_window".into();
        t.put_plan(&smaller).await.ok();
        assert_eq!(t.quota("used").await.ok()["upcoming"]["effective_at"], end, "tenant's: {of_tenant}");
        t.set_clock(end).await;
        let row = t.left("used", "tokens_per_month").await;
        assert_eq!((&row["limit"], &row["resets_at"]), (&json!(400), &json!("2026-04-30T15:00:00.000Z")));
    }
}
