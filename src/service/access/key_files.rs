//! What is secret lies in files beside the database, not in it: the server's
//! own secret and the private keys that this program made.
//!
//! A copy of the database alone cannot be used to call the API.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

use crate::domain::charge::TenantRef;
use crate::domain::ids::UserId;
use crate::service::error::ServiceError;

/// `<data>/keys`: `server.key` and one `<kid>.pem` per private key, readable
/// by the owner alone.
pub(in crate::service) struct KeyFiles {
    dir: PathBuf,
    /// Hashes API keys.
    hashing: Zeroizing<[u8; 32]>,
    /// Encrypts shared secrets.
    sealing: Zeroizing<[u8; 32]>,
    /// Makes the pseudonyms of erased users.
    naming: Zeroizing<[u8; 32]>,
    /// Makes the secrets of webhooks.
    signing: Zeroizing<[u8; 32]>,
    /// Encrypts sessions of the console.
    visiting: Zeroizing<[u8; 32]>,
    /// The server's secret was made just now: nothing older rests on it.
    is_new: bool,
}

const SERVER_KEY: &str = "server.key";
/// How pseudonyms begin.
const ERASED: &str = "erased_";

impl KeyFiles {
    /// Reads the server's secret, or makes one when there is none.
    pub fn open(dir: &Path, given: Option<&SecretString>) -> Result<Self, ServiceError> {
        let unusable = |error| ServiceError::Corrupt(format!("{}: {error}", dir.display()));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unusable)?;
        let is_new = given.is_none() && !dir.join(SERVER_KEY).exists();
        let server = match given {
            Some(given) => decode_server_key(given.expose_secret()).ok_or_else(|| unusable(no_key()))?,
            None => server_key(dir).map_err(unusable)?,
        };
        let derive = |purpose| Zeroizing::new(blake3::derive_key(purpose, &*server));
        Ok(Self {
            dir: dir.to_owned(),
            hashing: derive("apportion 2026-11 hash of API keys"),
            sealing: derive("apportion 2026-11 encryption of shared secrets"),
            naming: derive("apportion 2026-11 pseudonyms of erased users"),
            signing: derive("apportion 2026-11 secrets of webhooks"),
            visiting: derive("apportion 2026-11 sessions of the console"),
            is_new,
        })
    }

    /// Tells secrets of servers apart, and nothing about them.
    pub fn fingerprint(&self) -> String {
        let hash = blake3::keyed_hash(&self.hashing, b"fingerprint of the server's secret");
        hash.to_hex()[..16].to_owned()
    }

    /// Whether there was no secret of the server before this start.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The keyed hash under which an API key is stored.
    pub fn hash(&self, api_key: &str) -> [u8; 32] {
        *blake3::keyed_hash(&self.hashing, api_key.as_bytes()).as_bytes()
    }

    /// Whether this is the API key of that hash; takes as long either way.
    pub fn secret_matches(&self, api_key: &str, hash: &[u8; 32]) -> bool {
        self.hash(api_key).ct_eq(hash).into()
    }

    /// The name under which an erased user goes on: without the server's secret
    /// nobody can tell whose it is.
    pub fn pseudonym(&self, tenant: TenantRef, user: &UserId) -> Result<UserId, ServiceError> {
        let mut hasher = blake3::Hasher::new_keyed(&self.naming);
        hasher.update(&tenant.0.to_le_bytes());
        hasher.update(&(user.as_str().len() as u64).to_le_bytes());
        hasher.update(user.as_str().as_bytes());
        let hash = hasher.finalize().to_hex();
        let name = UserId::parse(&format!("{ERASED}{}", &hash[..32]));
        name.map_err(|error| ServiceError::Corrupt(format!("a pseudonym {error}")))
    }

    /// What stands for a user where they are counted and not known: without the
    /// server's secret nobody can tell whose it is.
    pub fn digest(&self, tenant: TenantRef, user: &UserId) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.naming);
        hasher.update(b"active\0");
        hasher.update(&tenant.0.to_le_bytes());
        hasher.update(user.as_str().as_bytes());
        let hash = hasher.finalize();
        u64::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[i]))
    }

    /// The secret of a webhook, of which there is one a generation.
    pub fn webhook_secret(&self, tenant: TenantRef, webhook: &str, generation: u32) -> Zeroizing<[u8; 32]> {
        let mut hasher = blake3::Hasher::new_keyed(&self.signing);
        hasher.update(&tenant.0.to_le_bytes());
        hasher.update(&generation.to_le_bytes());
        hasher.update(webhook.as_bytes());
        Zeroizing::new(*hasher.finalize().as_bytes())
    }

    /// Encrypts a shared secret for the key `kid`.
    pub fn seal(&self, kid: &str, secret: &str) -> Result<String, ServiceError> {
        Ok(STANDARD.encode(seal(&self.sealing, kid, secret)?))
    }

    /// The secret that was sealed for the key `kid`.
    pub fn unseal(&self, kid: &str, sealed: &str) -> Result<Zeroizing<String>, ServiceError> {
        let secret = STANDARD.decode(sealed).ok().and_then(|sealed| unseal(&self.sealing, kid, sealed));
        secret.ok_or_else(|| {
            ServiceError::Corrupt(format!(
                "the secret of key '{kid}' was encrypted under another {SERVER_KEY}"
            ))
        })
    }

    /// Encrypts what a browser keeps for the console, so that every node can read it.
    pub fn seal_session(&self, text: &str) -> Result<String, ServiceError> {
        Ok(URL_SAFE_NO_PAD.encode(seal(&self.visiting, "", text)?))
    }

    /// What was sealed as a session; `None` if this server did not seal it.
    pub fn unseal_session(&self, sealed: &str) -> Option<Zeroizing<String>> {
        unseal(&self.visiting, "", URL_SAFE_NO_PAD.decode(sealed).ok()?)
    }

    /// Keeps a private key (PKCS#8) in a file of its own.
    pub fn save_private_key(&self, kid: &str, pkcs8: &[u8]) -> Result<(), ServiceError> {
        let text = Zeroizing::new(pem("PRIVATE KEY", pkcs8));
        let path = self.private_path(kid);
        let written = write_new(&path, text.as_bytes()).and_then(|()| File::open(&self.dir)?.sync_all());
        written.map_err(|error| ServiceError::Corrupt(format!("{}: {error}", path.display())))
    }

    /// The private key (PKCS#8) of `kid`, if it was made here.
    pub fn private_key(&self, kid: &str) -> Result<Option<Zeroizing<Vec<u8>>>, ServiceError> {
        let path = self.private_path(kid);
        let text = match fs::read_to_string(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ServiceError::Corrupt(format!("{}: {error}", path.display()))),
        };
        let body: String = text.lines().filter(|line| !line.starts_with('-')).map(str::trim).collect();
        let key = STANDARD.decode(Zeroizing::new(body).as_bytes());
        let key = key.map_err(|_| ServiceError::Corrupt(format!("{}: no PEM", path.display())))?;
        Ok(Some(Zeroizing::new(key)))
    }

    /// Removes the private key of a key that was deleted.
    pub fn forget_private_key(&self, kid: &str) {
        match fs::remove_file(self.private_path(kid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(key.id = kid, %error, "the private key of a deleted key is still there");
            }
            _ => {}
        }
    }

    /// Key ids are ours: letters and digits only, so never a path of another place.
    fn private_path(&self, kid: &str) -> PathBuf {
        let safe: String = kid.chars().filter(char::is_ascii_alphanumeric).collect();
        self.dir.join(format!("{safe}.pem"))
    }
}

/// Encrypts `text`, which opens only beside the same `purpose`.
fn seal(key: &[u8; 32], purpose: &str, text: &str) -> Result<Vec<u8>, ServiceError> {
    let failed = |_| ServiceError::Corrupt("a secret cannot be encrypted".into());
    let key = RandomizedNonceKey::new(&AES_256_GCM, key).map_err(failed)?;
    let mut sealed = text.as_bytes().to_vec();
    let nonce = key.seal_in_place_append_tag(Aad::from(purpose), &mut sealed).map_err(failed)?;
    sealed.splice(0..0, *nonce.as_ref());
    Ok(sealed)
}

fn unseal(key: &[u8; 32], purpose: &str, mut sealed: Vec<u8>) -> Option<Zeroizing<String>> {
    let mut secret = sealed.split_off(sealed.len().min(NONCE_LEN));
    let nonce = Nonce::try_assume_unique_for_key(&sealed).ok()?;
    let key = RandomizedNonceKey::new(&AES_256_GCM, key).ok()?;
    let length = key.open_in_place(nonce, Aad::from(purpose), &mut secret).ok()?.len();
    secret.truncate(length);
    String::from_utf8(secret).ok().map(Zeroizing::new)
}

/// Bytes as PEM, 64 characters a line.
pub(super) fn pem(label: &str, bytes: &[u8]) -> String {
    let body = STANDARD.encode(bytes);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

fn server_key(dir: &Path) -> io::Result<Zeroizing<[u8; 32]>> {
    let path = dir.join(SERVER_KEY);
    if !path.try_exists()? {
        make_server_key(dir, &path)?;
    }
    if fs::metadata(&path)?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "the server's secret can be read by others: chmod 600");
    }
    let text = Zeroizing::new(fs::read_to_string(&path)?);
    decode_server_key(&text).ok_or_else(no_key)
}

fn no_key() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{SERVER_KEY} holds no key"))
}

/// The secret that a text of a file `server.key` is.
pub(crate) fn decode_server_key(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(text.trim()).ok()?);
    Some(Zeroizing::new(bytes.as_slice().try_into().ok()?))
}

/// Two processes may start at once: the file appears whole, and once.
fn make_server_key(dir: &Path, path: &Path) -> io::Result<()> {
    let secret = Zeroizing::new(URL_SAFE_NO_PAD.encode(*random::<32>()?));
    let draft = dir.join(format!("{SERVER_KEY}.{}", URL_SAFE_NO_PAD.encode(*random::<9>()?)));
    write_new(&draft, format!("{}\n", *secret).as_bytes())?;
    let linked = match fs::hard_link(&draft, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    };
    fs::remove_file(&draft)?;
    linked?;
    File::open(dir)?.sync_all()
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Random bytes of the operating system.
pub(super) fn random<const N: usize>() -> io::Result<Zeroizing<[u8; N]>> {
    let mut bytes = Zeroizing::new([0; N]);
    getrandom::fill(&mut *bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_made_once_and_only_its_owner_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = KeyFiles::open(dir.path(), None).unwrap();
        let again = KeyFiles::open(dir.path(), None).unwrap();
        assert!(first.is_new() && !again.is_new());
        assert!(again.secret_matches("ap_x", &first.hash("ap_x")));
        assert!(!again.secret_matches("ap_y", &first.hash("ap_x")));
        let mode = fs::metadata(dir.path().join(SERVER_KEY)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no drafts stay");
    }

    #[test]
    fn a_sealed_secret_opens_for_its_key_and_server_only() {
        let dir = tempfile::tempdir().unwrap();
        let files = KeyFiles::open(dir.path(), None).unwrap();
        let sealed = files.seal("k1", "a secret of many characters").unwrap();
        assert_eq!(&*files.unseal("k1", &sealed).unwrap(), "a secret of many characters");
        assert!(files.unseal("k2", &sealed).is_err());
        assert!(files.unseal("k1", "").is_err());
        let other = tempfile::tempdir().unwrap();
        assert!(KeyFiles::open(other.path(), None).unwrap().unseal("k1", &sealed).is_err());
    }

    #[test]
    fn a_session_opens_on_every_node_of_the_same_secret_and_as_nothing_else() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = KeyFiles::open(dir.path(), None).unwrap();
        let sealed = files.seal_session("who and since when").unwrap();
        let again = KeyFiles::open(dir.path(), None).unwrap();
        assert_eq!(&*again.unseal_session(&sealed).unwrap(), "who and since when");
        assert!(KeyFiles::open(other.path(), None).unwrap().unseal_session(&sealed).is_none());
        let last = if sealed.ends_with('A') { 'B' } else { 'A' };
        for broken in ["", "x", &sealed[1..], &format!("{}{last}", &sealed[..sealed.len() - 1])] {
            assert!(files.unseal_session(broken).is_none(), "{broken}");
        }
        let as_secret = URL_SAFE_NO_PAD.encode(STANDARD.decode(files.seal("", "x").unwrap()).unwrap());
        assert!(files.unseal_session(&as_secret).is_none(), "each has a key of its own");
    }

    #[test]
    fn a_pseudonym_is_the_same_again_and_of_one_user_tenant_and_server_alone() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = KeyFiles::open(dir.path(), None).unwrap();
        let name = |files: &KeyFiles, tenant, user| {
            files.pseudonym(TenantRef(tenant), &UserId::parse(user).unwrap()).unwrap()
        };
        let first = name(&files, 1, "u");
        assert!(first.as_str().len() == 39 && first.as_str().starts_with("erased_"), "{first:?}");
        assert_eq!(name(&KeyFiles::open(dir.path(), None).unwrap(), 1, "u"), first);
        for another in [
            name(&files, 2, "u"),
            name(&files, 1, "U"),
            name(&files, 1, "u_"),
            name(&KeyFiles::open(other.path(), None).unwrap(), 1, "u"),
        ] {
            assert_ne!(another, first);
        }
    }

    #[test]
    fn private_keys_read_back_and_stay_in_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        let files = KeyFiles::open(dir.path(), None).unwrap();
        files.save_private_key("k1", &[7; 83]).unwrap();
        assert_eq!(files.private_key("k1").unwrap().unwrap().as_slice(), [7; 83]);
        assert!(files.save_private_key("k1", &[8; 83]).is_err(), "never overwritten");
        assert!(files.private_key("../k1").unwrap().is_some(), "only letters and digits count");
        assert!(files.private_key("k2").unwrap().is_none());
        files.forget_private_key("k1");
        assert!(files.private_key("k1").unwrap().is_none());
    }
}
