//! The first start: a tenant to try things out with, and a call to paste.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use secrecy::ExposeSecret;

use crate::domain::ids::TenantId;
use crate::service::access::keys::MintRequest;
use crate::service::{Registry, Scopes, ServiceError};

const DEMO: &str = "demo";
const TOKEN_SECONDS: u32 = 24 * 3_600;

/// Makes the tenant `demo` on an installation that has none, and returns the
/// text to show. `None`: there are tenants already, or others could reach the
/// server and use the demo's key.
pub async fn first_start(
    registry: &Arc<Registry>,
    address: SocketAddr,
    data: &Path,
    allow_generated_keys: bool,
) -> anyhow::Result<Option<String>> {
    if !registry.tenants().is_empty() {
        return Ok(None);
    }
    if !address.ip().is_loopback() && !allow_generated_keys {
        tracing::warn!(
            "no tenant is on record, and no demo is made where others could reach it; \
             create one: apportion tenant create ID"
        );
        return Ok(None);
    }
    let tenant = match registry.create_tenant(&TenantId::parse(DEMO)?, false, None, "first start").await {
        // Another node started at the same moment.
        Err(ServiceError::AlreadyExists(_)) => return Ok(None),
        made => made?,
    };
    let request =
        MintRequest { scopes: Scopes::CHECK | Scopes::QUOTA, user: None, ttl_seconds: TOKEN_SECONDS };
    let token = registry.mint_token(Some(&tenant), &request).await?;
    Ok(Some(text(address, data, token.expose_secret())))
}

fn text(address: SocketAddr, data: &Path, token: &str) -> String {
    // What listens on every address is reached by the loopback one.
    let host = match address.ip().is_unspecified() {
        true => format!("127.0.0.1:{}", address.port()),
        false => address.to_string(),
    };
    let data = data.display();
    format!(
        r#"
First start: here is a tenant `{DEMO}` with the shipped plans. May this user call a model now?

curl -s http://{host}/v1/check -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' -d '{{"user":"u_42","input_tokens":1200,"max_output_tokens":512,"lease_seconds":60}}'

Ask twice: the plan `free` has one call at a time, so the second has to wait for the first to end.
The token is good for a day. More of them: apportion token mint --tenant {DEMO} --scope "check quota" --data {data}
"#
    )
}
