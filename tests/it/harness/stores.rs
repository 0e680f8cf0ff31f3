//! Which stores the service under test runs on.
//!
//! All that callers may rely on holds on each of them alike: `./test` runs the
//! tests that look from outside once for each.

use std::path::Path;

use super::postgres::Postgres;
use super::redis::{Cluster, Node, Single};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stores {
    /// The engine in the process, and a file.
    Embedded,
    /// One Redis and Postgres.
    Redis,
    /// A Redis Cluster and Postgres.
    Cluster,
}

/// Settings of the stores, for the command line beside a server.
const FILE: &str = "stores.toml";

impl Stores {
    /// As the variable `IT_STORES` says; without it, embedded.
    pub fn of_this_run() -> Self {
        match std::env::var("IT_STORES").as_deref() {
            Err(_) | Ok("" | "embedded") => Self::Embedded,
            Ok("redis") => Self::Redis,
            Ok("cluster") => Self::Cluster,
            Ok(other) => panic!("IT_STORES is embedded, redis or cluster, not {other}"),
        }
    }

    /// The Redis servers that have the accounts.
    pub fn redis(self) -> Vec<&'static Node> {
        match self {
            Self::Embedded => Vec::new(),
            Self::Redis => Single::shared().into_iter().collect(),
            Self::Cluster => Cluster::shared().map_or(Vec::new(), |cluster| cluster.nodes.iter().collect()),
        }
    }

    /// The durability that answers first.
    pub fn quickest(self) -> &'static str {
        match self {
            Self::Embedded => "os",
            Self::Redis | Self::Cluster => "engine",
        }
    }

    /// The durability that survives the end of the process.
    pub fn lasting(self) -> &'static str {
        match self {
            Self::Embedded => "commit",
            Self::Redis | Self::Cluster => "engine",
        }
    }

    /// Settings of a new installation: an empty database, and a Redis that it
    /// has a part of to itself.
    pub fn settings(self) -> Vec<(&'static str, String)> {
        let redis = match self {
            Self::Embedded => return Vec::new(),
            Self::Redis => Single::shared().expect("redis-server is installed").url(),
            Self::Cluster => Cluster::shared().expect("redis-server is installed").url(),
        };
        let postgres = Postgres::shared().expect("postgres is installed");
        // It goes with the server.
        let database = Box::leak(Box::new(postgres.with_schema()));
        vec![("redis_url", redis), ("database_url", database.url())]
    }
}

/// Keeps settings in a data directory, where [`file`] finds them.
pub fn keep(data: &Path, settings: &[(&'static str, String)]) {
    let lines: Vec<String> = settings.iter().map(|(name, value)| format!("{name} = {value:?}\n")).collect();
    std::fs::write(data.join(FILE), lines.concat()).expect("room for settings");
}

/// The settings file of a data directory, if it has one.
pub fn file(data: &Path) -> Option<std::path::PathBuf> {
    Some(data.join(FILE)).filter(|file| file.exists())
}
