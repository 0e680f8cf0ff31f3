//! Writing a batch of changes.

use sqlx::sqlite::SqliteConnection;

use super::batch::Batch;
use super::statement::ManyRows;

static HOLDS: ManyRows = ManyRows::new(
    "INSERT INTO holds (id, tenant, user_id, org, request, finished_at, doubtful_from, body)",
    8,
    "ON CONFLICT (id) DO UPDATE SET finished_at = excluded.finished_at,
         doubtful_from = excluded.doubtful_from, body = excluded.body",
);

static ACCOUNTS: ManyRows = ManyRows::new(
    "INSERT INTO accounts (tenant, scope, owner, state)",
    4,
    "ON CONFLICT (tenant, scope, owner) DO UPDATE SET state = excluded.state",
);

/// Both figures are within +-(2^53 - 1), so the sum cannot overflow before it
/// is cut.
macro_rules! add_usage {
    ($($figure:literal),*) => {
        concat!(
            "ON CONFLICT (tenant, day, user_id, model, org, plan, feature) DO UPDATE SET tenant = usage.tenant",
            $(", ", $figure, " = max(-9007199254740991, min(9007199254740991, usage.", $figure,
              " + excluded.", $figure, "))"),*
        )
    };
}

static USAGE: ManyRows = ManyRows::new(
    "INSERT INTO usage (tenant, day, user_id, model, org, plan, feature,
         requests, input_tokens, output_tokens, total_tokens, credits)",
    12,
    add_usage!("requests", "input_tokens", "output_tokens", "total_tokens", "credits"),
);

/// Whoever was put on record meanwhile stays as they are.
static USERS: ManyRows = ManyRows::new(
    "INSERT INTO users (tenant, id, plan, plan_since, created_at, verified, suspended, version)",
    8,
    "ON CONFLICT (tenant, id) DO NOTHING",
);

/// Writes a batch; the caller's transaction makes it all or nothing.
pub(super) async fn write(connection: &mut SqliteConnection, batch: Batch) -> sqlx::Result<()> {
    let Batch { holds, accounts, usage, users } = batch;
    HOLDS
        .write(&mut *connection, holds.into_iter(), |query, (id, row)| {
            let query = query.bind(id.to_vec()).bind(row.tenant).bind(row.user).bind(row.org);
            query.bind(row.request).bind(row.finished_at).bind(row.doubtful_from).bind(row.body)
        })
        .await?;
    ACCOUNTS
        .write(&mut *connection, accounts.into_iter(), |query, (key, state)| {
            query.bind(key.tenant).bind(key.scope).bind(key.owner).bind(state.to_vec())
        })
        .await?;
    USAGE
        .write(&mut *connection, usage.into_iter(), |query, (key, totals)| {
            let query = query.bind(key.tenant).bind(key.day).bind(key.user).bind(key.model);
            let query = query.bind(key.org).bind(key.plan).bind(key.feature);
            totals.0.into_iter().fold(query, |query, figure| query.bind(figure))
        })
        .await?;
    USERS
        .write(&mut *connection, users.into_iter(), |query, ((tenant, id), new)| {
            let query = query.bind(tenant).bind(id).bind(new.plan).bind(new.since).bind(new.since);
            query.bind(false).bind(false).bind(1)
        })
        .await
}

/// Notes tenants that have their first hold with this commit.
pub(super) async fn mark_taken(connection: &mut SqliteConnection, tenants: &[u32]) -> sqlx::Result<()> {
    for tenant in tenants {
        let query = sqlx::query("INSERT INTO taken VALUES ($1) ON CONFLICT (tenant) DO NOTHING").bind(tenant);
        query.execute(&mut *connection).await?;
    }
    Ok(())
}
