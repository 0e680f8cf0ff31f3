//! What goes on now.

use askama::Template;

use super::page::{Shell, show};
use super::visit::{Shown, Visit};

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    shell: Shell,
}

pub async fn page(visit: Visit) -> Shown {
    show(&Overview { shell: visit.shell("Overview") })
}
