//! The pages behind the `type` of a problem: what a code means, for people.

use std::fmt::Write;

use super::catalogue::{self, CATALOGUE, Entry};

/// The page of one code, or `None` when there is no such code.
pub fn page(code: &str) -> Option<String> {
    let entry = catalogue::find(code)?;
    let mut html = head(entry.title);
    let retry = if entry.retryable { "A retry after the wait helps." } else { "A retry does not help." };
    // Writing to a String cannot fail.
    let _ = write!(
        html,
        "<h1>{}</h1>\n<p><code>{}</code>, status {}. {retry}</p>\n<p>{}</p>\n<p>Other codes: {}</p>\n",
        entry.title,
        entry.code,
        entry.status,
        with_code_marks(entry.help),
        links(entry),
    );
    html.push_str("</body>\n</html>\n");
    Some(html)
}

fn head(title: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n</head>\n<body>\n"
    )
}

fn links(shown: &Entry) -> String {
    let others = CATALOGUE.iter().filter(|entry| entry.kind != shown.kind);
    let links: Vec<String> =
        others.map(|entry| format!("<a href=\"{}\">{}</a>", entry.uri, entry.code)).collect();
    links.join(", ")
}

/// Escapes the text and turns `backticks` into code elements.
fn with_code_marks(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut html = String::with_capacity(escaped.len() + 64);
    for (index, part) in escaped.split('`').enumerate() {
        match index % 2 {
            0 => html.push_str(part),
            _ => {
                let _ = write!(html, "<code>{part}</code>");
            }
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page_that_names_it() {
        for entry in CATALOGUE {
            let html = page(entry.code).unwrap();
            assert!(html.contains(&format!("<code>{}</code>", entry.code)));
            assert!(!html.contains('`'), "{}: an odd number of backticks", entry.code);
        }
        assert_eq!(page("<script>"), None);
    }
}
