//! A sheet as a form: its numbers, a limit less, a limit more. What is not shown stays as it is.

use actix_web::http::Method;
use actix_web::http::header::{HeaderName, HeaderValue};
use askama::Template;
use serde::Deserialize;
use serde_json::{Value, json};

use super::restore::{add_schedule, schedule, schedule_words};
use super::{named, page_of, warnings};
use crate::http::console::api::{Fault, Target};
use crate::http::console::deed::{Control, Field};
use crate::http::console::figures::{Count, UserName};
use crate::http::console::page::{Shell, see, show, show_with};
use crate::http::console::sheets::{Limit, Pair, Sheet, pairs};
use crate::http::console::visit::{Shown, Visit};

/// Fields of the server's own, which do not go back.
pub const NOT_SENT: [&str; 6] = ["version", "effective_at", "applies", "to", "warnings", "reason"];
/// The one more limit that the form has room for.
const NEW: &str = "new";
/// Whose names a limit is narrowed to.
const GLOBS: [(&str, &str, &str); 2] = [
    ("models", "Models", "Such as opus*, sonnet. Empty: all."),
    ("features", "Features", "Such as chat, search*. Empty: all."),
];
const SCOPES: [(&str, &str); 3] =
    [("user", "Each user's own"), ("org", "Shared by the org"), ("tenant", "Shared by all")];
pub const NUMBERS: [(&str, &str); 3] =
    [("limit", "Limit"), ("capacity", "At once"), ("refill_per_minute", "A minute")];

/// A limit's part of the form.
struct Group {
    title: String,
    sentence: String,
    fields: Vec<Field>,
    /// Which calls it counts, and in whose account.
    narrowing: Vec<Field>,
    /// The name of the box that takes it away; none for a new one.
    remove: Option<String>,
    is_removed: bool,
}

impl Group {
    /// Something in it is to be seen at once.
    fn is_narrowed(&self) -> bool {
        self.narrowing.iter().any(|field| field.wrong.is_some() || !["", "user"].contains(&&*field.value))
    }
}

#[derive(Template)]
#[template(path = "plan_edit.html")]
struct Form {
    shell: Shell,
    id: String,
    path: String,
    is_new: bool,
    head: Vec<Field>,
    groups: Vec<Group>,
    schedule: Vec<Field>,
    fault: Option<Fault>,
    rest: Vec<String>,
    version: u32,
}

#[derive(Template)]
#[template(path = "plan_confirm.html")]
struct Confirm<'a> {
    shell: Shell,
    id: String,
    path: String,
    pairs: Vec<Pair>,
    after: &'a Sheet,
    says: String,
    preview: Option<Preview>,
    fields: Vec<(&'a str, &'a str)>,
}

impl Confirm<'_> {
    fn warnings(&self) -> &[crate::http::console::sheets::Warning] {
        warnings(self.after)
    }
}

/// What the sheet would have done to the calls of the last days.
#[derive(Deserialize)]
struct Preview {
    from: String,
    to: String,
    users: Count,
    users_on_plan: Count,
    calls: Count,
    complete: bool,
    over: Over,
    refused: Effect,
    relieved: Effect,
    most: Vec<Felt>,
}

#[derive(Deserialize)]
struct Over {
    users: Count,
}

#[derive(Deserialize)]
struct Effect {
    users: Count,
    calls: Count,
}

#[derive(Deserialize)]
struct Felt {
    user: UserName,
    refused: Count,
    relieved: Count,
    over: Vec<String>,
}

/// The sheet that the form is about: as it is on record, or an empty one.
async fn base(visit: &Visit, id: &str) -> Result<Value, Fault> {
    match visit.api.get(Target::new("/v1/admin/plans/{}", &[id])).await {
        Err(fault) if fault.status == 404 => Ok(json!({"id": id, "version": 0, "limits": []})),
        other => other,
    }
}

pub async fn page(visit: Visit) -> Shown {
    let id = named(&visit)?;
    let before = base(&visit, &id).await?;
    if *visit.call.head.method() != Method::POST {
        return show(&form(&visit, &id, &before, None));
    }
    let body = sheet(&visit, &before);
    match visit.form.get("do") {
        "edit" => show(&form(&visit, &id, &before, None)),
        "put" => put(&visit, &id, &before, body).await,
        step => check(&visit, &id, &before, body, step == "preview").await,
    }
}

/// The sheet in the API's form, out of the one on record and the fields.
fn sheet(visit: &Visit, before: &Value) -> Value {
    let mut body = before.clone();
    if let Value::Object(fields) = &mut body {
        fields.retain(|name, _| !NOT_SENT.contains(&name.as_str()));
    }
    if let Some(name) = visit.form.given("name") {
        body["name"] = name.into();
    }
    for cap in ["max_input_tokens", "max_output_tokens"] {
        body["per_call"][cap] = number(visit.form.get(cap));
    }
    body["requires_verified"] = (visit.form.get("requires_verified") == "yes").into();
    let limits = body["limits"].as_array().cloned().unwrap_or_default();
    let kept = limits.into_iter().enumerate().filter(|(place, _)| !is_removed(visit, *place));
    let mut limits: Vec<Value> = kept
        .map(|(place, mut limit)| {
            for (number_name, _) in NUMBERS {
                let field = format!("limits.{place}.{number_name}");
                if limit.get(number_name).is_some() || visit.form.given(&field).is_some() {
                    limit[number_name] = number(visit.form.get(&field));
                }
            }
            narrow(visit, &mut limit, &format!("limits.{place}"));
            limit
        })
        .collect();
    if visit.form.given("new.name").is_some() {
        let mut limit = json!({});
        for name in ["name", "kind", "meter", "period"] {
            if let Some(value) = visit.form.given(&format!("{NEW}.{name}")) {
                limit[name] = value.into();
            }
        }
        for (name, _) in NUMBERS {
            if let Some(value) = visit.form.given(&format!("{NEW}.{name}")) {
                limit[name] = number(value);
            }
        }
        narrow(visit, &mut limit, NEW);
        limits.push(limit);
    }
    body["limits"] = limits.into();
    add_schedule(visit, &mut body);
    body
}

/// What of a call a limit counts, and whose account it is. A form that does not name a field
/// leaves it as it is.
fn narrow(visit: &Visit, limit: &mut Value, group: &str) {
    let Value::Object(fields) = limit else { return };
    for (name, ..) in GLOBS {
        let field = format!("{group}.{name}");
        if !visit.form.has(&field) {
            continue;
        }
        let globs = visit.form.get(&field).split([',', '\n']).map(str::trim).filter(|glob| !glob.is_empty());
        let globs: Vec<&str> = globs.collect();
        match globs.is_empty() {
            true => fields.remove(name),
            false => fields.insert(name.into(), globs.into()),
        };
    }
    match visit.form.given(&format!("{group}.scope")) {
        Some("user") if !fields.contains_key("scope") => {}
        Some(scope) => _ = fields.insert("scope".into(), scope.into()),
        None => {}
    }
}

fn is_removed(visit: &Visit, place: usize) -> bool {
    visit.form.get(&format!("limits.{place}.remove")) == "yes"
}

/// A number, or null for none; what is no number goes to the API, which says so.
pub fn number(text: &str) -> Value {
    match text.replace([',', ' ', '_'], "") {
        digits if digits.is_empty() => Value::Null,
        digits => digits.parse::<u64>().map_or_else(|_| text.into(), Value::from),
    }
}

/// Asks the API what it would say, and shows what will change.
async fn check(visit: &Visit, id: &str, before: &Value, mut body: Value, previews: bool) -> Shown {
    let target = || Target::new("/v1/admin/plans/{}", &[id]);
    body["dry_run"] = true.into();
    let after: Sheet = match visit.api.send(Method::PUT, target(), Some(&body)).await {
        Ok(after) => after,
        Err(fault) if fault.status < 500 => return again(visit, id, before, fault),
        Err(fault) => return Err(fault),
    };
    let preview = match previews {
        true => {
            let mut trial = body.clone();
            if let Value::Object(fields) = &mut trial {
                fields.retain(|name, _| !["dry_run", "reason", "applies", "to"].contains(&name.as_str()));
            }
            let target = Target::new("/v1/admin/plans/{}/preview", &[id]);
            match visit.api.send(Method::POST, target, Some(&trial)).await {
                Ok(preview) => Some(preview),
                Err(fault) if fault.status < 500 => return again(visit, id, before, fault),
                Err(fault) => return Err(fault),
            }
        }
        false => None,
    };
    let now: Option<Sheet> = serde_json::from_value(before.clone()).ok();
    let pairs = now.map(|now| pairs(&now, &after)).unwrap_or_default();
    let fields = visit.form.without(&["mark", "do"]).collect();
    let (shell, says) = (visit.shell(format!("Change {}", after.title())), schedule_words(visit));
    show(&Confirm {
        shell,
        id: id.to_owned(),
        path: page_of(id),
        pairs,
        after: &after,
        says,
        preview,
        fields,
    })
}

/// Puts it in force, unless somebody else changed the plan meanwhile.
async fn put(visit: &Visit, id: &str, before: &Value, body: Value) -> Shown {
    let mut fields = Vec::new();
    let seen = visit.form.get("version");
    if seen != "0"
        && let Ok(tag) = HeaderValue::try_from(format!("\"{seen}\""))
    {
        fields.push((HeaderName::from_static("if-match"), tag));
    }
    let target = Target::new("/v1/admin/plans/{}", &[id]);
    match visit.api.ask(Method::PUT, target, Some(&body), &fields).await {
        Ok(_) => Ok(see(&format!("{}?done=saved", page_of(id)))),
        Err(fault) if fault.status < 500 => again(visit, id, before, fault),
        Err(fault) => Err(fault),
    }
}

fn again(visit: &Visit, id: &str, before: &Value, fault: Fault) -> Shown {
    show_with(&fault, &form(visit, id, before, Some(&fault)))
}

/// The form as it was filled in, or as the plan is.
fn form(visit: &Visit, id: &str, before: &Value, fault: Option<&Fault>) -> Form {
    let mut form = Form {
        shell: visit.shell("Edit plan"),
        id: id.to_owned(),
        path: page_of(id),
        is_new: before["version"] == 0,
        head: head(before),
        groups: groups(visit, before),
        schedule: schedule().into_iter().chain([Field::reason()]).collect(),
        fault: fault.cloned(),
        rest: Vec::new(),
        version: before["version"].as_u64().unwrap_or(0) as u32,
    };
    let is_sent = *visit.call.head.method() == Method::POST;
    let groups = form.groups.iter_mut();
    let groups = groups.flat_map(|group| group.fields.iter_mut().chain(&mut group.narrowing));
    let mut fields: Vec<&mut Field> = form.head.iter_mut().chain(groups).chain(&mut form.schedule).collect();
    if is_sent {
        for field in &mut fields {
            field.value = visit.form.get(&field.name).to_owned();
        }
    }
    for error in fault.iter().flat_map(|fault| &fault.errors) {
        let pointer = on_the_form(visit, before, &error.pointer);
        // A fault may lie within a list that the form has as one field.
        let is_of = |field: &Field| {
            let rest = pointer.strip_prefix(field.pointer.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match fields.iter_mut().find(|field| is_of(field)) {
            Some(field) => field.wrong = Some(error.message.clone()),
            None => form.rest.push(format!("{} {}", error.pointer, error.message)),
        }
    }
    form
}

/// The API counts the limits that it was sent; the form also has those that are taken away.
fn on_the_form(visit: &Visit, before: &Value, pointer: &str) -> String {
    let all = before["limits"].as_array().map_or(0, Vec::len);
    let kept: Vec<usize> = (0..all).filter(|place| !is_removed(visit, *place)).collect();
    let mut parts = pointer.trim_start_matches("/limits/").splitn(2, '/');
    let (Some(place), rest) = (parts.next().and_then(|place| place.parse::<usize>().ok()), parts.next())
    else {
        return pointer.to_owned();
    };
    let place = kept.get(place).map_or(NEW.to_owned(), usize::to_string);
    format!("/limits/{place}/{}", rest.unwrap_or("name"))
}

fn head(before: &Value) -> Vec<Field> {
    let number = |value: &Value| value.as_u64().map(|number| number.to_string()).unwrap_or_default();
    let yes_no = [("", "No"), ("yes", "Yes")].map(|(value, name)| (value.to_owned(), name.to_owned()));
    let caps = &before["per_call"];
    vec![
        Field::new("name", "Name", Control::Text).value(before["name"].as_str().unwrap_or_default()),
        Field::new("max_input_tokens", "Most input of a call", Control::Number)
            .value(number(&caps["max_input_tokens"]))
            .pointer("/per_call/max_input_tokens"),
        Field::new("max_output_tokens", "Most output of a call", Control::Number)
            .value(number(&caps["max_output_tokens"]))
            .pointer("/per_call/max_output_tokens"),
        Field::new("requires_verified", "Only for verified users", Control::Choice(yes_no.to_vec()))
            .value(if before["requires_verified"] == true { "yes" } else { "" }),
    ]
}

fn groups(visit: &Visit, before: &Value) -> Vec<Group> {
    let limits = before["limits"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut groups: Vec<Group> = Vec::new();
    for (place, limit) in limits.iter().enumerate() {
        let given = NUMBERS.into_iter().filter(|(name, _)| limit.get(*name).is_some());
        let fields = given.map(|(name, label)| {
            let value = limit[name].as_u64().map(|number| number.to_string()).unwrap_or_default();
            Field::new(format!("limits.{place}.{name}"), label, Control::Number)
                .value(value)
                .pointer(format!("/limits/{place}/{name}"))
        });
        let read: Option<Limit> = serde_json::from_value(limit.clone()).ok();
        groups.push(Group {
            title: limit["name"].as_str().unwrap_or_default().to_owned(),
            sentence: read.map(|limit| limit.sentence()).unwrap_or_default(),
            fields: fields.collect(),
            narrowing: narrowing(&format!("limits.{place}"), &format!("/limits/{place}"), limit),
            remove: Some(format!("limits.{place}.remove")),
            is_removed: is_removed(visit, place),
        });
    }
    groups.push(one_more());
    groups
}

/// The fields that say what a limit counts, and in whose account.
fn narrowing(group: &str, pointer: &str, limit: &Value) -> Vec<Field> {
    let globs = GLOBS.map(|(name, label, hint)| {
        let known = limit[name].as_array().map(Vec::as_slice).unwrap_or_default();
        let known: Vec<&str> = known.iter().filter_map(Value::as_str).collect();
        Field::new(format!("{group}.{name}"), label, Control::Text)
            .hint(hint)
            .value(known.join(", "))
            .pointer(format!("{pointer}/{name}"))
    });
    let scopes = SCOPES.map(|(value, name)| (value.to_owned(), name.to_owned())).to_vec();
    let scope = Field::new(format!("{group}.scope"), "Account", Control::Choice(scopes))
        .value(limit["scope"].as_str().unwrap_or("user"))
        .pointer(format!("{pointer}/scope"));
    globs.into_iter().chain([scope]).collect()
}

fn one_more() -> Group {
    let choices =
        |words: &[&str]| Control::Choice(words.iter().map(|word| ((*word).into(), (*word).into())).collect());
    let field = |name: &str, label, control| {
        Field::new(format!("{NEW}.{name}"), label, control).pointer(format!("/limits/{NEW}/{name}"))
    };
    let fields = vec![
        field("name", "Name", Control::Text).hint("Letters, digits and _. Empty: no further limit."),
        field("kind", "Kind", choices(&["window", "bucket", "slots"])),
        field("meter", "Meter", Control::Text).hint("requests, total_tokens, credits..."),
        field("period", "Period", choices(&["", "day", "week", "month", "lifetime"])).hint("Of a window."),
        field("limit", "Limit", Control::Number).hint("Of a window or slots."),
        field("capacity", "At once", Control::Number).hint("Of a bucket."),
        field("refill_per_minute", "A minute", Control::Number).hint("Of a bucket."),
    ];
    let narrowing = narrowing(NEW, &format!("/limits/{NEW}"), &Value::Null);
    let (title, sentence) = ("One more limit".into(), String::new());
    Group { title, sentence, fields, narrowing, remove: None, is_removed: false }
}
