//! Parts of pages: they stand at addresses of their own, so that scripts can ask for them again, and
//! pages can leave what takes long to be filled in.

use std::fmt;

use askama::filters::HtmlSafe;

use super::figures::escape;
use super::page;
use super::visit::{Shown, Visit};

/// Where a part stands in a page.
pub struct Part {
    path: String,
    /// Asked for again after so many seconds; 0: never.
    every: u32,
    /// What is there from the start.
    html: Option<String>,
    /// The page with all its parts, for who has no scripts.
    whole: String,
}

impl Part {
    /// Comes after the page, unless the page is asked for as a whole.
    pub async fn later(visit: &Visit, path: &str, every: u32, shown: impl Future<Output = Shown>) -> Self {
        match visit.query.get("whole") {
            "yes" => Self::at_once(visit, path, every, shown).await,
            _ => Self { path: path.into(), every, html: None, whole: whole(visit) },
        }
    }

    /// Stands in for `first` once it is known.
    pub async fn over(visit: &Visit, path: &str, first: Shown, shown: impl Future<Output = Shown>) -> Self {
        match visit.query.get("whole") {
            "yes" => Self::at_once(visit, path, 0, shown).await,
            _ => Self::at_once(visit, path, 0, std::future::ready(first)).await,
        }
    }

    /// Comes with the page.
    pub async fn at_once(visit: &Visit, path: &str, every: u32, shown: impl Future<Output = Shown>) -> Self {
        let shell = || visit.shell("");
        let reply = shown.await.unwrap_or_else(|fault| page::of_fault(true, shell(), &fault));
        let html = Some(String::from_utf8_lossy(&reply.body).into_owned());
        Self { path: path.into(), every, html, whole: String::new() }
    }
}

fn whole(visit: &Visit) -> String {
    let address = visit.call.head.uri().path_and_query().map_or("", |address| address.as_str());
    let mark = if address.contains('?') { '&' } else { '?' };
    format!("{address}{mark}whole=yes")
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<div class=\"part\" data-live=\"{}\"", escape(&self.path))?;
        if self.every > 0 {
            write!(f, " data-every=\"{}\"", self.every)?;
        }
        match &self.html {
            Some(html) => write!(f, ">{html}</div>"),
            None => write!(
                f,
                "><p class=\"quiet filling\">Adding up…</p>\
                 <noscript><a href=\"{}\">Show these figures</a></noscript></div>",
                escape(&self.whole)
            ),
        }
    }
}

/// What it holds was written by a template, and its addresses are escaped.
impl HtmlSafe for Part {}
