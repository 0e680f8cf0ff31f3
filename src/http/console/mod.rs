#![doc = include_str!("README.md")]
#![allow(dead_code, reason = "pages to come use the rest")]

mod api;
mod assets;
mod figures;
mod form;
mod origin;
mod overview;
mod page;
mod session;
mod sign;
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

/// A path with `/parts/` is a part of a page, asked for by its script. What a form sends goes to
/// the path of the page it stands on, so that whoever was signed out meanwhile comes back there.
pub static ROUTES: &[Route] = &[
    open!(GET "/console/sign-in", sign::form),
    open!(POST "/console/sign-in", sign::sign_in),
    open!(POST "/console/sign-out", sign::sign_out),
    open!(GET "/console/assets/{file}", assets::file),
    page!(GET "/console", overview::page),
];

/// The pages that the navigation names: path, name, and what the path begins with.
pub const NAVIGATION: &[(&str, &str)] = &[("/console", "Overview")];
