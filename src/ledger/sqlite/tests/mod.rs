//! What is SQLite's own; what every ledger must do is in the contract suite.

mod changes;
mod deleting;
mod failures;
mod files;
mod model;
mod plans;

use std::path::PathBuf;
use std::sync::Arc;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor};

use super::{Durability, SqliteLedger};
use crate::domain::charge::{AccountKey, TenantRef};
use crate::domain::hold::{Amounts, Caps, Granted, Hold, RequestMark, Stage};
use crate::domain::ids::{HoldId, Name, RequestId, UserId};
use crate::domain::plan::{PerCall, Scope};
use crate::domain::quantity::Ppm;
use crate::domain::time::Millis;
use crate::ledger::{Change, UsageDelta, Written};

const TENANT: TenantRef = TenantRef(1);

/// A directory with a ledger file.
struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("apportion.db")
    }

    async fn open(&self) -> SqliteLedger {
        SqliteLedger::open(&self.path(), Durability::Os).await.unwrap()
    }

    /// A connection of another process.
    async fn other(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.path()).create_if_missing(true).connect().await.unwrap()
    }
}

async fn execute(connection: &mut SqliteConnection, text: &str) -> sqlx::Result<()> {
    connection.execute(AssertSqlSafe(text.to_owned())).await.map(drop)
}

async fn count(dir: &Dir, table: &str) -> i64 {
    let text = format!("SELECT count(*) FROM {table}");
    sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(&mut dir.other().await).await.unwrap()
}

/// The `number`-th change: a hold of `user`, its account and its usage.
fn change(user: &str, number: i64) -> Change {
    let hold = Hold {
        id: HoldId::from_parts(number, u128::MAX.to_be_bytes()),
        tenant: TENANT,
        user: UserId::parse(user).unwrap(),
        org: None,
        pool: None,
        request: Some(RequestMark {
            id: RequestId::parse(&number.to_string()).unwrap(),
            fingerprint: [0; 16],
        }),
        plan: Name::parse("free").unwrap(),
        plan_version: 1,
        admits_user: false,
        bulk: false,
        models_version: 1,
        model: None,
        feature: None,
        created_at: Millis(number),
        expires_at: Millis(number + 1),
        lease_seconds: 1,
        lives_until: Millis(number + 2),
        day: 0,
        caps: Caps { per_call: PerCall::default(), max_tokens_per_call: 1 },
        cache_read_weight: Ppm::ONE,
        granted: Granted { input_tokens: 0, max_output_tokens: 0, is_final: false },
        reserved: Amounts::default(),
        amounts: Vec::new(),
        receipts: Vec::new(),
        progress: 0,
        extends: Vec::new(),
        stage: Stage::Held,
    };
    let usage = UsageDelta {
        model: None,
        requests: 1,
        input_tokens: 0,
        output_tokens: 0,
        total_tokens: 0,
        credits: 0,
    };
    let account = AccountKey { tenant: TENANT, scope: Scope::User, owner: user.into() };
    Change {
        hold: Some(Arc::new(hold)),
        usage: Some(usage),
        accounts: vec![(account, vec![7; 200].as_slice().into())],
        ..Change::default()
    }
}

fn written(by: &str) -> Written {
    Written { at: Millis(5), by: by.into(), reason: Some("why not".into()) }
}
