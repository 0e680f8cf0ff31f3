//! Servers as child processes: starting, asking the kernel about, ending.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// The kernel counts CPU time in hundredths of a second for us.
const TICK_US: f64 = 10_000.0;

/// A server of our own; it ends with this value.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
    log: PathBuf,
}

/// CPU time of all threads that a process has or had, in us.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cpu {
    pub user: f64,
    pub system: f64,
}

impl Cpu {
    pub fn total(self) -> f64 {
        self.user + self.system
    }

    pub fn since(self, before: Self) -> Self {
        Self { user: self.user - before.user, system: self.system - before.system }
    }
}

impl Process {
    /// Starts `program` and waits until `GET path` is answered with 200.
    pub fn start(mut program: Command, address: SocketAddr, path: &str, log: &Path) -> anyhow::Result<Self> {
        let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).spawn();
        let child = child.with_context(|| format!("cannot start {program:?}"))?;
        let mut process = Self { child, address, log: log.to_owned() };
        process.wait_until_ready(path)?;
        Ok(process)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and waits until it has.
    #[allow(dead_code, reason = "for measurements that stop a server")]
    pub fn stop(&mut self) -> anyhow::Result<()> {
        Command::new("kill").arg(self.pid().to_string()).status()?;
        self.child.wait()?;
        Ok(())
    }

    fn wait_until_ready(&mut self, path: &str) -> anyhow::Result<()> {
        let patience = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(status) = self.child.try_wait()? {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                bail!("the server ended with {status}:\n{log}");
            }
            if matches!(get(self.address, path, None), Ok((200, _))) {
                return Ok(());
            }
            if Instant::now() > patience {
                bail!("the server is not ready after two minutes; see {}", self.log.display());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn cpu(&self) -> anyhow::Result<Cpu> {
        cpu_of(&self.pid().to_string())
    }

    /// Resident memory, in bytes.
    pub fn rss(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib = line.trim().trim_end_matches(" kB").parse::<u64>()?;
        Ok(kib * 1024)
    }

    /// Waits until the process has little left to do, so that work which
    /// outlives its answer is counted with it. At most ten seconds.
    pub fn wait_until_idle(&self) -> anyhow::Result<()> {
        let pause = Duration::from_millis(100);
        for _ in 0..100 {
            let before = self.cpu()?;
            std::thread::sleep(pause);
            if self.cpu()?.since(before).total() <= TICK_US {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; both answers are fine then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of this process.
pub fn own_cpu() -> anyhow::Result<Cpu> {
    cpu_of("self")
}

pub fn cpu_of(pid: &str) -> anyhow::Result<Cpu> {
    let stat = Stat::of(pid)?;
    Ok(Cpu { user: stat.ticks_us(11)?, system: stat.ticks_us(12)? })
}

/// CPU time of a process and of its children, also of those that have ended.
pub fn cpu_of_family(first: u32) -> anyhow::Result<Cpu> {
    let stat = Stat::of(&first.to_string())?;
    let mut sum = Cpu {
        user: stat.ticks_us(11)? + stat.ticks_us(13)?,
        system: stat.ticks_us(12)? + stat.ticks_us(14)?,
    };
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // It may end between one look and the next.
        let Ok(stat) = Stat::of(&name) else { continue };
        if stat.field(1).is_ok_and(|parent| parent == first.to_string()) {
            sum.user += stat.ticks_us(11)?;
            sum.system += stat.ticks_us(12)?;
        }
    }
    Ok(sum)
}

/// `/proc/PID/stat`. The name in parentheses may hold anything; fields are
/// counted after it.
struct Stat(String);

impl Stat {
    fn of(pid: &str) -> anyhow::Result<Self> {
        Ok(Self(std::fs::read_to_string(format!("/proc/{pid}/stat"))?))
    }

    fn field(&self, index: usize) -> anyhow::Result<&str> {
        let fields = self.0.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        fields.split_ascii_whitespace().nth(index).context("a short /proc/PID/stat")
    }

    fn ticks_us(&self, index: usize) -> anyhow::Result<f64> {
        Ok(self.field(index)?.parse::<f64>()? * TICK_US)
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// `program`, on the given core if there is one.
pub fn on_core(program: &Path, core: Option<usize>) -> Command {
    match core {
        None => Command::new(program),
        Some(core) => {
            let mut command = Command::new("taskset");
            command.arg("-c").arg(core.to_string()).arg(program);
            command
        }
    }
}

/// Moves this process to one core; its later threads stay there too.
pub fn move_to_core(core: usize) -> anyhow::Result<()> {
    let own = std::process::id().to_string();
    let done = Command::new("taskset").args(["-cp", &core.to_string(), &own]).stdout(Stdio::null()).status();
    match done {
        Ok(status) if status.success() => Ok(()),
        _ => bail!("--pin needs two cores and taskset (util-linux)"),
    }
}

pub fn get(address: SocketAddr, path: &str, token: Option<&str>) -> anyhow::Result<(u16, String)> {
    request(address, "GET", path, token, "")
}

/// One request on a connection of its own; gives the status and the body.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let length = body.len();
    let typed = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n{bearer}{typed}Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.get(9..12).and_then(|digits| digits.parse().ok()).context("no HTTP answer")?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    Ok((status, body))
}
