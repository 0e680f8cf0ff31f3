//! Pages as answers: the shell around them, and how faults look.

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use askama::Template;

use super::NAVIGATION;
use super::api::{self, Fault};
use super::visit::{Shown, guarded};
use crate::http::problem::Kind;
use crate::http::reply::Reply;

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// What stands around a page's content.
pub struct Shell {
    pub title: String,
    /// Of this page.
    pub path: String,
    pub tenant: String,
    pub zone: String,
    pub may_write: bool,
    /// For the forms.
    pub mark: String,
    pub notice: Option<Notice>,
}

/// A line in the navigation.
pub struct Link {
    pub path: &'static str,
    pub name: &'static str,
    pub is_here: bool,
}

impl Shell {
    pub fn links(&self) -> Vec<Link> {
        let below = |path: &str| {
            self.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let here = |path| if path == "/console" { self.path == path } else { below(path) };
        NAVIGATION.iter().map(|&(path, name)| Link { path, name, is_here: here(path) }).collect()
    }
}

/// What was done, told on the page that follows.
pub struct Notice(pub &'static str);

impl Notice {
    /// Only what stands here is ever said.
    const DONE: [(&str, &str); 6] = [
        ("saved", "Done, and in force now or when you said."),
        ("erased", "The user's identity was erased."),
        ("resolved", "Resolved."),
        ("given", "It is given; how far it is stands in the list."),
        ("undone", "What was left of it is taken back."),
        ("sent", "It is on its way again."),
    ];

    pub fn done(word: &str) -> Option<Self> {
        Self::DONE.iter().find(|(known, _)| *known == word).map(|(_, text)| Self(text))
    }
}

#[derive(Template)]
#[template(path = "fault.html")]
struct FaultPage<'a> {
    shell: Shell,
    fault: &'a Fault,
}

/// Where nobody is known to have signed in.
#[derive(Template)]
#[template(path = "plain.html")]
struct PlainPage<'a> {
    title: &'a str,
    detail: &'a str,
}

/// A whole page, or a part of one.
pub fn show(template: &impl Template) -> Shown {
    match template.render() {
        Ok(html) => Ok(Reply::bytes(HTML, html.into())),
        Err(error) => {
            tracing::error!(%error, "a page could not be written");
            Err(api::fault(Kind::Internal, "The page could not be written."))
        }
    }
}

/// The page again, with what is wrong in it.
pub fn show_with(fault: &Fault, template: &impl Template) -> Shown {
    Ok(show(template)?.with_status(status(fault)))
}

/// Leads to another page.
pub fn see(target: &str) -> Reply {
    let place = HeaderValue::try_from(target).unwrap_or(HeaderValue::from_static("/console"));
    Reply::no_content().with_status(StatusCode::SEE_OTHER).with_header(header::LOCATION, place)
}

/// A part that is a sentence.
pub fn part_text(text: &'static str) -> Reply {
    Reply::bytes(HTML, format!("<p class=\"quiet\">{text}</p>").into())
}

/// A page, or its part, that could not be shown.
pub fn of_fault(is_part: bool, shell: Shell, fault: &Fault) -> Reply {
    let shown = match is_part {
        true => show(&FaultPart { fault }),
        false => show(&FaultPage { shell, fault }),
    };
    shown.map_or_else(|fault| plain_fault(&fault), |reply| reply.with_status(status(fault)))
}

#[derive(Template)]
#[template(path = "fault_part.html")]
struct FaultPart<'a> {
    fault: &'a Fault,
}

pub fn plain_fault(fault: &Fault) -> Reply {
    plain(&fault.title, &fault.detail).with_status(status(fault))
}

/// A form that was refused before it was read.
pub fn refused(why: &str) -> Reply {
    plain("Nothing was done", why).with_status(StatusCode::FORBIDDEN)
}

/// Leads to the same page from a page of ours, so that the browser sends its cookie along.
pub fn once_more(target: &str) -> Reply {
    let html = OnceMore { target }.render().unwrap_or_default();
    guarded(Reply::bytes(HTML, html.into()))
}

#[derive(Template)]
#[template(path = "once_more.html")]
struct OnceMore<'a> {
    target: &'a str,
}

/// Where there is no page.
pub fn nowhere() -> Reply {
    plain("There is no such page", "It may have moved, or its address is mistyped.")
        .with_status(StatusCode::NOT_FOUND)
}

fn plain(title: &str, detail: &str) -> Reply {
    let html =
        PlainPage { title, detail }.render().unwrap_or_else(|_| "The page could not be written.".into());
    guarded(Reply::bytes(HTML, html.into()))
}

fn status(fault: &Fault) -> StatusCode {
    StatusCode::from_u16(fault.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(path: &str) -> Vec<&'static str> {
        let shell = Shell {
            title: String::new(),
            path: path.into(),
            tenant: String::new(),
            zone: String::new(),
            may_write: false,
            mark: String::new(),
            notice: None,
        };
        shell.links().iter().filter(|link| link.is_here).map(|link| link.path).collect()
    }

    #[test]
    fn the_navigation_shows_where_one_is() {
        assert_eq!(here("/console"), ["/console"]);
        assert!(here("/console/nowhere").is_empty());
    }
}
