//! Credentials become a [`Caller`], and a caller is held against the scopes of
//! a route.

use std::sync::Arc;

use actix_web::http::header::{self, HeaderMap, HeaderValue};

use super::problem::{Kind, Problem};
use crate::service::{Caller, Scopes, Service};

/// Who may use a route.
#[derive(Debug, Clone, Copy)]
pub enum Access {
    /// Anybody: probes, metrics, documents.
    Public,
    /// Whoever has one of the scopes, user tokens excepted.
    AnyOf(&'static [Scopes]),
    /// User tokens.
    Own,
}

/// Finds out who calls.
pub async fn authenticate(headers: &HeaderMap, service: &Service) -> Result<Arc<Caller>, Problem> {
    let Some(bearer) = bearer(headers) else {
        let problem = Problem::new(Kind::Unauthenticated, "Send credentials as Authorization: Bearer.");
        return Err(problem.with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
    };
    Ok(service.registry.authenticate(bearer).await?)
}

/// The credentials of the one `Authorization` header, if it is of our scheme.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION);
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, credentials) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(credentials.trim())
}

/// Whether the caller's scopes cover the route.
pub fn authorize(caller: &Caller, access: Access) -> Result<(), Problem> {
    let is_user_token = caller.scopes.contains(Scopes::ME);
    let (allowed, wanted) = match access {
        Access::Public => return Ok(()),
        Access::Own => (is_user_token && caller.user.is_some(), &[Scopes::ME][..]),
        Access::AnyOf(scopes) => {
            (!is_user_token && scopes.iter().any(|scope| caller.scopes.contains(*scope)), scopes)
        }
    };
    if allowed { Ok(()) } else { Err(forbidden(wanted)) }
}

/// Whether the caller's tenant has room for one more call under its own limit
/// (`requests_per_second`), which this one takes. Operators have none.
pub fn let_in(caller: &Caller) -> Result<(), Problem> {
    let let_in = caller.tenant.as_ref().map_or(Ok(()), |tenant| tenant.let_in());
    let_in.map_err(|wait_ms| {
        let detail = format!("Calls come faster than the tenant's `requests_per_second`; {wait_ms} ms more.");
        Problem::new(Kind::IngressRateExceeded, detail).with_retry_after(wait_ms)
    })
}

fn forbidden(wanted: &[Scopes]) -> Problem {
    let names: Vec<&str> = wanted.iter().flat_map(|scope| scope.names().into_iter().take(1)).collect();
    let detail = format!("This route needs the scope {}.", names.join(" or "));
    let problem = Problem::new(Kind::Forbidden, detail);
    let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{}\"", names.join(" "));
    match HeaderValue::try_from(challenge) {
        Ok(value) => problem.with_header(header::WWW_AUTHENTICATE, value),
        Err(_) => problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(scopes: &str, user: Option<&str>) -> Caller {
        Caller {
            tenant: None,
            key_id: "k".into(),
            scopes: Scopes::parse(scopes).unwrap(),
            user: user.map(|user| crate::domain::ids::UserId::parse(user).unwrap()),
            expires_at_unix: None,
        }
    }

    #[test]
    fn writing_needs_more_than_reading() {
        let write = Access::AnyOf(&[Scopes::ADMIN_WRITE]);
        let read = Access::AnyOf(&[Scopes::ADMIN_READ]);
        assert!(authorize(&caller("admin:write", None), read).is_ok());
        assert!(authorize(&caller("admin:read", None), write).is_err());
    }

    #[test]
    fn user_tokens_reach_their_own_routes_only() {
        let check = Access::AnyOf(&[Scopes::CHECK]);
        let both = caller("check me", Some("u"));
        assert!(authorize(&both, check).is_err());
        assert!(authorize(&both, Access::Own).is_ok());
        assert!(authorize(&caller("me", None), Access::Own).is_err());
        assert!(authorize(&caller("check", None), Access::Own).is_err());
    }

    #[test]
    fn only_one_authorization_of_our_scheme_counts() {
        let mut headers = HeaderMap::new();
        headers.append(header::AUTHORIZATION, HeaderValue::from_static("bearer  abc "));
        assert_eq!(bearer(&headers), Some("abc"));
        headers.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer def"));
        assert_eq!(bearer(&headers), None);
        let mut headers = HeaderMap::new();
        headers.append(header::AUTHORIZATION, HeaderValue::from_static("Basic abc"));
        assert_eq!(bearer(&headers), None);
    }
}
