//! An answer before it is HTTP: what a handler hands back, alone or as an item
//! of a batch.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::web::Bytes;
use serde::Serialize;

use super::problem::{Kind, Problem};

/// What a handler ends with.
pub type Answer = Result<Reply, Problem>;

pub type Headers = Vec<(HeaderName, HeaderValue)>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    /// The problem's code, for metrics and logs.
    pub kind: Option<Kind>,
    pub headers: Headers,
    pub content_type: HeaderValue,
    pub body: Bytes,
}

impl Reply {
    /// 200 with `view` as JSON.
    pub fn json(view: &impl Serialize) -> Self {
        Self::json_text(json_bytes(view))
    }

    /// 200 with text that is JSON already.
    pub fn json_text(text: Vec<u8>) -> Self {
        Self::bytes(JSON, text.into())
    }

    /// 200 with the bytes as they are.
    pub fn bytes(content_type: HeaderValue, body: Bytes) -> Self {
        Self { status: StatusCode::OK, kind: None, headers: Headers::new(), content_type, body }
    }

    pub fn no_content() -> Self {
        Self { status: StatusCode::NO_CONTENT, ..Self::bytes(JSON, Bytes::new()) }
    }

    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The version as `ETag`, for `If-Match` of the next PUT.
    pub fn with_version(self, version: u32) -> Self {
        match HeaderValue::try_from(format!("\"{version}\"")) {
            Ok(tag) => self.with_header(header::ETAG, tag),
            Err(_) => self,
        }
    }

    pub fn into_response(self) -> HttpResponse {
        let has_body = !self.body.is_empty();
        let mut response = HttpResponse::with_body(self.status, self.body);
        let headers = response.headers_mut();
        if has_body {
            headers.insert(header::CONTENT_TYPE, self.content_type);
        }
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        response.map_into_boxed_body()
    }
}

/// Our views hold numbers, strings and lists only: writing them to memory
/// cannot fail, and an empty body would show a view that broke this.
pub fn json_bytes(view: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4096);
    if let Err(error) = serde_json::to_writer(&mut bytes, view) {
        tracing::error!(error = %error, "a view could not be written");
        bytes.clear();
    }
    bytes
}
