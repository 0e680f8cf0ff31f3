//! A change that somebody makes: a form, then a page that says what will change, and only then the
//! call to the API. What the API finds wrong stands at its field.

use std::borrow::Cow;

use actix_web::http::Method;
use actix_web::http::header::{HeaderName, HeaderValue};
use askama::Template;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::api::{Fault, Target, fault};
use super::figures::wall_time;
use super::page::{Shell, see, show, show_with};
use super::visit::{Shown, Visit};
use crate::http::problem::Kind;

/// Says that the page has asked whether it is meant, and what it said then.
const CONFIRMED: &str = "confirmed";
const TOLD: &str = "told";
/// Names the question: who answers it twice does it once.
const ONCE: &str = "once";
const ONCE_TO_API: HeaderName = HeaderName::from_static("idempotency-key");
/// Leads from that question back to the form.
const BACK: &str = "back";

/// How a field is filled in.
pub enum Control {
    Text,
    Number,
    /// A local date and time.
    Moment,
    /// A local date.
    Day,
    /// Many of something, one a line.
    Lines,
    /// Values with what they are called.
    Choice(Vec<(String, String)>),
}

pub struct Field {
    pub name: Cow<'static, str>,
    pub label: &'static str,
    pub hint: &'static str,
    pub control: Control,
    /// Where the API's faults about it point.
    pub pointer: String,
    pub value: String,
    pub wrong: Option<String>,
    pub required: bool,
}

impl Field {
    pub fn new(name: impl Into<Cow<'static, str>>, label: &'static str, control: Control) -> Self {
        let name = name.into();
        let pointer = format!("/{name}");
        let (hint, value, wrong) = ("", String::new(), None);
        Self { name, label, hint, control, pointer, value, wrong, required: false }
    }

    pub fn hint(self, hint: &'static str) -> Self {
        Self { hint, ..self }
    }

    pub fn value(self, value: impl Into<String>) -> Self {
        Self { value: value.into(), ..self }
    }

    pub fn pointer(self, pointer: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), ..self }
    }

    pub fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// Why it is done: kept in the audit.
    pub fn reason() -> Self {
        Self::new("reason", "Reason", Control::Text)
            .hint("Kept in the audit with your key's name.")
            .required()
    }

    pub fn input_type(&self) -> &'static str {
        match self.control {
            Control::Moment => "datetime-local",
            Control::Day => "date",
            _ => "text",
        }
    }

    pub fn is_number(&self) -> bool {
        matches!(self.control, Control::Number)
    }

    pub fn has_lines(&self) -> bool {
        matches!(self.control, Control::Lines)
    }

    fn fault(&self) -> Option<&'static str> {
        let text = self.value.trim();
        match self.control {
            _ if text.is_empty() => self.required.then_some("is missing"),
            Control::Number if !number(text).is_u64() => Some("must be a whole number, 0 or more"),
            Control::Moment if wall_time(text).is_none() => Some("must be a time such as 2026-11-30T14:00"),
            _ => None,
        }
    }

    pub fn choices(&self) -> Option<&[(String, String)]> {
        match &self.control {
            Control::Choice(choices) => Some(choices),
            _ => None,
        }
    }
}

/// What will be otherwise.
pub struct Change {
    pub what: String,
    pub now: String,
    pub then: String,
}

/// The change before it is asked for.
pub struct Deed {
    pub title: String,
    /// Whose page this is, with its address.
    pub of: (String, String),
    pub lede: &'static str,
    pub fields: Vec<Field>,
    /// On the button that does it.
    pub verb: &'static str,
    pub is_harm: bool,
}

/// What the API will be asked, and what people are told before.
pub struct Plan {
    pub method: Method,
    pub target: Target,
    pub body: Value,
    pub changes: Vec<Change>,
    pub says: Vec<String>,
}

impl Plan {
    /// What people are told of it. Whoever agreed to something else is asked anew.
    fn told(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let changes = self.changes.iter().flat_map(|change| [&change.what, &change.now, &change.then]);
        for text in changes.chain(&self.says) {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        hasher.finalize().to_hex()[..32].to_owned()
    }
}

#[derive(Template)]
#[template(path = "deed.html")]
struct FormPage<'a> {
    shell: Shell,
    deed: &'a Deed,
    fault: Option<&'a Fault>,
    /// Faults that belong to no field.
    rest: Vec<String>,
}

#[derive(Template)]
#[template(path = "deed_confirm.html")]
struct ConfirmPage<'a> {
    shell: Shell,
    deed: &'a Deed,
    plan: &'a Plan,
    fields: Vec<(&'a str, &'a str)>,
    told: String,
    once: String,
    /// What would change is not what was agreed to.
    is_other: bool,
}

impl Deed {
    /// The form, empty or as it was filled in.
    pub fn form(&self, visit: &Visit) -> Shown {
        show(&FormPage { shell: visit.shell(self.title.as_str()), deed: self, fault: None, rest: Vec::new() })
    }

    /// The form again, with what is wrong in it.
    pub fn form_with(mut self, visit: &Visit, fault: &Fault) -> Shown {
        let mut rest: Vec<String> = Vec::new();
        for error in &fault.errors {
            let below = |field: &Field| error.pointer.starts_with(&format!("{}/", field.pointer));
            let place = self.fields.iter().position(|field| field.pointer == error.pointer);
            match place.or_else(|| self.fields.iter().position(below)).and_then(|n| self.fields.get_mut(n)) {
                Some(field) => field.wrong = Some(error.message.clone()),
                None => rest.push(format!("{} {}", error.pointer, error.message)),
            }
        }
        let page =
            FormPage { shell: visit.shell(self.title.as_str()), deed: &self, fault: Some(fault), rest };
        show_with(fault, &page)
    }

    /// Finds what can be seen to be wrong without asking the API.
    fn find_faults(&mut self) -> bool {
        for field in &mut self.fields {
            field.wrong = field.fault().map(str::to_owned);
        }
        self.fields.iter().any(|field| field.wrong.is_some())
    }

    /// Asks whether it is meant, or does it and leads to `done`.
    pub async fn go(mut self, visit: &Visit, plan: Plan, done: &str) -> Shown {
        let (is_meant, told) = (visit.form.get(CONFIRMED) == "yes", plan.told());
        if !is_meant && self.find_faults() {
            let fault = Fault::of_form();
            return self.form_with(visit, &fault);
        }
        let is_other = visit.form.given(TOLD).is_some_and(|agreed| agreed != told);
        if !is_meant || is_other {
            return show(&ConfirmPage {
                shell: visit.shell(self.title.as_str()),
                deed: &self,
                plan: &plan,
                fields: visit.form.without(&["mark", CONFIRMED, TOLD, ONCE, BACK]).collect(),
                told,
                once: once()?,
                is_other: is_meant,
            });
        }
        let once = visit.form.given(ONCE).and_then(|once| HeaderValue::try_from(once).ok());
        let once: Vec<_> = once.map(|once| (ONCE_TO_API, once)).into_iter().collect();
        match visit.api.ask(plan.method, plan.target, Some(&plan.body), &once).await {
            Ok(_) => Ok(see(done)),
            Err(fault) if fault.status >= 500 => Err(fault),
            Err(fault) => self.form_with(visit, &fault),
        }
    }
}

/// A name that nobody else has.
fn once() -> Result<String, Fault> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| fault(Kind::Internal, "There is no randomness."))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// The fields as they were filled in.
pub fn filled(visit: &Visit, fields: Vec<Field>) -> Vec<Field> {
    let fill = |field: Field| {
        let value = visit.form.get(&field.name);
        if value.is_empty() { field } else { field.value(value) }
    };
    fields.into_iter().map(fill).collect()
}

/// A number; what is none goes to the API as it is, which says so.
pub fn number(text: &str) -> Value {
    text.replace([',', ' ', '_'], "").parse::<u64>().map_or_else(|_| text.into(), Value::from)
}

/// Whether the form was sent, and nobody went back to it.
pub fn sends(visit: &Visit) -> bool {
    *visit.call.head.method() == Method::POST && visit.form.given(BACK).is_none()
}
