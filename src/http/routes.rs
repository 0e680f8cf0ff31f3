//! The one table of routes. From it come the dispatch, `405` with `Allow`, the
//! labels of metrics and the check that every route is described.
//!
//! We match paths ourselves and not with actix: its router replaces bytes that
//! are no UTF-8 (so that an id would quietly become another), and the check
//! path needs no patterns. Paths are compared as sent; a segment in braces
//! takes any one segment that is not empty, and is decoded by who reads it.

use actix_web::http::Method;
use futures_util::future::LocalBoxFuture;

use super::admin::{
    capacity, clock, consumers, doubts, events, export, keys, make_goods, models, movers, orgs, outputs,
    plans, pools, preview, records, refusals, settings, tenants, tuning, users, webhooks,
};
use super::auth::Access;
use super::call::Call;
use super::reply::Answer;
use super::{check, console, feedback, health, holds, own_use, quota, usage, widget};
use crate::service::Scopes;

pub type Handler = fn(Call) -> LocalBoxFuture<'static, Answer>;

pub struct Route {
    pub method: Method,
    /// Segments in braces are names for [`Call::segment`].
    pub path: &'static str,
    /// The console finds out by itself who looks at it.
    pub access: Access,
    pub handler: Handler,
}

impl Route {
    /// For labels.
    pub fn method_name(&self) -> &'static str {
        match self.method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::DELETE => "DELETE",
            _ => "_OTHER",
        }
    }
}

const CHECK: Access = Access::AnyOf(&[Scopes::CHECK]);
const QUOTA: Access = Access::AnyOf(&[Scopes::QUOTA]);
const CHECK_OR_QUOTA: Access = Access::AnyOf(&[Scopes::CHECK, Scopes::QUOTA]);
const READ: Access = Access::AnyOf(&[Scopes::ADMIN_READ]);
const WRITE: Access = Access::AnyOf(&[Scopes::ADMIN_WRITE]);
const OPERATOR: Access = Access::AnyOf(&[Scopes::OPERATOR]);

macro_rules! route {
    ($method:ident $path:literal, $access:expr, $handler:path) => {
        Route {
            method: Method::$method,
            path: $path,
            access: $access,
            handler: |call| Box::pin($handler(call)),
        }
    };
}

/// Looked through from the top: what is called most stands first.
pub static ROUTES: &[Route] = &[
    route!(POST "/v1/check", CHECK, check::check),
    route!(POST "/v1/holds/{id}/settle", CHECK, holds::settle),
    route!(POST "/v1/holds/{id}/release", CHECK, holds::release),
    route!(POST "/v1/holds/{id}/extend", CHECK, holds::extend),
    route!(POST "/v1/check/batch", CHECK, check::check_batch),
    route!(POST "/v1/holds/settle/batch", CHECK, holds::settle_batch),
    route!(GET "/v1/holds/{id}", CHECK_OR_QUOTA, holds::get),
    route!(GET "/v1/holds", CHECK_OR_QUOTA, holds::find),
    route!(POST "/v1/usage", CHECK, usage::record),
    route!(POST "/v1/pools/{pool}/feedback", CHECK, feedback::tell),
    route!(GET "/v1/users/{user}/quota", QUOTA, quota::of_user),
    route!(GET "/v1/me/quota", Access::Own, quota::of_me),
    route!(GET "/v1/me/usage", Access::Own, own_use::of_me),
    route!(GET "/v1/me/quota/stream", Access::Own, quota::stream),
    route!(GET "/v1/admin/plans", READ, plans::all),
    route!(GET "/v1/admin/plans/{id}", READ, plans::get),
    route!(PUT "/v1/admin/plans/{id}", WRITE, plans::put),
    route!(GET "/v1/admin/plans/{id}/versions", READ, plans::versions),
    route!(GET "/v1/admin/plans/{id}/tuning", READ, tuning::get),
    route!(POST "/v1/admin/plans/{id}/preview", READ, preview::preview),
    route!(POST "/v1/admin/plans/{id}/versions/{version}/restore", WRITE, plans::restore),
    route!(GET "/v1/admin/users", READ, users::all),
    route!(GET "/v1/admin/users/{user}", READ, users::get),
    route!(PUT "/v1/admin/users/{user}", WRITE, users::put),
    route!(DELETE "/v1/admin/users/{user}", WRITE, users::erase),
    route!(POST "/v1/admin/users/{user}/plan", WRITE, users::change_plan),
    route!(GET "/v1/admin/users/{user}/ledger", READ, records::user_ledger),
    route!(GET "/v1/admin/make-goods", READ, make_goods::all),
    route!(GET "/v1/admin/make-goods/{id}", READ, make_goods::get),
    route!(PUT "/v1/admin/make-goods/{id}", WRITE, make_goods::put),
    route!(POST "/v1/admin/make-goods/{id}/undo", WRITE, make_goods::undo),
    route!(GET "/v1/admin/users/{user}/refusals", READ, refusals::explain),
    route!(GET "/v1/admin/audit", READ, records::audit),
    route!(GET "/v1/admin/consumers", READ, consumers::consumers),
    route!(GET "/v1/admin/users/{user}/export", READ, export::user),
    route!(GET "/v1/admin/usage/events", READ, events::usage),
    route!(GET "/v1/admin/features", READ, records::features),
    route!(GET "/v1/admin/duplicates", READ, consumers::duplicates),
    route!(GET "/v1/admin/decisions", READ, records::decisions),
    route!(GET "/v1/admin/movers", READ, movers::movers),
    route!(GET "/v1/admin/outputs", READ, outputs::all),
    route!(GET "/v1/admin/holds", READ, doubts::all),
    route!(POST "/v1/admin/holds/resolve", WRITE, doubts::resolve_all),
    route!(POST "/v1/admin/holds/{id}/resolve", WRITE, doubts::resolve),
    route!(PUT "/v1/admin/users/{user}/overrides", WRITE, users::put_overrides),
    route!(POST "/v1/admin/users/{user}/grants", WRITE, users::grant),
    route!(GET "/v1/admin/orgs/{org}", READ, orgs::get),
    route!(PUT "/v1/admin/orgs/{org}", WRITE, orgs::put),
    route!(GET "/v1/admin/orgs/{org}/quota", READ, orgs::quota),
    route!(PUT "/v1/admin/orgs/{org}/overrides", WRITE, orgs::put_overrides),
    route!(POST "/v1/admin/orgs/{org}/grants", WRITE, orgs::grant),
    route!(GET "/v1/admin/pools", READ, pools::all),
    route!(GET "/v1/admin/pools/{id}", READ, pools::get),
    route!(PUT "/v1/admin/pools/{id}", WRITE, pools::put),
    route!(POST "/v1/admin/pools/{id}/open", WRITE, pools::open),
    route!(GET "/v1/admin/models", READ, models::get),
    route!(PUT "/v1/admin/models", WRITE, models::put),
    route!(GET "/v1/admin/settings", READ, settings::get),
    route!(PUT "/v1/admin/settings", WRITE, settings::put),
    route!(GET "/v1/admin/keys", READ, keys::all),
    route!(POST "/v1/admin/keys", WRITE, keys::create),
    route!(DELETE "/v1/admin/keys/{kid}", WRITE, keys::delete),
    route!(GET "/v1/admin/webhooks", READ, webhooks::all),
    route!(POST "/v1/admin/webhooks", WRITE, webhooks::create),
    route!(GET "/v1/admin/webhooks/{id}", READ, webhooks::get),
    route!(PUT "/v1/admin/webhooks/{id}", WRITE, webhooks::put),
    route!(DELETE "/v1/admin/webhooks/{id}", WRITE, webhooks::delete),
    route!(POST "/v1/admin/webhooks/{id}/secret", WRITE, webhooks::renew_secret),
    route!(POST "/v1/admin/webhooks/{id}/test", WRITE, webhooks::test),
    route!(GET "/v1/admin/webhooks/{id}/deliveries", READ, webhooks::deliveries),
    route!(POST "/v1/admin/webhooks/{id}/deliveries/{message}/retry", WRITE, webhooks::retry),
    route!(GET "/v1/admin/clock", READ, clock::get),
    route!(PUT "/v1/admin/clock", WRITE, clock::put),
    route!(POST "/v1/admin/capacity/check", READ, capacity::check),
    route!(GET "/v1/operator/tenants", OPERATOR, tenants::all),
    route!(POST "/v1/operator/tenants", OPERATOR, tenants::create),
    route!(GET "/v1/operator/tenants/{id}", OPERATOR, tenants::get),
    route!(PUT "/v1/operator/tenants/{id}", OPERATOR, tenants::put),
    route!(DELETE "/v1/operator/tenants/{id}", OPERATOR, tenants::delete),
    route!(GET "/livez", Access::Public, health::livez),
    route!(GET "/readyz", Access::Public, health::readyz),
    route!(GET "/metrics", Access::Public, health::metrics),
    route!(GET "/openapi.json", Access::Public, health::openapi_json),
    route!(GET "/docs", Access::Public, health::docs),
    route!(GET "/docs/", Access::Public, health::docs),
    route!(GET "/docs/{file}", Access::Public, health::docs_file),
    route!(GET "/problems/{code}", Access::Public, health::problem_page),
    route!(GET "/widget.js", Access::Public, widget::script),
];

/// Every route, those of the console last.
pub fn every() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().chain(console::ROUTES)
}

/// What the table says about a request.
pub enum Found {
    Route {
        index: usize,
        route: &'static Route,
    },
    /// The path exists with other methods: the value of `Allow`.
    OtherMethods(String),
    Nothing,
}

/// Finds the route. `HEAD` is answered like `GET`, less the body.
pub fn find(method: &Method, path: &str) -> Found {
    let wanted = if *method == Method::HEAD { &Method::GET } else { method };
    let here = |route: &Route| matches(route.path, path);
    let mut numbered = every().enumerate();
    if let Some((index, route)) = numbered.find(|(_, route)| route.method == *wanted && here(route)) {
        return Found::Route { index, route };
    }
    let mut allowed: Vec<&str> = every().filter(|route| here(route)).map(Route::method_name).collect();
    if allowed.is_empty() {
        return Found::Nothing;
    }
    if allowed.contains(&"GET") {
        allowed.push("HEAD");
    }
    Found::OtherMethods(allowed.join(", "))
}

fn matches(pattern: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    for wanted in pattern.split('/') {
        match segments.next() {
            Some(segment) if segment == wanted => {}
            Some(segment) if wanted.starts_with('{') && !segment.is_empty() => {}
            _ => return false,
        }
    }
    segments.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_of(method: Method, path: &str) -> Option<&'static str> {
        match find(&method, path) {
            Found::Route { route, .. } => Some(route.path),
            _ => None,
        }
    }

    #[test]
    fn a_segment_in_braces_takes_one_segment() {
        assert_eq!(path_of(Method::GET, "/v1/users/a%2Fb/quota"), Some("/v1/users/{user}/quota"));
        assert_eq!(path_of(Method::GET, "/v1/users/a/b/quota"), None);
        assert_eq!(path_of(Method::GET, "/v1/users//quota"), None);
        assert_eq!(path_of(Method::POST, "/v1/holds/settle/batch"), Some("/v1/holds/settle/batch"));
        assert_eq!(path_of(Method::POST, "/v1/check/"), None);
        assert_eq!(path_of(Method::HEAD, "/livez"), Some("/livez"));
    }

    #[test]
    fn other_methods_are_told() {
        let Found::OtherMethods(methods) = find(&Method::DELETE, "/v1/holds") else { panic!("no 405") };
        assert_eq!(methods, "GET, HEAD");
        assert!(matches!(find(&Method::GET, "/nowhere"), Found::Nothing));
    }

    #[test]
    fn no_route_hides_another() {
        for (index, route) in every().enumerate() {
            let Found::Route { index: found, .. } = find(&route.method, route.path) else {
                panic!("{} is not found", route.path)
            };
            assert_eq!(found, index, "{} {}", route.method, route.path);
        }
    }
}
