//! Our own style sheet, scripts and drawings: in the binary, or read from the sources while one
//! works on them.

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use rust_embed::Embed;

use super::visit::guarded;
use crate::http::call::Call;
use crate::http::problem::Problem;
use crate::http::reply::{Answer, Reply};

#[derive(Embed)]
#[folder = "src/http/console/assets/"]
struct Assets;

const KINDS: [(&str, HeaderValue); 3] = [
    (".css", HeaderValue::from_static("text/css; charset=utf-8")),
    (".js", HeaderValue::from_static("text/javascript; charset=utf-8")),
    (".svg", HeaderValue::from_static("image/svg+xml")),
];

/// A file; a browser that has it is told so.
pub async fn file(call: Call) -> Answer {
    let name = call.segment("file")?;
    let kind = KINDS.iter().find(|(end, _)| name.ends_with(end)).map(|(_, kind)| kind.clone());
    let (Some(kind), Some(file)) = (kind, Assets::get(&name)) else {
        return Err(Problem::not_found("file"));
    };
    let hash = blake3::hash(&file.data).to_hex();
    let tag = HeaderValue::try_from(format!("\"{}\"", &hash[..16]));
    let tag = tag.unwrap_or(HeaderValue::from_static("\"\""));
    let reply = match call.headers().get(header::IF_NONE_MATCH) == Some(&tag) {
        true => Reply::no_content().with_status(StatusCode::NOT_MODIFIED),
        false => Reply::bytes(kind, file.data.into_owned().into()),
    };
    let reply = reply.with_header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(guarded(reply.with_header(header::ETAG, tag)))
}
