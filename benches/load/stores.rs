//! A Redis and a Postgres of a server's own, for the time of a run, and what
//! they cost in CPU time.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::process::{Cpu, cpu_of, cpu_of_family, free_port};

/// How long one may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with this value.
pub struct Stores {
    redis: Server,
    postgres: Server,
}

pub struct Server {
    child: Child,
    port: u16,
    _data: TempDir,
}

impl Stores {
    /// With settings of redis-server as on its command line.
    pub fn start(scratch: &Path, redis_settings: &[String]) -> anyhow::Result<Self> {
        let redis = start_redis(scratch, redis_settings).context("redis-server")?;
        Ok(Self { redis, postgres: start_postgres().context("postgres")? })
    }

    /// For a server's environment.
    pub fn settings(&self) -> [(&'static str, String); 2] {
        let (redis, postgres) = (self.redis.port, self.postgres.port);
        [
            ("APPORTION_REDIS_URL", format!("redis://127.0.0.1:{redis}")),
            ("APPORTION_DATABASE_URL", format!("postgres://apportion:none@127.0.0.1:{postgres}/postgres")),
        ]
    }

    /// Keys of Redis, and bytes that they take.
    #[allow(dead_code, reason = "for measurements that look at it")]
    pub fn redis_size(&self) -> anyhow::Result<(u64, u64)> {
        let port = self.redis.port.to_string();
        let ask = |words: &[&str]| Command::new("redis-cli").args(["-p", &port]).args(words).output();
        let keys = String::from_utf8(ask(&["DBSIZE"])?.stdout)?;
        let info = String::from_utf8(ask(&["INFO", "memory"])?.stdout)?;
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap_or("0");
        Ok((keys.trim().parse()?, used.trim().parse()?))
    }

    /// For those who want to look at them from outside.
    pub fn told(&self) -> String {
        let [redis, postgres] = [&self.redis, &self.postgres].map(|server| (server.child.id(), server.port));
        format!(", its Redis {} on {}, its Postgres {} on {}", redis.0, redis.1, postgres.0, postgres.1)
    }

    /// Of Redis (without what it forks to write its file anew), and of Postgres.
    pub fn cpu(&self) -> anyhow::Result<(Cpu, Cpu)> {
        Ok((cpu_of(&self.redis.child.id().to_string())?, cpu_of_family(self.postgres.child.id())?))
    }
}

impl Server {
    #[allow(dead_code, reason = "for measurements of Redis alone")]
    pub fn redis_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM lets Postgres end its processes, too.
        let asked = Command::new("kill").arg(self.child.id().to_string()).status();
        if asked.is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

pub fn start_redis(scratch: &Path, settings: &[String]) -> anyhow::Result<Server> {
    let data = tempfile::Builder::new().prefix("redis-").tempdir_in(scratch)?;
    let port = free_port()?;
    let mut command = bound_to_us(&[]);
    command.arg("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--logfile", "log"]);
    command.arg("--dir").arg(data.path()).args(settings);
    let child = quietly(command)?;
    let server = Server { child, port, _data: data };
    wait_for(|| {
        let mut ping = Command::new("redis-cli");
        ping.args(["-p", &port.to_string(), "PING"]);
        ping.output().is_ok_and(|said| said.stdout.starts_with(b"PONG"))
    })?;
    Ok(server)
}

/// With its usual settings: every commit is flushed to the disk.
fn start_postgres() -> anyhow::Result<Server> {
    // Its user, who is not always ours, must be able to get there.
    let data = tempfile::Builder::new().prefix("load-postgres-").tempdir()?;
    if is_root() {
        Command::new("chown").arg(NOBODY).arg(data.path()).status()?;
    }
    let programs = programs().context("it is not installed")?;
    let cluster = data.path().join("data");
    let mut making = as_owner();
    making.arg(programs.join("initdb"));
    making.args(["-A", "trust", "-U", "apportion", "-E", "UTF8", "--locale=C", "-D"]).arg(&cluster);
    let made = making.current_dir("/").output()?;
    if !made.status.success() {
        bail!("initdb: {}", String::from_utf8_lossy(&made.stderr));
    }
    let port = free_port()?;
    let mut command = as_owner();
    command.arg(programs.join("postgres")).arg("-D").arg(&cluster).args([
        "-p",
        &port.to_string(),
        "-c",
        "listen_addresses=127.0.0.1",
    ]);
    command.args(["-c", "unix_socket_directories=", "-c", "shared_buffers=256MB"]).current_dir("/");
    let child = quietly(command)?;
    let server = Server { child, port, _data: data };
    wait_for(|| {
        let mut ready = Command::new(programs.join("pg_isready"));
        ready.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
        ready.status().is_ok_and(|status| status.success())
    })?;
    Ok(server)
}

fn quietly(mut command: Command) -> anyhow::Result<Child> {
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

fn wait_for(is_ready: impl Fn() -> bool) -> anyhow::Result<()> {
    let from = Instant::now();
    while !is_ready() {
        if from.elapsed() > PATIENCE {
            bail!("it does not start");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The newest that is installed.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).max_by_key(number).map(|path| path.join("bin"));
    let path = std::env::var_os("PATH")?;
    newest.into_iter().chain(std::env::split_paths(&path)).find(|folder| folder.join("initdb").is_file())
}

const NOBODY: &str = "nobody";

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Runs what follows, and ends it with this process, however that ends.
fn bound_to_us(settings: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]).args(settings);
    command
}

/// Postgres does not run as root; somebody else does it then.
fn as_owner() -> Command {
    match is_root() {
        true => bound_to_us(&["--reuid", NOBODY, "--regid", "nogroup", "--clear-groups"]),
        false => bound_to_us(&[]),
    }
}
