//! Keys that others sign with: read from what an admin sends, checked so far
//! that a key which is kept can verify.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk};
use jsonwebtoken::{Algorithm, DecodingKey};

/// The algorithms of the contract. A key is of one of them for ever.
pub(super) const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("HS256", Algorithm::HS256),
    ("RS256", Algorithm::RS256),
    ("ES256", Algorithm::ES256),
    ("EdDSA", Algorithm::EdDSA),
];

/// The longest key that is read: RSA with 8192 bits takes about 1,500 bytes.
pub(super) const KEY_TEXT_MAX: usize = 4_096;
/// RFC 7518: a secret is at least as long as the hash.
const SECRET_MIN: usize = 32;

pub(super) fn name(algorithm: Algorithm) -> &'static str {
    ALGORITHMS.iter().find(|(_, known)| *known == algorithm).map_or("", |(name, _)| name)
}

/// Reads a public key: PEM (`PUBLIC KEY`, for RSA also `RSA PUBLIC KEY`) or a
/// JWK. The error is a sentence to be read after the field's name.
pub(super) fn parse(algorithm: Algorithm, text: &str) -> Result<DecodingKey, String> {
    let text = text.trim();
    if text.len() > KEY_TEXT_MAX {
        return Err(format!("must be at most {KEY_TEXT_MAX} bytes"));
    }
    if text.contains("PRIVATE KEY") {
        return Err("must be the public key: keep the private one to yourself".into());
    }
    let key = if text.starts_with('{') { from_jwk(algorithm, text) } else { from_pem(algorithm, text) };
    let key = key.filter(|key| can_verify(algorithm, key));
    key.ok_or_else(|| {
        format!("must be a public key for {} as PEM or JWK{}", name(algorithm), size(algorithm))
    })
}

fn size(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::RS256 => ", of 2048 to 8192 bits",
        Algorithm::ES256 => ", on the curve P-256",
        _ => "",
    }
}

fn from_pem(algorithm: Algorithm, text: &str) -> Option<DecodingKey> {
    let read = match algorithm {
        Algorithm::RS256 => DecodingKey::from_rsa_pem,
        Algorithm::ES256 => DecodingKey::from_ec_pem,
        Algorithm::EdDSA => DecodingKey::from_ed_pem,
        _ => return None,
    };
    read(text.as_bytes()).ok()
}

fn from_jwk(algorithm: Algorithm, text: &str) -> Option<DecodingKey> {
    let members: serde_json::Value = serde_json::from_str(text).ok()?;
    if members.get("d").is_some() {
        return None;
    }
    let jwk: Jwk = serde_json::from_value(members).ok()?;
    match (&jwk.algorithm, algorithm) {
        (AlgorithmParameters::RSA(_), Algorithm::RS256) => {}
        (AlgorithmParameters::EllipticCurve(ec), Algorithm::ES256) if ec.curve == EllipticCurve::P256 => {}
        (AlgorithmParameters::OctetKeyPair(ed), Algorithm::EdDSA) if ed.curve == EllipticCurve::Ed25519 => {}
        _ => return None,
    }
    DecodingKey::from_jwk(&jwk).ok()
}

/// Whether the key is sound: the curve's own point, a modulus of fair size.
fn can_verify(algorithm: Algorithm, key: &DecodingKey) -> bool {
    use jsonwebtoken::DecodingKeyKind::{RsaModulusExponent, SecretOrDer};
    match (algorithm, key.kind()) {
        (Algorithm::ES256, SecretOrDer(point)) => {
            point.len() == 65 && ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).is_ok()
        }
        (Algorithm::EdDSA, SecretOrDer(point)) => {
            point.len() == 32 && ParsedPublicKey::new(&ED25519, point).is_ok()
        }
        (Algorithm::RS256, SecretOrDer(der)) => {
            ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, der).is_ok()
                && (268..=1_100).contains(&der.len())
        }
        (Algorithm::RS256, RsaModulusExponent { n, e }) => {
            let components = RsaPublicKeyComponents { n, e };
            let der: Result<PublicKeyX509Der<'_>, _> = components.as_der();
            (256..=1_024).contains(&n.len()) && n.first().is_some_and(|byte| *byte != 0) && der.is_ok()
        }
        _ => false,
    }
}

/// The keys that a shared secret may stand for: its bytes as text, and, when
/// it is base64 of enough bytes, those. Both ways of handing a secret around
/// are common, and each holds all of the secret. A JWK says what it is.
pub(super) fn shared_secrets(text: &str) -> Result<Vec<DecodingKey>, String> {
    let fault =
        || format!("must be a secret of {SECRET_MIN} to {KEY_TEXT_MAX} bytes, as text, base64 or JWK");
    if text.len() > KEY_TEXT_MAX {
        return Err(fault());
    }
    // Whoever took one for a secret would let everybody sign.
    if text.trim_start().starts_with("-----BEGIN") {
        return Err("is a key in PEM and no shared secret: choose the algorithm that it is for".into());
    }
    let secrets = match text.starts_with('{') {
        true => [secret_of_jwk(text), None],
        false => [Some(text.as_bytes().to_vec()), from_base64(text)],
    };
    let long_enough = secrets.iter().flatten().filter(|secret| secret.len() >= SECRET_MIN);
    let keys: Vec<DecodingKey> =
        long_enough.filter_map(|secret| DecodingKey::from_secret(secret).ok()).collect();
    if keys.is_empty() { Err(fault()) } else { Ok(keys) }
}

fn secret_of_jwk(text: &str) -> Option<Vec<u8>> {
    let jwk: Jwk = serde_json::from_str(text).ok()?;
    match jwk.algorithm {
        AlgorithmParameters::OctetKey(key) => URL_SAFE_NO_PAD.decode(key.value).ok(),
        _ => None,
    }
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let ways = [&STANDARD, &STANDARD_NO_PAD, &URL_SAFE, &URL_SAFE_NO_PAD];
    ways.iter().find_map(|way| way.decode(text).ok())
}
