//! Keys: what may be one, how they rotate, and forged tokens.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Method;
use serde_json::{Value, json};

use super::authorization::callers::{api_key, remove_key};
use crate::harness::sheets::Sheet;
use crate::harness::signer::{ALGORITHMS, Signer, pem, unix_now};
use crate::harness::{Client, Tenant, cli};

/// C59: usage hung on the key, and a rotation after a leak started from zero.
#[tokio::test]
async fn a_rotation_with_overlap_loses_nothing_and_ends_the_old_key() {
    let t = Tenant::with(Sheet::new().mt(1000)).await;
    let first = Signer::registered("EdDSA", &t, &["check", "quota"]).await;
    let k1 = t.with_token(&first.token("check quota"));
    let ask =
        |input: i64, output: i64| json!({"user": "u", "input_tokens": input, "max_output_tokens": output});
    let spent = k1.check(ask(800, 100)).await.hold_id();
    k1.settle(&spent, json!({"input_tokens": 800, "output_tokens": 100})).await.ok();
    let open = k1.check(ask(10, 10)).await.hold_id();

    let second = Signer::registered("ES256", &t, &["check", "quota"]).await;
    let k2 = t.with_token(&second.token("check quota"));
    let refused = k2.check(ask(100, 100)).await.refused(429, "monthly_quota_exhausted");
    assert_eq!(refused.body["violations"][0]["remaining"], 80);
    k1.quota("u").await.ok();
    k2.settle(&open, json!({"input_tokens": 10, "output_tokens": 10})).await.ok();
    remove_key(&t, &first.kid).await;
    k1.quota("u").await.refused(401, "unauthenticated");
    k1.check(ask(1, 1)).await.refused(401, "unauthenticated");
    let quota = k2.quota("u").await;
    assert_eq!(quota.row("tokens_per_month")["used"], 920, "one tenant without a break");
    let kids = t.get("/v1/admin/keys").await.ok();
    assert!(!kids.to_string().contains(&first.kid) && kids.to_string().contains(&second.kid));
}

/// Calls until it is refused; gives how long that took.
async fn until_nobodys(client: &Client, path: &str) -> Duration {
    let begun = Instant::now();
    loop {
        let reply = client.get(path).await;
        if reply.status == 401 {
            return begun.elapsed();
        }
        reply.ok();
        assert!(begun.elapsed() < Duration::from_secs(10), "a removed key still works");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_key_that_another_process_removes_ends_within_a_second() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    let (kid, secret) = api_key(&t, &["quota"]).await;
    let signer = Signer::registered("EdDSA", &t, &["quota"]).await;
    let listed = cli(&t.server.data, &["key", "list", "--tenant", &t.id]);
    for (kid, rest) in [(&kid, "api\tquota"), (&signer.kid, "EdDSA\tquota")] {
        assert!(
            listed.lines().any(|line| line.starts_with(&format!("{kid}\t{rest}\t"))),
            "{kid} in\n{listed}"
        );
    }
    for (kid, token) in [(kid, secret), (signer.kid.clone(), signer.token("quota"))] {
        let client = t.with_token(&token);
        client.quota("u").await.ok();
        cli(&t.server.data, &["key", "remove", &kid, "--tenant", &t.id]);
        let took = until_nobodys(&client, "/v1/users/u/quota").await;
        // The promise is a second; a crowded machine gets some more.
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}

#[tokio::test]
async fn operators_keys_rotate_by_the_command_line() {
    // A server of its own: others mint with the operators' key of the shared one.
    let server = Box::leak(Box::new(crate::harness::Server::start(&[])));
    let mint = || Client::new(&server.url, &cli(&server.data, &["token", "mint", "--operator"]));
    let kids = || -> Vec<String> {
        let listed = cli(&server.data, &["key", "list", "--operator"]);
        listed.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    };
    let (old, again) = (mint(), mint());
    old.get("/v1/operator/tenants").await.ok();
    again.get("/v1/operator/tenants").await.ok();
    let [kid] = kids().try_into().expect("one key signs them all");
    cli(&server.data, &["key", "remove", &kid, "--operator"]);
    until_nobodys(&old, "/v1/operator/tenants").await;
    again.get("/v1/operator/tenants").await.refused(401, "unauthenticated");
    mint().get("/v1/operator/tenants").await.ok();
    assert_ne!(kids(), [kid]);
}

#[tokio::test]
async fn what_cannot_verify_is_no_key_and_its_field_is_named() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    let rsa = Signer::new("RS256").public_key();
    let ec = Signer::new("ES256").public_key();
    let ed = Signer::new("EdDSA").public_key();
    let before = t.get("/v1/admin/keys").await.ok();
    for (algorithm, public_key) in [
        ("RS256", ed.as_str()),
        ("RS256", &ec),
        ("ES256", &rsa),
        ("EdDSA", &ec),
        ("RS256", "garbage"),
        ("EdDSA", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
        ("ES256", &pem(&[0x30, 0x00])),
        ("EdDSA", "{\"kty\":\"OKP\"}"),
        ("RS256", RSA_1024),
        ("ES256", P_384),
        ("HS256", "31 bytes are one byte too few.."),
        ("HS256", ""),
    ] {
        let body = json!({
            "kind": "jwt", "algorithm": algorithm, "public_key": public_key, "scopes": ["check"],
        });
        let refused = t.post("/v1/admin/keys", &body).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], "/public_key", "{algorithm} {public_key}");
    }
    for (scopes, kind) in [
        (json!(["operator"]), "jwt"),
        (json!(["check", "operator"]), "api"),
        (json!(["me"]), "api"),
        (json!([]), "jwt"),
        (json!(["everything"]), "api"),
        (json!("check"), "jwt"),
    ] {
        let mut body = json!({"kind": kind, "scopes": scopes});
        if kind == "jwt" {
            body["algorithm"] = json!("EdDSA");
            body["public_key"] = json!(ed);
        }
        let refused = t.post("/v1/admin/keys", &body).await.refused(400, "invalid_request");
        let pointer = refused.body["errors"][0]["pointer"].as_str().unwrap();
        assert!(pointer.starts_with("/scopes"), "{scopes} {kind}: {pointer}");
    }
    for algorithm in ["none", "HS384", "RS512", "ES384", "hs256"] {
        let body = json!({"kind": "jwt", "algorithm": algorithm, "public_key": ed, "scopes": ["check"]});
        let refused = t.post("/v1/admin/keys", &body).await.refused(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["pointer"], "/algorithm");
    }
    assert_eq!(t.get("/v1/admin/keys").await.ok(), before);
    t.send(t.request(Method::DELETE, "/v1/admin/keys/nokey")).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_key_is_listed_without_its_secret() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    let body = json!({"kind": "api", "scopes": ["check", "admin:write"], "name": "backend"});
    let made = t.post("/v1/admin/keys", &body).await;
    assert_eq!(made.status, 201);
    let secret = made.body["secret"].as_str().unwrap();
    let made_up = json!({"kind": "jwt", "algorithm": "HS256", "scopes": ["check"]});
    let shared = t.post("/v1/admin/keys", &made_up).await.ok();
    let shared_secret = shared["secret"].as_str().expect("one is made").to_owned();
    let signer = Signer::with_secret(&shared_secret).named(shared["kid"].as_str().unwrap());
    t.with_token(&signer.token("check")).check(json!({"user": "u"})).await.ok();
    let listed = t.get("/v1/admin/keys").await;
    assert!(!listed.text.contains(secret) && !listed.text.contains(&shared_secret));
    let rows = listed.body["data"].as_array().unwrap();
    let row = rows.iter().find(|row| row["kid"] == made.body["kid"]).expect("listed");
    assert_eq!((&row["name"], &row["kind"]), (&json!("backend"), &json!("api")));
    assert_eq!(row["scopes"], json!(["check", "admin:write"]));
    assert!(row["created_at"].as_str().is_some_and(|at| at.ends_with('Z')));
    // A changed last character of the secret is another secret.
    let other = if secret.ends_with('A') { "B" } else { "A" };
    let near = format!("{}{other}", &secret[..secret.len() - 1]);
    t.with_token(&near).check(json!({"user": "u"})).await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn forged_tokens_are_refused_whatever_they_claim() {
    let t = Tenant::with(Sheet::new().dr(5)).await;
    let other = Tenant::with(Sheet::new().dr(5)).await;
    let theirs = Signer::registered("RS256", &other, &["check", "quota"]).await;
    for algorithm in ALGORITHMS {
        let signer = Signer::registered(algorithm, &t, &["check", "quota"]).await;
        t.with_token(&signer.token("quota")).quota("u").await.ok();
        let good = |header: Value, claims: Value| {
            let mut claims = claims;
            claims["scope"] = json!("check quota");
            signer.token_with(header, claims)
        };
        let mut forged = vec![
            good(json!({"alg": "none"}), json!({})),
            good(json!({"kid": "nokey"}), json!({})),
            good(json!({"kid": theirs.kid}), json!({})),
            good(json!({"kid": null}), json!({})),
            good(json!({"crit": ["exp"]}), json!({})),
            good(json!({}), json!({"aud": "else"})),
            good(json!({}), json!({"aud": null})),
            good(json!({}), json!({"aud": []})),
            good(json!({}), json!({"exp": null})),
            good(json!({}), json!({"exp": unix_now() - 1})),
            good(json!({}), json!({"exp": "4102444800"})),
            good(json!({}), json!({"nbf": unix_now() + 600})),
            good(json!({}), json!({"tenant": other.id})),
        ];
        let unsigned = good(json!({"alg": "none"}), json!({}));
        let unsigned = unsigned.rsplit_once('.').unwrap().0;
        forged.extend([format!("{unsigned}."), unsigned.to_owned()]);
        // Everybody's idea of the secret: the public key, as text and as bytes.
        if algorithm != "HS256" {
            let public_key = signer.public_key();
            for secret in [public_key.trim(), &public_key] {
                let forger = Signer::with_secret(secret).named(&signer.kid);
                for alg in ["HS256", algorithm] {
                    forged.push(forger.token_with(json!({"alg": alg}), json!({"scope": "quota"})));
                }
            }
        }
        // The claims of another token under a good signature.
        let (message, signature) = good(json!({}), json!({})).rsplit_once('.').map(both).unwrap();
        let (header, _) = message.split_once('.').unwrap();
        let claims = json!({"aud": "apportion", "exp": unix_now() + 3600, "scope": "admin:write"});
        forged.push(format!("{header}.{}.{signature}", URL_SAFE_NO_PAD.encode(claims.to_string())));
        for token in forged {
            let reply = t.with_token(&token).quota("u").await.refused(401, "unauthenticated");
            assert_eq!(reply.header("www-authenticate"), Some("Bearer error=\"invalid_token\""));
        }
        for aud in [json!("apportion"), json!(["else", "apportion"])] {
            t.with_token(&good(json!({}), json!({"aud": aud, "tenant": t.id}))).quota("u").await.ok();
        }
    }
}

fn both((a, b): (&str, &str)) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

/// Sound, but too short for anything today.
const RSA_1024: &str = "-----BEGIN PUBLIC KEY-----\n\
    MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDb/5Xh29YMGeva8chCCu/4hYOn\n\
    uJLQn2Xwe2NvKSGMm7f7UdFCC28SWDP/HzQkBD3UPAwoEi7lqvw4TYvxmwUMdGmL\n\
    ZWFLpC6wqHRcD4ZxLVFDQlZWBtMozRSBTT0++qC9D165Y0ZeiDH5UcDXfjD6C57j\n\
    P/zBxGK8GpO1cIN4qwIDAQAB\n\
    -----END PUBLIC KEY-----";

/// Sound, but of another curve than ES256's.
const P_384: &str = "-----BEGIN PUBLIC KEY-----\n\
    MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE9FcrUt8QhJvNwZUsHnZrGwVneuqHlcWN\n\
    smSDWRLquIgiO78GbtaI++BfQcAY9h6CH6LDcuX+YcdLxqOyYtypbrTrccvRBHXJ\n\
    +rOI+IlE/OS6cRwbWVzJZtt3n5Q8fYKr\n\
    -----END PUBLIC KEY-----";
