//! The real binary as a process of its own, to be killed without warning.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::{binary, stores};

/// A serving process; killed when dropped.
pub struct Process {
    child: Child,
    pub url: String,
}

impl Process {
    /// Starts `apportion serve` on a free port and waits until it says which.
    pub fn serve(data: &Path, durability: &str) -> Self {
        let mut command = Command::new(binary());
        if let Some(file) = stores::file(data) {
            command.env("APPORTION_CONFIG", file);
        }
        let mut child = command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .env("APPORTION_DURABILITY", durability)
            .env("APPORTION_LOG", "info")
            .env("APPORTION_LOG_FORMAT", "json")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut said = String::new();
        let address = loop {
            let Some(Ok(line)) = lines.next() else { panic!("the service did not start:\n{said}") };
            let after = line.split("\"server.address\":\"").nth(1).and_then(|rest| rest.split('"').next());
            if let Some(address) = after {
                break address.to_owned();
            }
            said.push_str(&line);
            said.push('\n');
        };
        // Somebody must go on reading, or the process would block on its log.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url: format!("http://{address}") }
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
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
