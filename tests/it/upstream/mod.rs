//! What others measured of a shared upstream, with this service in front of a model vendor, on
//! moved time: `cargo bench --bench upstream` prints it all, the tests hold what it must come to.

mod jobs;
mod lanes;
mod published;
mod traffic;
mod world;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::vendor::{Counts, Rules, Vendor};
use crate::harness::{Server, Tenant};
use crate::model::oracle::calendar::Ms;
use world::{Manner, Stage};

/// What is limited in a scenario, by the vendor and by the pool in front of it.
#[derive(Clone)]
struct Upstream {
    rules: Rules,
    limits: Vec<Value>,
    interactive_share: f64,
    /// A call is on its way for up to so long.
    on_its_way_ms: Ms,
}

impl Upstream {
    /// A tenant whose users are held back by the pool alone.
    async fn tenant(&self) -> Tenant {
        let counts = if self.rules.counts == Counts::Actual { "actual" } else { "reserved" };
        let pool = PoolSheet::new("default", &["*"])
            .field("counts", json!(counts))
            .field("interactive_share", json!(self.interactive_share));
        let pool = self.limits.iter().fold(pool, |pool, limit| pool.limit(limit.clone()));
        let tenant = free_tenant().await;
        tenant.pool(&pool).await;
        tenant
    }

    fn stage(&self, manner: Manner) -> Stage {
        Stage {
            vendors: BTreeMap::from([("", Vendor::new(self.rules.clone(), 0))]),
            manner,
            on_its_way_ms: self.on_its_way_ms,
            until: Ms::MAX,
        }
    }
}

/// A tenant whose users have no limits.
async fn free_tenant() -> Tenant {
    // What is on disk is nothing that these scenarios are about.
    static SERVER: OnceLock<Server> = OnceLock::new();
    let start = || SERVER.get_or_init(|| Server::start(&[("APPORTION_DURABILITY", "os")]));
    let server = tokio::task::spawn_blocking(start).await.expect("it starts");
    let tenant = Tenant::on(server, "UTC", "2026-03-10T00:00:00.000Z").await;
    tenant.plan(&Sheet::new()).await;
    tenant
}

/// A scenario's rows, as tables: `published`, `lanes` or `traffic`.
pub async fn table(name: &str) -> Vec<String> {
    match name {
        "published" => published::table().await,
        "lanes" => lanes::table().await,
        "traffic" => traffic::table().await,
        _ => panic!("no scenario: {name}"),
    }
}

pub const SCENARIOS: [&str; 3] = ["published", "lanes", "traffic"];

fn seconds(ms: Ms) -> String {
    format!("{:.2} s", ms as f64 / 1000.0)
}
