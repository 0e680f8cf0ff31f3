use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::*;
use crate::service::tenancy::bench::Bench;

fn read(body: Value) -> Result<NewKey, Vec<String>> {
    let text = body.to_string();
    let read = NewKey::read(&Node::from_json(text.as_bytes()).unwrap());
    read.map_err(|faults| faults.into_iter().map(|fault| fault.pointer).collect())
}

/// A P-256 key as its parts, and an Ed25519 one.
const EC_X: &str = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
const EC_Y: &str = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";
const ED_X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

#[test]
fn a_key_is_taken_only_if_it_can_verify() {
    let jwk = json!({"kty": "EC", "crv": "P-256", "x": EC_X, "y": EC_Y});
    let ed = json!({"kty": "OKP", "crv": "Ed25519", "x": ED_X});
    let key = |algorithm: &str, key: Value| {
        read(json!({"kind": "jwt", "algorithm": algorithm, "public_key": key, "scopes": ["check"]}))
    };
    assert!(key("ES256", jwk.clone()).is_ok());
    assert!(key("ES256", jwk.to_string().into()).is_ok());
    assert!(key("EdDSA", ed.clone()).is_ok());
    let off_curve = json!({"kty": "EC", "crv": "P-256", "x": EC_X, "y": EC_X});
    let private = json!({"kty": "OKP", "crv": "Ed25519", "x": ED_X, "d": ED_X});
    let weak = json!({"kty": "RSA", "n": URL_SAFE_NO_PAD.encode([0xc5; 128]), "e": "AQAB"});
    let fair = json!({"kty": "RSA", "n": URL_SAFE_NO_PAD.encode([0xc5; 256]), "e": "AQAB"});
    assert!(key("RS256", fair).is_ok());
    let secret = |bytes: usize| json!({"kty": "oct", "k": URL_SAFE_NO_PAD.encode(vec![7; bytes])});
    assert!(key("HS256", secret(32)).is_ok());
    let nested = pem("PUBLIC KEY", &[0x30, 0x80].repeat(1_200));
    for (algorithm, bad) in [
        ("ES256", ed.clone()),
        ("ES256", off_curve),
        ("EdDSA", jwk.clone()),
        ("EdDSA", private),
        ("RS256", weak),
        ("RS256", jwk),
        ("EdDSA", json!("")),
        ("EdDSA", json!("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----")),
        ("RS256", json!("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----")),
        ("RS256", json!(nested)),
        ("RS256", json!("x".repeat(5_000))),
        ("HS256", json!("a secret that is far too short")),
        ("HS256", ed),
        ("HS256", secret(31)),
        ("EdDSA", Value::Null),
        ("EdDSA", json!(7)),
    ] {
        let told = format!("{algorithm} {bad}");
        assert_eq!(key(algorithm, bad).err(), Some(vec!["/public_key".into()]), "{told}");
    }
    assert_eq!(key("RS384", json!("x")).err(), Some(vec!["/algorithm".into()]));
    assert_eq!(key("none", json!("x")).err(), Some(vec!["/algorithm".into()]));
}

#[test]
fn scopes_are_those_that_a_tenants_key_may_grant() {
    let api = |scopes: Value| read(json!({"kind": "api", "name": "n", "scopes": scopes}));
    assert!(api(json!(["check", "quota", "admin:write"])).is_ok());
    for bad in [json!(["operator"]), json!(["me"]), json!([]), json!("check"), Value::Null] {
        assert_eq!(api(bad).err(), Some(vec!["/scopes".into()]));
    }
    assert_eq!(api(json!(["check", "root"])).err(), Some(vec!["/scopes/1".into()]));
    let faults =
        read(json!({"kind": "api", "scopes": ["check"], "public_key": "x", "name": "n".repeat(200)}));
    assert_eq!(faults.err(), Some(vec!["/name".into(), "/public_key".into()]));
    assert_eq!(read(json!({"kind": "cookie", "scopes": ["check"]})).err().unwrap()[0], "/kind");
}

#[tokio::test]
async fn a_made_up_shared_secret_is_shown_once() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    let new = read(json!({"kind": "jwt", "algorithm": "HS256", "scopes": ["check"]})).unwrap();
    let created = bench.registry.create_key(&tenant, new, "test").await.unwrap();
    assert_eq!(created.secret.unwrap().expose_secret().len(), 43);
    let shown = created.key.to_json();
    assert_eq!((&shown["algorithm"], &shown["public_key"]), (&json!("HS256"), &Value::Null));
    let listed = bench.registry.list_keys(&tenant);
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].kid, created.key.kid);
}

#[tokio::test]
async fn a_deleted_key_takes_its_private_half_along() {
    let bench = Bench::new().await;
    let tenant = bench.tenant("shop").await;
    let request = MintRequest { scopes: Scopes::CHECK, user: None, ttl_seconds: 60 };
    bench.registry.mint_token(Some(&tenant), &request).await.unwrap();
    let kid = bench.registry.list_keys(&tenant)[0].kid.clone();
    assert!(bench.registry.files.private_key(&kid).unwrap().is_some());
    bench.registry.delete_key(Some(&tenant), &kid, "test").await.unwrap();
    assert!(bench.registry.files.private_key(&kid).unwrap().is_none());
    bench.registry.mint_token(Some(&tenant), &request).await.unwrap();
    assert_ne!(bench.registry.list_keys(&tenant)[0].kid, kid, "a new one is made when it is needed");
}
