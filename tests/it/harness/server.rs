//! One service for the whole test binary, or one of its own for tests that stop or kill it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Once, OnceLock, mpsc};

use apportion::config::{Config, Flags};
use apportion::ledger::{Durability, Ledger, PostgresLedger, SqliteLedger};
use tempfile::TempDir;

use super::office::Office;
use super::stores::{self, Stores};

/// A running service and its data directory.
pub struct Server {
    pub url: String,
    pub data: PathBuf,
    stores: Vec<(&'static str, String)>,
    office: OnceLock<Office>,
    _kept: TempDir,
}

impl Server {
    /// The service that most tests share, each with tenants of its own.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| {
            binary();
            Self::start(&[])
        })
    }

    /// A second node beside the shared one, where nodes can share anything.
    pub fn second() -> Option<&'static Self> {
        static SECOND: OnceLock<Option<Server>> = OnceLock::new();
        let start = || (Stores::of_this_run() != Stores::Embedded).then(|| Self::shared().beside(&[]));
        SECOND.get_or_init(start).as_ref()
    }

    /// A service of one's own; `settings` are names and values of its environment.
    /// It ends with the test binary. The stores are those of this run.
    pub fn start(settings: &[(&str, &str)]) -> Self {
        Self::start_on(&Stores::of_this_run().settings(), settings)
    }

    /// Another node on the same stores, with a data directory of its own.
    pub fn beside(&self, settings: &[(&str, &str)]) -> Self {
        Self::start_keeping(&self.stores, settings, |data| {
            std::fs::create_dir(data.join("keys")).expect("a new directory");
            let key = Path::new("keys").join("server.key");
            std::fs::copy(self.data.join(&key), data.join(&key)).expect("the first node made one");
        })
    }

    /// As [`start`](Self::start), on stores of one's own.
    pub fn start_on(stores: &[(&'static str, String)], settings: &[(&str, &str)]) -> Self {
        Self::start_keeping(stores, settings, |_| {})
    }

    /// Makes tenants and tokens.
    pub fn office(&self) -> &Office {
        self.office.get_or_init(|| Office::open(config(&self.data, &[])))
    }

    /// Where the ledger is, if it is not a file.
    pub fn database_url(&self) -> Option<&str> {
        self.stores.iter().find(|(name, _)| *name == "database_url").map(|(_, url)| url.as_str())
    }

    /// The ledger as another process sees it.
    pub async fn ledger(&self) -> std::sync::Arc<dyn Ledger> {
        match self.database_url() {
            Some(url) => std::sync::Arc::new(PostgresLedger::open(url, 2).await.expect("it is there")),
            None => {
                let path = self.data.join("apportion.db");
                std::sync::Arc::new(SqliteLedger::open(&path, Durability::Os).await.expect("it is there"))
            }
        }
    }

    fn start_keeping(
        stores: &[(&'static str, String)],
        settings: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let kept = scratch();
        let data = kept.path().to_path_buf();
        if !stores.is_empty() {
            stores::keep(&data, stores);
        }
        prepare(&data);
        let config = config(&data, settings);
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let built = apportion::startup::run_blocking(config, move |port| {
                tell.send(port).expect("somebody waits for the port");
            });
            panic!("the service ended: {built:?}");
        });
        let port = told.recv().expect("the service starts");
        let (url, office) = (format!("http://127.0.0.1:{port}"), OnceLock::new());
        Self { url, data, stores: stores.to_vec(), office, _kept: kept }
    }
}

fn config(data: &Path, settings: &[(&str, &str)]) -> Config {
    let mut environment: Vec<(OsString, OsString)> =
        [("APPORTION_LISTEN", "127.0.0.1:0"), ("APPORTION_LOG", "warn"), ("APPORTION_WORKERS", "2")]
            .iter()
            .chain(settings)
            .map(|(name, value)| (OsString::from(name), OsString::from(value)))
            .collect();
    environment.push(("APPORTION_DATA".into(), data.into()));
    Config::from_sources(stores::file(data).as_deref(), environment, &Flags::default())
        .expect("settings of a test")
}

/// The real binary, as it was when this test binary started: a build that ends meanwhile must not
/// put another one beside a service that is running.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        sweep_up_once();
        let built = Path::new(env!("CARGO_BIN_EXE_apportion"));
        let kept =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{PREFIX}{}-binary", std::process::id()));
        if std::fs::hard_link(built, &kept).is_err() {
            std::fs::copy(built, &kept).expect("room for a copy of the binary");
        }
        kept
    })
}

/// Runs the real command line beside the service and gives what it printed.
pub fn cli(data: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.args(arguments).arg("--data").arg(data);
    if let Some(file) = stores::file(data) {
        command.arg("--config").arg(file);
    }
    let done = command.output().expect("the binary runs");
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text").trim().to_owned()
}

/// A number that a longer run may set.
pub fn number_from_env(name: &str, usual: usize) -> usize {
    std::env::var(name)
        .map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// A directory that goes when it is dropped, or when a later run sweeps up.
pub(super) fn scratch() -> TempDir {
    scratch_below(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// The same elsewhere: not everybody may look into where the build is.
pub(super) fn scratch_below(folder: &Path) -> TempDir {
    sweep_up_once();
    tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", std::process::id()))
        .tempdir_in(folder)
        .expect("a data directory")
}

/// With the number of the process behind it.
const PREFIX: &str = "apportion-it-";

fn sweep_up_once() {
    static SWEPT: Once = Once::new();
    SWEPT.call_once(|| {
        sweep_up(Path::new(env!("CARGO_TARGET_TMPDIR")));
        sweep_up(&std::env::temp_dir());
    });
}

/// Statics are not dropped: removes what earlier runs of this binary have left.
fn sweep_up(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Somebody else may be removing it as well.
            let _ = std::fs::remove_dir_all(entry.path()).or_else(|_| std::fs::remove_file(entry.path()));
        }
    }
}
