//! Reads tables field by field and notes every fault on the way.
//!
//! Nothing is allocated while a document is good: names stay borrowed, and a
//! pointer is only spelled out when there is a fault to show at it.

use std::collections::HashSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

use smallvec::{SmallVec, smallvec};

use super::{Entry, Fault, Node};
use crate::domain::quantity::Ppm;

/// A document with more faults than this is shown the first ones: a short
/// body must not be able to ask for a huge answer.
pub const MAX_FAULTS: usize = 1000;

pub fn read<'n, T>(
    node: &'n Node<'_>,
    read: impl FnOnce(&mut Reader<'n, '_>) -> Option<T>,
) -> Result<T, Vec<Fault>> {
    let mut faults = Vec::new();
    let root = Field { node: Some(node), path: Path::Root, faults: &mut faults };
    let result = root.table(read);
    match result {
        Some(value) if faults.is_empty() => Ok(value),
        _ if faults.is_empty() => Err(vec![Fault::of_document("is not valid")]),
        _ => Err(faults),
    }
}

/// Where in the document we are, as a chain from the inside out.
#[derive(Clone, Copy)]
enum Path<'f> {
    Root,
    Name(&'f Path<'f>, &'f str),
    Item(&'f Path<'f>, usize),
}

impl Path<'_> {
    fn write(&self, pointer: &mut String) {
        match self {
            Self::Root => {}
            Self::Name(parent, name) => {
                parent.write(pointer);
                pointer.push('/');
                for c in name.chars() {
                    match c {
                        '~' => pointer.push_str("~0"),
                        '/' => pointer.push_str("~1"),
                        _ => pointer.push(c),
                    }
                }
            }
            Self::Item(parent, index) => {
                parent.write(pointer);
                pointer.push('/');
                pointer.push_str(&index.to_string());
            }
        }
    }
}

#[cold]
fn note(faults: &mut Vec<Fault>, path: &Path<'_>, message: String) {
    if faults.len() < MAX_FAULTS {
        let mut pointer = String::new();
        path.write(&mut pointer);
        faults.push(Fault { pointer, message });
    }
}

/// What became of an entry.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    No,
    Asked,
    /// Its name was there before; never read.
    Repeated,
}

/// A table being read: `'n` is the document's life, `'f` that of the faults.
///
/// Ask for fields by [`required`](Self::required) or
/// [`optional`](Self::optional); what was not asked for is a fault at the end.
pub struct Reader<'n, 'f> {
    entries: &'n [Entry<'n>],
    seen: SmallVec<[Seen; 32]>,
    /// Where to look first: callers mostly send fields in the order of the docs.
    next: usize,
    path: Path<'f>,
    faults: &'f mut Vec<Fault>,
}

impl<'n> Reader<'n, '_> {
    /// The field `name`; when it is missing or `null`, that is a fault.
    pub fn required<'s>(&'s mut self, name: &'s str) -> Field<'n, 's> {
        let field = self.optional(name);
        if field.node.is_none() {
            note(field.faults, &field.path, "is required".into());
        }
        field
    }

    /// The field `name`, which may be missing or `null`.
    pub fn optional<'s>(&'s mut self, name: &'s str) -> Field<'n, 's> {
        let node = self.find(name).filter(|node| !matches!(node, Node::Null));
        Field { node, path: Path::Name(&self.path, name), faults: self.faults }
    }

    /// Whether the field was given and is not `null`. It counts as asked for.
    pub fn has(&mut self, name: &str) -> bool {
        self.find(name).is_some_and(|node| !matches!(node, Node::Null))
    }

    /// Whether the field was given as `null`, where that means "take it away".
    pub fn is_null(&mut self, name: &str) -> bool {
        matches!(self.find(name), Some(Node::Null))
    }

    /// Accepts a field whatever it is, see [`Field::node`].
    pub fn skip(&mut self, name: &str) {
        self.optional(name).node();
    }

    /// The names of all fields, each once, for tables whose names are data.
    pub fn names(&self) -> Vec<&'n str> {
        let mut known = HashSet::new();
        let names = self.entries.iter().map(|(key, _)| &**key);
        names.filter(|name| known.insert(*name)).collect()
    }

    /// Notes a fault of the field `name` that only the caller can see.
    pub fn fault(&mut self, name: &str, message: impl Into<String>) {
        note(self.faults, &Path::Name(&self.path, name), message.into());
    }

    /// Notes a fault of this table as a whole.
    pub fn fault_here(&mut self, message: impl Into<String>) {
        note(self.faults, &self.path, message.into());
    }

    /// Whether the whole document is free of faults so far.
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }

    fn find(&mut self, name: &str) -> Option<&'n Node<'n>> {
        let is_it = |index: &usize| self.seen[*index] != Seen::Repeated && self.entries[*index].0 == name;
        let index = (self.next..self.entries.len()).chain(0..self.next).find(is_it)?;
        self.seen[index] = Seen::Asked;
        self.next = index + 1;
        Some(&self.entries[index].1)
    }

    /// Notes what was never asked for.
    fn finish(self) {
        for ((key, _), seen) in self.entries.iter().zip(&self.seen) {
            if *seen == Seen::No {
                note(self.faults, &Path::Name(&self.path, key), "is not a known field".into());
            }
        }
    }
}

/// Calls `found` with the index of each entry whose name was there before.
fn repeated(entries: &[Entry<'_>], mut found: impl FnMut(usize)) {
    // Comparing all pairs is quickest for common bodies, but a hostile one may
    // have thousands of fields.
    if entries.len() <= 16 {
        for (index, (key, _)) in entries.iter().enumerate() {
            if entries[..index].iter().any(|(earlier, _)| earlier == key) {
                found(index);
            }
        }
        return;
    }
    let mut known = HashSet::with_capacity(entries.len());
    for (index, (key, _)) in entries.iter().enumerate() {
        if !known.insert(&**key) {
            found(index);
        }
    }
}

fn note_repeated(entries: &[Entry<'_>], index: usize, path: &Path<'_>, faults: &mut Vec<Fault>) {
    note(faults, &Path::Name(path, &entries[index].0), "is given more than once".into());
}

/// Looks for repeated names in a value that nobody reads field by field.
fn check_names(node: &Node<'_>, path: &Path<'_>, faults: &mut Vec<Fault>) {
    match node {
        Node::Table(entries) => {
            repeated(entries, |index| note_repeated(entries, index, path, faults));
            for (key, inner) in entries {
                check_names(inner, &Path::Name(path, key), faults);
            }
        }
        Node::List(items) => {
            for (index, item) in items.iter().enumerate() {
                check_names(item, &Path::Item(path, index), faults);
            }
        }
        _ => {}
    }
}

/// One value and its place. Each getter answers `None` when there is no value
/// or a wrong one, the latter being noted as a fault.
pub struct Field<'n, 'f> {
    node: Option<&'n Node<'n>>,
    path: Path<'f>,
    faults: &'f mut Vec<Fault>,
}

impl<'n> Field<'n, '_> {
    /// The value as parsed, whatever it is; only names that are repeated in it
    /// are faults.
    pub fn node(self) -> Option<&'n Node<'n>> {
        let node = self.node?;
        check_names(node, &self.path, self.faults);
        Some(node)
    }

    pub fn is_text(&self) -> bool {
        matches!(self.node, Some(Node::Text(_)))
    }

    pub fn is_table(&self) -> bool {
        matches!(self.node, Some(Node::Table(_)))
    }

    /// Notes a fault of this value that only the caller can see.
    pub fn fault(self, message: impl Into<String>) {
        note(self.faults, &self.path, message.into());
    }

    pub fn text(self) -> Option<&'n str> {
        match self.node? {
            Node::Text(text) => Some(text),
            _ => self.wrong("must be a string"),
        }
    }

    /// A text of at most `max_bytes` bytes.
    pub fn text_up_to(self, max_bytes: usize) -> Option<&'n str> {
        match self.node? {
            Node::Text(text) if text.len() <= max_bytes => Some(text),
            Node::Text(_) => self.wrong(format!("must be at most {max_bytes} bytes")),
            _ => self.wrong("must be a string"),
        }
    }

    /// A text that `parse` accepts; its error is shown as the fault.
    pub fn parsed<T, E: Display>(self, parse: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        match self.node? {
            Node::Text(text) => match parse(text) {
                Ok(value) => Some(value),
                Err(error) => self.wrong(error.to_string()),
            },
            _ => self.wrong("must be a string"),
        }
    }

    /// One of a few words.
    pub fn choice<T: Copy>(self, words: &[(&str, T)]) -> Option<T> {
        let text = self.node?.as_text();
        if let Some((_, value)) = words.iter().find(|(word, _)| Some(*word) == text) {
            return Some(*value);
        }
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        self.wrong(format!("must be one of: {}", words.join(", ")))
    }

    /// A whole number from 0 to `max`.
    pub fn amount(self, max: u64) -> Option<u64> {
        self.number(0..=max)
    }

    /// A whole number within `range`: `.number(1..=3600u32)`.
    pub fn number<T>(self, range: RangeInclusive<T>) -> Option<T>
    where
        T: Copy + PartialOrd + Display + TryFrom<i64>,
    {
        if let Node::Integer(value) = self.node?
            && let Ok(value) = T::try_from(*value)
            && range.contains(&value)
        {
            return Some(value);
        }
        self.wrong(format!("must be a whole number from {} to {}", range.start(), range.end()))
    }

    pub fn flag(self) -> Option<bool> {
        match self.node? {
            Node::Bool(value) => Some(*value),
            _ => self.wrong("must be true or false"),
        }
    }

    /// A share from 0 to 1 with at most six decimals, so that none is rounded.
    pub fn share(self) -> Option<Ppm> {
        let value = match self.node? {
            Node::Integer(value) => *value as f64,
            Node::Decimal(value) => *value,
            _ => f64::NAN,
        };
        let millionths = value * 1e6;
        let whole = millionths.round();
        if (0.0..=1e6).contains(&whole) && (millionths - whole).abs() < 1e-6 {
            return Some(Ppm(whole as u32));
        }
        self.wrong("must be a number from 0 to 1 with at most 6 decimals")
    }

    /// A table, read by `read` to its end (see [`Reader`]).
    pub fn table<T>(self, read: impl FnOnce(&mut Reader<'n, '_>) -> Option<T>) -> Option<T> {
        let Node::Table(entries) = self.node? else {
            return self.wrong("must be an object");
        };
        let mut seen: SmallVec<_> = smallvec![Seen::No; entries.len()];
        repeated(entries, |index| {
            seen[index] = Seen::Repeated;
            note_repeated(entries, index, &self.path, self.faults);
        });
        let mut reader = Reader { entries, seen, next: 0, path: self.path, faults: self.faults };
        let result = read(&mut reader);
        reader.finish();
        result
    }

    /// A list of at most `max` items, each read by `read`. Items for which it
    /// answers `None` are left out, their faults having been noted.
    pub fn list<T>(self, max: usize, mut read: impl FnMut(Field<'n, '_>) -> Option<T>) -> Option<Vec<T>> {
        let Node::List(items) = self.node? else {
            return self.wrong("must be a list");
        };
        if items.len() > max {
            return self.wrong(format!("must have at most {max} items"));
        }
        let mut list = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let path = Path::Item(&self.path, index);
            if matches!(item, Node::Null) {
                note(self.faults, &path, "must not be null".into());
                continue;
            }
            list.extend(read(Field { node: Some(item), path, faults: self.faults }));
        }
        Some(list)
    }

    fn wrong<T>(self, message: impl Into<String>) -> Option<T> {
        note(self.faults, &self.path, message.into());
        None
    }
}
