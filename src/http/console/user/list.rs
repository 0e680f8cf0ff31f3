//! Users by id, and those whose id has a part that is looked for.

use askama::Template;

use super::User;
use crate::http::console::api::{List, Target};
use crate::http::console::figures::Clock;
use crate::http::console::page::{Shell, show};
use crate::http::console::visit::{Shown, Visit};

#[derive(Template)]
#[template(path = "users.html")]
struct Page {
    shell: Shell,
    q: String,
    plan: String,
    org: String,
    users: Vec<User>,
    next: Option<String>,
    is_first: bool,
    clock: Clock,
}

pub async fn page(visit: Visit) -> Shown {
    let field = |name: &str| visit.query.get(name).to_owned();
    let (q, plan, org, cursor) = (field("q"), field("plan"), field("org"), field("cursor"));
    let at = |path: &str| Target::new(path, &[]).with("q", &q).with("plan", &plan).with("org", &org);
    let list: List<User> = visit.api.get(at("/v1/admin/users").with("cursor", &cursor)).await?;
    let next = list.next_cursor.map(|next| at("/console/users").with("cursor", &next).into());
    let (shell, clock, is_first) = (visit.shell("Users"), visit.clock(), cursor.is_empty());
    show(&Page { shell, q, plan, org, users: list.data, next, is_first, clock })
}
