//! The API as pages ask it: through the same table of routes, with the same rights, and to the same
//! handlers as callers from outside, only that nothing goes over a wire. So there is no rule and no
//! figure of the console's own.

use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;

use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::http::{Method, Uri};
use actix_web::web::{Bytes, Data};
use futures_util::{Stream, stream};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::http::State;
use crate::http::auth;
use crate::http::call::{Call, Head};
use crate::http::problem::{Kind, PLAIN, Problem};
use crate::http::query::percent_encode;
use crate::http::reply::{Reply, json_bytes};
use crate::http::routes::{self, Found};
use crate::service::{Caller, Scopes};

/// The API in the name of whoever looks at the page.
#[derive(Clone)]
pub struct Api {
    pub state: Data<State>,
    pub caller: Arc<Caller>,
    pub request_id: HeaderValue,
}

/// A problem as the API told it.
#[derive(Debug, Clone, Deserialize)]
pub struct Fault {
    pub status: u16,
    pub code: String,
    pub title: String,
    pub detail: String,
    #[serde(default)]
    pub errors: Vec<FieldFault>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct FieldFault {
    pub pointer: String,
    pub message: String,
}

impl Fault {
    /// Of a form in which something is wrong, as its fields say.
    pub fn of_form() -> Self {
        Self {
            status: 400,
            code: "invalid_request".into(),
            title: "Invalid request".into(),
            detail: "Something in this form is missing or wrong.".into(),
            errors: Vec::new(),
        }
    }

    /// What is wrong with the field of that pointer, if anything.
    pub fn at(&self, pointer: &str) -> Option<&str> {
        self.errors.iter().find(|fault| fault.pointer == pointer).map(|fault| fault.message.as_str())
    }

    fn of(reply: &Reply) -> Self {
        serde_json::from_slice(&reply.body).unwrap_or_else(|_| Self {
            status: reply.status.as_u16(),
            code: "internal".into(),
            title: "The service met a fault of its own".into(),
            detail: "What it answered cannot be read.".into(),
            errors: Vec::new(),
        })
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        Self::of(&problem.into_reply(&PLAIN))
    }
}

impl Api {
    pub fn may(&self, scope: Scopes) -> bool {
        self.caller.scopes.contains(scope)
    }

    /// What stands at `target`.
    pub async fn get<T: DeserializeOwned>(&self, target: impl Into<String>) -> Result<T, Fault> {
        self.send(Method::GET, target, None).await
    }

    /// Sends `body` and reads the answer.
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        target: impl Into<String>,
        body: Option<&Value>,
    ) -> Result<T, Fault> {
        let reply = self.ask(method, target, body, &[]).await?;
        // Where there is no content, `()` and options read null.
        let text = if reply.body.is_empty() { b"null".as_slice() } else { &reply.body };
        serde_json::from_slice(text).map_err(|error| {
            tracing::error!(%error, "a page cannot read what the API answers");
            Fault::of(&Reply::bytes(HeaderValue::from_static("text/plain"), Bytes::new()))
        })
    }

    /// The answer as it is.
    pub async fn ask(
        &self,
        method: Method,
        target: impl Into<String>,
        body: Option<&Value>,
        fields: &[(HeaderName, HeaderValue)],
    ) -> Result<Reply, Fault> {
        let text: String = target.into();
        let uri: Uri = text.parse().map_err(|_| Problem::not_found("path"))?;
        let Found::Route { route, .. } = routes::find(&method, uri.path()) else {
            return Err(Problem::not_found("path").into());
        };
        auth::authorize(&self.caller, route.access)?;
        let mut headers: HeaderMap = fields.iter().cloned().collect();
        let payload: Payload = body.map_or(Payload::None, |body| {
            let bytes = json_bytes(body);
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
            let once = stream::iter([Ok::<_, PayloadError>(Bytes::from(bytes))]);
            let payload: Pin<Box<dyn Stream<Item = Result<Bytes, PayloadError>>>> = Box::pin(once);
            Payload::Stream { payload }
        });
        let call = Call {
            state: self.state.clone(),
            head: Head::Page { method, uri, headers },
            payload,
            request_id: self.request_id.clone(),
            route,
            caller: Some(self.caller.clone()),
        };
        let id = self.request_id.to_str().unwrap_or_default();
        let reply = (route.handler)(call).await.inspect_err(|problem| problem.log_cause(id))?;
        if reply.kind.is_some() || reply.status.as_u16() >= 400 {
            return Err(Fault::of(&reply));
        }
        Ok(reply)
    }
}

/// Where something stands in the API.
pub struct Target(String);

impl Target {
    /// `pattern` as in the table of routes; each `{}` takes the next of `parts`, encoded.
    pub fn new(pattern: &str, parts: &[&str]) -> Self {
        let mut pieces = pattern.split("{}");
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for (piece, part) in pieces.zip(parts) {
            text.push_str(&percent_encode(part));
            text.push_str(piece);
        }
        Self(text)
    }

    /// With a parameter, unless its value is empty.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        if !value.is_empty() {
            let mark = if self.0.contains('?') { '&' } else { '?' };
            // Writing to a String cannot fail.
            let _ = write!(self.0, "{mark}{name}={}", percent_encode(value));
        }
        self
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.0
    }
}

/// A fault of our own making, in the shape of the API's.
pub fn fault(kind: Kind, detail: &'static str) -> Fault {
    Problem::new(kind, detail).into()
}

/// A list, or what was wrong with the question; other faults are the whole page's.
pub fn listed<T>(answer: Result<List<T>, Fault>) -> Result<(List<T>, Option<Fault>), Fault> {
    match answer {
        Ok(list) => Ok((list, None)),
        Err(fault) if fault.status == 400 => Ok((List { data: Vec::new(), next_cursor: None }, Some(fault))),
        Err(fault) => Err(fault),
    }
}

/// A list as the API answers it.
#[derive(Debug, Clone, Deserialize)]
pub struct List<T> {
    pub data: Vec<T>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_stays_one_segment_or_one_value() {
        let target =
            Target::new("/v1/admin/users/{}/ledger", &["a/b?c=1&d"]).with("cursor", "x&y").with("q", "");
        assert_eq!(String::from(target), "/v1/admin/users/a%2Fb%3Fc%3D1%26d/ledger?cursor=x%26y");
    }
}
