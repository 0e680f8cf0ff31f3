use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::*;
use crate::domain::document::Node;
use crate::service::access::fake_signer::Signer;
use crate::service::access::keys::{MintRequest, NewKey};
use crate::service::tenancy::bench::Bench;

/// A bench with one tenant whose key `signer` signs with.
struct Stage {
    bench: Bench,
    tenant: Arc<Tenant>,
    kid: String,
    signer: Signer,
}

impl Stage {
    async fn new(signer: Signer, scopes: &[&str]) -> Self {
        let bench = Bench::new().await;
        let tenant = bench.tenant("shop").await;
        let kid = register(&bench, &tenant, &signer, scopes).await;
        Self { bench, tenant, kid, signer }
    }

    async fn ed() -> Self {
        Self::new(Signer::ed(), &["check", "quota", "admin:write", "me"]).await
    }

    fn header(&self) -> Value {
        json!({"alg": self.signer.algorithm(), "typ": "JWT", "kid": self.kid})
    }

    /// A good token with these claims in place of its own; `null` takes away.
    fn token(&self, changes: Value) -> String {
        let claims = changed(json!({"aud": "apportion", "exp": far(), "scope": "check"}), changes);
        self.signer.token(&self.header(), &claims)
    }

    fn token_with_header(&self, changes: Value) -> String {
        let claims = json!({"aud": "apportion", "exp": far(), "scope": "check"});
        self.signer.token(&changed(self.header(), changes), &claims)
    }

    async fn ask(&self, bearer: &str) -> Result<Arc<Caller>, Rejection> {
        ask(&self.bench.registry, bearer).await
    }
}

async fn ask(registry: &Registry, bearer: &str) -> Result<Arc<Caller>, Rejection> {
    match registry.authenticate(bearer).await {
        Ok(caller) => Ok(caller),
        Err(ServiceError::Unauthenticated(rejection)) => Err(rejection),
        Err(other) => panic!("{other:?}"),
    }
}

async fn register(bench: &Bench, tenant: &Arc<Tenant>, signer: &Signer, scopes: &[&str]) -> String {
    let body = json!({
        "kind": "jwt", "algorithm": signer.algorithm(), "public_key": signer.public_key(), "scopes": scopes,
    });
    let new = NewKey::read(&Node::from_json(body.to_string().as_bytes()).unwrap()).unwrap();
    bench.registry.create_key(tenant, new, "test").await.unwrap().key.kid.clone()
}

async fn api_key(bench: &Bench, tenant: &Arc<Tenant>, scopes: &[&str]) -> (String, String) {
    let body = json!({"kind": "api", "name": "backend", "scopes": scopes}).to_string();
    let new = NewKey::read(&Node::from_json(body.as_bytes()).unwrap()).unwrap();
    let created = bench.registry.create_key(tenant, new, "test").await.unwrap();
    (created.key.kid.clone(), created.secret.unwrap().expose_secret().to_owned())
}

fn changed(mut value: Value, changes: Value) -> Value {
    let (Value::Object(fields), Value::Object(changes)) = (&mut value, changes) else { panic!("objects") };
    for (name, change) in changes {
        match change {
            Value::Null => fields.remove(&name),
            change => fields.insert(name, change),
        };
    }
    value
}

fn far() -> i64 {
    real_unix_seconds() + 3_600
}

#[tokio::test]
async fn every_algorithm_of_the_contract_is_accepted() {
    let text = b"a shared secret of more than 32 bytes".to_vec();
    for signer in [Signer::ed(), Signer::ec(), Signer::rsa(), Signer::Hmac(text)] {
        let stage = Stage::new(signer, &["check"]).await;
        let token = stage.token(json!({}));
        let caller = stage.ask(&token).await.unwrap();
        assert_eq!(caller.tenant.as_ref().unwrap().id.as_str(), "shop");
        assert_eq!(caller.scopes, Scopes::CHECK);
        assert_eq!(caller.key_id, stage.kid);
        assert_eq!(caller.user, None);
        let again = stage.ask(&token).await.unwrap();
        assert!(Arc::ptr_eq(&caller, &again), "{} is remembered", stage.signer.algorithm());
        // A process that starts later reads the same key.
        let other = stage.bench.other().await;
        assert!(ask(&other, &token).await.is_ok(), "{}", stage.signer.algorithm());
    }
}

#[tokio::test]
async fn a_shared_secret_is_meant_as_text_or_as_base64_and_is_not_in_the_list() {
    let base64 = URL_SAFE_NO_PAD.encode([9; 32]);
    let stage = Stage::new(Signer::Hmac(base64.clone().into_bytes()), &["check"]).await;
    assert!(stage.ask(&stage.token(json!({}))).await.is_ok());
    let by_bytes = Signer::Hmac(vec![9; 32]);
    let claims = json!({"aud": "apportion", "exp": far(), "scope": "check"});
    assert!(stage.ask(&by_bytes.token(&stage.header(), &claims)).await.is_ok());
    let by_others = Signer::Hmac(vec![8; 32]);
    let stranger = by_others.token(&stage.header(), &claims);
    assert_eq!(stage.ask(&stranger).await.unwrap_err(), Rejection::BadSignature);
    let keys = stage.bench.registry.list_keys(&stage.tenant);
    assert!(!keys[0].to_json().to_string().contains(&base64));
}

#[tokio::test]
async fn a_token_never_chooses_how_it_is_verified() {
    let stage = Stage::new(Signer::rsa(), &["check"]).await;
    let claims = json!({"aud": "apportion", "exp": far(), "scope": "check"});
    let public_key = stage.signer.public_key();
    // The public key as the secret of an HMAC.
    for secret in [public_key.clone(), public_key.trim().to_owned()] {
        let forger = Signer::Hmac(secret.into_bytes());
        let header = changed(stage.header(), json!({"alg": "HS256"}));
        let token = forger.token(&header, &claims);
        assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::WrongAlgorithm);
        let token = forger.token(&stage.header(), &claims);
        assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::BadSignature);
    }
    for none in ["none", "None", "NONE", "", "RS384", "PS256", "rs256"] {
        let token = stage.token_with_header(json!({"alg": none}));
        assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::WrongAlgorithm, "{none}");
        let unsigned = token.rsplit_once('.').unwrap().0.to_owned() + ".";
        assert_eq!(stage.ask(&unsigned).await.unwrap_err(), Rejection::Malformed);
    }
    // A key of the forger's own, offered in the header.
    let forger = Signer::rsa();
    let header = changed(
        stage.header(),
        json!({
            "jku": "https://forger.example/keys", "jwk": {"kty": "RSA", "n": "AQAB", "e": "AQAB"}, "x5u": "https://x",
        }),
    );
    let token = forger.token(&header, &claims);
    assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::BadSignature);
    assert!(stage.ask(&stage.signer.token(&header, &claims)).await.is_ok(), "they are not looked at");
}

#[tokio::test]
async fn a_token_speaks_for_its_keys_tenant_alone() {
    let stage = Stage::ed().await;
    let other = stage.bench.tenant("other").await;
    let other_signer = Signer::ed();
    let other_kid = register(&stage.bench, &other, &other_signer, &["check"]).await;
    assert!(stage.ask(&stage.token(json!({"tenant": "shop"}))).await.is_ok());
    assert_eq!(
        stage.ask(&stage.token(json!({"tenant": "other"}))).await.unwrap_err(),
        Rejection::WrongTenant
    );
    assert_eq!(stage.ask(&stage.token(json!({"tenant": ""}))).await.unwrap_err(), Rejection::WrongTenant);
    assert_eq!(stage.ask(&stage.token(json!({"tenant": 7}))).await.unwrap_err(), Rejection::Malformed);
    // Another tenant's kid is verified by another tenant's key.
    let token = stage.token_with_header(json!({"kid": other_kid}));
    assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::BadSignature);
    let header = json!({"alg": "EdDSA", "kid": other_kid});
    let claims = json!({"aud": "apportion", "exp": far(), "scope": "check"});
    let caller = stage.ask(&other_signer.token(&header, &claims)).await.unwrap();
    assert_eq!(caller.tenant.as_ref().unwrap().id.as_str(), "other");
    for kid in [json!("nobody"), json!(""), json!("../server")] {
        let token = stage.token_with_header(json!({"kid": kid}));
        assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::UnknownKey);
    }
    assert_eq!(
        stage.ask(&stage.token_with_header(json!({"kid": null}))).await.unwrap_err(),
        Rejection::Malformed
    );
}

#[tokio::test]
async fn time_is_real_and_without_leeway() {
    let stage = Stage::ed().await;
    let key = stage.bench.registry.key(&stage.kid).unwrap();
    let now = 1_800_000_000;
    let verdict = |claims: Value| {
        let token = stage.token(claims);
        let Ok(Credential::Token(token)) = Credential::parse(&token) else { panic!("a token") };
        token.verify(&key, now).map(|caller| caller.expires_at_unix)
    };
    assert_eq!(verdict(json!({"exp": now + 1})), Ok(Some(now + 1)));
    assert_eq!(verdict(json!({"exp": now})), Err(Rejection::Expired), "this very second");
    assert_eq!(verdict(json!({"exp": now - 1})), Err(Rejection::Expired));
    assert_eq!(verdict(json!({"exp": null})), Err(Rejection::Expired));
    assert_eq!(verdict(json!({"exp": now as f64 + 1.5})), Ok(Some(now + 1)));
    assert_eq!(verdict(json!({"exp": now as f64 + 0.9})), Err(Rejection::Expired));
    assert_eq!(verdict(json!({"exp": u64::MAX})), Ok(Some(i64::MAX)));
    assert_eq!(verdict(json!({"exp": 1e300})), Ok(Some(i64::MAX)));
    assert_eq!(verdict(json!({"exp": -1e300})), Err(Rejection::Expired));
    assert_eq!(verdict(json!({"exp": (now + 1).to_string()})), Err(Rejection::Malformed));
    assert_eq!(verdict(json!({"exp": now + 9, "nbf": now})), Ok(Some(now + 9)));
    assert_eq!(verdict(json!({"exp": now + 9, "nbf": now + 1})), Err(Rejection::NotYetValid));
    assert_eq!(verdict(json!({"exp": now + 9, "nbf": "0"})), Err(Rejection::Malformed));
}

#[tokio::test]
async fn a_token_is_meant_for_this_service() {
    let stage = Stage::ed().await;
    for good in [json!("apportion"), json!(["x", "apportion"])] {
        assert!(stage.ask(&stage.token(json!({"aud": good}))).await.is_ok());
    }
    for bad in [Value::Null, json!("x"), json!([]), json!(["x"]), json!("Apportion"), json!(" apportion")] {
        let token = stage.token(json!({"aud": bad}));
        assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::WrongAudience, "{bad}");
    }
    for bad in [json!(7), json!({"apportion": true}), json!(["apportion", 7])] {
        let token = stage.token(json!({"aud": bad}));
        assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::Malformed, "{bad}");
    }
    for critical in [json!(["b64"]), json!([]), json!(false)] {
        let token = stage.token_with_header(json!({"crit": critical}));
        assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::CriticalHeader);
    }
}

#[tokio::test]
async fn a_token_may_do_what_it_asks_for_and_its_key_grants() {
    let stage = Stage::new(Signer::ed(), &["check", "admin:read", "me"]).await;
    let granted = async |scope: Value| {
        let caller = stage.ask(&stage.token(json!({"scope": scope, "sub": "u/1"}))).await.unwrap();
        (caller.scopes.names().join(" "), caller.user.as_ref().map(UserId::to_string))
    };
    let nobody = |scopes: &str| (scopes.to_owned(), None);
    assert_eq!(granted(json!("check")).await, nobody("check"));
    assert_eq!(granted(json!("check quota")).await, nobody("check"));
    assert_eq!(granted(json!("admin:write")).await, nobody("admin:read"));
    assert_eq!(granted(json!("operator")).await, nobody(""));
    assert_eq!(granted(json!("openid  check profile")).await, nobody("check"));
    assert_eq!(granted(Value::Null).await, nobody(""));
    let user = Some("u/1".to_owned());
    assert_eq!(granted(json!("me")).await, ("me".into(), user.clone()));
    assert_eq!(
        granted(json!("check me admin:read")).await,
        ("me".into(), user),
        "a user token is nothing else"
    );
    for sub in [Value::Null, json!(""), json!(" x"), json!("..")] {
        let token = stage.token(json!({"scope": "me", "sub": sub}));
        assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::NoUser);
    }
}

#[tokio::test]
async fn a_removed_key_ends_its_tokens_at_once_here_and_after_a_look_elsewhere() {
    let stage = Stage::ed().await;
    let other = stage.bench.other().await;
    let token = stage.token(json!({}));
    let (_, api_key) = api_key(&stage.bench, &stage.tenant, &["check"]).await;
    for registry in [&stage.bench.registry, &other] {
        assert!(ask(registry, &token).await.is_ok());
        assert!(ask(registry, &api_key).await.is_ok());
    }
    for key in stage.bench.registry.list_keys(&stage.tenant) {
        stage.bench.registry.delete_key(Some(&stage.tenant), &key.kid, "test").await.unwrap();
    }
    assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::UnknownKey);
    assert_eq!(stage.ask(&api_key).await.unwrap_err(), Rejection::UnknownKey);
    other.refresh().await.unwrap();
    assert_eq!(ask(&other, &token).await.unwrap_err(), Rejection::UnknownKey);
    assert_eq!(ask(&other, &api_key).await.unwrap_err(), Rejection::UnknownKey);
    let missing = stage.bench.registry.delete_key(Some(&stage.tenant), &stage.kid, "test").await;
    assert!(matches!(missing, Err(ServiceError::NotFound(_))));
}

#[tokio::test]
async fn keys_rotate_with_overlap_and_are_their_tenants_own() {
    let stage = Stage::ed().await;
    let next = Signer::ec();
    let next_kid = register(&stage.bench, &stage.tenant, &next, &["check"]).await;
    let claims = json!({"aud": "apportion", "exp": far(), "scope": "check"});
    let new_token = next.token(&json!({"alg": "ES256", "kid": next_kid}), &claims);
    assert!(stage.ask(&new_token).await.is_ok());
    assert!(stage.ask(&stage.token(json!({}))).await.is_ok());
    let stranger = stage.bench.tenant("other").await;
    let foreign = stage.bench.registry.delete_key(Some(&stranger), &stage.kid, "test").await;
    assert!(matches!(foreign, Err(ServiceError::NotFound(_))), "another tenant's key is not there");
    stage.bench.registry.delete_key(Some(&stage.tenant), &stage.kid, "test").await.unwrap();
    assert!(stage.ask(&new_token).await.is_ok());
    assert!(stage.ask(&stage.token(json!({}))).await.is_err());
}

#[tokio::test]
async fn a_remembered_token_still_expires() {
    let stage = Stage::ed().await;
    let token = stage.token(json!({}));
    let registry = &stage.bench.registry;
    stage.ask(&token).await.unwrap();
    assert!(registry.remembered(&token, far() - 1).is_some());
    assert!(registry.remembered(&token, far() + 1).is_none());
    assert!(registry.tokens.get(&*token, |known| **known == *token).is_none(), "and is forgotten");
}

#[tokio::test]
async fn a_suspended_tenant_is_told_so() {
    let stage = Stage::ed().await;
    let token = stage.token(json!({}));
    let (_, api_key) = api_key(&stage.bench, &stage.tenant, &["check"]).await;
    assert!(stage.ask(&token).await.is_ok());
    stage.tenant.suspend(true);
    for bearer in [&token, &api_key] {
        let refused = stage.bench.registry.authenticate(bearer).await;
        assert!(matches!(refused, Err(ServiceError::TenantSuspended)));
    }
}

#[tokio::test]
async fn api_keys_are_shown_once_and_compared_whole() {
    let stage = Stage::ed().await;
    let (kid, secret) = api_key(&stage.bench, &stage.tenant, &["check", "admin:write"]).await;
    assert_eq!(secret.len(), "ap_".len() + kid.len() + 1 + 43);
    let caller = stage.ask(&secret).await.unwrap();
    assert_eq!(caller.scopes, Scopes::CHECK | Scopes::ADMIN_WRITE);
    assert!(caller.scopes.contains(Scopes::ADMIN_READ));
    assert_eq!(caller.expires_at_unix, None);
    let wrong = format!("ap_{kid}_{}", "A".repeat(43));
    let of_token_key = format!("ap_{}_{}", stage.kid, "A".repeat(43));
    for bad in
        [&wrong, &of_token_key, &secret[..secret.len() - 1], &format!("{secret}A"), &format!("ap_{kid}_")]
    {
        assert_eq!(stage.ask(bad).await.unwrap_err(), Rejection::BadSignature, "{bad}");
    }
    assert_eq!(stage.ask("ap_").await.unwrap_err(), Rejection::Malformed);
    assert_eq!(stage.ask("ap_nobody_x").await.unwrap_err(), Rejection::UnknownKey);
    let token = stage.token_with_header(json!({"kid": kid}));
    assert_eq!(stage.ask(&token).await.unwrap_err(), Rejection::WrongAlgorithm);
    for key in stage.bench.registry.list_keys(&stage.tenant) {
        assert!(!key.to_json().to_string().contains(&secret[3 + kid.len()..]));
    }
}

#[tokio::test]
async fn a_key_made_by_another_process_works_with_its_first_call() {
    let stage = Stage::ed().await;
    let cli = stage.bench.other().await;
    let tenant =
        cli.create_tenant(&crate::domain::ids::TenantId::parse("new").unwrap(), true, None, "cli").await;
    let request = MintRequest { scopes: Scopes::CHECK | Scopes::QUOTA, user: None, ttl_seconds: 60 };
    let token = cli.mint_token(Some(&tenant.unwrap()), &request).await.unwrap();
    let caller = stage.ask(token.expose_secret()).await.unwrap();
    assert_eq!(caller.tenant.as_ref().unwrap().id.as_str(), "new");
    assert!(caller.tenant.as_ref().unwrap().test);
    assert_eq!(caller.scopes, Scopes::CHECK | Scopes::QUOTA);
    stage.bench.ledger.down.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(stage.ask(token.expose_secret()).await.is_ok(), "known keys need no store");
    let unknown = stage.token_with_header(json!({"kid": "other"}));
    let answer = stage.bench.registry.authenticate(&unknown).await;
    assert!(matches!(answer, Err(ServiceError::StoreUnavailable(_))));
}

#[tokio::test]
async fn who_keeps_coming_with_an_unknown_key_is_not_looked_up_each_time() {
    let stage = Stage::ed().await;
    let unknown = stage.token_with_header(json!({"kid": "nobody"}));
    assert_eq!(stage.ask(&unknown).await.unwrap_err(), Rejection::UnknownKey);
    stage.bench.ledger.down.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(stage.ask(&unknown).await.unwrap_err(), Rejection::UnknownKey, "no look, no failure");
}

#[tokio::test]
async fn minting_uses_one_key_again_and_keeps_operators_and_tenants_apart() {
    let stage = Stage::ed().await;
    let registry = &stage.bench.registry;
    let mint = async |tenant: Option<&Arc<Tenant>>, scopes: Scopes, user: Option<&str>| {
        let user = user.map(|user| UserId::parse(user).unwrap());
        registry.mint_token(tenant, &MintRequest { scopes, user, ttl_seconds: 60 }).await
    };
    let keys_before = registry.list_keys(&stage.tenant).len();
    for _ in 0..3 {
        let token = mint(Some(&stage.tenant), Scopes::ADMIN_WRITE, None).await.unwrap();
        assert!(stage.ask(token.expose_secret()).await.unwrap().scopes.contains(Scopes::ADMIN_READ));
    }
    assert_eq!(registry.list_keys(&stage.tenant).len(), keys_before + 1);
    let user = mint(Some(&stage.tenant), Scopes::ME, Some("u 1")).await.unwrap();
    assert_eq!(stage.ask(user.expose_secret()).await.unwrap().user.as_ref().unwrap().as_str(), "u 1");
    let operator = mint(None, Scopes::OPERATOR, None).await.unwrap();
    let caller = stage.ask(operator.expose_secret()).await.unwrap();
    assert!(caller.tenant.is_none() && caller.scopes == Scopes::OPERATOR);
    for (tenant, scopes, user) in [
        (Some(&stage.tenant), Scopes::OPERATOR, None),
        (None, Scopes::CHECK, None),
        (Some(&stage.tenant), Scopes::ME, None),
        (Some(&stage.tenant), Scopes::CHECK, Some("u")),
    ] {
        assert!(matches!(mint(tenant, scopes, user).await, Err(ServiceError::Invalid(_))));
    }
}

#[tokio::test]
async fn generated_keys_are_for_local_use_unless_allowed() {
    let stage = Stage::ed().await;
    let request = MintRequest { scopes: Scopes::CHECK, user: None, ttl_seconds: 60 };
    let token = stage.bench.registry.mint_token(Some(&stage.tenant), &request).await.unwrap();
    let exposed = stage.bench.exposed().await;
    assert_eq!(ask(&exposed, token.expose_secret()).await.unwrap_err(), Rejection::LocalKey);
    assert!(ask(&exposed, &stage.token(json!({}))).await.is_ok());
}

#[tokio::test]
async fn what_is_no_token_is_refused_whatever_it_is() {
    let stage = Stage::ed().await;
    let good = stage.token(json!({}));
    for end in 0..good.len() {
        assert!(stage.ask(&good[..end]).await.is_err(), "cut at {end}");
    }
    let huge = stage.token(json!({"x": "y".repeat(8_000)}));
    assert_eq!(stage.ask(&huge).await.unwrap_err(), Rejection::TooLong);
    let deep = stage.token(json!({})).replacen(
        stage.token(json!({})).split('.').next().unwrap(),
        &URL_SAFE_NO_PAD.encode("[".repeat(3_000)),
        1,
    );
    assert_eq!(stage.ask(&deep).await.unwrap_err(), Rejection::Malformed);
    let twice = format!(r#"{{"alg":"EdDSA","kid":"x","kid":"{}"}}"#, stage.kid);
    let twice = format!("{}.{}", URL_SAFE_NO_PAD.encode(twice), good.split_once('.').unwrap().1);
    assert_eq!(stage.ask(&twice).await.unwrap_err(), Rejection::Malformed);
    for bad in ["", ".", "..", "...", &format!("{good}.x"), &good.replace('.', "..")] {
        assert_eq!(stage.ask(bad).await.unwrap_err(), Rejection::Malformed, "{bad}");
    }
    let padded = stage.ask(&format!("{good}=")).await;
    assert_eq!(padded.unwrap_err(), Rejection::BadSignature, "there is one spelling only");
}

#[test]
fn scopes_read_back_what_they_say() {
    for text in ["check", "check quota admin:write me", "admin:read", "operator", ""] {
        assert_eq!(Scopes::parse(text).unwrap().names().join(" "), text);
    }
    assert!(Scopes::ADMIN_WRITE.contains(Scopes::ADMIN_READ));
    assert!(!Scopes::ADMIN_READ.contains(Scopes::ADMIN_WRITE));
    assert!(Scopes::parse("check admin").unwrap_err().contains("'admin'"));
}

proptest! {
    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..600), parts in 0usize..5) {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let _ = Credential::parse(&text);
        let _ = Credential::parse(&format!("ap_{text}"));
        let encoded = URL_SAFE_NO_PAD.encode(&bytes);
        let _ = Credential::parse(&vec![encoded; parts].join("."));
    }

    #[test]
    fn any_change_to_a_token_is_noticed(place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let stage = Stage::ed().await;
            let good = stage.token(json!({}));
            let mut bytes = good.clone().into_bytes();
            let index = place.index(bytes.len());
            if bytes[index] != byte {
                bytes[index] = byte;
                if let Ok(bad) = String::from_utf8(bytes) {
                    assert!(stage.ask(&bad).await.is_err());
                }
            }
        });
    }
}
