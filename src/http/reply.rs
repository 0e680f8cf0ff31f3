//! An answer before it is HTTP: what a handler hands back, alone or as an item
//! of a batch.

use std::convert::Infallible;

use actix_web::HttpResponse;
use actix_web::body::{BodyStream, BoxBody};
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::web::Bytes;
use futures_util::Stream;
use serde::Serialize;

use super::problem::{Kind, Problem};
use crate::domain::ids::{HoldId, Label};

/// What a handler ends with.
pub type Answer = Result<Reply, Problem>;

pub type Headers = Vec<(HeaderName, HeaderValue)>;

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What an answer is about, for logs and traces.
#[derive(Debug, Default)]
pub struct About {
    pub hold: Option<HoldId>,
    /// The limit that refused.
    pub limit: Option<Label>,
}

#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    /// The problem's code, for metrics and logs.
    pub kind: Option<Kind>,
    pub about: About,
    pub headers: Headers,
    pub content_type: HeaderValue,
    pub body: Bytes,
    /// A body that comes piece by piece, in place of `body`.
    pub pieces: Option<BoxBody>,
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
        Self {
            status: StatusCode::OK,
            kind: None,
            about: About::default(),
            headers: Headers::new(),
            content_type,
            body,
            pieces: None,
        }
    }

    /// 200 with server-sent events as they happen; each piece is whole.
    ///
    /// A piece is asked for when there is room for it on the connection, so a
    /// slow reader makes nothing pile up here.
    pub fn events(events: impl Stream<Item = Bytes> + 'static) -> Self {
        use futures_util::StreamExt;
        let pieces = BodyStream::new(events.map(Ok::<_, Infallible>));
        Self { pieces: Some(BoxBody::new(pieces)), ..Self::bytes(EVENT_STREAM, Bytes::new()) }
            .with_header(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"))
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
        let has_body = !self.body.is_empty() || self.pieces.is_some();
        let body = self.pieces.unwrap_or_else(|| BoxBody::new(self.body));
        let mut response = HttpResponse::with_body(self.status, body);
        let headers = response.headers_mut();
        if has_body {
            headers.insert(header::CONTENT_TYPE, self.content_type);
        }
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        response
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
