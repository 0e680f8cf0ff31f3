//! Reads bodies within limits of size and time, and documents out of them.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::http::header::{self, HeaderMap};
use actix_web::web::{Bytes, BytesMut};
use futures_util::Stream;

use super::problem::{Kind, Problem};
use crate::domain::document::{Fault, Node, Reader};

const JSON: &str = "application/json";

/// Largest body of a single call.
pub const MAX_BODY: usize = 64 * 1024;
/// Largest body of a batch.
pub const MAX_BATCH_BODY: usize = 1024 * 1024;

/// How long a body that nobody wants is waited for.
const UNWANTED: Duration = Duration::from_millis(250);

/// Reads the body, at most `max` bytes within `patience`. Empty when there is
/// none; a body that is there must be JSON by its content type.
pub async fn read(
    headers: &HeaderMap,
    payload: &mut Payload,
    max: usize,
    patience: Duration,
) -> Result<Bytes, Problem> {
    read_as(JSON, headers, payload, max, patience).await
}

/// As [`read`], of the media type `media`.
pub async fn read_as(
    media: &str,
    headers: &HeaderMap,
    payload: &mut Payload,
    max: usize,
    patience: Duration,
) -> Result<Bytes, Problem> {
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_none_or(|length| length == 0) && !headers.contains_key(header::TRANSFER_ENCODING) {
        return Ok(Bytes::new());
    }
    if length.is_some_and(|length| length > max as u64) {
        return Err(too_large(max));
    }
    require(media, headers)?;
    match collect(payload, max, patience).await {
        Some(result) => result,
        None => Err(Problem::new(Kind::RequestTimeout, "The body did not arrive in time.")),
    }
}

/// Reads and forgets the body of a request that is refused for something else:
/// what is left unread would cost the caller its connection, and a caller that
/// is told to slow down would connect anew with each call.
pub async fn skip(headers: &HeaderMap, payload: &mut Payload) {
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    // Whoever waits to be told to go on will not send it.
    if length.is_some_and(|length| (1..=MAX_BODY).contains(&length)) && !headers.contains_key(header::EXPECT)
    {
        let _ = collect(payload, MAX_BODY, UNWANTED).await;
    }
}

/// A body of more than `max` bytes.
pub fn too_large(max: usize) -> Problem {
    Problem::new(Kind::BodyTooLarge, format!("The body is larger than {max} bytes.")).with_max(max as u64)
}

fn require(media: &str, headers: &HeaderMap) -> Result<(), Problem> {
    let unsupported = |detail| Err(Problem::new(Kind::UnsupportedMediaType, detail));
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return unsupported(format!("Send the body with Content-Type: {media}."));
    };
    let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    if !essence.trim_ascii().eq_ignore_ascii_case(media.as_bytes()) {
        return unsupported(format!("The body must be {media}."));
    }
    match headers.get(header::CONTENT_ENCODING) {
        Some(coding) if !coding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            unsupported("The body must be sent without a content coding.".into())
        }
        _ => Ok(()),
    }
}

/// `None` when `patience` ran out.
async fn collect(payload: &mut Payload, max: usize, patience: Duration) -> Option<Result<Bytes, Problem>> {
    let mut body = Body { first: Bytes::new(), rest: BytesMut::new(), max };
    // A small body mostly came along with its head, but is only handed over
    // after the handler has yielded once. A timer is armed if that was vain.
    if let Poll::Ready(result) = poll_twice(payload, &mut body).await {
        return Some(result);
    }
    tokio::time::timeout(patience, async {
        loop {
            let chunk = poll_fn(|context| Pin::new(&mut *payload).poll_next(context)).await;
            if let Some(result) = body.take(chunk) {
                return result;
            }
        }
    })
    .await
    .ok()
}

async fn poll_twice(payload: &mut Payload, body: &mut Body) -> Poll<Result<Bytes, Problem>> {
    let mut yielded = false;
    poll_fn(|context| {
        loop {
            match Pin::new(&mut *payload).poll_next(context) {
                Poll::Ready(chunk) => {
                    if let Some(result) = body.take(chunk) {
                        return Poll::Ready(Poll::Ready(result));
                    }
                }
                Poll::Pending if yielded => return Poll::Ready(Poll::Pending),
                Poll::Pending => {
                    yielded = true;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    })
    .await
}

/// The chunks so far. A body of one chunk is not copied.
struct Body {
    first: Bytes,
    rest: BytesMut,
    max: usize,
}

impl Body {
    /// Takes the next chunk; answers when the body is complete or broken.
    fn take(&mut self, chunk: Option<Result<Bytes, PayloadError>>) -> Option<Result<Bytes, Problem>> {
        let chunk = match chunk {
            None if self.rest.is_empty() => return Some(Ok(std::mem::take(&mut self.first))),
            None => return Some(Ok(self.rest.split().freeze())),
            Some(Ok(chunk)) => chunk,
            Some(Err(PayloadError::Overflow)) => return Some(Err(too_large(self.max))),
            Some(Err(_)) => {
                return Some(Err(Problem::invalid(vec![Fault::of_document("ended before it was complete")])));
            }
        };
        if self.first.len().max(self.rest.len()) + chunk.len() > self.max {
            return Some(Err(too_large(self.max)));
        }
        if self.first.is_empty() {
            self.first = chunk;
        } else {
            if self.rest.is_empty() {
                self.rest.extend_from_slice(&self.first);
            }
            self.rest.extend_from_slice(&chunk);
        }
        None
    }
}

/// Parses the body and reads it as an object; all faults in one problem.
pub fn document<T>(
    body: &[u8],
    read: impl for<'n> FnOnce(&mut Reader<'n, '_>) -> Option<T>,
) -> Result<T, Problem> {
    let node = Node::from_json(body).map_err(|fault| Problem::invalid(vec![fault]))?;
    node.read(read).map_err(Problem::invalid)
}

/// Like [`document`]; no body at all counts as an empty object.
pub fn optional_document<T>(
    body: &[u8],
    read: impl for<'n> FnOnce(&mut Reader<'n, '_>) -> Option<T>,
) -> Result<T, Problem> {
    document(if body.is_empty() { b"{}" } else { body }, read)
}
