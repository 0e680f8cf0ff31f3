//! Ending what is in doubt: one hold, or all that a filter names.

use actix_web::http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Doubt, FILTERS, filtered, named};
use crate::http::console::api::Target;
use crate::http::console::deed::{Change, Control, Deed, Field, Plan, filled, number, sends};
use crate::http::console::figures::full;
use crate::http::console::visit::{Shown, Visit};

const DONE: &str = "/console/doubts?done=resolved";

fn actions(settle: bool) -> Control {
    let words = [
        ("charge", "Charge what was reserved"),
        ("release", "Release: the vendor did no work, all of it comes back"),
        ("settle", "Settle with the figures below"),
    ];
    let wanted = words.into_iter().filter(|(word, _)| settle || *word != "settle");
    Control::Choice(wanted.map(|(value, name)| (value.to_owned(), name.to_owned())).collect())
}

pub async fn one(visit: Visit) -> Shown {
    let doubt = named(&visit).await?;
    let fields = vec![
        Field::new("action", "How it ends", actions(true)),
        Field::new("input_tokens", "Input tokens", Control::Number).hint("Only for a settle."),
        Field::new("output_tokens", "Output tokens", Control::Number).hint("Only for a settle."),
        Field::reason(),
    ];
    let deed = Deed {
        title: "Resolve a hold".into(),
        of: (doubt.id.clone(), doubt.page()),
        lede: "Say how the call ended, as the vendor's bill or your own logs show it.",
        fields: filled(&visit, fields),
        verb: "Resolve it",
        is_harm: false,
    };
    if !sends(&visit) {
        return deed.form(&visit);
    }
    let action = visit.form.get("action");
    let mut body = json!({"action": action, "reason": visit.form.get("reason")});
    for figure in ["input_tokens", "output_tokens"] {
        // Told of a charge or a release, the API says that they do not belong there.
        if let Some(text) = visit.form.given(figure) {
            body[figure] = number(text);
        }
    }
    let plan = Plan {
        method: Method::POST,
        target: Target::new("/v1/admin/holds/{}/resolve", &[&doubt.id]),
        changes: changes(&doubt, action, &body),
        says: vec!["It is final: a settle or release of the caller that comes later is refused.".into()],
        body,
    };
    deed.go(&visit, plan, DONE).await
}

/// What the limits will have counted.
fn changes(doubt: &Doubt, action: &str, body: &Value) -> Vec<Change> {
    let rows = [
        ("Input tokens", "input_tokens", doubt.reserved.input_tokens.0),
        ("Output tokens", "output_tokens", doubt.reserved.output_tokens.0),
    ];
    let row = |(what, name, reserved): (&str, &str, u64)| Change {
        what: what.to_owned(),
        now: format!("{} held", full(reserved)),
        then: match action {
            "charge" => format!("{} charged", full(reserved)),
            "settle" => body[name].as_u64().map_or_else(String::new, |n| format!("{} charged", full(n))),
            _ => "0".into(),
        },
    };
    rows.into_iter().map(row).collect()
}

#[derive(Deserialize)]
struct Matched {
    matched: u64,
    amounts: Sums,
}

#[derive(Deserialize)]
struct Sums {
    input_tokens: u64,
    output_tokens: u64,
}

pub async fn many(visit: Visit) -> Shown {
    let labels: [(&str, Control, &str); 5] = [
        ("User", Control::Text, "Empty: of all users."),
        ("Model", Control::Text, ""),
        ("Feature", Control::Text, ""),
        ("Made from", Control::Day, "In the product's zone."),
        ("Made before", Control::Day, ""),
    ];
    let field = |(name, (label, control, hint))| {
        Field::new(name, label, control).hint(hint).value(visit.query.get(name))
    };
    let mut fields = vec![Field::new("action", "How they end", actions(false))];
    fields.extend(FILTERS.into_iter().zip(labels).map(field));
    fields.push(Field::reason());
    let deed = Deed {
        title: "Resolve holds".into(),
        of: ("In doubt".into(), filtered("/console/doubts", &visit.query).into()),
        lede: "Ends all holds in doubt that fit. One that is settled meanwhile is left alone.",
        fields: filled(&visit, fields),
        verb: "Resolve them",
        is_harm: true,
    };
    if !sends(&visit) {
        return deed.form(&visit);
    }
    let mut body = json!({"action": visit.form.get("action"), "reason": visit.form.get("reason")});
    for name in FILTERS {
        if let Some(text) = visit.form.given(name) {
            body[name] = text.into();
        }
    }
    let mut question = body.clone();
    question["dry_run"] = true.into();
    let target = || Target::new("/v1/admin/holds/resolve", &[]);
    let found: Matched = match visit.api.send(Method::POST, target(), Some(&question)).await {
        Ok(found) => found,
        Err(fault) if fault.status >= 500 => return Err(fault),
        Err(fault) => return deed.form_with(&visit, &fault),
    };
    let verb = if visit.form.get("action") == "charge" { "are charged" } else { "come back" };
    let (input, output) = (full(found.amounts.input_tokens), full(found.amounts.output_tokens));
    let says =
        vec![format!("{} holds: {input} input and {output} output tokens {verb}.", full(found.matched))];
    let plan = Plan { method: Method::POST, target: target(), body, changes: Vec::new(), says };
    deed.go(&visit, plan, DONE).await
}
