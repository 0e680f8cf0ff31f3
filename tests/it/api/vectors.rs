//! The table of hard instants, seen through the quota view.

use serde_json::json;

use crate::harness::Tenant;
use crate::harness::sheets::Sheet;
use crate::harness::vectors::VECTORS;
use crate::model::oracle::calendar::{instant, wire};

#[tokio::test]
async fn the_quota_view_shows_the_window_of_every_hard_instant() {
    let mut wrong = Vec::new();
    for v in &VECTORS {
        let t = Tenant::at(v.zone, &wire(instant(v.now))).await;
        let sheet =
            Sheet::new().dr(10).mt(1000).per("anchored", json!("month"), 1000).but("anchor", json!("user"));
        t.plan(&sheet).await;
        t.put_user("u", json!({"anchor_day": v.anchor_day})).await.ok();
        for (name, [start, end]) in
            [("requests_per_day", v.day), ("tokens_per_month", v.month), ("anchored", v.anchored)]
        {
            let window = t.left("u", name).await["window"].clone();
            let right = json!({"start": wire(instant(start)), "end": wire(instant(end)), "zone": v.zone});
            if window != right {
                wrong.push(format!("{} {name}: {window} instead of {right}", v.id));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
