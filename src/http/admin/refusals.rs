//! `/v1/admin/users/{user}/refusals`: why a user was refused.

use serde_json::{Value, json};

use super::records::audit_view;
use crate::domain::ids::{Label, Name};
use crate::domain::time::Millis;
use crate::http::call::Call;
use crate::http::problem::ViolationView;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::RefusalList;
use crate::ledger::Grounds;
use crate::service::telling::refusals::Explained;

/// Refusals that are explained at once, at most.
const MOST: u32 = 20;

/// Explains a user's refusals: the figures then, the plan's version then, and who changed what.
#[utoipa::path(
    get, path = "/v1/admin/users/{user}/refusals", operation_id = "explain_refusals", tag = "admin",
    params(
        ("user" = String, Path, description = "The user, percent-encoded"),
        ("at" = Option<String>, Query,
         description = "An instant: the refusals nearest to it come first (all moments of its second are equally near); else the newest"),
        ("limit" = Option<u32>, Query, description = "Most refusals, 1-20, default 1 with `at`, else 20"),
    ),
    responses(
        (status = 200, description = "Refusals of the user's last 100", body = RefusalList),
        (status = 404, description = "Nothing is on record about this user"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn explain(call: Call) -> Answer {
    let user = call.user()?;
    let (at, limit) = call.query(|parameters| {
        let at = parameters.optional("at", Millis::parse);
        let usual = if at.is_some() { 1 } else { MOST };
        Some((at, parameters.number("limit", 1..=MOST).unwrap_or(usual)))
    })?;
    let explained = call.service().explain_refusals(call.tenant()?, &user, at, limit as usize).await?;
    let data: Vec<Value> = explained.iter().map(view).collect();
    Ok(Reply::json(&json!({"data": data, "next_cursor": null})))
}

fn view(refusal: &Explained) -> Value {
    let Explained { call, version, changed_before, changed_since } = refusal;
    let grounds = call.grounds.as_deref();
    let plan = grounds.and_then(|grounds| grounds.plan.as_ref()).map(|(id, number)| {
        let written = version.as_ref().map(|record| &record.written);
        json!({
            "id": id,
            "version": number,
            "written_at": written.map(|written| written.at),
            "written_by": written.map(|written| &written.by),
            "reason": written.and_then(|written| written.reason.as_ref()),
        })
    });
    json!({
        "at": call.at,
        "code": call.code,
        "limit": call.limit,
        "plan": plan,
        "asked": grounds.map(asked),
        "violations": grounds.map(|grounds| grounds.failed.iter().map(ViolationView::from).collect::<Vec<_>>()),
        "changed_before": changed_before.iter().map(audit_view).collect::<Vec<_>>(),
        "changed_since": changed_since.iter().map(audit_view).collect::<Vec<_>>(),
    })
}

fn asked(grounds: &Grounds) -> Value {
    json!({
        "model": grounds.model.as_ref().map(Name::as_str),
        "feature": grounds.feature.as_ref().map(Label::as_str),
        "lane": if grounds.bulk { "bulk" } else { "interactive" },
        "input_tokens": grounds.input_tokens,
        "max_output_tokens": grounds.max_output_tokens,
        "min_output_tokens": grounds.min_output_tokens,
    })
}
