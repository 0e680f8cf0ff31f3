//! The outbox of webhooks.

use super::read::named;
use super::records::refuse_deleted;
use super::{Columns, Failure, Sql, audit, conditions, each, get, orgs, records, users, values};
use crate::domain::charge::TenantRef;
use crate::domain::ids::{HoldId, UserId};
use crate::domain::plan::Scope;
use crate::domain::time::Millis;
use crate::domain::webhook::EventKind;
use crate::ledger::{
    Alert, Changed, DeliveriesQuery, Delivery, DeliveryState, DoubtKey, Keeping, LedgerError, Message,
    RecordKind, Telling, ToldDoubts, Tried, Write,
};

/// Old messages removed in one transaction.
const PRUNED_AT_ONCE: u32 = 1_000;

impl Write {
    /// What other processes are told that it changes.
    pub fn changed(&self, tenant: TenantRef) -> Vec<Changed> {
        vec![match self {
            Self::User(user, _) => Changed::user(tenant, user.id.as_str()),
            Self::Org(org, _) => Changed::org(tenant, org.id.as_str()),
            Self::Record(record) => Changed::record(Some(tenant), record.kind, &record.id),
            Self::Condition(condition, _) => Changed::record(Some(tenant), RecordKind::Pool, &condition.pool),
            Self::Note(..) => return Vec::new(),
        }]
    }
}

/// Runs an administrative write, and tells of it.
pub async fn write_and_tell(
    connection: &mut impl Sql,
    tenant: TenantRef,
    write: &Write,
    messages: &[Message],
) -> Result<(), Failure> {
    // Before the write, which others wait for once it has raised the revision.
    add(connection, messages).await?;
    match write {
        Write::User(user, written) => users::put(connection, tenant, user, written).await,
        Write::Org(org, written) => orgs::put(connection, tenant, org, written).await,
        Write::Record(record) => records::put(connection, Some(tenant), record).await,
        Write::Condition(condition, noted) => {
            conditions::put(connection, tenant, condition, noted.as_ref()).await
        }
        Write::Note(note, written) => {
            refuse_deleted(connection, tenant.0).await?;
            audit::note(connection, tenant, note, written).await?;
            // Whoever follows the writes counts this one, too.
            audit::next_revision(connection).await.map(drop)
        }
    }
}

/// Puts on record what is told of a commit.
pub async fn tell(connection: &mut impl Sql, telling: &Telling) -> Result<(), Failure> {
    add(connection, &telling.messages).await?;
    for alert in &telling.alerts {
        if is_news(connection, alert).await? {
            add(connection, &alert.messages).await?;
        }
    }
    Ok(())
}

/// Puts messages on record that are not yet. Those of deleted tenants are left
/// out.
pub async fn add(connection: &mut impl Sql, messages: &[Message]) -> Result<(), Failure> {
    let text = "INSERT INTO deliveries
                (tenant, webhook, id, kind, user_id, body, made_at, state, tries, next_at)
                SELECT $1, $2, $3, $4, $5, $6, $7, 0, 0, $7
                WHERE $1 NOT IN (SELECT number FROM deleted_tenants)
                ON CONFLICT (tenant, webhook, id) DO NOTHING";
    for Message { tenant, webhook, id, kind, user, body, made_at } in messages {
        let user = user.as_ref().map(UserId::shared);
        let (webhook, id, body) = (webhook.clone(), id.clone(), body.clone());
        connection
            .execute(text, values![tenant.0, webhook, id, kind.as_str(), user, body, made_at.0])
            .await?;
    }
    Ok(())
}

/// Notes that a threshold is reached. `false`: it was told of before.
async fn is_news(connection: &mut impl Sql, alert: &Alert) -> Result<bool, Failure> {
    let Alert { account, cell, threshold, window, figure, .. } = alert;
    let key = values![
        account.tenant.0,
        account.scope as u8,
        account.owner.clone(),
        cell.0.cast_signed(),
        threshold.0,
        window.0,
        figure.cast_signed()
    ];
    let text = "INSERT INTO alerts (tenant, scope, owner, cell, threshold, begun_at, figure)
                SELECT $1, $2, $3, $4, $5, $6, $7 WHERE $1 NOT IN (SELECT number FROM deleted_tenants)
                ON CONFLICT (tenant, scope, owner, cell, threshold)
                DO UPDATE SET begun_at = excluded.begun_at, figure = excluded.figure
                WHERE alerts.begun_at < excluded.begun_at
                OR (alerts.begun_at = excluded.begun_at AND alerts.figure < excluded.figure)";
    let is_news = connection.execute(text, key.clone()).await? > 0;
    if !is_news && !alert.is_shared {
        // Lowered: when it is raised again, that is news.
        let text = "UPDATE alerts SET figure = $7 WHERE tenant = $1 AND scope = $2 AND owner = $3
                    AND cell = $4 AND threshold = $5 AND begun_at = $6 AND figure > $7";
        connection.execute(text, key).await?;
    }
    Ok(is_news)
}

pub async fn tell_doubts(
    connection: &mut impl Sql,
    tenant: TenantRef,
    told: &ToldDoubts,
) -> Result<(), Failure> {
    let ToldDoubts { after, upto, messages } = told;
    refuse_deleted(connection, tenant.0).await?;
    let hold = |key: &DoubtKey| key.hold.0.to_be_bytes();
    let written = match after {
        None => {
            let text = "INSERT INTO doubts_told (tenant, since, hold) VALUES ($1, $2, $3)
                        ON CONFLICT (tenant) DO NOTHING";
            connection.execute(text, values![tenant.0, upto.since.0, hold(upto)]).await?
        }
        Some(after) => {
            let text = "UPDATE doubts_told SET since = $2, hold = $3
                        WHERE tenant = $1 AND since = $4 AND hold = $5";
            let values = values![tenant.0, upto.since.0, hold(upto), after.since.0, hold(after)];
            connection.execute(text, values).await?
        }
    };
    if written > 0 {
        add(connection, messages).await?;
    }
    Ok(())
}

pub async fn doubts_told(connection: &mut impl Sql, tenant: TenantRef) -> Result<Option<DoubtKey>, Failure> {
    let text = "SELECT since, hold FROM doubts_told WHERE tenant = $1";
    let rows = connection.rows(text, values![tenant.0]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let hold: [u8; 16] = get::<&[u8]>(row, 1)?
        .try_into()
        .map_err(|_| LedgerError::Corrupt("a hold's id of another length".into()))?;
    Ok(Some(DoubtKey { since: Millis(get(row, 0)?), hold: HoldId(u128::from_be_bytes(hold)) }))
}

macro_rules! select_deliveries {
    ($from:literal) => {
        concat!(
            "SELECT tenant, webhook, id, kind, user_id, body, made_at, state, tries, next_at, last_at, status,
                 error FROM ",
            $from
        )
    };
}

pub const DUE: &str = select_deliveries!(
    "(SELECT *, row_number() OVER (PARTITION BY tenant, webhook ORDER BY next_at, id) AS place
      FROM deliveries WHERE state = 0 AND next_at <= $1) AS due
     WHERE place <= $2 ORDER BY next_at, id LIMIT $3"
);

pub const PAGE: &str = select_deliveries!(
    "deliveries WHERE tenant = $1 AND webhook = $2 AND made_at <= $3 AND (made_at < $3 OR id < $4)
     AND ($5 < 0 OR state = $5) ORDER BY made_at DESC, id DESC LIMIT $6"
);

const ONE: &str = select_deliveries!("deliveries WHERE tenant = $1 AND webhook = $2 AND id = $3");

fn read(row: &impl Columns) -> Result<Delivery, LedgerError> {
    let kind: &str = get(row, 3)?;
    let kind = EventKind::parse(kind)
        .ok_or_else(|| LedgerError::Corrupt(format!("an event of the unknown kind {kind:?}")))?;
    let state = match get(row, 7)? {
        0 => DeliveryState::Pending,
        1 => DeliveryState::Delivered,
        2u8 => DeliveryState::Dead,
        other => return Err(LedgerError::Corrupt(format!("a delivery in the unknown state {other}"))),
    };
    let user = get::<Option<&str>>(row, 4)?.map(|user| named(UserId::parse(user))).transpose()?;
    Ok(Delivery {
        message: Message {
            tenant: TenantRef(get(row, 0)?),
            webhook: get::<&str>(row, 1)?.into(),
            id: get::<&str>(row, 2)?.into(),
            kind,
            user,
            body: get::<&str>(row, 5)?.into(),
            made_at: Millis(get(row, 6)?),
        },
        state,
        tries: get(row, 8)?,
        next_at: get::<Option<i64>>(row, 9)?.map(Millis),
        last_at: get::<Option<i64>>(row, 10)?.map(Millis),
        status: get(row, 11)?,
        error: get(row, 12)?,
    })
}

pub async fn due(
    connection: &mut impl Sql,
    now: Millis,
    each_at_most: u32,
    limit: u32,
) -> Result<Vec<Delivery>, Failure> {
    each(&connection.rows(DUE, values![now.0, each_at_most, limit]).await?, read)
}

/// Whoever counts the try up has it.
pub async fn begin_tries(
    connection: &mut impl Sql,
    mut deliveries: Vec<Delivery>,
    now: Millis,
    until: Millis,
) -> Result<Vec<Delivery>, Failure> {
    let text = "UPDATE deliveries SET tries = tries + 1, next_at = $5, last_at = $6
                WHERE tenant = $1 AND webhook = $2 AND id = $3 AND state = 0 AND tries = $4 AND next_at <= $6";
    // Rows in the order of their keys, as everybody takes them.
    deliveries.sort_by(|a, b| key(&a.message).cmp(&key(&b.message)));
    let mut begun = Vec::with_capacity(deliveries.len());
    for delivery in deliveries {
        let (tenant, webhook, id) = key(&delivery.message);
        let values = values![tenant, webhook, id, delivery.tries, until.0, now.0];
        if connection.execute(text, values).await? > 0 {
            let tries = delivery.tries + 1;
            begun.push(Delivery { tries, next_at: Some(until), last_at: Some(now), ..delivery });
        }
    }
    Ok(begun)
}

fn key(message: &Message) -> (u32, &str, &str) {
    (message.tenant.0, &message.webhook, &message.id)
}

pub async fn end_try(connection: &mut impl Sql, delivery: &Delivery, tried: &Tried) -> Result<(), Failure> {
    let text = "UPDATE deliveries SET state = $5, next_at = $6, status = $7, error = $8
                WHERE tenant = $1 AND webhook = $2 AND id = $3 AND state = 0 AND tries = $4";
    let (tenant, webhook, id) = key(&delivery.message);
    let (next_at, error) = (tried.next_at.map(|at| at.0), tried.error.as_deref());
    let values =
        values![tenant, webhook, id, delivery.tries, stored(tried.state), next_at, tried.status, error];
    connection.execute(text, values).await?;
    Ok(())
}

fn stored(state: DeliveryState) -> i32 {
    match state {
        DeliveryState::Pending => 0,
        DeliveryState::Delivered => 1,
        DeliveryState::Dead => 2,
    }
}

pub async fn page(
    connection: &mut impl Sql,
    tenant: TenantRef,
    query: &DeliveriesQuery,
) -> Result<Vec<Delivery>, Failure> {
    let (before, id) = query.before.clone().unwrap_or((Millis(i64::MAX), String::new()));
    let state = query.state.map_or(-1, stored);
    let values = values![tenant.0, query.webhook.as_str(), before.0, id, state, query.limit];
    each(&connection.rows(PAGE, values).await?, read)
}

pub async fn send_again(
    connection: &mut impl Sql,
    tenant: TenantRef,
    webhook: &str,
    id: &str,
    now: Millis,
) -> Result<Option<Delivery>, Failure> {
    let text = "UPDATE deliveries SET state = 0, tries = 0, next_at = $4
                WHERE tenant = $1 AND webhook = $2 AND id = $3";
    connection.execute(text, values![tenant.0, webhook, id, now.0]).await?;
    let rows = connection.rows(ONE, values![tenant.0, webhook, id]).await?;
    Ok(rows.first().map(read).transpose()?)
}

pub async fn forget(connection: &mut impl Sql, tenant: TenantRef, webhook: &str) -> Result<(), Failure> {
    let text = "DELETE FROM deliveries WHERE tenant = $1 AND webhook = $2";
    connection.execute(text, values![tenant.0, webhook]).await?;
    Ok(())
}

pub async fn prune(connection: &mut impl Sql, keeping: Keeping) -> Result<u64, Failure> {
    let text = "DELETE FROM deliveries WHERE (tenant, webhook, id) IN
                (SELECT tenant, webhook, id FROM deliveries WHERE state > 0 AND made_at < $1 LIMIT $2)";
    connection.execute(text, values![keeping.since.0, PRUNED_AT_ONCE]).await?;
    let pending = pending(connection).await?;
    if pending <= u64::from(keeping.pending) {
        return Ok(pending);
    }
    let text = "UPDATE deliveries SET state = 2, next_at = NULL, error = 'too many wait'
                WHERE state = 0 AND (tenant, webhook, id) IN (SELECT tenant, webhook, id FROM
                (SELECT tenant, webhook, id,
                     row_number() OVER (PARTITION BY tenant, webhook ORDER BY made_at DESC, id DESC) AS place
                 FROM deliveries WHERE state = 0) AS waiting WHERE place > $1)";
    let aside = connection.execute(text, values![keeping.pending]).await?;
    Ok(pending.saturating_sub(aside))
}

async fn pending(connection: &mut impl Sql) -> Result<u64, Failure> {
    let rows = connection.rows("SELECT count(*) FROM deliveries WHERE state = 0", values![]).await?;
    let count = rows.first().map(|row| get::<i64>(row, 0)).transpose()?;
    Ok(count.unwrap_or(0).cast_unsigned())
}

/// What a user's name stands in goes.
pub async fn forget_user(connection: &mut impl Sql, tenant: TenantRef, user: &UserId) -> Result<(), Failure> {
    let text = "DELETE FROM deliveries WHERE tenant = $1 AND user_id = $2";
    connection.execute(text, values![tenant.0, user.shared()]).await?;
    Ok(())
}

/// Thresholds that a user was told of are another name's.
pub async fn rename_alerts(
    connection: &mut impl Sql,
    tenant: TenantRef,
    from: &UserId,
    to: &UserId,
) -> Result<(), Failure> {
    forget_alerts(connection, tenant, to).await?;
    let user = Scope::User as u8;
    let text = "UPDATE alerts SET owner = $4 WHERE tenant = $1 AND scope = $2 AND owner = $3";
    connection.execute(text, values![tenant.0, user, from.shared(), to.shared()]).await?;
    Ok(())
}

pub async fn forget_alerts(
    connection: &mut impl Sql,
    tenant: TenantRef,
    user: &UserId,
) -> Result<(), Failure> {
    let text = "DELETE FROM alerts WHERE tenant = $1 AND scope = $2 AND owner = $3";
    connection.execute(text, values![tenant.0, Scope::User as u8, user.shared()]).await?;
    Ok(())
}
