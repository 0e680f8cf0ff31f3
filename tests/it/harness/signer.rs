//! Somebody with a key of their own, who signs tokens by hand: also bad ones.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::Client;

/// The algorithms of the contract.
pub const ALGORITHMS: [&str; 4] = ["HS256", "RS256", "ES256", "EdDSA"];

enum Pair {
    Hmac(String),
    Rsa(aws_lc_rs::rsa::KeyPair),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

/// A key pair, or a shared secret.
pub struct Signer {
    pub algorithm: &'static str,
    pair: Pair,
    /// As the service calls it, once it is registered.
    pub kid: String,
}

impl Signer {
    pub fn new(algorithm: &'static str) -> Self {
        let pair = match algorithm {
            "HS256" => return Self::with_secret("a secret that both of us know: 32 bytes and more"),
            "RS256" => {
                Pair::Rsa(aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap())
            }
            "ES256" => Pair::Ec(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap()),
            "EdDSA" => Pair::Ed(Ed25519KeyPair::generate().unwrap()),
            other => panic!("no algorithm of the contract: {other}"),
        };
        Self { algorithm, pair, kid: String::new() }
    }

    /// HS256 with any text as the secret.
    pub fn with_secret(secret: &str) -> Self {
        Self { algorithm: "HS256", pair: Pair::Hmac(secret.to_owned()), kid: String::new() }
    }

    /// The same key pair under another id.
    pub fn named(self, kid: &str) -> Self {
        Self { kid: kid.to_owned(), ..self }
    }

    /// A key that a tenant's admin registers for these scopes.
    pub async fn registered(algorithm: &'static str, admin: &Client, scopes: &[&str]) -> Self {
        let signer = Self::new(algorithm);
        let made = admin.post("/v1/admin/keys", &signer.body(scopes)).await.ok();
        let kid = made["kid"].as_str().expect("a key has an id");
        signer.named(kid)
    }

    /// The body of `POST /v1/admin/keys`.
    pub fn body(&self, scopes: &[&str]) -> Value {
        json!({
            "kind": "jwt", "algorithm": self.algorithm, "public_key": self.public_key(), "scopes": scopes,
        })
    }

    /// As PEM; of HS256 the secret itself.
    pub fn public_key(&self) -> String {
        let der: PublicKeyX509Der<'_> = match &self.pair {
            Pair::Hmac(secret) => return secret.clone(),
            Pair::Rsa(pair) => pair.public_key().as_der().unwrap(),
            Pair::Ec(pair) => pair.public_key().as_der().unwrap(),
            Pair::Ed(pair) => pair.public_key().as_der().unwrap(),
        };
        pem(der.as_ref())
    }

    /// A token that is good for an hour, with these scopes.
    pub fn token(&self, scope: &str) -> String {
        self.token_with(json!({}), json!({"scope": scope}))
    }

    /// A good token with other fields in its header and claims; null takes one away.
    pub fn token_with(&self, header: Value, claims: Value) -> String {
        let header = changed(json!({"alg": self.algorithm, "typ": "JWT", "kid": self.kid}), header);
        let claims = changed(json!({"aud": "apportion", "exp": unix_now() + 3600}), claims);
        let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let message = format!("{header}.{claims}");
        let signature = URL_SAFE_NO_PAD.encode(self.signature(message.as_bytes()));
        format!("{message}.{signature}")
    }

    fn signature(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Hmac(secret) => {
                let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret.as_bytes());
                aws_lc_rs::hmac::sign(&key, message).as_ref().to_vec()
            }
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
            Pair::Ec(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Pair::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }
}

pub fn unix_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("a clock after 1970").as_secs()
}

/// A public key (SubjectPublicKeyInfo) as PEM.
pub fn pem(der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines: Vec<&str> =
        body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n"))
}

fn changed(mut whole: Value, changes: Value) -> Value {
    let fields = whole.as_object_mut().expect("an object");
    for (name, value) in changes.as_object().expect("an object") {
        match value {
            Value::Null => fields.remove(name),
            value => fields.insert(name.clone(), value.clone()),
        };
    }
    whole
}
