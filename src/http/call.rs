//! One request on its way through a handler: what handlers may ask about it.

use std::sync::Arc;

use actix_web::HttpRequest;
use actix_web::dev::Payload;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::http::{Method, Uri};
use actix_web::web::{Bytes, Data};

use super::State;
use super::body;
use super::page::{Key, Page};
use super::problem::{Form, Kind, Problem};
use super::query::{Parameters, Query, percent_decode};
use super::reply::Reply;
use super::routes::Route;
use crate::domain::ids::{RequestId, UserId};
use crate::service::{Caller, Service, Tenant};

/// Looked for by each call: made of text it would be copied each time.
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What a call begins with.
pub enum Head {
    /// As it came.
    Wire(HttpRequest),
    /// As a page of the console asks.
    Page { method: Method, uri: Uri, headers: HeaderMap },
}

impl Head {
    pub fn method(&self) -> &Method {
        match self {
            Self::Wire(request) => request.method(),
            Self::Page { method, .. } => method,
        }
    }

    pub fn uri(&self) -> &Uri {
        match self {
            Self::Wire(request) => request.uri(),
            Self::Page { uri, .. } => uri,
        }
    }

    pub fn headers(&self) -> &HeaderMap {
        match self {
            Self::Wire(request) => request.headers(),
            Self::Page { headers, .. } => headers,
        }
    }

    /// What is known of the connection.
    pub fn connection<T: 'static>(&self) -> Option<&T> {
        match self {
            Self::Wire(request) => request.conn_data(),
            Self::Page { .. } => None,
        }
    }
}

/// An authenticated request that has found its route.
pub struct Call {
    pub state: Data<State>,
    pub head: Head,
    pub payload: Payload,
    /// As it stands in the answer.
    pub request_id: HeaderValue,
    pub route: &'static Route,
    /// `None` on public routes only.
    pub caller: Option<Arc<Caller>>,
}

impl Call {
    pub fn service(&self) -> &Service {
        &self.state.service
    }

    /// The same, for work that goes on after the answer.
    pub fn shared_service(&self) -> &Arc<Service> {
        &self.state.service
    }

    /// Turns a problem of one item of a batch into that item's answer.
    pub fn item_reply(&self, problem: Problem) -> Reply {
        let form = self.form();
        problem.log_cause(form.request_id);
        let reply = problem.into_reply(&form);
        tracing::debug!(
            request.id = form.request_id,
            error.code = reply.kind.map(|kind| kind.entry().code),
            limit.name = reply.about.limit.as_ref().map(|limit| limit.as_str()),
            hold.id = reply.about.hold.map(tracing::field::display),
            "an item was refused"
        );
        reply
    }

    /// In which form refusals are told.
    pub fn form(&self) -> Form<'_> {
        let uri = self.head.uri();
        let request_id = self.request_id.to_str().unwrap_or_default();
        Form::of(uri.path(), uri.query(), self.caller.as_deref(), request_id)
    }

    pub fn headers(&self) -> &HeaderMap {
        self.head.headers()
    }

    /// The tenant the credentials speak for. Operators have none.
    pub fn tenant(&self) -> Result<&Arc<Tenant>, Problem> {
        let tenant = self.caller.as_ref().and_then(|caller| caller.tenant.as_ref());
        tenant.ok_or_else(|| Problem::new(Kind::Forbidden, "These credentials speak for no tenant."))
    }

    /// The user of a user token.
    pub fn own_user(&self) -> Result<&UserId, Problem> {
        let user = self.caller.as_ref().and_then(|caller| caller.user.as_ref());
        user.ok_or_else(|| Problem::new(Kind::Forbidden, "This route is for user tokens."))
    }

    /// Who writes, for the audit.
    pub fn author(&self) -> String {
        self.caller.as_ref().map(|caller| caller.name()).unwrap_or_default()
    }

    /// The body of a single call; empty when there is none.
    pub async fn body(&mut self) -> Result<Bytes, Problem> {
        self.read_body(body::MAX_BODY).await
    }

    pub async fn batch_body(&mut self) -> Result<Bytes, Problem> {
        self.read_body(body::MAX_BATCH_BODY).await
    }

    async fn read_body(&mut self, max: usize) -> Result<Bytes, Problem> {
        let patience = self.state.settings.body_timeout;
        body::read(self.head.headers(), &mut self.payload, max, patience).await
    }

    /// The decoded path segment of `{name}` in the route's path.
    pub fn segment(&self, name: &str) -> Result<String, Problem> {
        let is_it = |part: &str| part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) == Some(name);
        let position = self.route.path.split('/').position(is_it);
        let raw = position.and_then(|index| self.head.uri().path().split('/').nth(index));
        let decoded = percent_decode(raw.unwrap_or_default());
        let text = decoded.map(|text| text.into_owned());
        text.ok_or_else(|| {
            Problem::invalid_part(&format!("{name} in the path"), "is not percent-encoded UTF-8")
        })
    }

    /// The path segment of `{user}` as a user id.
    pub fn user(&self) -> Result<UserId, Problem> {
        UserId::parse(&self.segment("user")?)
            .map_err(|error| Problem::invalid_part("user in the path", error))
    }

    /// Reads the query's parameters; see [`Query::read`].
    pub fn query<T>(&self, read: impl FnOnce(&mut Parameters<'_>) -> Option<T>) -> Result<T, Problem> {
        let query = Query(self.head.uri().query().unwrap_or_default());
        query.read(read).map_err(Problem::invalid_query)
    }

    /// Which page of a list is asked for, where nothing else can be.
    pub fn page<K: Key>(&self, usual: u32) -> Result<Page<K>, Problem> {
        self.query(|parameters| Some(Page::read(parameters, usual)))
    }

    /// `Idempotency-Key`, as the draft writes it (a quoted string) or bare, as
    /// most clients send it.
    pub fn idempotency_key(&self) -> Result<Option<RequestId>, Problem> {
        let mut values = self.headers().get_all(&IDEMPOTENCY_KEY);
        let Some(value) = values.next() else { return Ok(None) };
        let wrong = |message: &str| Problem::invalid_part("header Idempotency-Key", message);
        if values.next().is_some() {
            return Err(wrong("is given more than once"));
        }
        let text = std::str::from_utf8(value.as_bytes()).map_err(|_| wrong("is not UTF-8"))?;
        let key = unquote(text.trim()).ok_or_else(|| wrong("is not a complete quoted string"))?;
        RequestId::parse(&key).map(Some).map_err(|error| wrong(&error.to_string()))
    }

    /// The version that `If-Match` names; `None` when there is none, or `*`.
    pub fn expected_version(&self) -> Result<Option<u32>, Problem> {
        let Some(value) = self.headers().get(header::IF_MATCH) else { return Ok(None) };
        let tag = value.to_str().unwrap_or_default().trim();
        if tag == "*" {
            return Ok(None);
        }
        let bare = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag);
        // A tag that we never gave matches no version.
        bare.parse()
            .map(Some)
            .map_err(|_| Problem::new(Kind::ChangedMeanwhile, "If-Match names no version of this record."))
    }
}

/// An RFC 9651 string without its quotes and escapes; bare text as it is.
fn unquote(text: &str) -> Option<String> {
    let Some(rest) = text.strip_prefix('"') else { return Some(text.to_owned()) };
    let inner = rest.strip_suffix('"')?;
    let mut key = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => key.push(chars.next().filter(|c| matches!(c, '"' | '\\'))?),
            '"' => return None,
            _ => key.push(c),
        }
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_same_quoted_or_bare() {
        assert_eq!(unquote("7f-13").as_deref(), Some("7f-13"));
        assert_eq!(unquote("\"7f-13\"").as_deref(), Some("7f-13"));
        assert_eq!(unquote(r#""a\"b\\c""#).as_deref(), Some(r#"a"b\c"#));
        assert_eq!(unquote("a\"b").as_deref(), Some("a\"b"));
        for broken in ["\"", "\"a", r#""a\""#, r#""a\x""#, r#""a"b""#] {
            assert_eq!(unquote(broken), None, "{broken}");
        }
    }
}
