//! Batches: many items in one call, each decided on its own, answered in order.

use super::call::Call;
use super::problem::{Kind, Problem};
use super::reply::{Answer, Reply};
use crate::domain::document::{Fault, Node, Reader};

/// Most items of a batch.
pub const MAX_ITEMS: usize = 100;

/// Reads `{"<list>":[...]}`. An item with faults fails alone, with pointers
/// into the item, as if it had come alone.
///
/// # Errors
/// The body as a whole is wrong, or has no items or too many.
pub fn read<T>(
    body: &[u8],
    list: &str,
    read_item: impl for<'n> Fn(&mut Reader<'n, '_>) -> Option<T>,
) -> Result<Vec<Result<T, Vec<Fault>>>, Problem> {
    let node = Node::from_json(body).map_err(|fault| Problem::invalid(vec![fault]))?;
    let items = node.read(|fields| match fields.required(list).node()? {
        Node::List(items) if (1..=MAX_ITEMS).contains(&items.len()) => Some(items),
        _ => {
            fields.fault(list, format!("must be a list of 1 to {MAX_ITEMS} items"));
            None
        }
    });
    let items = items.map_err(Problem::invalid)?;
    Ok(items.iter().map(|item| item.read(&read_item)).collect())
}

/// Has the good items decided together and puts all answers in order.
///
/// `decide` answers for every command, in order; `render` is given its place
/// among the commands.
pub async fn answer<C, R>(
    items: Vec<Result<C, Vec<Fault>>>,
    decide: impl AsyncFnOnce(Vec<C>) -> Result<Vec<R>, Problem>,
    render: impl Fn(usize, R) -> Answer,
    call: &Call,
) -> Answer {
    let mut commands = Vec::with_capacity(items.len());
    let places: Vec<Result<(), Problem>> = items
        .into_iter()
        .map(|item| item.map(|command| commands.push(command)).map_err(Problem::invalid))
        .collect();
    let decided = if commands.is_empty() { Vec::new() } else { decide(commands).await? };
    let mut decided = decided.into_iter().enumerate();
    let replies = places.into_iter().map(|place| {
        let answer = place.and_then(|()| match decided.next() {
            Some((index, result)) => render(index, result),
            None => Err(Problem::new(Kind::Internal, "The service left this item out.")),
        });
        answer.unwrap_or_else(|problem| call.item_reply(problem))
    });
    Ok(join(&replies.collect::<Vec<_>>()))
}

/// `{"results":[{"status","headers","body"},...]}`.
fn join(replies: &[Reply]) -> Reply {
    let size = replies.iter().map(|reply| reply.body.len() + 512).sum();
    let mut body = Vec::with_capacity(size);
    body.extend_from_slice(b"{\"results\":[");
    for (index, reply) in replies.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        write_item(&mut body, reply);
    }
    body.extend_from_slice(b"]}");
    Reply::json_text(body)
}

fn write_item(body: &mut Vec<u8>, reply: &Reply) {
    body.extend_from_slice(b"{\"status\":");
    body.extend_from_slice(reply.status.as_str().as_bytes());
    body.extend_from_slice(b",\"headers\":{");
    for (index, (name, value)) in reply.headers.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.push(b'"');
        body.extend_from_slice(name.as_str().as_bytes());
        body.extend_from_slice(b"\":");
        // Every header value of ours is printable ASCII.
        let text = String::from_utf8_lossy(value.as_bytes());
        if serde_json::to_writer(&mut *body, &text).is_err() {
            body.extend_from_slice(b"null");
        }
    }
    // Every item's body was written by `json_bytes`.
    body.extend_from_slice(b"},\"body\":");
    body.extend_from_slice(if reply.body.is_empty() { b"null" } else { &reply.body });
    body.push(b'}');
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;
    use crate::http::problem::PLAIN;

    #[test]
    fn a_batch_carries_status_headers_and_body_of_every_item() {
        let fine = Reply::json(&serde_json::json!({"decision": "allow"}))
            .with_header(HeaderName::from_static("ratelimit"), HeaderValue::from_static("\"a\";r=1"));
        let bad = Problem::new(Kind::InvalidRequest, "The body is wrong.").into_reply(&PLAIN);
        let reply = join(&[fine, bad]);
        let json: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(json["results"][0]["status"], 200);
        assert_eq!(json["results"][0]["headers"]["ratelimit"], "\"a\";r=1");
        assert_eq!(json["results"][0]["body"]["decision"], "allow");
        assert_eq!(json["results"][1]["status"], 400);
        assert_eq!(json["results"][1]["headers"]["x-should-retry"], "false");
        assert_eq!(json["results"][1]["body"]["code"], "invalid_request");
    }
}
