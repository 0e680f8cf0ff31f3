//! The sheet of an earlier version is to hold again.

use actix_web::http::Method;
use serde_json::{Value, json};

use super::{named, page_of};
use crate::http::console::api::{List, Target};
use crate::http::console::deed::{Change, Control, Deed, Field, Plan};
use crate::http::console::sheets::{Sheet, pairs};
use crate::http::console::visit::{Shown, Visit};
use crate::http::problem::Problem;

/// When a version comes into force, and for whom.
pub fn schedule() -> [Field; 3] {
    let applies = [
        ("", "As usual: an upgrade now, a downgrade when each user's month ends"),
        ("now", "Now"),
        ("next_window", "When each user's month ends"),
        ("at", "At the time below"),
    ];
    let to = [("everyone", "Everyone"), ("new_users", "Users who come later")];
    let choices = |pairs: &[(&str, &str)]| {
        Control::Choice(pairs.iter().map(|(value, name)| ((*value).into(), (*name).into())).collect())
    };
    [
        Field::new("applies", "In force", choices(&applies)),
        Field::new("time", "Time", Control::Moment)
            .hint("In the product's zone; only for the last choice above.")
            .pointer("/applies"),
        Field::new("to", "For", choices(&to)),
    ]
}

/// The choices of [`schedule`] and the reason, as the API wants them.
pub fn add_schedule(visit: &Visit, body: &mut Value) {
    match visit.form.get("applies") {
        "" => {}
        "at" => {
            let text = visit.form.get("time");
            let at = visit.clock().moment(text);
            body["applies"] = at.map_or_else(|| text.into(), |at| at.to_string().into());
        }
        word => body["applies"] = word.into(),
    }
    if let Some(to) = visit.form.given("to") {
        body["to"] = to.into();
    }
    body["reason"] = visit.form.get("reason").into();
}

/// The same in words.
pub fn schedule_words(visit: &Visit) -> String {
    let when = match visit.form.get("applies") {
        "now" => "now".to_owned(),
        "next_window" => "when each user's month ends".to_owned(),
        "at" => format!("at {} in the product's zone", visit.form.get("time").replace('T', " ")),
        _ => "now if it gives more, else when each user's month ends".to_owned(),
    };
    let whom =
        if visit.form.get("to") == "new_users" { "users who come later" } else { "everyone on the plan" };
    format!("It comes into force {when}, for {whom}.")
}

pub async fn page(visit: Visit) -> Shown {
    let id = named(&visit)?;
    let version = visit.call.segment("version")?;
    let now: Sheet = visit.api.get(Target::new("/v1/admin/plans/{}", &[&id])).await?;
    let versions: List<Sheet> =
        visit.api.get(Target::new("/v1/admin/plans/{}/versions", &[&id]).with("limit", "500")).await?;
    let then = versions.data.iter().find(|sheet| sheet.version.to_string() == version);
    let then = then.ok_or_else(|| Problem::not_found("version"))?;
    let mut fields: Vec<Field> = schedule().into_iter().chain([Field::reason()]).collect();
    for field in &mut fields {
        if let Some(value) = visit.form.given(&field.name) {
            field.value = value.to_owned();
        }
    }
    let deed = Deed {
        title: format!("Restore version {version}"),
        of: (now.title().to_owned(), page_of(&id)),
        lede: "Its sheet becomes a new version; all versions stay.",
        fields,
        verb: "Restore it",
        is_harm: false,
    };
    if *visit.call.head.method() != Method::POST {
        return deed.form(&visit);
    }
    let absent = || "no limit".to_owned();
    let changes = pairs(&now, then).into_iter().map(|pair| Change {
        what: pair.what,
        now: pair.before.unwrap_or_else(absent),
        then: pair.after.unwrap_or_else(absent),
    });
    let mut body = json!({});
    add_schedule(&visit, &mut body);
    let plan = Plan {
        method: Method::POST,
        target: Target::new("/v1/admin/plans/{}/versions/{}/restore", &[&id, &version]),
        body,
        changes: changes.collect(),
        says: vec![schedule_words(&visit)],
    };
    deed.go(&visit, plan, &format!("{}?done=saved", page_of(&id))).await
}
