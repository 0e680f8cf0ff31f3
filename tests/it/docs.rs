//! What the pages tell people to paste does what they say.

mod guides;
mod installation;
mod paste;
mod recipes;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::sheets::{PoolSheet, Sheet};
use crate::harness::{Receiver, Tenant, cli};

fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)
}

/// The page's first block of that language.
fn block(name: &str, language: &str) -> String {
    blocks(name, language).swap_remove(0)
}

fn blocks(name: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(page(name)).unwrap();
    let opening = format!("```{language}\n");
    let after = text.split(&opening).skip(1);
    let blocks: Vec<String> = after.map(|rest| rest.split("```").next().unwrap().to_owned()).collect();
    assert!(!blocks.is_empty(), "{name} has something in {language}");
    blocks
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

#[tokio::test]
async fn bodies_to_paste_are_taken() {
    let t = Tenant::at("UTC", "2026-12-01T12:00:00.000Z").await;
    let bodies = |name: &str, number: usize| {
        let text = blocks(name, "json").swap_remove(number);
        let bodies: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&text).into_iter().collect();
        bodies.unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let moves = bodies("change-a-plan.md", 1);
    assert_eq!(moves.len(), 4);
    for body in moves {
        t.move_user("u_42", body).await.ok();
    }
    t.put("/v1/admin/make-goods/monday", &bodies("operations.md", 0)[0]).await.ok();
    t.put("/v1/admin/settings", &bodies("operations.md", 1)[0]).await.ok();
    t.check(bodies("migrate.md", 0).remove(0)).await.ok();

    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(folder.path().join("litellm.toml"), block("migrate.md", "toml")).unwrap();
    cli(folder.path(), &["plans", "check", folder.path().to_str().unwrap()]);
}

#[tokio::test]
async fn the_samples_of_receivers_know_our_signature_from_others() {
    if !has("python3") || !has("node") {
        return;
    }
    let t = Tenant::at("UTC", "2026-03-10T12:00:00.000Z").await;
    let receiver = Receiver::always(200).await;
    let webhook = t.add_webhook(&receiver.url, &["plan.changed"]).await;
    t.move_user("u_42", json!({"plan": "pro", "reason": "paid"})).await.ok();
    let came = receiver.wait_for(1).await.remove(0);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let (python, js) = (block("webhooks.md", "python"), block("webhooks.md", "js"));
    write(
        "one.py",
        &format!(
            "{python}\nimport json, sys\nverify(**json.loads(sys.argv[1]), body=sys.argv[2].encode())\n"
        ),
    );
    write(
        "one.mjs",
        &format!(
            "{js}\nconst {{ secret, headers }} = JSON.parse(process.argv[2]);\n\
             verify(secret, headers, Buffer.from(process.argv[3]));\n"
        ),
    );
    for (program, sample) in [("python3", "one.py"), ("node", "one.mjs")] {
        let knows = |text: &str| {
            let how = json!({"secret": webhook["secret"], "headers": came.headers}).to_string();
            let command = &mut Command::new(program);
            let done = command.current_dir(folder.path()).args([sample, &how, text]).output().unwrap();
            (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
        };
        assert_eq!(knows(&came.text), (true, String::new()), "{program}");
        let (is_known, said) = knows(&came.text.replace("pro", "max"));
        assert!(!is_known && said.contains("not"), "{program}: {said}");
    }
}

/// Its fields, and theirs, without what they say.
fn fields(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), fields(value))).collect(),
        _ => Value::Null,
    }
}

#[tokio::test]
async fn messages_have_the_fields_of_their_samples() {
    let t = Tenant::at("UTC", "2026-03-10T12:00:00.000Z").await;
    t.plan(&Sheet::named("free").mt(1000).but("warn_at", json!([0.8]))).await;
    t.pool(&PoolSheet::new("default", &["*"]).places(100)).await;
    let receiver = Receiver::always(200).await;
    let samples: Vec<Value> =
        blocks("webhooks.md", "json").iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    let types: Vec<&str> = samples.iter().map(|sample| sample["type"].as_str().unwrap()).collect();
    t.add_webhook(&receiver.url, &types).await;
    t.spend("w", 800, 0).await;
    let hold = t.ask_for("u_42", 5, 5, 30).await.hold_id();
    t.extend(&hold, json!({"output_tokens_so_far": 250})).await.ok();
    t.pass(60_000).await;
    t.move_user("u_42", json!({"plan": "pro", "sequence": 7, "reason": "paid"})).await.ok();
    let feedback = json!({"status": 429, "headers": {"retry-after": "20"}});
    t.post("/v1/pools/default/feedback", &feedback).await.ok();
    let came = receiver.wait_for(samples.len()).await;
    for sample in samples {
        let one = came.iter().find(|came| came.body["type"] == sample["type"]);
        let one = one.unwrap_or_else(|| panic!("{} has come", sample["type"]));
        assert_eq!(fields(&one.body), fields(&sample), "{}", one.text);
    }
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
