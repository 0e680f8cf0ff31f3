//! The statements that write changes to the tables.

use std::sync::Arc;

use super::Kind::{Bytes, Int, Text};
use super::batch::{AccountRow, Batch, Blob, HoldRow, MinuteKey, NewUsers, Totals};
use super::totals::{sum, sums};
use super::{Failure, ManyRows, Sql, audit, feed, totals, values};

static HOLDS: ManyRows = ManyRows::new(
    "holds",
    &[
        ("id", Bytes),
        ("tenant", Int),
        ("user_id", Text),
        ("org", Text),
        ("request", Int),
        ("finished_at", Int),
        ("doubtful_from", Int),
        ("body", Bytes),
    ],
    "ON CONFLICT (id) DO UPDATE SET finished_at = excluded.finished_at,
         doubtful_from = excluded.doubtful_from, body = excluded.body",
);

static ACCOUNTS: ManyRows = ManyRows::new(
    "accounts",
    &[("tenant", Int), ("scope", Int), ("owner", Text), ("state", Bytes)],
    "ON CONFLICT (tenant, scope, owner) DO UPDATE SET state = excluded.state",
);

static MINUTES: ManyRows = ManyRows::new(
    "minutes",
    &[
        ("tenant", Int),
        ("minute", Int),
        ("feature", Text),
        ("requests", Int),
        ("input_tokens", Int),
        ("output_tokens", Int),
        ("total_tokens", Int),
        ("credits", Int),
    ],
    concat!("ON CONFLICT (tenant, minute, feature) DO UPDATE SET ", sums!("minutes")),
);

/// Whoever was put on record meanwhile stays as they are.
static USERS: ManyRows = ManyRows::new(
    "users",
    &[
        ("tenant", Int),
        ("id", Text),
        ("plan", Text),
        ("plan_since", Int),
        ("created_at", Int),
        ("verified", Int),
        ("suspended", Int),
        ("version", Int),
        ("born", Int),
        ("moved", Int),
    ],
    "ON CONFLICT (tenant, id) DO NOTHING",
);

pub async fn write_holds(connection: &mut impl Sql, holds: &[([u8; 16], Arc<HoldRow>)]) -> sqlx::Result<()> {
    let values = holds.iter().flat_map(|(id, row)| {
        let HoldRow { tenant, user, org, request, finished_at, doubtful_from, body } = &**row;
        values![
            *id,
            *tenant,
            user.clone(),
            org.clone(),
            *request,
            *finished_at,
            *doubtful_from,
            body.0.clone()
        ]
    });
    connection.write_rows(&HOLDS, values.collect()).await
}

pub async fn write_accounts(connection: &mut impl Sql, accounts: &[(AccountRow, Blob)]) -> sqlx::Result<()> {
    let values = accounts
        .iter()
        .flat_map(|(key, state)| values![key.tenant, key.scope, key.owner.clone(), state.0.clone()]);
    connection.write_rows(&ACCOUNTS, values.collect()).await
}

/// Gives holds that are in the table to the users of their rows.
pub async fn give_holds(
    connection: &mut impl Sql,
    holds: impl Iterator<Item = &([u8; 16], Arc<HoldRow>)> + Send,
) -> sqlx::Result<()> {
    for (id, row) in holds {
        let text = "UPDATE holds SET user_id = $2 WHERE id = $1";
        connection.execute(text, values![*id, row.user.clone()]).await?;
    }
    Ok(())
}

pub async fn remove_account(connection: &mut impl Sql, key: &AccountRow) -> sqlx::Result<()> {
    let text = "DELETE FROM accounts WHERE tenant = $1 AND scope = $2 AND owner = $3";
    connection.execute(text, values![key.tenant, key.scope, key.owner.clone()]).await?;
    Ok(())
}

pub async fn write_minutes(connection: &mut impl Sql, minutes: &[(MinuteKey, Totals)]) -> sqlx::Result<()> {
    let values = minutes.iter().flat_map(|(key, totals)| {
        let MinuteKey { tenant, minute, feature } = key.clone();
        let [requests, input, output, total, credits] = totals.0;
        values![tenant, minute, feature, requests, input, output, total, credits]
    });
    connection.write_rows(&MINUTES, values.collect()).await
}

pub async fn write_users(connection: &mut impl Sql, users: &NewUsers) -> Result<(), Failure> {
    if users.is_empty() {
        return Ok(());
    }
    // They come after whatever was written last.
    let revision = audit::revision(connection).await?.cast_signed();
    let values = users.iter().flat_map(|((tenant, id), new)| {
        let (plan, since) = (new.plan.clone(), new.since);
        values![*tenant, id.clone(), plan, since, since, false, false, 1, revision, revision]
    });
    Ok(connection.write_rows(&USERS, values.collect()).await?)
}

/// Notes tenants that have their first hold with this commit.
pub async fn write_taken(connection: &mut impl Sql, tenants: &[u32]) -> sqlx::Result<()> {
    for tenant in tenants {
        let text = "INSERT INTO taken (tenant) SELECT $1 WHERE $1 NOT IN (SELECT number FROM deleted_tenants)
                    ON CONFLICT (tenant) DO NOTHING";
        connection.execute(text, values![*tenant]).await?;
    }
    Ok(())
}

/// Writes a batch to tables that hold everything that came before it.
pub async fn write_batch(connection: &mut impl Sql, batch: &Batch) -> Result<(), Failure> {
    let holds: Vec<_> = batch.holds.iter().map(|(id, row)| (*id, Arc::clone(row))).collect();
    let accounts = batch.accounts.iter().map(|(key, state)| (key.clone(), state.clone()));
    let (gone, accounts): (Vec<_>, Vec<_>) = accounts.partition(|(_, state)| state.0.is_empty());
    let usage: Vec<_> = batch.usage.iter().map(|(key, totals)| (key.clone(), *totals)).collect();
    write_holds(connection, &holds).await?;
    give_holds(connection, holds.iter().filter(|(id, _)| batch.moved.contains(id))).await?;
    write_accounts(connection, &accounts).await?;
    for (key, _) in &gone {
        remove_account(connection, key).await?;
    }
    totals::add_usage(connection, &usage).await?;
    let minutes: Vec<_> = batch.minutes.iter().map(|(key, totals)| (key.clone(), *totals)).collect();
    write_minutes(connection, &minutes).await?;
    feed::append(connection, &batch.feed).await
}
