//! A private Postgres server, and databases of one's own in it.
//!
//! `shared()` is for tests that only have a database of their own, `start()`
//! for those that kill or stop the server. Both give `None` where Postgres is
//! not installed; the test is then told as skipped.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use apportion::ledger::{Ledger, PostgresLedger};
use tempfile::TempDir;

use super::lasting::{self, find, free_port, skipped};
use super::server::scratch_below;

/// How long the server may take to come up on a crowded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A database with the ledger's schema, to be copied.
const TEMPLATE: &str = "with_schema";

/// One Postgres server, on a port and in a directory that stay its own.
pub struct Postgres {
    pub port: u16,
    dir: TempDir,
    programs: PathBuf,
    child: Mutex<Child>,
    databases: AtomicU32,
}

impl Postgres {
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Postgres>> = OnceLock::new();
        if programs().is_none() {
            skipped("postgres");
            return None;
        }
        SHARED.get_or_init(Self::start).as_ref()
    }

    /// A server of one's own, which survives kill -9 of its processes.
    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            skipped("postgres");
            return None;
        };
        let dir = scratch_below(&std::env::temp_dir());
        give_away(dir.path());
        initialize(&programs, dir.path());
        // The port may be taken between the look and the start.
        for _ in 0..10 {
            let port = free_port();
            let mut child = spawn(&programs, dir.path(), port);
            if answers(&programs, port, &mut child) {
                let databases = AtomicU32::new(0);
                return Some(Self { port, dir, programs, child: Mutex::new(child), databases });
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("postgres does not start in {}", dir.path().display());
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://apportion:not-asked-for@127.0.0.1:{}/{database}", self.port)
    }

    /// Runs a statement in a database, and gives what it printed.
    pub fn psql(&self, database: &str, text: &str) -> String {
        let mut command = client(&self.programs, self.port, database);
        let done = command.args(["-c", text]).output().expect("psql runs");
        assert!(done.status.success(), "{text}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text").trim().to_owned()
    }

    /// A new database without anything in it.
    pub fn empty(&'static self) -> Database {
        self.database("template1")
    }

    /// A new database with the ledger's schema.
    pub fn with_schema(&'static self) -> Database {
        static MADE: OnceLock<()> = OnceLock::new();
        MADE.get_or_init(|| {
            self.psql("postgres", &format!("CREATE DATABASE {TEMPLATE}"));
            let url = self.url(TEMPLATE);
            // The caller may be within a runtime of its own.
            let making = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async { PostgresLedger::open(&url, 2).await.unwrap().close().await });
            });
            making.join().expect("the schema is made");
        });
        self.database(TEMPLATE)
    }

    fn database(&'static self, template: &str) -> Database {
        let name = format!("room_{}", self.databases.fetch_add(1, Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name} TEMPLATE {template}"));
        Database { server: self, name }
    }

    /// SIGKILL to the first process and to those that work for it: as when a
    /// machine's memory runs out.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        let workers = workers(&child);
        child.kill().expect("it was started");
        child.wait().expect("it ends");
        signal_all(&workers, "KILL");
    }

    /// It stands still, with its connections open.
    pub fn freeze(&self) {
        let child = self.child.lock().unwrap();
        lasting::freeze(child.id());
        signal_all(&workers(&child), "STOP");
    }

    pub fn thaw(&self) {
        let child = self.child.lock().unwrap();
        signal_all(&workers(&child), "CONT");
        lasting::signal(child.id(), "CONT");
    }

    /// Starts it again after [`kill`](Self::kill), with what it has on disk.
    pub fn restart(&self) {
        let mut child = self.child.lock().unwrap();
        let from = Instant::now();
        while from.elapsed() < PATIENCE {
            *child = spawn(&self.programs, self.dir.path(), self.port);
            if answers(&self.programs, self.port, &mut child) {
                return;
            }
            // Workers of before may be about to end.
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("postgres comes back");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A database that goes when it is dropped.
pub struct Database {
    server: &'static Postgres,
    name: String,
}

impl Database {
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    pub fn psql(&self, text: &str) -> String {
        self.server.psql(&self.name, text)
    }

    /// As docs/operations.md says it.
    pub fn dump(&self, file: &Path) {
        self.run("pg_dump", &["--format=custom", &format!("--file={}", file.display()), &self.url()]);
    }

    pub fn restore(&self, file: &Path) {
        self.run(
            "pg_restore",
            &["--no-owner", &format!("--dbname={}", self.url()), &file.display().to_string()],
        );
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let done = Command::new(self.server.programs.join(program)).args(arguments).output();
        let done = done.expect("a client of Postgres runs");
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let text = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        let mut command = client(&self.server.programs, self.server.port, "postgres");
        // A test that failed has more to say than this.
        let _ = command.args(["-c", &text]).output();
    }
}

/// Each connection has a process of its own.
fn workers(first: &Child) -> Vec<String> {
    let found = Command::new("pgrep").args(["-P", &first.id().to_string()]).output();
    let numbers = String::from_utf8(found.expect("pgrep runs").stdout).expect("numbers");
    numbers.split_whitespace().map(str::to_owned).collect()
}

fn signal_all(pids: &[String], name: &str) {
    for pid in pids {
        // It may have ended meanwhile.
        let _ = Command::new("kill").args([&format!("-{name}"), pid]).output();
    }
}

/// The folder of the newest Postgres that is installed.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).filter(|path| path.join("bin/initdb").exists());
    let packaged = newest.max_by_key(number).map(|path| path.join("bin"));
    packaged.or_else(|| Some(find("initdb")?.parent()?.to_owned()))
}

/// Postgres does not run as root; somebody else does it then.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

const SOMEBODY: &str = "nobody";

/// A program, run by whoever owns the data.
fn as_owner(program: PathBuf) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", SOMEBODY, "--regid", "nogroup", "--clear-groups"]).arg(program);
    command
}

fn give_away(dir: &Path) {
    if is_root() {
        let done = Command::new("chown").arg(SOMEBODY).arg(dir).status();
        assert!(done.expect("chown runs").success());
    }
}

/// With a collation of people's languages, so that whatever is not compared
/// byte for byte shows.
fn initialize(programs: &Path, dir: &Path) {
    let locales: [&[&str]; 2] =
        [&["--locale-provider=icu", "--icu-locale=en-US", "--locale=C.UTF-8"], &["--locale=C"]];
    let mut said = String::new();
    for locale in locales {
        let mut command = as_owner(programs.join("initdb"));
        command.args(["-A", "trust", "-U", "apportion", "-E", "UTF8", "--no-sync", "-D"]);
        let done = command.arg(dir.join("data")).args(locale).current_dir("/").output().expect("initdb runs");
        if done.status.success() {
            return;
        }
        said = String::from_utf8_lossy(&done.stderr).into_owned();
    }
    panic!("initdb: {said}");
}

fn spawn(programs: &Path, dir: &Path, port: u16) -> Child {
    let mut command = as_owner(programs.join("postgres"));
    command.arg("-D").arg(dir.join("data")).args(["-p", &port.to_string()]).current_dir("/");
    // Nobody takes the power away from tests.
    for setting in [
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "fsync=off",
        "full_page_writes=off",
        "max_connections=300",
        "shared_buffers=64MB",
    ] {
        command.args(["-c", setting]);
    }
    lasting::spawn(command).expect("postgres starts")
}

fn client(programs: &Path, port: u16, database: &str) -> Command {
    let mut command = Command::new(programs.join("psql"));
    command.args(["-h", "127.0.0.1", "-U", "apportion", "-p", &port.to_string(), "-d", database]);
    command.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"]);
    command
}

/// Waits until the server answers; `false` if it ended.
fn answers(programs: &Path, port: u16, child: &mut Child) -> bool {
    let from = Instant::now();
    while from.elapsed() < PATIENCE && child.try_wait().expect("a child").is_none() {
        let asked = client(programs, port, "postgres").args(["-c", "SELECT 1"]).output();
        if asked.expect("psql runs").status.success() {
            return child.try_wait().expect("a child").is_none();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}
