//! JSON text to nodes, in one pass.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{Entry, Fault, MAX_DEPTH, Node};

pub fn parse(bytes: &[u8]) -> Result<Node<'_>, Fault> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    Value { room: MAX_DEPTH }
        .deserialize(&mut json)
        .and_then(|node| json.end().map(|()| node))
        .map_err(|error| Fault::of_document(format!("is not valid JSON: {error}")))
}

/// Reads a value that may hold `room` further levels of lists and tables.
#[derive(Clone, Copy)]
struct Value {
    room: usize,
}

impl Value {
    fn inner<E: Error>(self) -> Result<Self, E> {
        match self.room.checked_sub(1) {
            Some(room) => Ok(Self { room }),
            None => Err(E::custom(format_args!("nested deeper than {MAX_DEPTH} levels"))),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Value {
    type Value = Node<'de>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Node<'de>, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node<'de>, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node<'de>, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node<'de>, E> {
        Ok(Node::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node<'de>, E> {
        Ok(i64::try_from(value).map_or(Node::Decimal(value as f64), Node::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node<'de>, E> {
        Ok(Node::Decimal(value))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node<'de>, A::Error> {
        let inner = self.inner()?;
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(inner)? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node<'de>, A::Error> {
        let inner = self.inner()?;
        // Most bodies have 5 to 12 fields; only the outermost table is given
        // room ahead, so that `[{},{},...` cannot swell.
        let room = if self.room == MAX_DEPTH { 12 } else { 0 };
        let mut entries: Vec<Entry<'de>> = Vec::with_capacity(room);
        while let Some(key) = map.next_key_seed(Key)? {
            entries.push((key, map.next_value_seed(inner)?));
        }
        Ok(Node::Table(entries))
    }
}

/// Reads a field's name.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Cow<'de, str>, D::Error> {
        input.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}
