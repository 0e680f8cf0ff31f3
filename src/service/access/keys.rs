//! Making, listing and removing keys, and minting tokens with our own.

use std::sync::Arc;

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::encoding::PublicKeyX509Der;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use secrecy::SecretString;
use secrecy::zeroize::Zeroizing;
use serde_json::json;

use crate::domain::charge::TenantRef;
use crate::domain::document::{Fault, Node, Reader};
use crate::domain::ids::UserId;
use crate::ledger::{Record, RecordKind, Written};

use super::identity::Scopes;
use super::key_files::{pem, random};
use super::keyring::{Key, KeyRecord, Proof, StoredProof};
use super::public_key::{self, ALGORITHMS};
use super::token::{API_KEY_PREFIX, AUDIENCE};
use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::Tenant;
use crate::service::tenancy::clock::real_unix_seconds;
use crate::service::tenancy::reason::optional_reason;
use crate::service::tenancy::registry::Registry;

/// Keys of one tenant: enough for any rotation, too few to fill memory.
const KEYS_MAX: usize = 1_000;
const NAME_MAX: usize = 128;
/// Letters and digits that are hard to take for one another; 32 of them, so
/// that a random byte picks evenly.
const KID_ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// 100 random bits: never the same twice, on any installation.
const KID_LENGTH: usize = 20;

/// What `POST keys` asks for.
pub struct NewKey {
    scopes: Scopes,
    material: Material,
    reason: Option<String>,
}

enum Material {
    PublicKey(Algorithm, String),
    /// `None`: one is made.
    SharedSecret(Option<String>),
    ApiKey {
        name: Option<String>,
    },
}

/// A key just made. `secret` is told now and never again.
pub struct CreatedKey {
    pub key: Arc<Key>,
    pub secret: Option<SecretString>,
}

/// What a minted token is to say.
pub struct MintRequest {
    pub scopes: Scopes,
    /// With scope `me`: whom it speaks for.
    pub user: Option<UserId>,
    pub ttl_seconds: u32,
}

impl NewKey {
    /// Reads `{"kind":"jwt","algorithm","public_key","scopes"}` or
    /// `{"kind":"api","scopes","name"}`, with an optional `reason`. For HS256,
    /// `public_key` holds the shared secret; without it one is made.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let is_api = fields.required("kind").choice(&[("jwt", false), ("api", true)]);
            let scopes = read_scopes(fields, is_api == Some(true));
            let reason = optional_reason(fields);
            let material = if is_api? { Some(read_api(fields)) } else { read_jwt(fields) };
            Some(Self { scopes: scopes?, material: material?, reason })
        })
    }
}

fn read_scopes(fields: &mut Reader<'_, '_>, is_api: bool) -> Option<Scopes> {
    let scopes = fields.required("scopes").list(16, |scope| scope.parsed(Scopes::parse))?;
    let scopes = scopes.into_iter().fold(Scopes::NONE, |all, scope| all | scope);
    if scopes.is_empty() {
        fields.fault("scopes", "must name at least one scope");
    } else if scopes.intersects(Scopes::OPERATOR) {
        fields.fault("scopes", "must not name 'operator': only the operator's own keys grant it");
    } else if is_api && scopes.intersects(Scopes::ME) {
        fields.fault("scopes", "must not name 'me': an API key speaks for no user");
    } else {
        return Some(scopes);
    }
    None
}

fn read_api(fields: &mut Reader<'_, '_>) -> Material {
    Material::ApiKey { name: fields.optional("name").text_up_to(NAME_MAX).map(str::to_owned) }
}

fn read_jwt(fields: &mut Reader<'_, '_>) -> Option<Material> {
    let algorithm = fields.required("algorithm").choice(&ALGORITHMS);
    if algorithm == Some(Algorithm::HS256) && !fields.has("public_key") {
        return Some(Material::SharedSecret(None));
    }
    let field = fields.required("public_key");
    // A JWK may be sent as the object that it is.
    let text = if field.is_table() {
        serde_json::to_string(field.node()?).ok()
    } else {
        field.text().map(str::to_owned)
    };
    let (algorithm, text) = (algorithm?, text?);
    let fault = match algorithm {
        Algorithm::HS256 => public_key::shared_secrets(&text).err(),
        _ => public_key::parse(algorithm, &text).err(),
    };
    if let Some(fault) = fault {
        fields.fault("public_key", fault);
        return None;
    }
    Some(match algorithm {
        Algorithm::HS256 => Material::SharedSecret(Some(text)),
        _ => Material::PublicKey(algorithm, text),
    })
}

impl Registry {
    /// The tenant's keys in force, by kid.
    pub fn list_keys(&self, tenant: &Tenant) -> Vec<Arc<Key>> {
        self.keys_of(Some(tenant.number))
    }

    /// Makes a key; tokens signed by it are accepted from now on.
    ///
    /// # Errors
    /// `Invalid` when the tenant has too many keys; `StoreUnavailable`.
    pub async fn create_key(
        &self,
        tenant: &Arc<Tenant>,
        new: NewKey,
        by: &str,
    ) -> Result<CreatedKey, ServiceError> {
        let kid = new_kid()?;
        let mut secret = None;
        let (name, proof) = match new.material {
            Material::PublicKey(algorithm, text) => (None, StoredProof::PublicKey(algorithm, text)),
            Material::SharedSecret(Some(text)) => (None, StoredProof::Sealed(self.files.seal(&kid, &text)?)),
            Material::SharedSecret(None) => {
                let text = new_secret()?;
                let sealed = self.files.seal(&kid, &text)?;
                secret = Some(text);
                (None, StoredProof::Sealed(sealed))
            }
            Material::ApiKey { name } => {
                let text = format!("{API_KEY_PREFIX}{kid}_{}", new_secret()?);
                let hash = self.files.hash(&text);
                secret = Some(text);
                (name, StoredProof::Hash(hash))
            }
        };
        let record = KeyRecord { scopes: new.scopes, name, generated: false, proof };
        let written = Written { at: tenant.now(), by: by.to_owned(), reason: new.reason };
        let key = self.put_key(Some(tenant), kid, &record, written).await?;
        Ok(CreatedKey { key, secret: secret.map(SecretString::from) })
    }

    /// The operators' keys in force, by kid.
    pub fn list_operator_keys(&self) -> Vec<Arc<Key>> {
        self.keys_of(None)
    }

    /// Removes a tenant's key, or an operators' (`None`): its tokens end at
    /// once here, and within a second on every other node.
    ///
    /// # Errors
    /// `NotFound`: there is no such key, or it is somebody else's.
    pub async fn delete_key(
        &self,
        tenant: Option<&Arc<Tenant>>,
        kid: &str,
        by: &str,
    ) -> Result<(), ServiceError> {
        let _turn = match tenant {
            Some(tenant) => Some(tenant.changing.lock().await),
            None => None,
        };
        self.read_keys(tenant).await?;
        let number = tenant.map(|tenant| tenant.number);
        let own = |key: &Arc<Key>| key.tenant.as_ref().map(|owner| owner.number) == number;
        let key = self.key(kid).filter(own).ok_or(ServiceError::NotFound("key"))?;
        let now = tenant.map_or_else(|| self.wall.now(), |tenant| tenant.now());
        let record = Record {
            kind: RecordKind::Key,
            id: kid.to_owned(),
            version: key.version + 1,
            body: None,
            effective_at: now,
            written: Written { at: now, by: by.to_owned(), reason: None },
            revision: 0,
        };
        self.writer.put_record(number, record).await?;
        if key.generated {
            self.files.forget_private_key(kid);
        }
        self.read_keys(tenant).await.inspect_err(|_| self.writer.distrust())
    }

    /// Reads the keys of a tenant, or the operators', anew. The caller holds
    /// `tenant.changing`.
    async fn read_keys(&self, tenant: Option<&Arc<Tenant>>) -> Result<(), ServiceError> {
        match tenant {
            Some(tenant) => self.read_tenant(tenant).await,
            None => self.read_operators().await,
        }
    }

    /// Removes the private halves of a deleted tenant's keys.
    pub(in crate::service) async fn forget_private_keys(
        &self,
        tenant: TenantRef,
    ) -> Result<(), ServiceError> {
        let records = self.ledger.records(Some(tenant)).await?;
        for key in records.iter().filter(|record| record.kind == RecordKind::Key) {
            self.files.forget_private_key(&key.id);
        }
        Ok(())
    }

    /// Signs a token with a private key of this installation; one is made when
    /// there is none that may grant these scopes. `None`: an operator's.
    ///
    /// # Errors
    /// `Invalid` when the request makes no sense, as a fault at its field.
    pub async fn mint_token(
        &self,
        tenant: Option<&Arc<Tenant>>,
        request: &MintRequest,
    ) -> Result<SecretString, ServiceError> {
        let grantable = if tenant.is_some() { Scopes::TENANT } else { Scopes::OPERATOR };
        if !grantable.contains(request.scopes) {
            let names = grantable.names().join(", ");
            return Err(ServiceError::invalid("/scope", format!("must be among: {names}")));
        }
        if request.scopes.intersects(Scopes::ME) != request.user.is_some() {
            return Err(ServiceError::invalid(
                "/user",
                "is given together with the scope 'me', or not at all",
            ));
        }
        let (kid, private_key) = match self.own_signing_key(tenant, request.scopes)? {
            Some(found) => found,
            None => self.generate_key(tenant, grantable).await?,
        };
        let now = real_unix_seconds();
        let mut claims = json!({
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + i64::from(request.ttl_seconds),
            "scope": request.scopes.names().join(" "),
        });
        if let Some(tenant) = tenant {
            claims["tenant"] = tenant.id.as_str().into();
        }
        if let Some(user) = &request.user {
            claims["sub"] = user.as_str().into();
        }
        let header = Header { kid: Some(kid), ..Header::new(Algorithm::EdDSA) };
        let token = jsonwebtoken::encode(&header, &claims, &EncodingKey::from_ed_der(&private_key));
        token.map(SecretString::from).map_err(|error| ServiceError::Corrupt(format!("private key: {error}")))
    }

    /// A generated key that may grant `scopes` and whose private half is here.
    fn own_signing_key(
        &self,
        tenant: Option<&Arc<Tenant>>,
        scopes: Scopes,
    ) -> Result<Option<Signer>, ServiceError> {
        for key in self.keys_of(tenant.map(|tenant| tenant.number)) {
            let signs = matches!(&key.proof, Proof::Signature { algorithm: Algorithm::EdDSA, .. });
            if !(key.generated && signs && key.scopes.contains(scopes)) {
                continue;
            }
            if let Some(private_key) = self.files.private_key(&key.kid)? {
                return Ok(Some((key.kid.clone(), private_key)));
            }
        }
        Ok(None)
    }

    async fn generate_key(
        &self,
        tenant: Option<&Arc<Tenant>>,
        scopes: Scopes,
    ) -> Result<Signer, ServiceError> {
        let failed = |_| ServiceError::Corrupt("no key pair could be made".into());
        let pair = Ed25519KeyPair::generate().map_err(failed)?;
        let private_key = Zeroizing::new(pair.to_pkcs8().map_err(failed)?.as_ref().to_vec());
        let public_key: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(failed)?;
        let public_key = pem("PUBLIC KEY", public_key.as_ref());
        let kid = new_kid()?;
        // The file first: a key on record without its private half would be
        // picked by nobody, but stay for ever.
        self.files.save_private_key(&kid, &private_key)?;
        let proof = StoredProof::PublicKey(Algorithm::EdDSA, public_key);
        let record = KeyRecord { scopes, name: None, generated: true, proof };
        let now = tenant.map_or_else(|| self.wall.now(), |tenant| tenant.now());
        let written = Written { at: now, by: "cli".into(), reason: None };
        if let Err(error) = self.put_key(tenant, kid.clone(), &record, written).await {
            self.files.forget_private_key(&kid);
            return Err(error);
        }
        Ok((kid, private_key))
    }

    async fn put_key(
        &self,
        tenant: Option<&Arc<Tenant>>,
        kid: String,
        record: &KeyRecord,
        written: Written,
    ) -> Result<Arc<Key>, ServiceError> {
        let number = tenant.map(|tenant| tenant.number);
        let _turn = match tenant {
            Some(tenant) => Some(tenant.changing.lock().await),
            None => None,
        };
        if self.keys_of(number).len() >= KEYS_MAX {
            let full = format!("there are {KEYS_MAX} keys already: remove some that are not in use");
            return Err(ServiceError::invalid("", full));
        }
        let record = new_record(kid.clone(), record, written);
        self.writer.put_record(number, record).await?;
        self.read_keys(tenant).await.inspect_err(|_| self.writer.distrust())?;
        self.key(&kid).ok_or_else(|| ServiceError::Corrupt(format!("key '{kid}' cannot be read back")))
    }
}

/// A kid and its private key (PKCS#8).
type Signer = (String, Zeroizing<Vec<u8>>);

fn new_record(kid: String, record: &KeyRecord, written: Written) -> Record {
    Record {
        kind: RecordKind::Key,
        id: kid,
        version: 1,
        body: Some(record.to_json().to_string()),
        effective_at: written.at,
        written,
        revision: 0,
    }
}

pub(in crate::service) fn new_kid() -> Result<String, ServiceError> {
    let bytes = random::<KID_LENGTH>().map_err(no_randomness)?;
    Ok(bytes.iter().map(|byte| char::from(KID_ALPHABET[usize::from(byte % 32)])).collect())
}

/// 256 random bits as 43 characters.
fn new_secret() -> Result<String, ServiceError> {
    let bytes = random::<32>().map_err(no_randomness)?;
    Ok(URL_SAFE_NO_PAD.encode(*bytes))
}

fn no_randomness(error: std::io::Error) -> ServiceError {
    ServiceError::StoreUnavailable(Box::new(error))
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
