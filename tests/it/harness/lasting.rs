//! Other programs that tests start (Redis, Postgres), on ports of their own.
//! None of them outlives the test binary, however that ends.

use std::io::{Result, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Duration;

type Order = (Command, mpsc::Sender<Result<Child>>);

/// Starts a process that the kernel kills when this one ends.
///
/// The kernel means the thread that started it, and a test's thread ends with
/// the test: so one thread that never ends starts them all.
pub fn spawn(command: Command) -> Result<Child> {
    static STARTER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (tell, told) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (command, answer) in told {
                let mut bound = bound_to_this_thread(command);
                let quiet = bound.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                // Whoever asked may have given up.
                let _ = answer.send(quiet.spawn());
            }
        });
        Mutex::new(tell)
    });
    let (answer, answered) = mpsc::channel();
    starter.lock().unwrap().send((command, answer)).expect("the starter lives");
    answered.recv().expect("the starter answers")
}

/// The same command behind `setpriv`, where there is one.
fn bound_to_this_thread(command: Command) -> Command {
    if find("setpriv").is_none() {
        return command;
    }
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL"]);
    // One that changes the user as well must do both: the change forgets the signal.
    if command.get_program() != "setpriv" {
        bound.arg(command.get_program());
    }
    bound.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        bound.current_dir(folder);
    }
    bound
}

/// A program in the PATH.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Whether `program` is there. If not, the test that asks is told as skipped,
/// and fails in CI, where everything has to be there.
pub fn found_or_skipped(program: &str) -> bool {
    if find(program).is_none() {
        skipped(program);
        return false;
    }
    true
}

/// Tells that the test at hand is skipped, since `program` is not there.
pub fn skipped(program: &str) {
    let thread = std::thread::current();
    let line = format!("SKIPPED {}: no {program}\n", thread.name().unwrap_or("a test"));
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{line}");
    // Past the harness, which keeps the prints of tests that pass to itself.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// A signal, by its name.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.expect("kill runs").success(), "{name} to {pid}");
}

/// Lets a process stand still, and waits until it does: on a crowded machine its threads go on
/// for a while after the signal.
pub fn freeze(pid: u32) {
    signal(pid, "STOP");
    let stands = |task: Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.expect("a thread").path().join("stat"));
        // The state is behind the name, which may have anything in it.
        stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 'Z'])))
    };
    while !std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|mut tasks| tasks.all(stands)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A port that was free just now. Not one of those that outgoing connections
/// get: a server that was killed must find its port free again.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_240;
    const COUNT: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test binaries beside each other start looking at different places.
    let start = (std::process::id().wrapping_mul(379) % u32::from(COUNT)) as u16;
    loop {
        let step = NEXT.fetch_add(1, Relaxed);
        let port = FIRST + (start.wrapping_add(step)) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
