//! Decodes path segments and query strings strictly: a byte sequence that is
//! no UTF-8 is refused, never replaced, since a replaced id would be another
//! user's.

use std::borrow::Cow;
use std::fmt::{Display, Write};
use std::ops::RangeInclusive;

use crate::domain::document::Fault;

/// Decodes `%XX`. `None`: a broken escape or no UTF-8.
pub fn percent_decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    decode(text.as_bytes(), false).map(Cow::Owned)
}

/// `text` as a path segment or a value of a query.
pub fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            // Writing to a String cannot fail.
            other => drop(write!(encoded, "%{other:02X}")),
        }
    }
    encoded
}

/// All pairs of a form's body, decoded, in its order. `None`: it is no form.
pub fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decode(name.as_bytes(), true)?, decode(value.as_bytes(), true)?))
    };
    text.split('&').filter(|pair| !pair.is_empty()).map(pair).collect()
}

/// A query string's parameters, as far as they are asked for.
#[derive(Clone, Copy)]
pub struct Query<'a>(pub &'a str);

/// Why a parameter has no usable value.
#[derive(Debug, PartialEq, Eq)]
pub enum QueryFault {
    Repeated,
    NotText,
}

impl Display for QueryFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Repeated => "is given more than once",
            Self::NotText => "is not percent-encoded UTF-8",
        })
    }
}

impl<'a> Query<'a> {
    /// Reads several parameters; all that is wrong with them is told together.
    /// `read` answers `None` when something that it needs is missing; the
    /// parameters have then noted why. Those never asked for are ignored.
    pub fn read<T>(self, read: impl FnOnce(&mut Parameters<'a>) -> Option<T>) -> Result<T, Vec<Fault>> {
        let mut parameters = Parameters { query: self, faults: Vec::new() };
        match read(&mut parameters) {
            Some(value) if parameters.faults.is_empty() => Ok(value),
            _ => Err(parameters.faults),
        }
    }

    /// The decoded value of `name` (`+` is a space), `None` when not given.
    pub fn get(self, name: &str) -> Result<Option<String>, QueryFault> {
        let pairs = self.0.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let mut values = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value);
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(QueryFault::Repeated);
        }
        decode(value.as_bytes(), true).map(Some).ok_or(QueryFault::NotText)
    }
}

/// Parameters that are being read, with the faults found so far. A fault's
/// pointer is `/` and the parameter's name.
pub struct Parameters<'a> {
    query: Query<'a>,
    faults: Vec<Fault>,
}

impl Parameters<'_> {
    /// The parsed value; `None` when not given, or a fault.
    pub fn optional<T, E: Display>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = match self.query.get(name) {
            Ok(text) => text?,
            Err(fault) => return self.fault(name, fault),
        };
        parse(&text).map_or_else(|error| self.fault(name, error), Some)
    }

    /// As [`optional`](Self::optional); not to be given is a fault too.
    pub fn required<T, E: Display>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        match self.query.get(name) {
            Ok(None) => self.fault(name, "is required"),
            _ => self.optional(name, parse),
        }
    }

    /// Any text; `None` when not given or empty.
    pub fn text(&mut self, name: &str) -> Option<String> {
        let text = self.optional(name, |text| Ok::<_, QueryFault>(text.to_owned()))?;
        Some(text).filter(|text| !text.is_empty())
    }

    /// A number within `range`.
    pub fn number(&mut self, name: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let message = || format!("must be a whole number from {} to {}", range.start(), range.end());
        let parse =
            |text: &str| text.parse().ok().filter(|number| range.contains(number)).ok_or_else(message);
        self.optional(name, parse)
    }

    /// Notes what is wrong with `name`.
    pub fn fault<T>(&mut self, name: &str, message: impl Display) -> Option<T> {
        self.faults.push(Fault { pointer: format!("/{name}"), message: message.to_string() });
        None
    }
}

fn decode(bytes: &[u8], plus_is_space: bool) -> Option<String> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        decoded.push(match byte {
            b'%' => hex(*rest.next()?)? << 4 | hex(*rest.next()?)?,
            b'+' if plus_is_space => b' ',
            other => *other,
        });
    }
    String::from_utf8(decoded).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_any_script_slashes_and_percents_once() {
        for (encoded, decoded) in
            [("a%2Fb", "a/b"), ("%E3%81%82", "あ"), ("a+b", "a+b"), ("%2541", "%41"), ("%7B%7d", "{}")]
        {
            assert_eq!(percent_decode(encoded).as_deref(), Some(decoded));
        }
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same() {
        for text in ["a/b", "あ", "a+b c", "%41", "{}", "", "../x?y=1&z#"] {
            let encoded = percent_encode(text);
            assert!(encoded.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~%".contains(&b)), "{encoded}");
            assert_eq!(percent_decode(&encoded).as_deref(), Some(text));
            assert_eq!(pairs(&format!("x={encoded}&")), Some(vec![("x".into(), text.into())]));
        }
        assert_eq!(pairs("a=%ff"), None);
    }

    #[test]
    fn refuses_what_is_no_text() {
        for bad in ["%", "%4", "%zz", "%FF", "%ED%A0%80", "a%C3"] {
            assert_eq!(percent_decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn reads_parameters_by_name() {
        let query = Query("user=a%2Bb+c&x&request_id=7f&y=1&y=2&bad=%ff");
        assert_eq!(query.get("user"), Ok(Some("a+b c".into())));
        assert_eq!(query.get("x"), Ok(Some(String::new())));
        assert_eq!(query.get("none"), Ok(None));
        assert_eq!(query.get("y"), Err(QueryFault::Repeated));
        assert_eq!(query.get("bad"), Err(QueryFault::NotText));
    }

    #[test]
    fn tells_everything_that_is_wrong_with_a_query() {
        let parse = |text: &str| text.parse::<u32>();
        let faults = Query("a=1&a=2&b=%ff&c=x&n=11&m=10&t=").read(|parameters| {
            let n = parameters.number("n", 1..=10);
            assert_eq!(parameters.number("m", 1..=10), Some(10));
            assert_eq!(parameters.text("t"), None);
            assert_eq!(parameters.optional("none", parse), None);
            for name in ["a", "b", "c", "d"] {
                assert_eq!(parameters.required(name, parse), None);
            }
            n
        });
        let told: Vec<String> = faults.unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "/n: must be a whole number from 1 to 10",
                "/a: is given more than once",
                "/b: is not percent-encoded UTF-8",
                "/c: invalid digit found in string",
                "/d: is required",
            ]
        );
    }
}
