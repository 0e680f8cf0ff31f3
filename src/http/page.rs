//! Pages of lists: how much is asked for, and where the page before ended.

use std::cmp::Reverse;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::query::Parameters;
use super::reply::Reply;
use crate::domain::ids::{Name, TenantId, UserId};

pub const MAX_PAGE: u32 = 500;

/// What a list is ordered by.
pub trait Key: Ord + Sized {
    /// Which lists' cursors it stands in: those of others are refused.
    const LIST: &'static str;
    fn read(text: &str) -> Option<Self>;
    fn write(&self) -> String;
}

/// A cursor is the last key shown: lists stay right whatever is added between
/// two pages. Callers need not know.
pub struct Page<K> {
    pub after: Option<K>,
    pub limit: u32,
}

impl<K: Key> Page<K> {
    /// Reads `limit` (1..=[`MAX_PAGE`]) and `cursor`.
    pub fn read(parameters: &mut Parameters<'_>, usual: u32) -> Self {
        let limit = parameters.number("limit", 1..=MAX_PAGE).unwrap_or(usual);
        let after = parameters.optional("cursor", |text| read_cursor(text).ok_or("is none that was given"));
        Self { after, limit }
    }

    /// The same for a list that is followed: its cursor is named `after`, and `cursor` too.
    pub fn read_after(parameters: &mut Parameters<'_>, usual: u32) -> Self {
        let page = Self::read(parameters, usual);
        let after = parameters.optional("after", |text| read_cursor(text).ok_or("is none that was given"));
        Self { after: after.or(page.after), ..page }
    }

    /// The page of `items`, which are all there is, in the order of their keys.
    pub fn of<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        key: impl Fn(&T) -> K,
        show: impl Fn(&T) -> Value,
    ) -> Reply {
        let (shown, last) = self.part(items, key);
        list(shown.iter().map(show).collect(), last)
    }

    /// The same as items, with the last key if more follows.
    pub fn part<T>(&self, items: impl IntoIterator<Item = T>, key: impl Fn(&T) -> K) -> (Vec<T>, Option<K>) {
        let is_shown = |item: &T| self.after.as_ref().is_some_and(|after| key(item) <= *after);
        let mut rest = items.into_iter().skip_while(is_shown).peekable();
        let shown: Vec<T> = rest.by_ref().take(self.limit as usize).collect();
        let last = shown.last().filter(|_| rest.peek().is_some()).map(&key);
        (shown, last)
    }
}

/// `{"data":[...],"next_cursor":...}`; `last`: the last key of the page, when
/// more follows.
pub fn list<K: Key>(data: Vec<Value>, last: Option<K>) -> Reply {
    list_with(data, last, |_| {})
}

/// The same with what stands beside the rows.
pub fn list_with<K: Key>(data: Vec<Value>, last: Option<K>, add: impl FnOnce(&mut Value)) -> Reply {
    let mut body = json!({"data": data, "next_cursor": last.as_ref().map(write_cursor)});
    add(&mut body);
    Reply::json(&body)
}

fn write_cursor<K: Key>(last: &K) -> String {
    URL_SAFE_NO_PAD.encode(format!("{}:{}", K::LIST, last.write()))
}

fn read_cursor<K: Key>(cursor: &str) -> Option<K> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let (list, key) = std::str::from_utf8(&bytes).ok()?.split_once(':')?;
    K::read(key).filter(|_| list == K::LIST)
}

impl Key for Name {
    const LIST: &'static str = "names";

    fn read(text: &str) -> Option<Self> {
        Self::parse(text).ok()
    }

    fn write(&self) -> String {
        self.as_str().to_owned()
    }
}

impl Key for TenantId {
    const LIST: &'static str = "tenants";

    fn read(text: &str) -> Option<Self> {
        Self::parse(text).ok()
    }

    fn write(&self) -> String {
        self.as_str().to_owned()
    }
}

impl Key for UserId {
    const LIST: &'static str = "users";

    fn read(text: &str) -> Option<Self> {
        Self::parse(text).ok()
    }

    fn write(&self) -> String {
        self.as_str().to_owned()
    }
}

/// The id of a key.
impl Key for String {
    const LIST: &'static str = "keys";

    fn read(text: &str) -> Option<Self> {
        let is_kid = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_kid.then(|| text.to_owned())
    }

    fn write(&self) -> String {
        self.clone()
    }
}

/// A version, newest first.
impl Key for Reverse<u32> {
    const LIST: &'static str = "versions";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }

    fn write(&self) -> String {
        self.0.to_string()
    }
}

/// The number of an audit row, newest first.
impl Key for Reverse<u64> {
    const LIST: &'static str = "audit";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }

    fn write(&self) -> String {
        self.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_back_to_its_key_and_others_are_refused() {
        let id = UserId::parse("a/b:あ").unwrap();
        assert_eq!(read_cursor(&write_cursor(&id)), Some(id));
        for bad in ["", "%%", "AA", "gICA"] {
            assert_eq!(read_cursor::<UserId>(bad), None, "{bad}");
            assert_eq!(read_cursor::<Reverse<u32>>(bad), None, "{bad}");
        }
    }

    #[test]
    fn pages_follow_one_another_without_gap_or_repetition() {
        let versions = [9_u32, 7, 4, 2, 1];
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = Page { after, limit: 2 };
            let reply = page.of(versions, |version| Reverse(*version), |version| json!(version));
            let body: Value = serde_json::from_slice(&reply.body).unwrap();
            seen.push(body["data"].clone());
            let Some(cursor) = body["next_cursor"].as_str() else { break };
            after = read_cursor(cursor);
            assert!(after.is_some(), "{cursor}");
        }
        assert_eq!(seen, [json!([9, 7]), json!([4, 2]), json!([1])]);
        // The version that the cursor names may be gone.
        let page = Page { after: Some(Reverse(5)), limit: 2 };
        let reply = page.of(versions, |version| Reverse(*version), |version| json!(version));
        assert!(reply.body.starts_with(b"{\"data\":[4,2]"));
    }
}
