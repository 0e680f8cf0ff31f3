//! Signatures by Standard Webhooks 1.0: HMAC-SHA256 over id, time and body.
//!
//! Secrets are on no record: each is made from the server's secret and the
//! webhook's id, so a copy of the database signs nothing.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::SecretString;
use secrecy::zeroize::Zeroizing;

use super::Webhook;
use crate::domain::charge::TenantRef;
use crate::domain::time::Millis;
use crate::ledger::Message;
use crate::service::access::key_files::KeyFiles;

/// How a secret begins.
const PREFIX: &str = "whsec_";

impl Webhook {
    /// The secret that signs, as the receiver is told it.
    pub(super) fn secret(&self, tenant: TenantRef, files: &KeyFiles) -> SecretString {
        let secret = files.webhook_secret(tenant, &self.id, self.generation);
        format!("{PREFIX}{}", STANDARD.encode(*secret)).into()
    }

    /// The headers of a message that is sent at `at`.
    pub(super) fn headers(
        &self,
        message: &Message,
        at: Millis,
        files: &KeyFiles,
    ) -> [(&'static str, String); 3] {
        let timestamp = at.0.div_euclid(1000).to_string();
        let signed = format!("{}.{timestamp}.{}", message.id, message.body);
        let before = self.previous_until.filter(|until| at < *until).map(|_| self.generation - 1);
        let generations = [Some(self.generation), before].into_iter().flatten();
        let signatures: Vec<String> = generations
            .map(|generation| signature(&files.webhook_secret(message.tenant, &self.id, generation), &signed))
            .collect();
        [
            ("webhook-id", message.id.to_string()),
            ("webhook-timestamp", timestamp),
            ("webhook-signature", signatures.join(" ")),
        ]
    }
}

fn signature(secret: &Zeroizing<[u8; 32]>, signed: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &**secret);
    format!("v1,{}", STANDARD.encode(hmac::sign(&key, signed.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_an_independent_implementation() {
        // Made by Python's hmac and hashlib.
        let secret = Zeroizing::new(std::array::from_fn(|n| n as u8));
        let signed = "msg_0123.1798761600.{\"type\":\"webhook.test\"}";
        assert_eq!(signature(&secret, signed), "v1,QVGffNX/DemDbVQ7VL1WyghNkYdhdZI5QfMkoKSBKU4=");
    }
}
