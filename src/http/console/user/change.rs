//! What an admin can change about a user.

use actix_web::http::Method;
use serde_json::{Map, Value, json};

use super::{User, clock, named, on_record, target};
use crate::http::console::api::{Fault, List};
use crate::http::console::deed::{Change, Control, Deed, Field, Plan, filled, number, sends};
use crate::http::console::figures::{self, UserName};
use crate::http::console::sheets::{Limit, Sheet, pairs};
use crate::http::console::visit::{Shown, Visit};

/// What every change begins with.
struct About {
    name: UserName,
    record: Option<User>,
    sheets: Vec<Sheet>,
}

impl About {
    async fn of(visit: &Visit) -> Result<Self, Fault> {
        let name = named(visit)?;
        let record = on_record(visit, &name).await?;
        let sheets: List<Sheet> = visit.api.get("/v1/admin/plans").await?;
        Ok(Self { name, record, sheets: sheets.data })
    }

    fn sheet(&self, id: &str) -> Option<&Sheet> {
        self.sheets.iter().find(|sheet| sheet.id == id)
    }

    /// The sheet that holds for the user now.
    fn own(&self) -> Option<&Sheet> {
        self.sheet(&self.record.as_ref()?.plan.id)
    }

    fn limits(&self, wanted: impl Fn(&Limit) -> bool) -> Vec<(String, String)> {
        let limits = self.own().map(|sheet| sheet.limits.as_slice()).unwrap_or_default();
        let named = |limit: &Limit| (limit.name.clone(), format!("{}: {}", limit.name, limit.sentence()));
        limits.iter().filter(|limit| wanted(limit)).map(named).collect()
    }

    fn deed(&self, title: &str, lede: &'static str, fields: Vec<Field>, verb: &'static str) -> Deed {
        let of = (self.name.0.clone(), self.name.page());
        Deed { title: title.into(), of, lede, fields, verb, is_harm: false }
    }

    fn done(&self) -> String {
        format!("{}?done=saved", self.name.page())
    }
}

/// A local time as an instant; what is no time goes to the API, which says so.
fn moment(visit: &Visit, about: &About, name: &str) -> Value {
    match visit.form.given(name) {
        None => Value::Null,
        Some(text) => {
            let clock = clock(visit, about.record.as_ref());
            clock.moment(text).map_or_else(|| text.into(), |at| at.to_string().into())
        }
    }
}

pub async fn plan(visit: Visit) -> Shown {
    let about = About::of(&visit).await?;
    let choices = about.sheets.iter().map(|sheet| (sheet.id.clone(), sheet.title().to_owned())).collect();
    let when = [
        ("", "As usual: an upgrade now, a downgrade when the month ends"),
        ("now", "Now"),
        ("next_window", "When the running month ends"),
        ("at", "At the time below"),
    ];
    let when = when.map(|(value, name)| (value.to_owned(), name.to_owned())).to_vec();
    let now = about.record.as_ref().map(|user| user.plan.id.clone()).unwrap_or_default();
    let mut time = Field::new("time", "Time", Control::Moment)
        .hint("In the user's zone; only for the last choice above.")
        .pointer("/effective");
    time.required = visit.form.get("effective") == "at";
    let fields = vec![
        Field::new("plan", "Plan", Control::Choice(choices)).value(now),
        Field::new("effective", "When", Control::Choice(when)).pointer("/effective_word"),
        time,
        Field::reason(),
    ];
    let lede = "What was used stays used: it is carried over to limits of the same name.";
    let deed = about.deed("Change of plan", lede, filled(&visit, fields), "Change the plan");
    if !sends(&visit) {
        return deed.form(&visit);
    }
    let mut body = json!({"plan": visit.form.get("plan"), "reason": visit.form.get("reason")});
    match visit.form.get("effective") {
        "" => {}
        // Nothing given is nothing meant, and above all not "now".
        "at" if visit.form.given("time").is_none() => body["effective"] = "".into(),
        "at" => body["effective"] = moment(&visit, &about, "time"),
        word => body["effective"] = word.into(),
    }
    let sheets = about.own().zip(about.sheet(visit.form.get("plan")));
    let absent = || "no limit".to_owned();
    let changes = sheets.map(|(before, after)| pairs(before, after)).unwrap_or_default().into_iter();
    let changes = changes.map(|pair| Change {
        what: pair.what,
        now: pair.before.unwrap_or_else(absent),
        then: pair.after.unwrap_or_else(absent),
    });
    let now = about.own().map_or("no plan on record", Sheet::title);
    let then = about.sheet(visit.form.get("plan")).map_or(visit.form.get("plan"), Sheet::title);
    let when = match visit.form.get("effective") {
        "now" => "now".to_owned(),
        "next_window" => "when the running month ends".to_owned(),
        "at" => format!("at {} in the user's zone", visit.form.get("time").replace('T', " ")),
        _ => "now if it is an upgrade, else when the running month ends".to_owned(),
    };
    let says = vec![format!(
        "From {now} to {then}, {when}. Open calls finish under the limits they were admitted by."
    )];
    let plan = Plan {
        method: Method::POST,
        target: target("/v1/admin/users/{}/plan", &about.name),
        body,
        changes: changes.collect(),
        says,
    };
    deed.go(&visit, plan, &about.done()).await
}

/// What holds for a limit now, as fields have it.
#[derive(Default)]
struct Present {
    limit: String,
    capacity: String,
    refill_per_minute: String,
    expires_at: String,
}

impl Present {
    /// Of a form that is opened for that limit: the user's own numbers, else the plan's. A form
    /// that was sent says itself what is in it.
    fn of(visit: &Visit, about: &About, limit: &str) -> Self {
        if limit.is_empty() || *visit.call.head.method() == Method::POST {
            return Self::default();
        }
        let text = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        let own = about.record.as_ref().and_then(|user| user.overrides.get(limit));
        let of_plan = about.own().and_then(|sheet| sheet.limit(limit));
        let clock = clock(visit, about.record.as_ref());
        match (own, of_plan) {
            (Some(own), _) => Self {
                limit: text(own.limit),
                capacity: text(own.capacity),
                refill_per_minute: text(own.refill_per_minute),
                expires_at: own.expires_at.map(|at| clock.field(at)).unwrap_or_default(),
            },
            (None, Some(plan)) => Self {
                limit: text(plan.limit),
                capacity: text(plan.capacity),
                refill_per_minute: text(plan.refill_per_minute),
                expires_at: String::new(),
            },
            (None, None) => Self::default(),
        }
    }
}

pub async fn overrides(visit: Visit) -> Shown {
    let about = About::of(&visit).await?;
    let limit = visit.form.given("limit").or(visit.query.given("limit")).unwrap_or_default().to_owned();
    let at = |number: &str| format!("/overrides/{limit}/{number}");
    let present = Present::of(&visit, &about, &limit);
    let fields = vec![
        Field::new("limit", "Limit", Control::Choice(about.limits(|_| true)))
            .value(limit.as_str())
            .pointer(format!("/overrides/{limit}")),
        Field::new("number", "Its limit", Control::Number)
            .hint("Of a window (credits in millionths) or of calls at the same time. Empty everywhere: the override is taken away.")
            .value(present.limit)
            .pointer(at("limit")),
        Field::new("capacity", "At once", Control::Number)
            .hint("Of a bucket.")
            .value(present.capacity)
            .pointer(at("capacity")),
        Field::new("refill_per_minute", "A minute", Control::Number)
            .hint("Of a bucket.")
            .value(present.refill_per_minute)
            .pointer(at("refill_per_minute")),
        Field::new("expires_at", "Until", Control::Moment)
            .hint("In the user's zone. Empty: until it is taken away.")
            .value(present.expires_at),
        Field::reason(),
    ];
    let deed = about.deed(
        "Override of a limit",
        "Numbers for this user in place of the plan's.",
        filled(&visit, fields),
        "Set the override",
    );
    if !sends(&visit) {
        return deed.form(&visit);
    }
    let mut numbers = Map::new();
    for (field, name) in
        [("number", "limit"), ("capacity", "capacity"), ("refill_per_minute", "refill_per_minute")]
    {
        if let Some(text) = visit.form.given(field) {
            numbers.insert(name.into(), number(text));
        }
    }
    let words: Vec<String> =
        numbers.iter().map(|(name, value)| format!("{} {value}", name.replace('_', " "))).collect();
    let is_removal = numbers.is_empty();
    let body = json!({
        "overrides": {limit.as_str(): if is_removal { Value::Null } else { Value::Object(numbers) }},
        "expires_at": moment(&visit, &about, "expires_at"),
        "reason": visit.form.get("reason"),
    });
    let own = about.own().and_then(|sheet| sheet.limit(&limit)).map(Limit::sentence);
    let own = own.unwrap_or_else(|| "not in the plan".into());
    let before =
        about.record.as_ref().and_then(|user| user.overrides.get(&limit)).map(super::Override::numbers);
    let change = Change {
        what: limit.clone(),
        now: before.unwrap_or_else(|| own.clone()),
        then: if is_removal { own } else { words.join(", ") },
    };
    let says = match visit.form.given("expires_at") {
        Some(end) => format!("It holds from now until {} in the user's zone.", end.replace('T', " ")),
        None => "It holds from now on, until it is taken away.".into(),
    };
    let target = target("/v1/admin/users/{}/overrides", &about.name);
    let plan = Plan { method: Method::PUT, target, body, changes: vec![change], says: vec![says] };
    deed.go(&visit, plan, &about.done()).await
}

pub async fn grant(visit: Visit) -> Shown {
    let about = About::of(&visit).await?;
    let fields = vec![
        Field::new("limit", "Limit", Control::Choice(about.limits(|limit| limit.kind == "window"))),
        Field::new("amount", "Amount", Control::Number)
            .hint("In the limit's own unit; credits in millionths of one.")
            .required(),
        Field::new("expires_at", "Until", Control::Moment)
            .hint("In the user's zone. Empty: until it is used up."),
        Field::reason(),
    ];
    let lede =
        "An extra amount on a window. It is used after the plan's own, and what is left of it lives on.";
    let deed = about.deed("Grant", lede, filled(&visit, fields), "Give it");
    if !sends(&visit) {
        return deed.form(&visit);
    }
    let limit = visit.form.get("limit").to_owned();
    let amount = number(visit.form.get("amount"));
    let meter = about.own().and_then(|sheet| sheet.limit(&limit)).and_then(|limit| limit.meter.clone());
    let meter = meter.unwrap_or_default();
    let shown = amount.as_u64().map_or_else(
        || visit.form.get("amount").to_owned(),
        |value| format!("{} {}", figures::amount(value, &meter), meter.replace('_', " ")),
    );
    let body = json!({
        "limit": limit,
        "amount": amount,
        "expires_at": moment(&visit, &about, "expires_at"),
        "reason": visit.form.get("reason"),
    });
    let own = about.own().and_then(|sheet| sheet.limit(&limit)).map(Limit::sentence).unwrap_or_default();
    let change = Change { what: limit, now: own.clone(), then: format!("{own}, and {shown} more once") };
    let says = vec![match visit.form.given("expires_at") {
        Some(end) => {
            format!("What is not used by {} in the user's zone is gone then.", end.replace('T', " "))
        }
        None => "It stays until it is used.".into(),
    }];
    let target = target("/v1/admin/users/{}/grants", &about.name);
    let plan = Plan { method: Method::POST, target, body, changes: vec![change], says };
    deed.go(&visit, plan, &about.done()).await
}

pub async fn suspend(visit: Visit) -> Shown {
    let about = About::of(&visit).await?;
    let is_suspended = about.record.as_ref().is_some_and(|user| user.suspended);
    let (title, verb, says) = match is_suspended {
        false => (
            "Suspend",
            "Suspend the user",
            "Every check of this user is refused with user_suspended from now on. Calls that run may finish.",
        ),
        true => (
            "End the suspension",
            "Let the user in",
            "Checks of this user are decided by their limits again from now on.",
        ),
    };
    let mut deed = about.deed(title, "", filled(&visit, vec![Field::reason()]), verb);
    deed.is_harm = !is_suspended;
    if !sends(&visit) {
        return deed.form(&visit);
    }
    let word = |is: bool| if is { "suspended" } else { "may call" }.to_owned();
    let change = Change { what: about.name.0.clone(), now: word(is_suspended), then: word(!is_suspended) };
    let plan = Plan {
        method: Method::PUT,
        target: target("/v1/admin/users/{}", &about.name),
        body: json!({"suspended": !is_suspended, "reason": visit.form.get("reason")}),
        changes: vec![change],
        says: vec![says.into()],
    };
    deed.go(&visit, plan, &about.done()).await
}

pub async fn erase(visit: Visit) -> Shown {
    let about = About::of(&visit).await?;
    let mut deed =
        about.deed("Erase", "", filled(&visit, vec![Field::reason()]), "Erase the user's identity");
    deed.is_harm = true;
    if !sends(&visit) {
        return deed.form(&visit);
    }
    let says = [
        "The id is taken out of the user's records, holds and sums, which stay under a pseudonym; the audit keeps who changed what. This cannot be undone.",
        "While the running windows run, they keep counting for whoever comes under this id.",
    ];
    let plan = Plan {
        method: Method::DELETE,
        target: target("/v1/admin/users/{}", &about.name),
        body: json!({"reason": visit.form.get("reason")}),
        changes: Vec::new(),
        says: says.map(str::to_owned).to_vec(),
    };
    deed.go(&visit, plan, "/console/users?done=erased").await
}
