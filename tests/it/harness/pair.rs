//! Two nodes on the same stores.

use std::sync::OnceLock;

use super::lasting::found_or_skipped;
use super::postgres::Postgres;
use super::stores::Stores;
use super::{Client, Server, Tenant};

/// Two nodes of an installation of their own, once somebody needs them.
pub struct Pair(OnceLock<Option<[Server; 2]>>);

impl Pair {
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// A tenant of the first node, and a client of the second one. `None`: there are no servers
    /// for them here.
    pub async fn tenant(&'static self) -> Option<(Tenant, Client)> {
        let nodes = tokio::task::spawn_blocking(|| self.0.get_or_init(start)).await.unwrap();
        let [first, second] = nodes.as_ref()?;
        let t = Tenant::on(first, "UTC", "2026-03-10T12:00:00.000Z").await;
        let other = Client::new(&second.url, &t.token(&["--scope", "check quota admin:read admin:write"]));
        Some((t, other))
    }
}

fn start() -> Option<[Server; 2]> {
    if !found_or_skipped("redis-server") || Postgres::shared().is_none() {
        return None;
    }
    let stores = match Stores::of_this_run() {
        Stores::Embedded => Stores::Redis,
        shared => shared,
    };
    let first = Server::start_on(&stores.settings(), &[]);
    let second = first.beside(&[]);
    Some([first, second])
}
