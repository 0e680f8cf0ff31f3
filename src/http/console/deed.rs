//! A change that somebody makes: a form, then a page that says what will change, and only then the
//! call to the API. What the API finds wrong stands at its field.

use std::borrow::Cow;

use actix_web::http::Method;
use askama::Template;
use serde_json::Value;

use super::api::{Fault, Target};
use super::page::{Shell, see, show, show_with};
use super::visit::{Shown, Visit};

/// Says that the page has asked whether it is meant.
const CONFIRMED: &str = "confirmed";

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
    path: &'a str,
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

    /// Asks whether it is meant, or does it and leads to `done`.
    pub async fn go(self, visit: &Visit, plan: Plan, done: &str) -> Shown {
        if visit.form.get(CONFIRMED) != "yes" {
            let fields = visit.form.without(&["mark", CONFIRMED]).collect();
            let uri = visit.call.head.uri();
            let path = uri.path_and_query().map_or(uri.path(), |whole| whole.as_str());
            return show(&ConfirmPage {
                shell: visit.shell(self.title.as_str()),
                deed: &self,
                plan: &plan,
                fields,
                path,
            });
        }
        match visit.api.send::<Value>(plan.method, plan.target, Some(&plan.body)).await {
            Ok(_) => Ok(see(done)),
            Err(fault) if fault.status >= 500 => Err(fault),
            Err(fault) => self.form_with(visit, &fault),
        }
    }
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

/// Whether the form was sent.
pub fn sends(visit: &Visit) -> bool {
    *visit.call.head.method() == Method::POST
}
