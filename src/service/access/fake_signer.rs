//! Somebody with a key of their own, for tests of tokens.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::Value;

use super::key_files::pem;

/// Somebody who signs tokens with a key of their own.
pub enum Signer {
    Ed(Ed25519KeyPair),
    Ec(EcdsaKeyPair),
    Rsa(aws_lc_rs::rsa::KeyPair),
    Hmac(Vec<u8>),
}

impl Signer {
    pub fn ed() -> Self {
        Self::Ed(Ed25519KeyPair::generate().unwrap())
    }

    pub fn ec() -> Self {
        Self::Ec(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    pub fn rsa() -> Self {
        Self::Rsa(aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap())
    }

    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Ed(_) => "EdDSA",
            Self::Ec(_) => "ES256",
            Self::Rsa(_) => "RS256",
            Self::Hmac(_) => "HS256",
        }
    }

    pub fn public_key(&self) -> String {
        let der: PublicKeyX509Der<'_> = match self {
            Self::Ed(pair) => pair.public_key().as_der().unwrap(),
            Self::Ec(pair) => pair.public_key().as_der().unwrap(),
            Self::Rsa(pair) => pair.public_key().as_der().unwrap(),
            Self::Hmac(secret) => return String::from_utf8(secret.clone()).unwrap(),
        };
        pem("PUBLIC KEY", der.as_ref())
    }

    pub fn signature(&self, message: &[u8]) -> String {
        let random = SystemRandom::new();
        let signature = match self {
            Self::Ed(pair) => pair.sign(message).as_ref().to_vec(),
            Self::Ec(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
            Self::Hmac(secret) => {
                let key = EncodingKey::from_secret(secret).unwrap();
                return jsonwebtoken::crypto::sign(message, &key, Algorithm::HS256).unwrap();
            }
        };
        URL_SAFE_NO_PAD.encode(signature)
    }

    pub fn token(&self, header: &Value, claims: &Value) -> String {
        let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let message = format!("{header}.{claims}");
        let signature = self.signature(message.as_bytes());
        format!("{message}.{signature}")
    }
}
