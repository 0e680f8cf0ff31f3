//! `/widget.js`: the element that shows users what they have left on any page.
//!
//! Pages of all products load it, so it may be kept and shared, and says nothing about
//! anybody. What a user has left is asked for by the page, with the user's token.

use std::io::Write;
use std::sync::LazyLock;

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::web::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::call::Call;
use super::reply::{Answer, Reply};

const SCRIPT: HeaderValue = HeaderValue::from_static("text/javascript; charset=utf-8");
/// Old for an hour at most; then browsers ask whether it has changed.
const KEPT: HeaderValue = HeaderValue::from_static("public, max-age=3600, stale-while-revalidate=86400");

struct Script {
    plain: Bytes,
    zipped: Bytes,
    tag: HeaderValue,
}

static WIDGET: LazyLock<Script> = LazyLock::new(|| {
    let text = lean(include_str!("widget/widget.js"));
    let tag = format!("\"{}\"", &blake3::hash(text.as_bytes()).to_hex()[..16]);
    let mut zipped = GzEncoder::new(Vec::new(), Compression::best());
    // Nothing fails where nothing but memory is written to; without it all get the plain one.
    let zipped = zipped.write_all(text.as_bytes()).and_then(|()| zipped.finish()).unwrap_or_default();
    Script {
        plain: text.into(),
        zipped: zipped.into(),
        tag: HeaderValue::try_from(tag).unwrap_or(HeaderValue::from_static("\"\"")),
    }
});

/// The script without its indents and comments, which no browser needs. A comment behind code
/// comes after its semicolon.
fn lean(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let code = lines.filter(|line| !line.starts_with("//") && !line.starts_with("/**"));
    let code = code.map(|line| line.split_once("; // ").map_or(line, |(code, _)| code));
    let mut is_style = false;
    let code = code.map(|line| {
        is_style = (is_style || line.starts_with("STYLE.")) && line != "`);";
        if is_style { lean_style(line) } else { line.to_owned() }
    });
    code.flat_map(|line| [line, "\n".into()]).collect()
}

/// A line of the style sheet without spaces that mean nothing there.
fn lean_style(line: &str) -> String {
    let spaced = [": ", "; ", ", ", " {", "{ ", " }"];
    spaced.iter().fold(line.to_owned(), |line, spaced| line.replace(spaced, spaced.trim()))
}

/// The custom element `<apportion-quota>`.
#[utoipa::path(
    get, path = "/widget.js", operation_id = "widget", tag = "documents",
    responses((status = 200, description = "A module that defines `<apportion-quota>`", body = String,
               content_type = "text/javascript")),
)]
pub async fn script(call: Call) -> Answer {
    let (asked, widget) = (call.headers(), &*WIDGET);
    let takes_gzip =
        asked.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).is_some_and(|text| {
            text.split(',').any(|name| name.split(';').next().map(str::trim) == Some("gzip"))
                && !widget.zipped.is_empty()
        });
    let reply = if asked.get(header::IF_NONE_MATCH) == Some(&widget.tag) {
        Reply::no_content().with_status(StatusCode::NOT_MODIFIED)
    } else if takes_gzip {
        let gzip = HeaderValue::from_static("gzip");
        Reply::bytes(SCRIPT, widget.zipped.clone()).with_header(header::CONTENT_ENCODING, gzip)
    } else {
        Reply::bytes(SCRIPT, widget.plain.clone())
    };
    let any = [
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*")),
        (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("cross-origin")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::VARY, HeaderValue::from_static("accept-encoding")),
        (header::CACHE_CONTROL, KEPT),
        (header::ETAG, widget.tag.clone()),
    ];
    Ok(any.into_iter().fold(reply, |reply, (name, value)| reply.with_header(name, value)))
}
