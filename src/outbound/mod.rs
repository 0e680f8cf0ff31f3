//! Calls that this program makes by itself, to addresses that a tenant names
//! (floor 1).
//!
//! **Knows** addresses, connections and HTTP. **Never knows** tenants, or what it
//! carries. Whoever may name a target could make the server knock at doors of its
//! own network, so a name is resolved here, what it leads to is looked at, and
//! nothing but that is connected to: what a name leads to a moment later does not
//! matter. Redirects are not followed, proxies of the environment not used, and of
//! an answer no more than its head is read.

mod address;
mod target;

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::redirect::Policy;

pub use target::Target;

use address::is_public;
use target::Host;

/// The whole call, to the head of the answer.
pub const TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection to a receiver is kept for the next message so long.
const IDLE: Duration = Duration::from_secs(30);
const USER_AGENT: &str = concat!("apportion/", env!("CARGO_PKG_VERSION"));

/// Sends what tenants want to be told.
#[derive(Default)]
pub struct Courier {
    /// Goes to public addresses alone.
    public: Lazy,
    /// Goes everywhere.
    anywhere: Lazy,
}

/// Made when it is first needed: the certificates of the system are read.
#[derive(Default)]
struct Lazy(Mutex<Option<reqwest::Client>>);

/// Where a call may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Not to private, loopback, link-local or other addresses of a network's own.
    Public,
    Anywhere,
}

/// A receiver's answer, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answered {
    pub status: u16,
    /// The wait that it asks for.
    pub retry_after_s: Option<u64>,
}

/// Why there was no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    #[error("the address is not public, and the setting allow_private_targets is off")]
    NotPublic,
    #[error("the name leads nowhere")]
    Unresolved,
    #[error("no connection")]
    NoConnection,
    #[error("no answer in time")]
    TimedOut,
    #[error("the connection broke, or the answer was no HTTP")]
    Broken,
}

impl Courier {
    /// Posts a JSON body and waits for the head of the answer.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn post(
        &self,
        target: &Target,
        reach: Reach,
        headers: [(&'static str, String); 3],
        body: Arc<str>,
    ) -> Result<Answered, Unsent> {
        // Names are looked at when they are resolved.
        if let Some(Host::Address(address)) = target.host()
            && reach == Reach::Public
            && !is_public(address)
        {
            return Err(Unsent::NotPublic);
        }
        let mut request = self.client(reach)?.post(target.url().clone()).body(body.as_bytes().to_vec());
        request = request.header(CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let answer = request.send().await.map_err(|error| unsent(&error))?;
        let retry_after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after_s = retry_after.and_then(|text| text.trim().parse().ok());
        Ok(Answered { status: answer.status().as_u16(), retry_after_s })
    }

    /// Whether a target leads to public addresses alone, as far as can be told
    /// now: a name that leads nowhere may do so yet.
    pub async fn is_public(&self, target: &Target) -> bool {
        match target.host() {
            Some(Host::Address(address)) => is_public(address),
            Some(Host::Name(name)) => {
                let found = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::lookup_host((name, 0))).await;
                let Ok(Ok(mut found)) = found else { return true };
                found.all(|address| is_public(address.ip()))
            }
            None => false,
        }
    }

    fn client(&self, reach: Reach) -> Result<reqwest::Client, Unsent> {
        let Lazy(kept) = if reach == Reach::Public { &self.public } else { &self.anywhere };
        let mut kept = kept.lock();
        if let Some(client) = &*kept {
            return Ok(client.clone());
        }
        let client = reqwest::Client::builder()
            .dns_resolver(Arc::new(Looked { reach }))
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(IDLE)
            .user_agent(USER_AGENT)
            .build()
            .map_err(|error| {
                tracing::error!(error = &error as &dyn Error, "webhooks cannot be sent");
                Unsent::NoConnection
            })?;
        Ok(kept.insert(client).clone())
    }
}

/// Resolves names to addresses that may be connected to.
struct Looked {
    reach: Reach,
}

impl Resolve for Looked {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.reach;
        Box::pin(async move {
            let found: Vec<SocketAddr> = match tokio::net::lookup_host((name.as_str(), 0)).await {
                Ok(found) => found.collect(),
                Err(_) => return Err(Unsent::Unresolved.into()),
            };
            let allowed = |address: &SocketAddr| reach == Reach::Anywhere || is_public(address.ip());
            let all = found.len();
            let found: Vec<SocketAddr> = found.into_iter().filter(allowed).collect();
            match (all, found.len()) {
                (0, _) => Err(Unsent::Unresolved.into()),
                (_, 0) => Err(Unsent::NotPublic.into()),
                _ => Ok(Box::new(found.into_iter()) as Addrs),
            }
        })
    }
}

/// What an error comes to; its text may have the URL, and stays here.
fn unsent(error: &reqwest::Error) -> Unsent {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(known) = error.downcast_ref::<Unsent>() {
            return *known;
        }
        cause = error.source();
    }
    match () {
        () if error.is_timeout() => Unsent::TimedOut,
        () if error.is_connect() => Unsent::NoConnection,
        () => Unsent::Broken,
    }
}

#[cfg(test)]
mod tests;
