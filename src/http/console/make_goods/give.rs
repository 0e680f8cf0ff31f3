//! Making good: to whom, what, and first what it would come to.

use actix_web::http::Method;
use serde_json::{Map, Value, json};

use super::MakeGood;
use crate::http::console::api::{Fault, List, Target};
use crate::http::console::deed::{Control, Deed, Field, Plan, filled, number, sends};
use crate::http::console::figures::full;
use crate::http::console::sheets::Sheet;
use crate::http::console::visit::{Shown, Visit};

pub async fn page(visit: Visit) -> Shown {
    let sheets: List<Sheet> = visit.api.get("/v1/admin/plans").await?;
    let deed = Deed {
        title: "Make good".into(),
        of: ("Make-good".into(), "/console/make-goods".into()),
        lede: "Gives an extra amount, or what a window has used, back to many users: once each by its name.",
        fields: filled(&visit, fields(&visit, &sheets.data)),
        verb: "Give it",
        is_harm: false,
    };
    if !sends(&visit) {
        return deed.form(&visit);
    }
    let body = body(&visit);
    let target = || Target::new("/v1/admin/make-goods/{}", &[visit.form.get("id")]);
    let says = match look(&visit, target(), &body).await {
        Ok(says) => says,
        Err(fault) if fault.status >= 500 => return Err(fault),
        Err(fault) => return deed.form_with(&visit, &fault),
    };
    let plan = Plan { method: Method::PUT, target: target(), body, changes: Vec::new(), says };
    deed.go(&visit, plan, "/console/make-goods?done=given").await
}

/// What it would come to.
async fn look(visit: &Visit, target: Target, body: &Value) -> Result<Vec<String>, Fault> {
    let mut question = body.clone();
    question["dry_run"] = true.into();
    let would: MakeGood = visit.api.send(Method::PUT, target, Some(&question)).await?;
    let (matched, given, skipped) = (full(would.matched.0), full(would.given.0), full(would.skipped.0));
    Ok(vec![
        format!("Users who are meant: {} ({matched}).", would.users.words()),
        format!("{given} of them get it, {} in all; {skipped} are left out.", full(would.amount.0)),
        "Left out is who has no such limit, no use to be given back, or too many grants.".into(),
    ])
}

fn is_reset(visit: &Visit) -> bool {
    visit.form.get("what") == "reset"
}

fn fields(visit: &Visit, sheets: &[Sheet]) -> Vec<Field> {
    let any = || (String::new(), "Any plan".to_owned());
    let plans = sheets.iter().map(|sheet| (sheet.id.clone(), sheet.title().to_owned()));
    let kinds = [("grant", "An extra amount"), ("reset", "What the running window has used")];
    let kinds = kinds.map(|(value, name)| (value.to_owned(), name.to_owned())).to_vec();
    let what = if is_reset(visit) { "/reset" } else { "/grant" };
    vec![
        Field::new("id", "Name", Control::Text)
            .hint("Of your own, such as outage-2026-11-30. The same name gives once.")
            .required(),
        Field::new("plan", "Plan", Control::Choice(std::iter::once(any()).chain(plans).collect()))
            .pointer("/users/plan"),
        Field::new("org", "Org", Control::Text).hint("Empty: of any.").pointer("/users/org"),
        Field::new("ids", "Users", Control::Lines)
            .hint("One a line, at most 1,000. Empty: all that fit.")
            .pointer("/users/ids"),
        Field::new("refused_from", "Refused from", Control::Day)
            .hint("Only who was refused on these days, in the product's zone.")
            .pointer("/users/refused/from"),
        Field::new("refused_to", "Up to, not included", Control::Day).pointer("/users/refused/to"),
        Field::new("code", "Refused by", Control::Text)
            .hint("A code, such as monthly_quota_exhausted. Empty: by any.")
            .pointer("/users/refused/code"),
        Field::new("what", "What is given", Control::Choice(kinds)).pointer(what),
        Field::new("limit", "Limit", Control::Text)
            .hint("The name of a window limit, such as tokens_per_month.")
            .pointer(format!("{what}/limit"))
            .required(),
        Field::new("amount", "Amount", Control::Number)
            .hint("In the limit's units; only for an extra amount.")
            .pointer(format!("{what}/amount")),
        Field::new("expires_at", "Until", Control::Moment)
            .hint("In the product's zone; only for an extra amount. Empty: until it is used.")
            .pointer(format!("{what}/expires_at")),
        Field::reason(),
    ]
}

fn body(visit: &Visit) -> Value {
    let form = &visit.form;
    let text = |name: &str| form.given(name).map(Value::from);
    let mut users = Map::new();
    for name in ["plan", "org"] {
        users.extend(text(name).map(|value| (name.to_owned(), value)));
    }
    let ids: Vec<&str> = form.get("ids").lines().map(str::trim).filter(|id| !id.is_empty()).collect();
    if !ids.is_empty() {
        users.insert("ids".into(), json!(ids));
    }
    let refused = [("from", "refused_from"), ("to", "refused_to"), ("code", "code")];
    let refused = refused.into_iter().filter_map(|(name, field)| Some((name.to_owned(), text(field)?)));
    let refused: Map<String, Value> = refused.collect();
    if !refused.is_empty() {
        users.insert("refused".into(), refused.into());
    }
    let mut given = Map::from_iter([("limit".to_owned(), Value::from(form.get("limit")))]);
    if let Some(amount) = form.given("amount") {
        given.insert("amount".into(), number(amount));
    }
    if let Some(text) = form.given("expires_at") {
        let at = visit.clock().moment(text).map_or_else(|| text.to_owned(), |at| at.to_string());
        given.insert("expires_at".into(), at.into());
    }
    let what = if is_reset(visit) { "reset" } else { "grant" };
    json!({"users": users, what: given, "reason": form.get("reason")})
}
