//! What a page finds when somebody begins to paste from it.

use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::paste::{Shell, blocks};
use crate::faults::process::Process;
use crate::harness::lasting::found_or_skipped;
use crate::harness::redis::Node;
use crate::harness::{Client, cli, stores};

/// A server that has just been started for the first time, and a shell beside it.
pub struct Installation {
    pub shell: Shell,
    pub admin: Client,
    #[expect(dead_code, reason = "it ends with the test")]
    server: Process,
    _folder: TempDir,
}

impl Installation {
    pub fn embedded() -> Self {
        Self::on(&[])
    }

    fn on(own: &[(&'static str, String)]) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let (data, mut environment) = (data.as_path(), Vec::new());
        if !own.is_empty() {
            stores::keep(data, own);
            environment.push(("APPORTION_CONFIG".to_owned(), text(&stores::file(data).unwrap()).to_owned()));
        }
        let server = Process::serve_at(data, "127.0.0.1:0", &[]);
        let mint = |more: &[&str]| cli(data, &[&["token", "mint"][..], more].concat());
        let scope = "check quota admin:read admin:write";
        let token = mint(&["--tenant", "demo", "--scope", scope]);
        let named =
            own.iter().map(|(name, value)| (format!("APPORTION_{}", name.to_uppercase()), value.clone()));
        environment.extend(named);
        for (name, value) in [("URL", &server.url), ("ADMIN", &token), ("OPERATOR", &mint(&["--operator"]))] {
            environment.push((name.to_owned(), value.clone()));
        }
        let environment: Vec<(&str, &str)> =
            environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let here = [
            ("http://127.0.0.1:8080", server.url.as_str()),
            ("/var/lib/apportion", text(data)),
            ("target/release/apportion", "apportion"),
        ];
        let shell = Shell::start(folder.path(), &environment, &here);
        Self { shell, admin: Client::new(&server.url, &token), server, _folder: folder }
    }

    /// One that decides by Redis and remembers in Postgres, with its user `mia`.
    pub async fn shared(redis: &Node, database: String) -> Self {
        let installation = Self::on(&[("redis_url", redis.url()), ("database_url", database)]);
        installation.admin.put_user("mia", json!({"plan": "pro"})).await.ok();
        // After the second one nobody is looked up any more.
        for _ in 0..2 {
            let hold = installation.check().await;
            installation.admin.settle(&hold, json!({"input_tokens": 1180, "output_tokens": 380})).await.ok();
        }
        installation
    }

    pub async fn check(&self) -> String {
        let asked = json!({"user": "mia", "model": "sonnet", "input_tokens": 1200, "max_output_tokens": 512});
        self.admin.check(asked).await.hold_id()
    }

    /// All blocks below a heading.
    pub fn paste(&mut self, page: &str, heading: &str) {
        tokio::task::block_in_place(|| blocks(page, heading).iter().for_each(|block| self.shell.run(block)));
    }

    pub fn paste_one(&mut self, page: &str, heading: &str, number: usize) {
        tokio::task::block_in_place(|| self.shell.run(&blocks(page, heading)[number]));
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub fn has_a_shell() -> bool {
    found_or_skipped("bash") && found_or_skipped("curl")
}
