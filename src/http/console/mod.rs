#![doc = include_str!("README.md")]

mod api;
mod assets;
mod audit;
mod capacity;
mod chart;
mod consumers;
mod deed;
mod deliveries;
mod doubts;
mod duplicates;
mod figures;
mod form;
mod make_goods;
mod origin;
mod overview;
mod page;
mod part;
mod plans;
mod rates;
mod rows;
mod session;
mod sheets;
mod sign;
mod user;
mod visit;

use actix_web::http::Method;

use super::auth::Access;
use super::routes::Route;

/// A page: whoever looks at it has signed in and may read.
macro_rules! page {
    ($method:ident $path:literal, $handler:path) => {
        Route {
            method: Method::$method,
            path: $path,
            access: Access::Public,
            handler: |call| Box::pin(visit::serve(call, |visit| Box::pin($handler(visit)))),
        }
    };
}

/// A page that is there to change something, and its form: for who may write.
macro_rules! change {
    ($method:ident $path:literal, $handler:path) => {
        Route {
            method: Method::$method,
            path: $path,
            access: Access::Public,
            handler: |call| {
                Box::pin(visit::serve(call, |visit| {
                    Box::pin(async move {
                        visit.must_write()?;
                        $handler(visit).await
                    })
                }))
            },
        }
    };
}

/// A part of a page.
macro_rules! part {
    ($path:literal, $handler:path) => {
        Route {
            method: Method::GET,
            path: $path,
            access: Access::Public,
            handler: |call| {
                Box::pin(visit::serve(call, |visit| Box::pin(async move { $handler(&visit).await })))
            },
        }
    };
}

/// What there is before somebody has signed in.
macro_rules! open {
    ($method:ident $path:literal, $handler:path) => {
        Route {
            method: Method::$method,
            path: $path,
            access: Access::Public,
            handler: |call| Box::pin($handler(call)),
        }
    };
}

pub use page::nowhere;
pub use session::SignedOut;

/// A path with `/parts/` is a part of a page, asked for by its script. What a form sends goes to
/// the path of the page it stands on, so that whoever was signed out meanwhile comes back there.
pub static ROUTES: &[Route] = &[
    open!(GET "/console/sign-in", sign::form),
    open!(POST "/console/sign-in", sign::sign_in),
    open!(POST "/console/sign-out", sign::sign_out),
    open!(GET "/console/assets/{file}", assets::file),
    open!(GET "/console/", sign::home),
    page!(GET "/console", overview::page),
    part!("/console/parts/overview/now", overview::now),
    part!("/console/parts/overview/features", overview::features),
    part!("/console/parts/overview/happened", overview::happened),
    part!("/console/parts/overview/pools", overview::pools),
    part!("/console/parts/overview/top", overview::top),
    part!("/console/parts/overview/movers", overview::movers),
    part!("/console/parts/overview/day", overview::day),
    part!("/console/parts/overview/outputs", overview::outputs),
    part!("/console/parts/overview/refusals", overview::refusals),
    page!(GET "/console/consumers", consumers::page),
    part!("/console/parts/consumers", consumers::rows),
    page!(GET "/console/consumers.csv", consumers::csv),
    page!(GET "/console/plans", plans::all),
    change!(GET "/console/new-plan", plans::new),
    page!(GET "/console/plans/{id}", plans::page),
    part!("/console/parts/plans/{id}/limits", plans::limits),
    change!(GET "/console/plans/{id}/edit", plans::edit::page),
    change!(POST "/console/plans/{id}/edit", plans::edit::page),
    change!(GET "/console/plans/{id}/versions/{version}/restore", plans::restore::page),
    change!(POST "/console/plans/{id}/versions/{version}/restore", plans::restore::page),
    page!(GET "/console/capacity", capacity::page),
    change!(GET "/console/pools/{id}/open", capacity::open),
    change!(POST "/console/pools/{id}/open", capacity::open),
    page!(GET "/console/doubts", doubts::page),
    change!(GET "/console/doubts/all/resolve", doubts::resolve::many),
    change!(POST "/console/doubts/all/resolve", doubts::resolve::many),
    page!(GET "/console/doubts/{id}", doubts::one),
    change!(GET "/console/doubts/{id}/resolve", doubts::resolve::one),
    change!(POST "/console/doubts/{id}/resolve", doubts::resolve::one),
    page!(GET "/console/make-goods", make_goods::page),
    change!(GET "/console/make-goods/new", make_goods::give::page),
    change!(POST "/console/make-goods/new", make_goods::give::page),
    change!(GET "/console/make-goods/{id}/undo", make_goods::undo),
    change!(POST "/console/make-goods/{id}/undo", make_goods::undo),
    page!(GET "/console/webhooks", deliveries::all),
    page!(GET "/console/webhooks/{id}", deliveries::page),
    change!(POST "/console/webhooks/{id}", deliveries::page),
    page!(GET "/console/duplicates", duplicates::page),
    page!(GET "/console/audit", audit::page),
    page!(GET "/console/users", user::list::page),
    page!(GET "/console/users/{user}", user::page),
    part!("/console/parts/users/{user}/gauges", user::gauges::part),
    part!("/console/parts/users/{user}/story", user::story),
    page!(GET "/console/users/{user}/why", user::why::page),
    change!(GET "/console/users/{user}/plan", user::change::plan),
    change!(POST "/console/users/{user}/plan", user::change::plan),
    change!(GET "/console/users/{user}/override", user::change::overrides),
    change!(POST "/console/users/{user}/override", user::change::overrides),
    change!(GET "/console/users/{user}/grant", user::change::grant),
    change!(POST "/console/users/{user}/grant", user::change::grant),
    change!(GET "/console/users/{user}/suspend", user::change::suspend),
    change!(POST "/console/users/{user}/suspend", user::change::suspend),
    change!(GET "/console/users/{user}/erase", user::change::erase),
    change!(POST "/console/users/{user}/erase", user::change::erase),
];

/// The pages that the navigation names: path, name, and what the path begins with.
pub const NAVIGATION: &[(&str, &str)] = &[
    ("/console", "Overview"),
    ("/console/consumers", "Top consumers"),
    ("/console/users", "Users"),
    ("/console/plans", "Plans"),
    ("/console/capacity", "Capacity"),
    ("/console/doubts", "In doubt"),
    ("/console/make-goods", "Make-good"),
    ("/console/webhooks", "Webhooks"),
    ("/console/duplicates", "Duplicates"),
    ("/console/audit", "Audit"),
];
