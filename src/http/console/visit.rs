//! From a request to a page: who looks, whether they may, and what every answer carries.

use std::sync::Arc;

use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use futures_util::future::LocalBoxFuture;

use super::api::{Api, Fault};
use super::figures::Clock;
use super::form::Fields;
use super::origin;
use super::page::{self, Notice, Shell};
use super::session::{self, Session};
use crate::domain::time::{Millis, Zone};
use crate::http::auth::{self, Access};
use crate::http::body;
use crate::http::call::Call;
use crate::http::problem::{Kind, Problem};
use crate::http::query::percent_encode;
use crate::http::reply::{Answer, Reply};
use crate::service::tenancy::clock::real_unix_seconds;
use crate::service::{Scopes, ServiceError, Tenant};

/// What a page ends with; a fault becomes a page that says it.
pub type Shown = Result<Reply, Fault>;
pub type Handler = fn(Visit) -> LocalBoxFuture<'static, Shown>;

pub const READ: Access = Access::AnyOf(&[Scopes::ADMIN_READ]);
const SIGN_IN: &str = "/console/sign-in";
const FORM: &str = "application/x-www-form-urlencoded";
/// In which every form carries its session's mark.
const MARK: &str = "mark";

/// Nothing but what this server itself sends, and nothing written into the page.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const ON_EVERY_ANSWER: [(HeaderName, HeaderValue); 6] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (header::CROSS_ORIGIN_OPENER_POLICY, HeaderValue::from_static("same-origin")),
    (header::CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin")),
];

/// Somebody who has signed in and may read, at a page.
pub struct Visit {
    pub call: Call,
    pub api: Api,
    /// What the address says.
    pub query: Fields,
    /// What the form says, if one was sent.
    pub form: Fields,
    tenant: Arc<Tenant>,
    mark: String,
}

/// Answers at a page's path.
pub async fn serve(call: Call, handler: Handler) -> Answer {
    let now = real_unix_seconds();
    let mut session = Session::of(call.headers(), &call.state, now);
    let registry = call.state.clone();
    let is_part = call.route.path.contains("/parts/");
    let reply = match enter(call, session.as_ref()).await {
        Err(reply) => reply,
        Ok(visit) => {
            let shell = visit.shell("Something is in the way");
            handler(visit).await.unwrap_or_else(|fault| page::of_fault(is_part, shell, &fault))
        }
    };
    // A page that asks by itself keeps nobody signed in.
    let renewed = session.as_mut().filter(|_| !is_part);
    let renewed = renewed.and_then(|session| session.renewed(&registry.service.registry, now));
    Ok(guarded(match renewed.filter(|_| !has_cookie(&reply)) {
        Some(cookie) => reply.with_header(header::SET_COOKIE, cookie),
        None => reply,
    }))
}

/// With what browsers must know about every answer of the console.
pub fn guarded(mut reply: Reply) -> Reply {
    reply.headers.extend(ON_EVERY_ANSWER);
    if !reply.headers.iter().any(|(name, _)| name == header::CACHE_CONTROL) {
        reply.headers.push((header::CACHE_CONTROL, HeaderValue::from_static("no-store")));
    }
    reply
}

fn has_cookie(reply: &Reply) -> bool {
    reply.headers.iter().any(|(name, _)| name == header::SET_COOKIE)
}

/// Lets in who may come in. The order is the front door's: who are you, may you, and only then what
/// the form says.
async fn enter(mut call: Call, session: Option<&Session>) -> Result<Visit, Reply> {
    let sends = *call.head.method() == Method::POST;
    if sends && !origin::is_own(call.headers()) {
        return Err(page::refused("This form was not sent by a page of the console, so nothing was done."));
    }
    let Some(session) = session else { return Err(to_sign_in(&call)) };
    let caller = match call.service().registry.authenticate(session.credential()).await {
        Ok(caller) => caller,
        Err(ServiceError::Unauthenticated(_)) => {
            return Err(to_sign_in(&call).with_header(header::SET_COOKIE, session::no_cookie()));
        }
        Err(error) => return Err(page::plain_fault(&Problem::from(error).into())),
    };
    let tenant = may_enter(&caller).map_err(|fault| page::plain_fault(&fault))?;
    call.caller = Some(caller.clone());
    let read = async {
        auth::let_in(&caller)?;
        call.state.service.catch_up(&tenant, true).await?;
        let query = Fields::of_query(&call)?;
        let form = if sends { read_form(&mut call).await? } else { Fields::default() };
        Ok::<_, Problem>((query, form))
    };
    let (query, form) = read.await.map_err(|problem| page::plain_fault(&problem.into()))?;
    if sends && !session.is_marked(form.get(MARK)) {
        return Err(page::refused(
            "This form is of an earlier session, so nothing was done. Open its page again.",
        ));
    }
    let api = Api { state: call.state.clone(), caller, request_id: call.request_id.clone() };
    Ok(Visit { call, api, query, form, tenant, mark: session.mark().to_owned() })
}

/// Whose console it is, if the caller may look at one.
pub fn may_enter(caller: &crate::service::Caller) -> Result<Arc<Tenant>, Fault> {
    auth::authorize(caller, READ)?;
    let tenant = caller.tenant.clone();
    tenant.ok_or_else(|| Problem::new(Kind::Forbidden, "These credentials speak for no product.").into())
}

/// A form's fields.
pub async fn read_form(call: &mut Call) -> Result<Fields, Problem> {
    let patience = call.state.settings.body_timeout;
    let bytes = body::read_as(FORM, call.head.headers(), &mut call.payload, body::MAX_BODY, patience).await?;
    let text = std::str::from_utf8(&bytes);
    Fields::read(text.map_err(|_| Problem::invalid_part("form", "is not percent-encoded UTF-8"))?)
}

/// To the sign-in, and from there back to the page.
fn to_sign_in(call: &Call) -> Reply {
    if call.route.path.contains("/parts/") {
        return page::part_text("You are signed out.").with_status(StatusCode::UNAUTHORIZED);
    }
    let uri = call.head.uri();
    if origin::is_from_elsewhere(call.headers()) && *call.head.method() == Method::GET {
        return page::once_more(uri.path_and_query().map_or("/console", |there| there.as_str()));
    }
    let next = uri.path_and_query().map_or("/console", |there| there.as_str());
    page::see(&format!("{SIGN_IN}?next={}", percent_encode(next)))
}

impl Visit {
    /// For pages that are there to change something.
    pub fn must_write(&self) -> Result<(), Fault> {
        let why = "You are signed in to look only: changes want a token or key with admin:write.";
        if self.may_write() { Ok(()) } else { Err(Problem::new(Kind::Forbidden, why).into()) }
    }

    pub fn may_write(&self) -> bool {
        self.api.may(Scopes::ADMIN_WRITE)
    }

    pub fn now(&self) -> Millis {
        self.tenant.now()
    }

    /// Shows times as the product's zone has them.
    pub fn clock(&self) -> Clock {
        self.clock_in(self.tenant.catalog().settings.zone.clone())
    }

    pub fn clock_in(&self, zone: Arc<Zone>) -> Clock {
        Clock { zone, now: self.now() }
    }

    /// What stands around the page's own content.
    pub fn shell(&self, title: impl Into<String>) -> Shell {
        let path = self.call.head.uri().path();
        Shell {
            title: title.into(),
            path: path.to_owned(),
            tenant: self.tenant.id.as_str().to_owned(),
            zone: self.tenant.catalog().settings.zone.name().to_owned(),
            may_write: self.may_write(),
            mark: self.mark.clone(),
            notice: self.query.given("done").and_then(Notice::done),
        }
    }
}
