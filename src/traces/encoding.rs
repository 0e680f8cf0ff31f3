//! Spans in OTLP's binary form (protocol buffers, `ExportTraceServiceRequest`).
//! The numbers of fields are those of opentelemetry-proto 1.x, which are stable.

use super::context::SpanId;
use super::{Attribute, Call, Ended, Value};

/// The conventions that names of attributes follow.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";

const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
const ERROR: u64 = 2;
/// Of a span: its trace is recorded, it is known whether its parent is another
/// process's, and it is.
const SAMPLED: u32 = 1;
const KNOWS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    fn number(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn fixed32(&mut self, field: u32, value: u32) {
        self.tag(field, 5);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn attribute(&mut self, field: u32, (key, value): &Attribute) {
        self.message(field, |pair| {
            pair.text(1, key);
            pair.message(2, |any| match value {
                Value::Text(text) => any.text(1, text),
                Value::Number(number) => any.number(3, number.cast_unsigned()),
            });
        });
    }
}

/// One request with all these calls.
pub(super) fn request(resource: &[Attribute], calls: &[Ended]) -> Vec<u8> {
    let mut request = Message::default();
    request.message(1, |of_resource| {
        of_resource.message(1, |message| resource.iter().for_each(|one| message.attribute(1, one)));
        of_resource.message(2, |of_scope| {
            of_scope.message(1, |scope| {
                scope.text(1, "apportion");
                scope.text(2, env!("CARGO_PKG_VERSION"));
            });
            calls.iter().for_each(|call| spans(of_scope, call));
            of_scope.text(3, SCHEMA);
        });
        of_resource.text(3, SCHEMA);
    });
    request.0
}

fn spans(of_scope: &mut Message, ended: &Ended) {
    let Ended { call, known, .. } = ended;
    let parent = call.context.parent;
    of_scope.message(2, |span| {
        let remote = if parent.is_some() { IS_REMOTE } else { 0 };
        head(span, call, call.span, parent, SERVER);
        span.text(5, &ended.name);
        span.fixed64(7, call.begun_ns);
        span.fixed64(8, ended.ended_ns);
        known.attributes.iter().for_each(|one| span.attribute(9, one));
        if ended.failed {
            span.message(15, |status| status.number(3, ERROR));
        }
        span.fixed32(16, SAMPLED | KNOWS_REMOTE | remote);
    });
    for step in &known.steps {
        of_scope.message(2, |span| {
            head(span, call, SpanId::fresh(), Some(call.span), INTERNAL);
            span.text(5, step.name);
            span.fixed64(7, step.begun_ns);
            span.fixed64(8, step.ended_ns);
            span.fixed32(16, SAMPLED | KNOWS_REMOTE);
        });
    }
}

fn head(span: &mut Message, call: &Call, id: SpanId, parent: Option<SpanId>, kind: u64) {
    span.bytes(1, &call.context.trace.0);
    span.bytes(2, &id.0);
    if !call.context.state.is_empty() {
        span.text(3, &call.context.state);
    }
    if let Some(parent) = parent {
        span.bytes(4, &parent.0);
    }
    span.number(6, kind);
}
