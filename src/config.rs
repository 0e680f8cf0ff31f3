//! Settings of one installation.
//!
//! Later sources win: `config.default.toml` (compiled in) < a TOML file <
//! `APPORTION_*` variables < flags. Everything is checked before anything is
//! started, and every fault is told at once, with the key and where it stood.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::engine::Answers;
use crate::ledger::Durability;
use crate::traces;

/// The defaults with their explanations, also what a reader copies from.
pub const DEFAULTS: &str = include_str!("config.default.toml");

const PREFIX: &str = "APPORTION_";

/// A hold takes a late settle for 31 days, one that a rule has ended included.
const KEEP_HOLDS_DAYS: std::ops::RangeInclusive<u64> = 35..=36_500;

/// Names with our prefix that are no settings: the file itself, which clap
/// reads, and how backends on the same machine find the service.
const NOT_SETTINGS: [&str; 4] = ["CONFIG", "URL", "TOKEN", "API_KEY"];

/// What decides and what remembers.
#[derive(Debug, Clone)]
pub enum Stores {
    /// This process and a file.
    Embedded(Durability),
    /// Redis and Postgres, shared by any number of nodes.
    Shared { redis_url: SecretString, database_url: SecretString, answers: Answers },
}

/// Checked settings.
#[derive(Debug, Clone)]
pub struct Config {
    pub listen: SocketAddr,
    pub data: PathBuf,
    pub stores: Stores,
    /// `None`: the file in the data directory.
    pub server_key: Option<SecretString>,
    /// Threads that serve requests, at least 1.
    pub workers: usize,
    pub allow_generated_keys: bool,
    pub tzdir: Option<PathBuf>,
    pub log: LogConfig,
    /// `None`: no traces are sent.
    pub traces: Option<traces::Settings>,
    pub http: HttpConfig,
    /// Idle accounts that are kept in memory.
    pub max_idle_accounts: usize,
    /// How long finished holds are kept; `None`: for ever.
    pub keep_holds: Option<Duration>,
    /// Between readiness dropping and the port closing.
    pub drain: Duration,
    /// For requests in flight, after that.
    pub shutdown: Duration,
}

#[derive(Debug, Clone)]
pub struct LogConfig {
    /// A tracing filter directive, known to parse.
    pub filter: String,
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Human,
    Json,
}

/// Bounds on what a client may take up.
#[derive(Debug, Clone, Copy)]
pub struct HttpConfig {
    pub header_timeout: Duration,
    pub body_timeout: Duration,
    pub keep_alive: Duration,
    /// Over all workers.
    pub max_connections: usize,
    /// Streams of quotas among them.
    pub max_streams: usize,
    /// Checks that wait at the same time.
    pub max_waiting: usize,
}

/// What the command line says about settings; `None` leaves the other sources
/// in force.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Flags {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the settings file {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// One sentence for each fault.
    #[error("the settings cannot be used:\n  {}", .0.join("\n  "))]
    Invalid(Vec<String>),
}

impl Config {
    /// Reads all sources of this process.
    pub fn load(file: Option<&Path>, flags: &Flags) -> Result<Self, ConfigError> {
        Self::from_sources(file, std::env::vars_os(), flags)
    }

    /// As [`Config::load`], with the environment given.
    pub fn from_sources(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        flags: &Flags,
    ) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Toml::string(DEFAULTS));
        if let Some(path) = file {
            // Read here and not by figment, which takes a missing file for an
            // empty one.
            let text = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
            figment = figment.merge(Named { inner: Toml::string(&text), name: path.display().to_string() });
        }
        figment = figment.merge(Environment::read(environment)?).merge(Serialized::defaults(flags));
        let raw: Raw = figment.extract().map_err(|error| {
            ConfigError::Invalid(error.into_iter().map(|fault| sentence(&fault)).collect())
        })?;
        raw.check(&figment)
    }
}

/// The settings as written, before their values are judged.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    listen: String,
    data: PathBuf,
    durability: String,
    workers: u64,
    allow_generated_keys: bool,
    tzdir: PathBuf,
    log: String,
    log_format: String,
    header_timeout_ms: u64,
    body_timeout_ms: u64,
    keep_alive_seconds: u64,
    max_connections: u64,
    max_streams: u64,
    max_waiting: u64,
    max_idle_accounts: u64,
    keep_holds_days: u64,
    drain_seconds: u64,
    shutdown_seconds: u64,
    otlp_endpoint: String,
    otlp_sample_ratio: f64,
    // Secrets: never shown.
    otlp_headers: String,
    redis_url: String,
    database_url: String,
    server_key: String,
}

impl Raw {
    fn check(self, figment: &Figment) -> Result<Config, ConfigError> {
        let mut faults = Faults { figment, found: Vec::new() };
        let stores = self.stores(&mut faults);
        let server_key = self.server_key(&mut faults);
        let traces = self.traces(&mut faults);
        let listen = listen_address(&self.listen);
        if let Err(text) = &listen {
            faults.add("listen", text);
        }
        if self.data.as_os_str().is_empty() {
            faults.add("data", "must name a directory");
        }
        let format = faults.one_of(
            "log_format",
            &self.log_format,
            &[("human", LogFormat::Human), ("json", LogFormat::Json)],
        );
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&self.log) {
            faults.add("log", &format!("{:?} is no log filter: {error}", self.log));
        }
        let tzdir = (!self.tzdir.as_os_str().is_empty()).then_some(self.tzdir);
        if let Some(dir) = tzdir.as_ref().filter(|dir| !dir.is_dir()) {
            faults.add("tzdir", &format!("{} is no directory", dir.display()));
        }
        faults.range("workers", self.workers, 0..=1024);
        faults.range("header_timeout_ms", self.header_timeout_ms, 1..=600_000);
        faults.range("body_timeout_ms", self.body_timeout_ms, 1..=600_000);
        faults.range("keep_alive_seconds", self.keep_alive_seconds, 0..=3_600);
        faults.range("max_connections", self.max_connections, 1..=1_000_000);
        faults.range("max_streams", self.max_streams, 0..=1_000_000);
        faults.range("max_waiting", self.max_waiting, 0..=1_000_000);
        faults.range("max_idle_accounts", self.max_idle_accounts, 0..=1_000_000_000);
        if self.keep_holds_days != 0 {
            faults.range("keep_holds_days", self.keep_holds_days, KEEP_HOLDS_DAYS);
        }
        faults.range("drain_seconds", self.drain_seconds, 0..=600);
        faults.range("shutdown_seconds", self.shutdown_seconds, 0..=3_600);
        let (Ok(listen), Some(stores), Some(format), true) =
            (listen, stores, format, faults.found.is_empty())
        else {
            return Err(ConfigError::Invalid(faults.found));
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Config {
            listen,
            data: self.data,
            stores,
            server_key,
            workers: if self.workers == 0 { cores } else { self.workers as usize },
            allow_generated_keys: self.allow_generated_keys,
            tzdir,
            log: LogConfig { filter: self.log, format },
            traces,
            http: HttpConfig {
                header_timeout: Duration::from_millis(self.header_timeout_ms),
                body_timeout: Duration::from_millis(self.body_timeout_ms),
                keep_alive: Duration::from_secs(self.keep_alive_seconds),
                max_connections: self.max_connections as usize,
                max_streams: self.max_streams as usize,
                max_waiting: self.max_waiting as usize,
            },
            max_idle_accounts: self.max_idle_accounts as usize,
            keep_holds: (self.keep_holds_days != 0)
                .then(|| Duration::from_secs(self.keep_holds_days * 86_400)),
            drain: Duration::from_secs(self.drain_seconds),
            shutdown: Duration::from_secs(self.shutdown_seconds),
        })
    }
}

impl Raw {
    fn stores(&self, faults: &mut Faults<'_>) -> Option<Stores> {
        let urls = [("redis_url", &self.redis_url), ("database_url", &self.database_url)];
        match urls.map(|(_, url)| !url.is_empty()) {
            [false, false] => {
                let choices =
                    [("", Durability::Commit), ("commit", Durability::Commit), ("os", Durability::Os)];
                faults.one_of("durability", &self.durability, &choices).map(Stores::Embedded)
            }
            [true, true] => {
                let choices =
                    [("", Answers::ByEngine), ("engine", Answers::ByEngine), ("ledger", Answers::ByLedger)];
                faults.one_of("durability", &self.durability, &choices).map(|answers| Stores::Shared {
                    redis_url: self.redis_url.clone().into(),
                    database_url: self.database_url.clone().into(),
                    answers,
                })
            }
            [redis, _] => {
                let (there, missing) =
                    if redis { ("redis_url", "database_url") } else { ("database_url", "redis_url") };
                faults.add(there, &format!("`{missing}` is missing: Redis decides and Postgres remembers"));
                None
            }
        }
    }

    /// `None` also where something is wrong.
    fn traces(&self, faults: &mut Faults<'_>) -> Option<traces::Settings> {
        if !(0.0..=1.0).contains(&self.otlp_sample_ratio) {
            faults.add("otlp_sample_ratio", &format!("{} is not within 0..1", self.otlp_sample_ratio));
        }
        let headers = traces::Settings::headers(&self.otlp_headers);
        if let Err(text) = &headers {
            faults.add("otlp_headers", text);
        }
        let endpoint = Some(self.otlp_endpoint.as_str()).filter(|text| !text.is_empty())?;
        let url = traces::Settings::url(endpoint);
        if let Err(text) = &url {
            faults.add("otlp_endpoint", text);
        }
        Some(traces::Settings::new(url.ok()?, headers.ok()?, self.otlp_sample_ratio))
    }

    fn server_key(&self, faults: &mut Faults<'_>) -> Option<SecretString> {
        if self.server_key.is_empty() {
            return None;
        }
        if crate::service::decode_server_key(&self.server_key).is_none() {
            faults.add("server_key", "must be what a file server.key holds: 43 letters, digits, `-` and `_`");
        }
        Some(self.server_key.clone().into())
    }
}

/// `ADDR:PORT`; `localhost` is the IPv4 loopback address.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    numeric.parse().map_err(|_| {
        format!("{text:?} is no address and port, such as 127.0.0.1:8080, 0.0.0.0:80 or [::1]:8080")
    })
}

/// Collects faults with the place each value came from.
struct Faults<'f> {
    figment: &'f Figment,
    found: Vec<String>,
}

impl Faults<'_> {
    fn add(&mut self, key: &str, text: &str) {
        let origin = self.figment.find_metadata(key).map(|metadata| origin(metadata, key));
        let origin = origin.map_or(String::new(), |origin| format!(" ({origin})"));
        self.found.push(format!("`{key}`: {text}{origin}"));
    }

    fn range(&mut self, key: &str, value: u64, range: std::ops::RangeInclusive<u64>) {
        if !range.contains(&value) {
            self.add(key, &format!("{value} is not within {}..{}", range.start(), range.end()));
        }
    }

    fn one_of<T: Copy>(&mut self, key: &str, value: &str, choices: &[(&str, T)]) -> Option<T> {
        let chosen = choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice);
        if chosen.is_none() {
            let named = choices.iter().filter(|(name, _)| !name.is_empty());
            let names: Vec<_> = named.map(|(name, _)| format!("{name:?}")).collect();
            self.add(key, &format!("{value:?} is not one of {}", names.join(", ")));
        }
        chosen
    }
}

/// A fault that figment found (unknown key, wrong type, no TOML), as a
/// sentence.
fn sentence(fault: &figment::Error) -> String {
    use figment::error::Kind;
    let key = fault.path.last().cloned();
    let text = match &fault.kind {
        Kind::UnknownField(name, _) => format!("`{name}`: there is no setting of this name"),
        kind => match &key {
            Some(key) => format!("`{key}`: {kind}"),
            None => kind.to_string(),
        },
    };
    let key = match &fault.kind {
        Kind::UnknownField(name, _) => name.clone(),
        _ => key.unwrap_or_default(),
    };
    match &fault.metadata {
        Some(metadata) => format!("{text} ({})", origin(metadata, &key)),
        None => text,
    }
}

/// Where a value stood: the variable's name, the file, the flag.
fn origin(metadata: &Metadata, key: &str) -> String {
    if metadata.name == Environment::NAME {
        return format!("{PREFIX}{}", key.to_ascii_uppercase());
    }
    if metadata.name.contains("Flags") {
        return format!("--{key}");
    }
    metadata.name.to_string()
}

/// A provider under another name, so that faults say where a value stood.
struct Named<P> {
    inner: P,
    name: String,
}

impl<P: Provider> Provider for Named<P> {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        self.inner.data()
    }
}

/// `APPORTION_*` variables; an empty one counts as not set.
struct Environment(Dict);

impl Environment {
    const NAME: &'static str = "environment";

    fn read(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, ConfigError> {
        let defaults = Toml::string(DEFAULTS).data().unwrap_or_default();
        let defaults = defaults.get(&Profile::Default);
        let mut dict = Dict::new();
        let mut faults = Vec::new();
        for (name, value) in variables {
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
            if value.is_empty() || NOT_SETTINGS.contains(&name) || is_service_link(name) {
                continue;
            }
            let Some(value) = value.to_str() else {
                faults.push(format!("{PREFIX}{name}: the value is not UTF-8"));
                continue;
            };
            let key = name.to_ascii_lowercase();
            // A text setting stays text also where it looks like a number.
            let is_text = matches!(defaults.and_then(|known| known.get(&key)), Some(Value::String(..)));
            let value = if is_text { Value::from(value) } else { parsed(value) };
            dict.insert(key, value);
        }
        match faults.is_empty() {
            true => Ok(Self(dict)),
            false => Err(ConfigError::Invalid(faults)),
        }
    }
}

fn parsed(text: &str) -> Value {
    if let Ok(number) = text.parse::<u64>() {
        return number.into();
    }
    if let Ok(flag) = text.parse::<bool>() {
        return flag.into();
    }
    text.parse::<f64>().map_or_else(|_| text.into(), Value::from)
}

/// Kubernetes gives every container variables about a service named
/// `apportion`; they are no settings of ours.
fn is_service_link(name: &str) -> bool {
    name == "PORT" || name.starts_with("PORT_") || name.starts_with("SERVICE_")
}

impl Provider for Environment {
    fn metadata(&self) -> Metadata {
        Metadata::named(Self::NAME)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.0.clone())]))
    }
}

#[cfg(test)]
mod tests;
