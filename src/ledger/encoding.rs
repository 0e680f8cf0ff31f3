//! How values stand in the ledger, the same on every back end.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::packing::{Packed, PackedReceipt};
use super::{LedgerError, Org, Record, RecordKind, Rights, User};
use crate::domain::hold::{Hold, Receipt};

/// First byte of a packed hold. A new form gets a new number, and the old one
/// stays readable.
const HOLD_FORMAT: u8 = 3;
/// With receipts as they are.
const PLAIN_RECEIPTS_FORMAT: u8 = 2;
/// All fields as they are.
const PLAIN_FORMAT: u8 = 1;

/// Packs a hold: a format byte, then its fields.
pub(super) fn pack_hold(hold: &Hold) -> Result<Vec<u8>, LedgerError> {
    let mut bytes = Vec::with_capacity(256);
    bytes.push(HOLD_FORMAT);
    postcard::to_extend(&Packed::of(hold), bytes)
        .map_err(|error| LedgerError::Corrupt(format!("hold {} cannot be packed: {error}", hold.id)))
}

/// Reads the body of a hold on record, for whoever looks at the tables.
pub fn unpack_hold(bytes: &[u8]) -> Result<Hold, LedgerError> {
    match bytes.split_first() {
        Some((&HOLD_FORMAT, fields)) => whole(fields).map(Packed::<PackedReceipt>::unpack),
        Some((&PLAIN_RECEIPTS_FORMAT, fields)) => whole(fields).map(Packed::<Receipt>::unpack),
        Some((&PLAIN_FORMAT, fields)) => whole(fields),
        Some((format, _)) => Err(LedgerError::Corrupt(format!("a hold in the unknown form {format}"))),
        None => Err(LedgerError::Corrupt("a hold without bytes".into())),
    }
}

fn whole<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, LedgerError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(LedgerError::Corrupt("a hold has more bytes than fields".into())),
        Err(error) => Err(LedgerError::Corrupt(format!("a hold: {error}"))),
    }
}

impl RecordKind {
    /// The kind's name in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Pool => "pool",
            Self::Models => "models",
            Self::Settings => "settings",
            Self::Key => "key",
            Self::MakeGood => "make_good",
            Self::Webhook => "webhook",
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, LedgerError> {
        [Self::Plan, Self::Pool, Self::Models, Self::Settings, Self::Key, Self::MakeGood, Self::Webhook]
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| LedgerError::Corrupt(format!("a record of the unknown kind {text:?}")))
    }
}

/// What the audit shows of a user. Signals (device, address) stay out: the
/// audit outlives the erasure of a user's identity.
pub(super) fn audited_user(user: &User) -> Value {
    json!({
        "plan": user.plan.as_str(),
        "plan_since": user.plan_since.to_string(),
        "plan_sequence": user.plan_sequence,
        "org": user.org.as_ref().map(|org| org.as_str()),
        "verified": user.verified,
        "suspended": user.suspended,
        "zone": user.zone,
        "anchor_day": user.anchor_day,
        "signals": user.signals.is_some(),
        "rights": user.rights,
        "version": user.version,
    })
}

/// What the audit shows of an org.
pub(super) fn audited_org(org: &Org) -> Value {
    json!({
        "plan": org.plan.as_ref().map(|plan| plan.as_str()),
        "plan_since": org.plan_since.to_string(),
        "zone": org.zone,
        "rights": org.rights,
        "version": org.version,
    })
}

/// Rights as stored: none are NULL.
pub(super) fn pack_rights(rights: Option<&Rights>) -> Result<Option<String>, LedgerError> {
    let text = rights.filter(|rights| !rights.is_empty()).map(serde_json::to_string).transpose();
    text.map_err(|error| LedgerError::Corrupt(format!("rights cannot be packed: {error}")))
}

pub(super) fn unpack_rights(text: Option<&str>) -> Result<Option<Box<Rights>>, LedgerError> {
    let rights = text.map(serde_json::from_str).transpose();
    rights.map_err(|error| LedgerError::Corrupt(format!("stored rights: {error}")))
}

/// The audit's word for a write of a user: `user.plan` where nothing but the
/// plan changes, else `user.put`.
pub(super) fn audited_user_action(old: Option<&User>, new: &User) -> &'static str {
    let Some(old) = old else {
        return if new.plan_sequence.is_some() { "user.plan" } else { "user.put" };
    };
    let plan = (&new.plan, new.plan_since, new.plan_sequence);
    let schedule =
        |user: &User| user.rights.as_ref().map(|rights| rights.schedule.clone()).unwrap_or_default();
    let mut rights = old.rights.clone();
    if rights.is_some() || !schedule(new).is_empty() {
        rights.get_or_insert_default().schedule = schedule(new);
    }
    let moved = User {
        rights: rights.filter(|rights| !rights.is_empty()),
        plan: new.plan.clone(),
        plan_since: new.plan_since,
        plan_sequence: new.plan_sequence,
        version: new.version,
        born: new.born,
        moved: new.moved,
        ..old.clone()
    };
    let is_moved = (&old.plan, old.plan_since, old.plan_sequence) != plan || schedule(old) != schedule(new);
    match is_moved && moved == *new {
        true => "user.plan",
        false => "user.put",
    }
}

/// What is shown of a key in the audit: nothing by which it is checked, also
/// if keys get fields that do not exist yet.
const SHOWN_OF_KEYS: [&str; 5] = ["kind", "algorithm", "scopes", "name", "generated"];

/// What the audit shows of a record's body.
pub(super) fn audited_body(kind: RecordKind, body: Option<&str>) -> Option<String> {
    let body = body?;
    if kind != RecordKind::Key {
        return Some(body.to_owned());
    }
    let Ok(Value::Object(mut fields)) = serde_json::from_str(body) else { return None };
    fields.retain(|name, _| SHOWN_OF_KEYS.contains(&name.as_str()));
    Some(Value::Object(fields).to_string())
}

/// The audit's word for what writing `record` does.
pub(super) fn audited_action(record: &Record) -> &'static str {
    match (record.kind, &record.body) {
        (RecordKind::Plan, Some(_)) => "plan.put",
        (RecordKind::Plan, None) => "plan.delete",
        (RecordKind::Pool, Some(_)) => "pool.put",
        (RecordKind::Pool, None) => "pool.delete",
        (RecordKind::Models, _) => "models.put",
        (RecordKind::Settings, _) => "settings.put",
        (RecordKind::Key, Some(_)) => "key.create",
        (RecordKind::Key, None) => "key.delete",
        (RecordKind::MakeGood, _) => "make_good.put",
        (RecordKind::Webhook, Some(_)) => "webhook.put",
        (RecordKind::Webhook, None) => "webhook.delete",
    }
}

/// What the audit says was changed: the record's id, or what there is one of.
pub(super) fn audited_target(record: &Record) -> &str {
    if record.id.is_empty() { record.kind.as_str() } else { &record.id }
}
