//! Tokens (JWT, RFC 8725): what a bearer text claims, and whether it is proved.
//!
//! The key fixes the algorithm; nothing in the token's header chooses how, or
//! against what, it is verified. `jku`, `jwk`, `x5c` and the like are not read.

use jsonwebtoken::crypto;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Number;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::domain::ids::UserId;

use super::identity::{Caller, Rejection, Scopes};
use super::keyring::{Key, Proof};
use super::public_key;

/// Longer texts are not looked at.
pub const BEARER_MAX: usize = 8_192;
/// What tokens for this service say in `aud`.
pub const AUDIENCE: &str = "apportion";
/// How API keys begin: `ap_<kid>_<secret>`.
pub const API_KEY_PREFIX: &str = "ap_";

/// What a bearer text claims to be.
pub(super) enum Credential<'a> {
    ApiKey { kid: &'a str },
    Token(Token<'a>),
}

/// A token taken apart; nothing in it is proved.
pub(super) struct Token<'a> {
    pub kid: String,
    algorithm: String,
    has_critical: bool,
    /// What is signed: header and claims with the dot between.
    message: &'a str,
    claims: &'a str,
    signature: &'a str,
}

impl<'a> Credential<'a> {
    pub fn parse(bearer: &'a str) -> Result<Self, Rejection> {
        if bearer.len() > BEARER_MAX {
            return Err(Rejection::TooLong);
        }
        if let Some(rest) = bearer.strip_prefix(API_KEY_PREFIX) {
            let (kid, _) = rest.split_once('_').ok_or(Rejection::Malformed)?;
            return Ok(Self::ApiKey { kid });
        }
        Token::parse(bearer).map(Self::Token)
    }

    pub fn kid(&self) -> &str {
        match self {
            Self::ApiKey { kid } => kid,
            Self::Token(token) => &token.kid,
        }
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: String,
    #[serde(default)]
    crit: Given,
}

/// Whether a member is there, whatever it holds.
#[derive(Default)]
struct Given(bool);

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self(true))
    }
}

#[derive(Deserialize)]
struct Claims {
    exp: Option<Number>,
    nbf: Option<Number>,
    aud: Option<Audience>,
    tenant: Option<String>,
    scope: Option<String>,
    sub: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl<'a> Token<'a> {
    fn parse(bearer: &'a str) -> Result<Self, Rejection> {
        let (message, signature) = bearer.rsplit_once('.').ok_or(Rejection::Malformed)?;
        let (header, claims) = message.split_once('.').ok_or(Rejection::Malformed)?;
        if claims.contains('.') || claims.is_empty() || signature.is_empty() {
            return Err(Rejection::Malformed);
        }
        let Header { alg, kid, crit } = decode(header)?;
        Ok(Self { kid, algorithm: alg, has_critical: crit.0, message, claims, signature })
    }

    /// Checks the token against its key at the second `now` of real time.
    pub fn verify(&self, key: &Key, now: i64) -> Result<Caller, Rejection> {
        let Proof::Signature { algorithm, keys } = &key.proof else {
            return Err(Rejection::WrongAlgorithm);
        };
        if self.algorithm != public_key::name(*algorithm) {
            return Err(Rejection::WrongAlgorithm);
        }
        if self.has_critical {
            return Err(Rejection::CriticalHeader);
        }
        let signed = |key| crypto::verify(self.signature, self.message.as_bytes(), key, *algorithm);
        if !keys.iter().any(|key| signed(key).unwrap_or(false)) {
            return Err(Rejection::BadSignature);
        }
        decode::<Claims>(self.claims)?.speak_for(key, now)
    }
}

impl Claims {
    fn speak_for(self, key: &Key, now: i64) -> Result<Caller, Rejection> {
        let end = self.exp.as_ref().map(seconds).ok_or(Rejection::Expired)?;
        if end <= now {
            return Err(Rejection::Expired);
        }
        if self.nbf.as_ref().is_some_and(|start| seconds(start) > now) {
            return Err(Rejection::NotYetValid);
        }
        let is_for_us = match &self.aud {
            Some(Audience::One(name)) => name == AUDIENCE,
            Some(Audience::Many(names)) => names.iter().any(|name| name == AUDIENCE),
            None => false,
        };
        if !is_for_us {
            return Err(Rejection::WrongAudience);
        }
        let tenant = key.tenant.as_ref().map(|tenant| tenant.id.as_str());
        if self.tenant.is_some() && self.tenant.as_deref() != tenant {
            return Err(Rejection::WrongTenant);
        }
        let (scopes, user) = self.grant(key.scopes)?;
        let key_id = key.kid.clone();
        Ok(Caller { tenant: key.tenant.clone(), key_id, scopes, user, expires_at_unix: Some(end) })
    }

    /// What the token may do: what it asks for and its key may grant. A token
    /// that speaks for a user (`me`) does nothing else, whatever it asks for.
    fn grant(&self, grantable: Scopes) -> Result<(Scopes, Option<UserId>), Rejection> {
        let asked = Scopes::parse_known(self.scope.as_deref().unwrap_or_default());
        if !asked.contains(Scopes::ME) {
            return Ok((asked.and(grantable), None));
        }
        let user = self.sub.as_deref().and_then(|sub| UserId::parse(sub).ok()).ok_or(Rejection::NoUser)?;
        Ok((Scopes::ME.and(grantable), Some(user)))
    }
}

fn decode<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, Rejection> {
    let json = URL_SAFE_NO_PAD.decode(part).map_err(|_| Rejection::Malformed)?;
    serde_json::from_slice(&json).map_err(|_| Rejection::Malformed)
}

/// A NumericDate in whole seconds, rounded down.
fn seconds(date: &Number) -> i64 {
    match (date.as_i64(), date.as_u64()) {
        (Some(seconds), _) => seconds,
        (None, Some(_)) => i64::MAX,
        // Casts of floats saturate.
        (None, None) => date.as_f64().map_or(i64::MIN, |date| date.floor() as i64),
    }
}
