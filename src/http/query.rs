//! Decodes path segments and query strings strictly: a byte sequence that is
//! no UTF-8 is refused, never replaced, since a replaced id would be another
//! user's.

use std::borrow::Cow;

/// Decodes `%XX`. `None`: a broken escape or no UTF-8.
pub fn percent_decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    decode(text.as_bytes(), false).map(Cow::Owned)
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

impl std::fmt::Display for QueryFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Repeated => "is given more than once",
            Self::NotText => "is not percent-encoded UTF-8",
        })
    }
}

impl Query<'_> {
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
}
