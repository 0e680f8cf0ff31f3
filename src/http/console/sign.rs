//! Signing in with a token or an API key, and out.

use actix_web::http::header;
use askama::Template;

use super::api::Fault;
use super::form::Fields;
use super::origin;
use super::page::{self, see, show, show_with};
use super::session::{Session, no_cookie};
use super::visit::{guarded, may_enter, read_form};
use crate::http::auth;
use crate::http::call::Call;
use crate::http::problem::{Kind, Problem};
use crate::http::reply::{Answer, Reply};
use crate::service::ServiceError;
use crate::service::tenancy::clock::real_unix_seconds;

/// Whose token opens no product.
const OPERATOR: &str = "This is an operator's token: it makes products and looks into none of them. \
    Sign in with a token of the product, which the operator mints: \
    apportion token mint --tenant ID --scope \"quota admin:write\".";

#[derive(Template)]
#[template(path = "sign_in.html")]
struct SignIn<'a> {
    next: &'a str,
    /// Why one is here, or why one still is.
    why: Option<&'a str>,
    is_fault: bool,
}

/// The form. Whoever comes from a page that wanted a session goes back there.
pub async fn form(call: Call) -> Answer {
    let fields = Fields::of_query(&call)?;
    let next = safe_next(fields.get("next"));
    let out = fields.get("out") == "yes";
    let why = match (out, fields.given("next")) {
        (true, _) => Some("You are signed out."),
        (false, Some(_)) => Some("Sign in to see this page. Nothing that you sent was done."),
        _ => None,
    };
    let why = why.filter(|_| out || next != "/console");
    Ok(guarded(told(show(&SignIn { next, why, is_fault: false }))))
}

/// Takes the credentials and hands out a session.
pub async fn sign_in(mut call: Call) -> Answer {
    if !origin::is_own(call.headers()) {
        return Ok(page::refused("This form was not sent by the console's own page."));
    }
    let fields = read_form(&mut call).await?;
    let next = safe_next(fields.get("next"));
    let reply = match session(&call, fields.get("credential")).await {
        Ok(cookie) => see(next).with_header(header::SET_COOKIE, cookie),
        Err(fault) => {
            let why = match fault.code.as_str() {
                "unauthenticated" => {
                    "This token or key is not accepted: it may be mistyped, expired or removed."
                }
                "forbidden" if fault.detail != OPERATOR => {
                    "This token or key may not look at the console: it needs the scope admin:read."
                }
                _ => fault.detail.as_str(),
            };
            told(show_with(&fault, &SignIn { next, why: Some(why), is_fault: true }))
        }
    };
    Ok(guarded(reply))
}

async fn session(call: &Call, credential: &str) -> Result<header::HeaderValue, Fault> {
    if credential.is_empty() {
        return Err(Problem::new(Kind::InvalidRequest, "Enter a token or an API key.").into());
    }
    let registry = &call.service().registry;
    let caller = registry.authenticate(credential).await.map_err(Problem::from)?;
    if caller.tenant.is_none() {
        return Err(Problem::new(Kind::Forbidden, OPERATOR).into());
    }
    may_enter(&caller)?;
    auth::let_in(&caller)?;
    let session = Session::new(credential, origin::is_https(call.headers()), real_unix_seconds());
    let cookie = session.and_then(|session| session.cookie(registry));
    cookie.map_err(|error| match error {
        ServiceError::Overloaded => {
            let why = "This token is longer than a browser keeps in a cookie. Use an API key.";
            Problem::new(Kind::InvalidRequest, why).into()
        }
        other => Problem::from(other).into(),
    })
}

/// Takes the session from the browser, and ends it on this node for whoever has a copy.
pub async fn sign_out(call: Call) -> Answer {
    if !origin::is_own(call.headers()) {
        return Ok(page::refused("This form was not sent by a page of the console."));
    }
    let now = real_unix_seconds();
    if let Some(session) = Session::of(call.headers(), &call.state, now) {
        call.state.signed_out.add(&session, now);
    }
    Ok(guarded(see("/console/sign-in?out=yes").with_header(header::SET_COOKIE, no_cookie())))
}

/// The overview, by the address that people also type.
pub async fn home(_call: Call) -> Answer {
    Ok(guarded(see("/console")))
}

/// A page of the console, whatever stood in the address.
fn safe_next(next: &str) -> &str {
    let rest = next.strip_prefix("/console");
    let is_ours = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']));
    let is_plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_ours && is_plain && !next.starts_with("/console/sign-") { next } else { "/console" }
}

fn told(shown: Result<Reply, Fault>) -> Reply {
    shown.unwrap_or_else(|fault| page::plain_fault(&fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_comes_back_to_pages_of_the_console_only() {
        for ours in ["/console", "/console/users/a%2Fb?cursor=x", "/console?span=7"] {
            assert_eq!(safe_next(ours), ours);
        }
        for other in [
            "",
            "/",
            "//evil.example",
            "https://evil.example",
            "/consolex",
            "/console/a\\b",
            "/console/a b",
            "/console\r\nx: y",
            "/console/sign-out",
        ] {
            assert_eq!(safe_next(other), "/console", "{other:?}");
        }
    }
}
