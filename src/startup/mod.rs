//! The composition root: the one place that picks back ends and knows all of
//! them by name.
//!
//! ```text
//! settings -> data directory (lock) -> port -> ledger -> registry -> engine
//!          -> service -> journal, sweeper, poller -> HTTP
//! ```
//! Stopping goes the same way back: readiness drops, requests in flight end,
//! the journal writes its last batch, the ledger closes, the lock goes.

mod data_dir;
mod stores;
mod welcome;

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Server;
use anyhow::Context;
use tokio::task::JoinHandle;

use crate::config::{Config, Stores};
use crate::domain::time::set_tzdata_dir;
use crate::engine::{Engine, MemoryEngine};
use crate::http::{self, HttpSettings, METRICS_PREFIX, State};
use crate::ledger::{Durability, Ledger};
use crate::service::tenancy::clock::WallClock;
use crate::service::{Journal, Outage, Registry, RegistryOptions, Service, Tallier};
use crate::traces::{self, Tracer};

pub use stores::inspect as inspect_engine;

pub use data_dir::{DataDir, DataDirError, DataLock};

/// Connections that the kernel keeps until a worker accepts them.
const BACKLOG: u32 = 1024;
/// A peer that takes none of what was sent for so long is given up: its kernel
/// would go on promising to read for ever.
#[cfg(target_os = "linux")]
const UNHEARD_MS: u32 = 60_000;
/// Idle accounts that a replay keeps in memory.
const SCRATCH_ACCOUNTS: usize = 100_000;

/// A server that is ready to run.
pub struct Application {
    address: SocketAddr,
    server: Server,
    running: Running,
    background: Vec<JoinHandle<()>>,
    traces: Option<traces::Sender>,
    drain: Duration,
    welcome: Option<String>,
    _lock: DataLock,
}

impl Application {
    /// Starts everything but the HTTP server, which begins with
    /// [`run_until`](Self::run_until); the port is bound, so early connections
    /// wait.
    pub async fn build(config: Config) -> anyhow::Result<Self> {
        use_zone_rules(&config)?;
        let dir = DataDir::create(&config.data)?;
        let lock = dir.lock(&format!("process {}, listening on {}", std::process::id(), config.listen))?;
        let listener = bind(config.listen)?;
        let address = listener.local_addr()?;
        let data = open_in(&dir, &config).await?;
        let may = config.allow_generated_keys;
        let welcome = welcome::first_start(&data.registry, address, &config.data, may).await?;
        data.registry.watchers.bound(config.http.max_streams);
        let deciding = stores::engine(&config, &data.registry).await?;
        let outage = dir.outage();
        let outage = Outage::open(&outage).with_context(|| format!("cannot read {}", outage.display()))?;
        let running = Running::start(data, deciding.engine, outage);
        running.service.rooms.bound(config.http.max_waiting);
        // What a crash left half done is done before anybody asks.
        running.service.go_on_erasing().await;
        running.service.book_outage().await;
        let mut background = vec![
            running.service.start_booking(),
            running.service.start_sweeper(),
            running.service.start_looking(),
            running.service.start_purging(),
            running.service.start_sending(),
            running.registry.start_polling(),
        ];
        background.extend(config.keep_holds.map(|keep| running.service.start_pruning(keep)));
        if let Some(channel) = deciding.channel {
            background.extend(running.service.start_news(channel));
        }
        let (tracer, traces) = config.traces.clone().map(Tracer::start).unzip();
        let state = State::new(
            running.service.clone(),
            http_settings(&config),
            prometheus_client::registry::Registry::with_prefix(METRICS_PREFIX),
            tracer,
        );
        let server = http::serve(listener, state).context("cannot start the HTTP server")?;
        tracing::info!(
            server.address = %address,
            server.data = %config.data.display(),
            server.workers = config.workers,
            stores = ?config.stores,
            tz.version = crate::domain::time::tz_version(),
            "apportion {} listens",
            env!("CARGO_PKG_VERSION")
        );
        Ok(Self { address, server, running, background, traces, drain: config.drain, welcome, _lock: lock })
    }

    /// The port that is bound (also where the settings said 0).
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// What a first start has to say: a call to paste.
    pub fn welcome(&self) -> Option<&str> {
        self.welcome.as_deref()
    }

    /// Serves until `shutdown` resolves, then stops in good order.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
        let handle = self.server.handle();
        let mut server = self.server;
        let ended = tokio::select! {
            ended = &mut server => Some(ended),
            () = shutdown => None,
        };
        if ended.is_none() {
            tracing::info!("stopping: no longer ready, requests in flight may finish");
            self.running.service.stop_being_ready();
            // The server goes on answering while load balancers notice.
            tokio::select! {
                _ = &mut server => {}
                () = tokio::time::sleep(self.drain) => {}
            }
            // They would go on for as long as their readers like.
            self.running.service.end_watches();
            tokio::join!(handle.stop(true), async { _ = server.await });
        }
        self.background.iter().for_each(JoinHandle::abort);
        self.running.close().await;
        if let Some(traces) = self.traces {
            traces.stop().await;
        }
        tracing::info!("stopped");
        ended.unwrap_or(Ok(())).context("the HTTP server ended by itself")
    }
}

/// Runs a server of its own for as long as the process lives, and tells the
/// port once it is bound. For tests that have the service in their process.
pub fn run_blocking(config: Config, on_port: impl FnOnce(u16)) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let application = Application::build(config).await?;
        on_port(application.port());
        application.run_until(std::future::pending()).await
    })
}

/// The runtime of a server. Requests are served by threads of their own; this
/// one has the journal, the sweeper and the poller, which mostly wait.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.context("cannot start the runtime")
}

/// Resolves at SIGTERM or SIGINT. A second one ends the process at once:
/// nothing that was answered is lost by that.
pub async fn shutdown_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::warn!("signals cannot be caught: only kill -9 will stop this server");
        return std::future::pending().await;
    };
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    next().await;
    tokio::spawn(async move {
        next().await;
        tracing::warn!("told to stop twice: ending at once");
        std::process::exit(130);
    });
}

/// What is on record in a data directory, for the server and for commands
/// that work beside it.
pub struct Data {
    pub ledger: Arc<dyn Ledger>,
    pub registry: Arc<Registry>,
}

/// Opens the data directory of `config`, which is made where it is missing.
pub async fn open(config: &Config) -> anyhow::Result<Data> {
    use_zone_rules(config)?;
    open_in(&DataDir::create(&config.data)?, config).await
}

/// As [`open`], but never makes a new one: a mistyped --data is told.
pub async fn open_existing(config: &Config) -> anyhow::Result<Data> {
    let dir = DataDir::at(&config.data);
    if matches!(config.stores, Stores::Embedded(_)) && !dir.database().is_file() {
        anyhow::bail!(
            "there is no Apportion data in {}; name the server's directory with --data",
            config.data.display()
        );
    }
    open(config).await
}

/// Opens the ledger alone, bringing its schema up to date.
pub async fn open_ledger(config: &Config) -> anyhow::Result<Arc<dyn Ledger>> {
    stores::ledger(&DataDir::create(&config.data)?, &config.stores).await
}

async fn open_in(dir: &DataDir, config: &Config) -> anyhow::Result<Data> {
    let ledger = stores::ledger(dir, &config.stores).await?;
    let is_local = config.listen.ip().is_loopback();
    let options = RegistryOptions {
        keys_dir: dir.keys(),
        server_key: config.server_key.clone(),
        accept_generated_keys: is_local || config.allow_generated_keys,
        allow_private_targets: is_local,
    };
    let registry = Registry::open(ledger.clone(), Arc::new(WallClock::new()), options).await?;
    Ok(Data { ledger, registry })
}

fn use_zone_rules(config: &Config) -> anyhow::Result<()> {
    match &config.tzdir {
        Some(dir) => set_tzdata_dir(dir).map_err(anyhow::Error::msg).context("the setting `tzdir`"),
        None => Ok(()),
    }
}

/// A service with its journal.
pub struct Running {
    pub service: Arc<Service>,
    pub registry: Arc<Registry>,
    pub ledger: Arc<dyn Ledger>,
    journal: Journal,
    tallier: Tallier,
}

impl Running {
    fn start(data: Data, engine: Arc<dyn Engine>, outage: Outage) -> Self {
        let service = Service::new(data.registry.clone(), engine, data.ledger.clone(), outage);
        let journal = service.start_journal();
        let tallier = service.start_tallies();
        Self { service, registry: data.registry, ledger: data.ledger, journal, tallier }
    }

    /// A service on a directory that will be thrown away.
    pub async fn open_scratch(path: &Path) -> anyhow::Result<Self> {
        let dir = DataDir::create(path)?;
        let ledger = stores::ledger(&dir, &Stores::Embedded(Durability::Os)).await?;
        let options = RegistryOptions {
            keys_dir: dir.keys(),
            server_key: None,
            accept_generated_keys: false,
            allow_private_targets: false,
        };
        let registry = Registry::open(ledger.clone(), Arc::new(WallClock::new()), options).await?;
        let data = Data { ledger, registry };
        Ok(Self::start(data, Arc::new(MemoryEngine::new(SCRATCH_ACCOUNTS)), Outage::closed()))
    }

    /// Records everything that is decided; nothing may be asked of the service
    /// afterwards but what the ledger knows.
    pub async fn record_all(self) -> Data {
        self.journal.stop().await;
        self.tallier.stop().await;
        Data { ledger: self.ledger, registry: self.registry }
    }

    /// Records everything that is decided, and closes the ledger.
    pub async fn close(self) {
        self.record_all().await.ledger.close().await;
    }
}

/// Binds the port, with a sentence about what is in the way.
fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = || {
        let socket = match address {
            SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4(),
            SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6(),
        }?;
        // A server that was just stopped must not keep its successor waiting.
        socket.set_reuseaddr(true)?;
        // Connections take this over.
        #[cfg(target_os = "linux")]
        rustix::net::sockopt::set_tcp_user_timeout(&socket, UNHEARD_MS)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)?.into_std()
    };
    bound().with_context(|| {
        format!("cannot listen on {address}; choose another address with --listen ADDR:PORT")
    })
}

fn http_settings(config: &Config) -> HttpSettings {
    HttpSettings {
        header_timeout: config.http.header_timeout,
        body_timeout: config.http.body_timeout,
        keep_alive: config.http.keep_alive,
        shutdown_timeout: config.shutdown,
        max_connections: config.http.max_connections.div_ceil(config.workers),
        workers: config.workers,
    }
}
