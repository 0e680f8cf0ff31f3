//! Documents: what comes in as JSON or TOML, before it means anything.
//!
//! A body or a plan file is parsed into a [`Node`] and then read field by
//! field through a [`Reader`], which collects every fault with its pointer:
//! whoever sent the document learns in one answer all that is wrong with it.
//!
//! ```text
//! let node = Node::from_json(body)?;
//! let user = node.read(|r| {
//!     let user = r.required("user").parsed(UserId::parse);
//!     let input = r.optional("input_tokens").amount(MAX_AMOUNT);
//!     Some((user?, input.unwrap_or(0)))
//! })?;
//! ```

mod json;
mod reader;
mod toml;

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap, Serializer};

pub use reader::{Field, Reader};

/// Deepest nesting of lists and tables in a document.
pub const MAX_DEPTH: usize = 32;

/// A field of a table. Names are kept in the document's order, repeated ones too.
pub type Entry<'a> = (Cow<'a, str>, Node<'a>);

/// A parsed value. Texts borrow from the document where they hold no escapes.
#[derive(Debug, Clone, PartialEq)]
pub enum Node<'a> {
    Null,
    Bool(bool),
    /// A whole number written without point or exponent.
    Integer(i64),
    /// Any other number: `1.0`, `1e3`, and whole ones beyond 64 bits.
    Decimal(f64),
    Text(Cow<'a, str>),
    List(Vec<Node<'a>>),
    Table(Vec<Entry<'a>>),
}

/// One thing that is wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, thiserror::Error)]
#[error("{pointer}: {message}")]
pub struct Fault {
    /// RFC 6901; empty is the document itself.
    pub pointer: String,
    /// What is wrong, to be read after the field's name: `must be true or false`.
    pub message: String,
}

impl Fault {
    /// A fault of the document as a whole.
    pub fn of_document(message: impl Into<String>) -> Self {
        Self { pointer: String::new(), message: message.into() }
    }
}

impl<'a> Node<'a> {
    /// Parses one JSON value that fills all of `bytes`.
    ///
    /// Fails with the place (line and column) of the first thing that is not
    /// JSON, or lies deeper than [`MAX_DEPTH`].
    pub fn from_json(bytes: &'a [u8]) -> Result<Self, Fault> {
        json::parse(bytes)
    }

    /// Parses a TOML document. Dates become texts.
    pub fn from_toml(text: &str) -> Result<Node<'static>, Fault> {
        toml::parse(text)
    }

    /// The field of that name, when this is a table that has it.
    pub fn get(&self, name: &str) -> Option<&Node<'a>> {
        match self {
            Self::Table(entries) => entries.iter().find(|(key, _)| key == name).map(|(_, node)| node),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Reads this node as a table: `read` asks for its fields and builds the
    /// result. Fields that were not asked for are faults, as are repeated ones.
    ///
    /// `read` answers `None` when something that it needs is missing; the
    /// reader has then noted why.
    pub fn read<'n, T>(
        &'n self,
        read: impl FnOnce(&mut Reader<'n, '_>) -> Option<T>,
    ) -> Result<T, Vec<Fault>> {
        reader::read(self, read)
    }
}

impl Serialize for Node<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Integer(value) => serializer.serialize_i64(*value),
            Self::Decimal(value) => serializer.serialize_f64(*value),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Table(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, node) in entries {
                    map.serialize_entry(key, node)?;
                }
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests;
