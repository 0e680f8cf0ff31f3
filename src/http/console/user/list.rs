//! Users by id: those whose id begins with what is looked for, or has it anywhere.

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
    /// Anywhere in the id, which takes a look at every one.
    anywhere: bool,
    plan: String,
    org: String,
    users: Vec<User>,
    next: Option<String>,
    first: String,
    is_first: bool,
    clock: Clock,
}

pub async fn page(visit: Visit) -> Shown {
    let field = |name: &str| visit.query.get(name).to_owned();
    let (q, plan, org, cursor) = (field("q"), field("plan"), field("org"), field("cursor"));
    let anywhere = visit.query.get("anywhere") == "yes";
    let at = |path: &str| Target::new(path, &[]).with("plan", &plan).with("org", &org);
    let wanted = at("/v1/admin/users").with(if anywhere { "q" } else { "prefix" }, &q);
    let list: List<User> = visit.api.get(wanted.with("cursor", &cursor)).await?;
    let here = || at("/console/users").with("q", &q).with("anywhere", if anywhere { "yes" } else { "" });
    let next = list.next_cursor.map(|next| here().with("cursor", &next).into());
    let first = here().into();
    let (shell, clock, is_first) = (visit.shell("Users"), visit.clock(), cursor.is_empty());
    show(&Page { shell, q, anywhere, first, plan, org, users: list.data, next, is_first, clock })
}
