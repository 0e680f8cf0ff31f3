//! What a browser carries instead of credentials: they themselves, sealed under a secret of the
//! server. Every node can open it and no node keeps anything, and since each page authenticates
//! anew, a key that is removed or a token that ends takes the session with it.

use actix_web::http::header::{self, HeaderMap, HeaderValue};
use ahash::AHashMap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use secrecy::zeroize::Zeroizing;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::http::State;
use crate::service::{Registry, ServiceError};

const COOKIE: &str = "apportion_console";
/// A session ends when no page was opened for so long.
const IDLE_SECONDS: i64 = 30 * 60;
/// And so long after the sign-in in any case.
const LONGEST_SECONDS: i64 = 12 * 3600;
/// It is sealed anew when it is older than this.
const RENEW_SECONDS: i64 = 60;
/// Sessions signed out that a node remembers; of more it forgets those that end first.
const SIGNED_OUT_MAX: usize = 10_000;
/// Browsers drop larger cookies.
const COOKIE_BYTES_MAX: usize = 4000;

#[derive(Serialize, Deserialize)]
pub struct Session {
    credential: String,
    /// Stands in every form, so that no other site can send one.
    mark: String,
    begun: i64,
    seen: i64,
    /// The browser came over https: the cookie goes no other way.
    secure: bool,
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(Zeroizing::new(std::mem::take(&mut self.credential)));
    }
}

impl Session {
    pub fn new(credential: &str, secure: bool, now: i64) -> Result<Self, ServiceError> {
        let mut mark = [0; 16];
        getrandom::fill(&mut mark).map_err(|_| ServiceError::Overloaded)?;
        let mark = URL_SAFE_NO_PAD.encode(mark);
        Ok(Self { credential: credential.to_owned(), mark, begun: now, seen: now, secure })
    }

    /// The session of these headers, unless it is over.
    pub fn of(headers: &HeaderMap, state: &State, now: i64) -> Option<Self> {
        let text = state.service.registry.unseal_session(cookie(headers)?)?;
        let session: Self = serde_json::from_str(&text).ok()?;
        (!session.is_over(now) && !state.signed_out.has(&session)).then_some(session)
    }

    fn is_over(&self, now: i64) -> bool {
        now - self.seen >= IDLE_SECONDS || now - self.begun >= LONGEST_SECONDS
    }

    pub fn credential(&self) -> &str {
        &self.credential
    }

    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Whether a form came out of this session.
    pub fn is_marked(&self, mark: &str) -> bool {
        self.mark.as_bytes().ct_eq(mark.as_bytes()).into()
    }

    /// The cookie with which it goes on, when it is time for a new one.
    pub fn renewed(&mut self, registry: &Registry, now: i64) -> Option<HeaderValue> {
        if now - self.seen < RENEW_SECONDS {
            return None;
        }
        self.seen = now;
        self.cookie(registry).ok()
    }

    /// The header that hands it to the browser.
    ///
    /// # Errors
    /// It is larger than browsers keep.
    pub fn cookie(&self, registry: &Registry) -> Result<HeaderValue, ServiceError> {
        let text = serde_json::to_string(self).map_err(|error| ServiceError::Corrupt(error.to_string()))?;
        let sealed = registry.seal_session(&Zeroizing::new(text))?;
        let header = set_cookie(&sealed, IDLE_SECONDS, self.secure);
        header.filter(|header| header.len() <= COOKIE_BYTES_MAX).ok_or(ServiceError::Overloaded)
    }
}

/// Sessions that somebody signed out of on this node: a copy of such a cookie opens nothing here
/// any more. Each is remembered until the cookie, which is renewed no more, ends by itself.
#[derive(Default)]
pub struct SignedOut(Mutex<AHashMap<String, i64>>);

impl SignedOut {
    pub fn add(&self, session: &Session, now: i64) {
        let mut ends = self.0.lock();
        ends.retain(|_, end| *end > now);
        if ends.len() >= SIGNED_OUT_MAX {
            let first = ends.iter().min_by_key(|(_, end)| **end).map(|(mark, _)| mark.clone());
            first.and_then(|mark| ends.remove(&mark));
        }
        ends.insert(session.mark.clone(), now + IDLE_SECONDS);
    }

    fn has(&self, session: &Session) -> bool {
        self.0.lock().contains_key(&session.mark)
    }
}

/// The header that takes the session from the browser.
pub fn no_cookie() -> HeaderValue {
    set_cookie("", 0, false).unwrap_or(HeaderValue::from_static(""))
}

fn set_cookie(value: &str, seconds: i64, secure: bool) -> Option<HeaderValue> {
    let secure = if secure { "; Secure" } else { "" };
    let text =
        format!("{COOKIE}={value}; Path=/console; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::try_from(text).ok()
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let texts = headers.get_all(header::COOKIE).filter_map(|value| value.to_str().ok());
    let mut pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_slides_and_still_ends() {
        let mut session = Session::new("ap_x", true, 1000).unwrap();
        assert!(!session.is_over(1000 + IDLE_SECONDS - 1));
        assert!(session.is_over(1000 + IDLE_SECONDS));
        session.seen = 1000 + LONGEST_SECONDS - 1;
        assert!(!session.is_over(1000 + LONGEST_SECONDS - 1));
        assert!(session.is_over(1000 + LONGEST_SECONDS));
    }

    #[test]
    fn who_signed_out_is_remembered_as_long_as_the_cookie_lives() {
        let sessions: Vec<Session> =
            (0..=SIGNED_OUT_MAX).map(|_| Session::new("ap_x", true, 0).unwrap()).collect();
        let signed_out = SignedOut::default();
        sessions.iter().zip(0..).for_each(|(session, now)| {
            signed_out.add(session, now / 100);
        });
        assert!(signed_out.has(&sessions[1]) && signed_out.has(&sessions[SIGNED_OUT_MAX]));
        assert!(signed_out.0.lock().len() <= SIGNED_OUT_MAX);
        signed_out.add(&Session::new("ap_x", true, 0).unwrap(), IDLE_SECONDS + 1_000_000);
        assert_eq!(signed_out.0.lock().len(), 1);
    }

    #[test]
    fn a_form_is_of_its_own_session_only() {
        let (one, other) = (Session::new("ap_x", true, 0).unwrap(), Session::new("ap_x", true, 0).unwrap());
        assert!(one.is_marked(one.mark()));
        assert!(!one.is_marked(other.mark()) && !one.is_marked("") && !one.is_marked(&one.mark()[1..]));
    }

    #[test]
    fn the_cookie_is_found_among_others_and_goes_over_https_where_the_browser_did() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("a=b; apportion_console=x.y; c"));
        assert_eq!(cookie(&headers), Some("x.y"));
        let header = |secure| set_cookie("v", 60, secure).unwrap().to_str().unwrap().to_owned();
        assert!(header(true).ends_with("; HttpOnly; SameSite=Strict; Secure"));
        assert!(!header(false).contains("Secure"));
    }
}
