//! Who calls: keys, tokens and what they allow.

#[cfg(test)]
pub(super) mod fake_signer;
pub mod identity;
pub(super) mod key_files;
pub(super) mod keyring;
pub mod keys;
pub(super) mod public_key;
pub(super) mod token;
