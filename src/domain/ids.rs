//! Identifiers, parsed once: a value that exists is valid.
//!
//! User ids are compared byte for byte everywhere; nothing folds case or
//! normalises them, so two spellings never share an allowance by accident.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::time::Millis;

/// Why a text is no identifier, as a sentence for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidId(pub String);

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $parse:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses `text`, or says in a sentence what is wrong with it.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                $parse(text)?;
                Ok(Self(text.into()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The text itself, shared.
            pub fn shared(&self) -> Arc<str> {
                Arc::clone(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::parse(&text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

text_id!(
    /// A product that uses Apportion: `[a-z0-9][a-z0-9-]{0,62}`.
    TenantId,
    check_tenant
);
text_id!(
    /// An end user of a tenant: opaque, 1-256 bytes of UTF-8.
    UserId,
    check_user
);
text_id!(
    /// Name of a plan, pool, org or model: `[A-Za-z0-9._:/-]{1,128}`.
    Name,
    check_name
);
text_id!(
    /// Name of a limit, meter or feature: `[a-z0-9_]{1,64}`.
    Label,
    check_label
);
text_id!(
    /// A caller's own id for one logical call: 1-256 bytes.
    RequestId,
    check_request
);

impl RequestId {
    /// A UUID in its usual form.
    pub fn of_uuid(id: u128) -> Self {
        let mut text = String::with_capacity(36);
        // A string takes whatever is written.
        let _ = write_uuid(id, &mut text);
        Self(text.into())
    }

    /// A short digest under which accounts remember the id.
    pub fn digest(&self) -> u64 {
        let hash = blake3::hash(self.as_str().as_bytes());
        u64::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]))
    }
}

fn check_tenant(text: &str) -> Result<(), InvalidId> {
    let lower_or_digit = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let starts_well = text.as_bytes().first().is_some_and(lower_or_digit);
    if starts_well && text.len() <= 63 && text.bytes().all(|b| lower_or_digit(&b) || b == b'-') {
        return Ok(());
    }
    Err(InvalidId("must be 1-63 of a-z, 0-9 and '-', and not begin with '-'".into()))
}

fn check_user(text: &str) -> Result<(), InvalidId> {
    let fault = if text.is_empty() {
        "must not be empty"
    } else if text.len() > 256 {
        "must be at most 256 bytes"
    } else if text == "." || text == ".." {
        "must not be '.' or '..'"
    } else if text.chars().any(is_control_or_format) {
        "must not contain control or format characters"
    } else if text.trim() != text {
        "must not begin or end with white space"
    } else {
        return Ok(());
    };
    Err(InvalidId(fault.into()))
}

fn check_request(text: &str) -> Result<(), InvalidId> {
    match text.len() {
        1..=256 => Ok(()),
        _ => Err(InvalidId("must be 1-256 bytes".into())),
    }
}

fn check_name(text: &str) -> Result<(), InvalidId> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:/-".contains(&b);
    if (1..=128).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(());
    }
    Err(InvalidId("must be 1-128 of letters, digits and . _ : / -".into()))
}

fn check_label(text: &str) -> Result<(), InvalidId> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(());
    }
    Err(InvalidId("must be 1-64 of a-z, 0-9 and '_'".into()))
}

/// Unicode general categories Cc and Cf (as of Unicode 16): characters that
/// cannot be seen, so that two ids would look alike.
fn is_control_or_format(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

/// Id of a hold: a UUIDv7, of which 74 bits are random and cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HoldId(pub u128);

impl HoldId {
    /// Builds the id from the time (ms since 1970) and 16 random bytes.
    pub fn from_parts(unix_ms: i64, random: [u8; 16]) -> Self {
        let random = u128::from_be_bytes(random);
        let time = (unix_ms as u128 & 0xffff_ffff_ffff) << 80;
        let rand_a = (random >> 64) & 0xfff;
        let rand_b = random & 0x3fff_ffff_ffff_ffff;
        Self(time | 7 << 76 | rand_a << 64 | 2 << 62 | rand_b)
    }

    /// The time that it was built from.
    pub fn made_at(self) -> Millis {
        Millis((self.0 >> 80) as i64)
    }

    /// Parses `hold_` + a hyphenated lower-case UUID.
    pub fn parse(text: &str) -> Option<Self> {
        text.strip_prefix("hold_").and_then(parse_uuid).map(Self)
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hold_")?;
        write_uuid(self.0, f)
    }
}

impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A UUID in its usual form: hyphens, and letters in lower case.
pub fn parse_uuid(text: &str) -> Option<u128> {
    if text.len() != 36 {
        return None;
    }
    let mut value = 0u128;
    for (index, byte) in text.bytes().enumerate() {
        match (index, byte) {
            (8 | 13 | 18 | 23, b'-') => continue,
            (8 | 13 | 18 | 23, _) => return None,
            (_, b'0'..=b'9') => value = value << 4 | u128::from(byte - b'0'),
            (_, b'a'..=b'f') => value = value << 4 | u128::from(byte - b'a' + 10),
            _ => return None,
        }
    }
    Some(value)
}

fn write_uuid(id: u128, to: &mut impl fmt::Write) -> fmt::Result {
    write!(
        to,
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        (id >> 96) as u32,
        (id >> 80) as u16,
        (id >> 64) as u16,
        (id >> 48) as u16,
        id as u64 & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_ids_read_back_what_they_show() {
        let id = HoldId::from_parts(1_764_454_800_123, [0xa7; 16]);
        assert_eq!(HoldId::parse(&id.to_string()), Some(id));
        assert_eq!(id.to_string().as_bytes()[19], b'7', "version 7");
        assert_eq!(id.made_at(), Millis(1_764_454_800_123));
        for bad in ["", "hold_", "hold_0", "x", &id.to_string()[1..], &id.to_string().to_uppercase()] {
            assert_eq!(HoldId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn user_ids_refuse_what_cannot_be_seen() {
        for bad in ["", " bob", "bob ", "a\u{200b}b", "a\nb", ".", "..", "\u{feff}x", "a\u{0}"] {
            assert!(UserId::parse(bad).is_err(), "{bad:?}");
        }
        assert!(UserId::parse(&"x".repeat(257)).is_err());
        for good in ["Alice@X.com", "jose\u{301}", "a b", "a/b:{c}", "..."] {
            assert!(UserId::parse(good).is_ok(), "{good:?}");
        }
    }
}
