//! Tenants and tokens made as the command line makes them beside a running
//! server, without a process for each: the suite needs thousands.

use std::future::Future;
use std::sync::{Arc, mpsc};

use apportion::config::Config;
use apportion::domain::ids::{TenantId, UserId};
use apportion::domain::time::Zone;
use apportion::service::access::keys::MintRequest;
use apportion::service::{Registry, Scopes};
use apportion::startup::{self, Data};
use secrecy::ExposeSecret;
use tokio::runtime::Runtime;

/// Somebody with the server's data who is not the server.
pub struct Office {
    runtime: Runtime,
    data: Arc<Data>,
}

impl Office {
    pub fn open(config: Config) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let data = wait_for(&runtime, async move { startup::open_existing(&config).await });
        Self { runtime, data: Arc::new(data.expect("the server has made it")) }
    }

    pub fn create_tenant(&self, id: &str, zone: &str) {
        let (id, zone) = (TenantId::parse(id).expect("an id"), Zone::parse(zone).expect("a zone"));
        let made = self.with_registry(async move |registry| {
            registry.create_tenant(&id, true, Some(zone), "cli").await.map(drop)
        });
        made.expect("a new tenant");
    }

    /// `token mint --tenant TENANT` with more arguments, as on the command line.
    pub fn mint(&self, tenant: &str, arguments: &[&str]) -> String {
        self.sign(Some(TenantId::parse(tenant).expect("an id")), request(arguments))
    }

    /// `token mint --operator`.
    pub fn mint_operator(&self) -> String {
        self.sign(None, MintRequest { scopes: Scopes::OPERATOR, ..request(&[]) })
    }

    fn sign(&self, tenant: Option<TenantId>, request: MintRequest) -> String {
        let token = self.with_registry(async move |registry| {
            // Others may have made a tenant of that id anew, or removed a key.
            registry.refresh().await?;
            let tenant = match &tenant {
                Some(id) => Some(registry.tenant(id).await?),
                None => None,
            };
            registry.mint_token(tenant.as_ref(), &request).await
        });
        token.expect("a token").expose_secret().to_owned()
    }

    /// The caller may be within a runtime of its own.
    fn with_registry<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<Registry>) -> F,
    ) -> T {
        wait_for(&self.runtime, work(Arc::clone(&self.data.registry)))
    }
}

fn wait_for<T: Send + 'static>(runtime: &Runtime, work: impl Future<Output = T> + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    runtime.spawn(async move { tell.send(work.await) });
    told.recv().expect("it comes to an end")
}

/// `--scope`, `--user` and `--ttl` with what follows on each.
fn request(arguments: &[&str]) -> MintRequest {
    let mut request = MintRequest { scopes: Scopes::ME, user: None, ttl_seconds: 3600 };
    for pair in arguments.chunks(2) {
        match pair {
            ["--scope", scopes] => request.scopes = Scopes::parse(scopes).expect("scopes"),
            ["--user", user] => request.user = Some(UserId::parse(user).expect("a user")),
            ["--ttl", ttl] => {
                let (number, unit) = ttl.split_at(ttl.len() - 1);
                let seconds = if unit == "h" { 3600 } else { 1 };
                request.ttl_seconds = number.parse::<u32>().expect("a number") * seconds;
            }
            other => panic!("the office knows no {other:?}"),
        }
    }
    request
}
