//! What the pages tell people to paste does what they say.

mod paste;
mod recipes;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::Tenant;

fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)
}

/// The page's first block of that language.
fn block(name: &str, language: &str) -> String {
    let text = std::fs::read_to_string(page(name)).unwrap();
    let rest = text.split(&format!("```{language}\n")).nth(1).expect("such a block");
    rest.split("```").next().unwrap().to_owned()
}

/// Whether this machine has what a sample is written in.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|done| done.status.success());
    if !found {
        println!("SKIPPED: no {program} here");
    }
    found
}

/// Every file in a folder of the repository and below it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn what_is_deployed_sets_only_what_there_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let known = std::fs::read_to_string(root.join("src/config.default.toml")).unwrap();
    let mut named = 0;
    for file in files(&root.join("examples/deploy")) {
        let text = std::fs::read_to_string(&file).unwrap();
        for rest in text.split("APPORTION_").skip(1) {
            let name: String = rest
                .chars()
                .take_while(|c| c.is_ascii_uppercase() || *c == '_')
                .collect::<String>()
                .to_lowercase();
            let is_known =
                name.is_empty() || known.lines().any(|line| line.starts_with(&format!("{name} =")));
            assert!(is_known, "{}: APPORTION_{}", file.display(), name.to_uppercase());
            named += usize::from(!name.is_empty());
        }
    }
    assert!(named > 8, "{named} settings are named");
}

#[tokio::test]
async fn the_sheet_to_paste_is_the_whole_shipped_one_with_one_change() {
    let t = Tenant::at("UTC", "2026-03-10T12:00:00.000Z").await;
    let sheet: Value = serde_json::from_str(&block("change-a-plan.md", "json")).unwrap();
    let mut before = t.get("/v1/admin/plans/free").await.ok();
    t.put("/v1/admin/plans/free", &sheet).await.ok();
    let mut after = t.get("/v1/admin/plans/free").await.ok();
    for body in [&mut before, &mut after] {
        body.as_object_mut().unwrap().retain(|name, _| name != "version" && name != "effective_at");
    }
    let limits = before["limits"].as_array_mut().unwrap();
    let changed = limits.iter_mut().find(|limit| limit["name"] == "requests_per_day").unwrap();
    changed["limit"] = json!(50);
    assert_eq!(after, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sample_ends_every_hold_as_the_page_says() {
    if !has("python3") {
        return;
    }
    let t = Tenant::at("UTC", "2026-03-10T12:00:00.000Z").await;
    let folder = tempfile::tempdir().unwrap();
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/integrate.py");
    let done = Command::new("python3")
        .arg(driver)
        .arg(page("integrate.md"))
        .current_dir(folder.path())
        .envs([("APPORTION_URL", t.server.url.as_str()), ("TOKEN", &t.token(&["--scope", "check quota"]))])
        .env("no_proxy", "*")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("all as the page says"), "{said}");
}
