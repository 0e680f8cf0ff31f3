//! TOML text to nodes. Read at start and by tools: speed does not matter here.

use std::borrow::Cow;

use ::toml::Value;

use super::{Fault, MAX_DEPTH, Node};

pub fn parse(text: &str) -> Result<Node<'static>, Fault> {
    let table: ::toml::Table = text.parse().map_err(|error| not_toml(text, &error))?;
    convert(Value::Table(table), MAX_DEPTH)
}

fn convert(value: Value, room: usize) -> Result<Node<'static>, Fault> {
    let inner = || {
        room.checked_sub(1)
            .ok_or_else(|| Fault::of_document(format!("is nested deeper than {MAX_DEPTH} levels")))
    };
    Ok(match value {
        Value::Boolean(value) => Node::Bool(value),
        Value::Integer(value) => Node::Integer(value),
        Value::Float(value) => Node::Decimal(value),
        Value::String(text) => Node::Text(Cow::Owned(text)),
        Value::Datetime(date) => Node::Text(Cow::Owned(date.to_string())),
        Value::Array(items) => {
            let inner = inner()?;
            Node::List(items.into_iter().map(|item| convert(item, inner)).collect::<Result<_, _>>()?)
        }
        Value::Table(table) => {
            let inner = inner()?;
            let entry = |(key, value)| Ok((Cow::Owned(key), convert(value, inner)?));
            Node::Table(table.into_iter().map(entry).collect::<Result<_, Fault>>()?)
        }
    })
}

fn not_toml(text: &str, error: &::toml::de::Error) -> Fault {
    let message = error.message();
    let before = error.span().and_then(|span| text.get(..span.start));
    Fault::of_document(match before {
        None => format!("is not valid TOML: {message}"),
        Some(before) => {
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
            format!("is not valid TOML: {message} at line {line} column {column}")
        }
    })
}
