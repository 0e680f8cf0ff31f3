#![doc = include_str!("README.md")]

mod admin;
mod auth;
mod batch;
mod body;
mod call;
mod check;
mod console;
mod cors;
pub mod export;
mod feedback;
mod health;
mod holds;
mod metrics;
mod middleware;
mod openapi;
mod own_use;
mod page;
mod problem;
mod query;
mod quota;
mod rate_limit;
mod reply;
mod routes;
mod schema;
mod span;
mod traced;
mod usage;
mod views;
mod waiting;
mod widget;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{App, HttpServer};
use prometheus_client::registry::Registry;

use crate::service::Service;
use crate::traces::Tracer;

pub use metrics::{Metrics, PREFIX as METRICS_PREFIX};
pub use openapi::json as openapi_json;

/// Bounds on what a client may take up.
#[derive(Debug, Clone, Copy)]
pub struct HttpSettings {
    /// Until the head of a request is complete.
    pub header_timeout: Duration,
    /// Until its body is.
    pub body_timeout: Duration,
    /// Idle connections are kept this long.
    pub keep_alive: Duration,
    /// On shutdown, calls in flight have this long to end.
    pub shutdown_timeout: Duration,
    /// Of one worker at a time.
    pub max_connections: usize,
    pub workers: usize,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(75),
            shutdown_timeout: Duration::from_secs(30),
            max_connections: 25_000,
            workers: std::thread::available_parallelism().map_or(2, |count| count.get()),
        }
    }
}

/// What every handler can reach.
pub struct State {
    pub service: Arc<Service>,
    pub metrics: Arc<Metrics>,
    pub settings: HttpSettings,
    /// `None`: no traces are sent.
    pub tracer: Option<Tracer>,
    /// Sessions of the console that are over before their time.
    pub signed_out: console::SignedOut,
}

impl State {
    /// `registry` may hold metrics of other floors; it must have been made
    /// with [`METRICS_PREFIX`].
    pub fn new(
        service: Arc<Service>,
        settings: HttpSettings,
        mut registry: Registry,
        tracer: Option<Tracer>,
    ) -> Self {
        registry.register_collector(Box::new(metrics::OfService(service.clone())));
        let spans = tracer.as_ref().map_or_else(Arc::default, Tracer::counts);
        registry.register_collector(Box::new(metrics::OfTraces(spans)));
        let (metrics, signed_out) = (Arc::new(Metrics::new(registry)), Default::default());
        Self { service, metrics, settings, tracer, signed_out }
    }
}

/// Answers everything that no other service of the app answers.
pub fn configure(config: &mut ServiceConfig, state: Data<State>) {
    config.app_data(state).default_service(web::to(middleware::front_door));
}

/// Serves on `listener` until the server is told to stop.
///
/// # Errors
/// The listener cannot be used.
pub fn serve(listener: TcpListener, state: State) -> std::io::Result<Server> {
    let settings = state.settings;
    let state = Data::new(state);
    let app = move || App::new().configure(|config| configure(config, state.clone()));
    let server = HttpServer::new(app)
        .on_connect(waiting::connected)
        .workers(settings.workers)
        .client_request_timeout(settings.header_timeout)
        .keep_alive(settings.keep_alive)
        .shutdown_timeout(settings.shutdown_timeout.as_secs())
        .max_connections(settings.max_connections)
        .tcp_nodelay(true)
        .disable_signals()
        .listen(listener)?
        .run();
    Ok(server)
}
