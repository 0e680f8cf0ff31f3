//! What is kept, as one JSON object a line: for exports of a product and of a user.
//!
//! Each line says its `kind`. Secrets are in none: keys are not exported at all.

use serde::Serialize;
use serde_json::{Value, json};

use super::admin::{audit_view, event_view};
use super::views::HoldView;
use crate::domain::hold::Hold;
use crate::domain::time::Millis;
use crate::ledger::{AuditEntry, FeedEvent, Org, Record, RefusalCount, RefusedCall, User};

fn line(kind: &str, fields: impl Serialize) -> Value {
    let mut line = json!(fields);
    line["kind"] = kind.into();
    line
}

/// One version of a plan, a pool, the models or the settings.
pub fn record(record: &Record) -> Value {
    let body = record.body.as_deref().map(|body| serde_json::from_str(body).unwrap_or(Value::Null));
    line(
        record.kind.as_str(),
        json!({
            "id": record.id,
            "version": record.version,
            "body": body,
            "effective_at": record.effective_at,
            "written_at": record.written.at,
            "written_by": record.written.by,
            "reason": record.written.reason,
        }),
    )
}

pub fn user(user: &User) -> Value {
    line(
        "user",
        json!({
            "user": user.id.as_str(),
            "plan": user.plan.as_str(),
            "plan_since": user.plan_since,
            "plan_sequence": user.plan_sequence,
            "org": user.org.as_ref().map(|org| org.as_str()),
            "verified": user.verified,
            "suspended": user.suspended,
            "zone": user.zone,
            "anchor_day": user.anchor_day,
            "signals": user.signals,
            "rights": user.rights,
            "created_at": user.created_at,
            "version": user.version,
        }),
    )
}

pub fn org(org: &Org) -> Value {
    line(
        "org",
        json!({
            "org": org.id.as_str(),
            "plan": org.plan.as_ref().map(|plan| plan.as_str()),
            "plan_since": org.plan_since,
            "zone": org.zone,
            "rights": org.rights,
            "created_at": org.created_at,
            "version": org.version,
        }),
    )
}

/// A hold as it stands at `now`.
pub fn hold(hold: &Hold, now: Millis) -> Value {
    line("hold", HoldView::new(hold, now))
}

/// An event of the feed.
pub fn usage(event: &FeedEvent) -> Value {
    line("usage", event_view(event))
}

pub fn audit(entry: &AuditEntry) -> Value {
    line("audit", audit_view(entry))
}

/// How often a user was refused for one reason on one day.
pub fn refusals(count: &RefusalCount) -> Value {
    line("refusals", json!({"day": super::admin::date(count.day), "code": count.code, "count": count.count}))
}

/// One refusal of which the figures are kept.
pub fn refused(call: &RefusedCall) -> Value {
    line("refused", json!({"at": call.at, "code": call.code, "limit": call.limit}))
}
