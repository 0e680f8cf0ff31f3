//! The real binary as a process of its own, to be killed without warning.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::harness::lasting::{freeze, signal};
use crate::harness::{binary, stores};

/// A serving process; killed when dropped.
pub struct Process {
    child: Child,
    pub url: String,
    said: Arc<Mutex<String>>,
}

impl Process {
    /// Starts `apportion serve` on a free port and waits until it says which.
    pub fn serve(data: &Path, durability: &str) -> Self {
        Self::serve_at(data, "127.0.0.1:0", &[("APPORTION_DURABILITY", durability)])
    }

    /// The same at an address of one's own, in an environment with these settings.
    pub fn serve_at(data: &Path, listen: &str, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary());
        if let Some(file) = stores::file(data) {
            command.env("APPORTION_CONFIG", file);
        }
        let mut child = command
            .args(["serve", "--listen", listen, "--data"])
            .arg(data)
            .env("APPORTION_LOG", "info")
            .env("APPORTION_LOG_FORMAT", "json")
            .envs(settings.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let said = Arc::new(Mutex::new(String::new()));
        let note = {
            let said = Arc::clone(&said);
            move |line: &str| said.lock().unwrap().extend([line, "\n"])
        };
        let address = loop {
            let Some(Ok(line)) = lines.next() else {
                panic!("the service did not start:\n{}", said.lock().unwrap())
            };
            note(&line);
            let after = line.split("\"server.address\":\"").nth(1).and_then(|rest| rest.split('"').next());
            if let Some(address) = after {
                break address.to_owned();
            }
        };
        // Somebody must go on reading, or the process would block on its log.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| note(&line)));
        Self { child, url: format!("http://{address}"), said }
    }

    /// Lines of its log that have these words in them.
    pub fn said(&self, words: &str) -> Vec<String> {
        let said = self.said.lock().unwrap();
        said.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    }

    /// What it keeps in memory.
    pub fn megabytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.unwrap_or(0) / 1024
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        signal(self.child.id(), "TERM");
    }

    /// It stands still, with its connections open.
    pub fn freeze(&self) {
        freeze(self.child.id());
    }

    pub fn thaw(&self) {
        signal(self.child.id(), "CONT");
    }

    /// Waits for its end.
    pub fn wait(mut self) {
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }

    /// SIGKILL, and nothing else.
    pub fn kill(mut self) {
        self.child.kill().expect("it was running");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After `kill` there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
