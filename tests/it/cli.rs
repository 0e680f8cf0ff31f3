//! The command line as an operator meets it: what it prints, and its exit codes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const FIRST_START: &str = "curl -s http://";

fn apportion(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apportion"));
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).env("APPORTION_LOG", "warn");
    command
}

fn run(arguments: &[&str]) -> Output {
    apportion(arguments).stdin(Stdio::null()).output().expect("the binary runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn trace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/trace.csv")
}

/// A server whose standard output is read.
struct Serving {
    child: Child,
    /// What it printed, up to the call to paste.
    call: Option<String>,
}

impl Serving {
    /// Starts on a free port; waits for the call that a first start prints.
    fn first_start(data: &Path) -> Self {
        Self::first_start_with(data, "warn", Stdio::inherit())
    }

    fn first_start_with(data: &Path, filter: &str, log: Stdio) -> Self {
        let mut child = apportion(&["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .env("APPORTION_LOG", filter)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let call = lines.map_while(Result::ok).find(|line| line.starts_with(FIRST_START));
        Self { child, call }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn the_first_start_prints_a_call_that_works_and_sigterm_ends_it_well() {
    let data = tempfile::tempdir().unwrap();
    let mut serving = Serving::first_start(data.path());
    let call = serving.call.clone().expect("a call to paste");
    let part = |before: &str, after: &str| {
        let rest = call.split(before).nth(1).unwrap_or_else(|| panic!("no {before} in {call}"));
        rest.split(after).next().unwrap_or_default().to_owned()
    };
    let client = reqwest::Client::new();
    let reply = client
        .post(format!("http://{}", part(FIRST_START, " ")))
        .header("Authorization", part("'Authorization: ", "'"))
        .header("Content-Type", "application/json")
        .body(part("-d '", "'"))
        .send()
        .await
        .unwrap();
    assert_eq!(reply.status(), 200);
    let reply: Value = reply.json().await.unwrap();
    assert_eq!((&reply["decision"], &reply["plan"]["id"]), (&"allow".into(), &"free".into()));
    serving.signal("TERM");
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_health_check_needs_no_other_program() {
    let data = tempfile::tempdir().unwrap();
    let serving = Serving::first_start(data.path());
    let call = serving.call.clone().expect("a call to paste");
    let address = call.strip_prefix(FIRST_START).and_then(|rest| rest.split('/').next()).expect("an address");
    let ask = |listen: &str| apportion(&["ready"]).env("APPORTION_LISTEN", listen).output().unwrap();
    let port = address.rsplit(':').next().expect("a port");
    for listen in [address, &format!("0.0.0.0:{port}")] {
        let ready = ask(listen);
        assert!(code(&ready) == 0 && out(&ready).contains("\"ok\""), "{}{}", out(&ready), err(&ready));
    }
    drop(serving);
    let gone = ask(address);
    assert!(code(&gone) == 1 && err(&gone).contains(address), "{}", err(&gone));
}

#[tokio::test]
async fn a_log_that_cannot_be_written_ends_nothing() {
    let data = tempfile::tempdir().unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device");
    let mut serving = Serving::first_start_with(data.path(), "debug", full.into());
    let call = serving.call.clone().expect("a call to paste");
    let address = call.strip_prefix(FIRST_START).and_then(|rest| rest.split('/').next()).expect("an address");
    for _ in 0..3 {
        let reply = reqwest::get(format!("http://{address}/v1/nope")).await.expect("it still answers");
        assert_eq!(reply.status(), 401);
    }
    assert!(serving.child.try_wait().unwrap().is_none(), "it runs");
}

#[test]
fn a_second_server_on_the_same_data_is_refused_and_told_about_the_first() {
    let data = tempfile::tempdir().unwrap();
    let first = Serving::first_start(data.path());
    let shown = data.path().to_str().unwrap();
    let second = run(&["serve", "--listen", "127.0.0.1:0", "--data", shown]);
    assert_eq!(code(&second), 1);
    let pid = first.child.id().to_string();
    assert!(err(&second).contains("another server") && err(&second).contains(&pid), "{}", err(&second));
    let doctor = run(&["doctor", "--data", shown]);
    assert!(out(&doctor).contains(&format!("process {pid}")), "{}", out(&doctor));
    let minted = run(&["token", "mint", "--tenant", "demo", "--scope", "check quota", "--data", shown]);
    assert_eq!(code(&minted), 0, "{}", err(&minted));
    let lines: Vec<_> = out(&minted).lines().map(str::to_owned).collect();
    assert!(lines.len() == 1 && lines[0].split('.').count() == 3, "the token alone: {lines:?}");
}

#[test]
fn commands_on_data_that_is_not_there_say_so_and_make_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let data = parent.path().join("none");
    let shown = data.to_str().unwrap();
    for line in [
        vec!["token", "mint", "--tenant", "demo", "--scope", "check"],
        vec!["capacity", "--tenant", "demo", "--active", "free=1"],
    ] {
        let done = run(&[line, vec!["--data", shown]].concat());
        assert_ne!(code(&done), 0);
        assert!(err(&done).contains("no Apportion data"), "{}", err(&done));
        assert!(!data.exists());
    }
}

#[test]
fn a_file_that_is_no_database_is_named_and_left_alone() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("apportion.db");
    let garbage = "this is no database, but a letter to grandmother\n".repeat(200);
    std::fs::write(&file, &garbage).unwrap();
    let shown = data.path().to_str().unwrap();
    for line in [vec!["serve", "--listen", "127.0.0.1:0"], vec!["migrate"], vec!["tenant", "create", "t"]] {
        let done = run(&[line.clone(), vec!["--data", shown]].concat());
        assert_eq!(code(&done), 1, "{line:?}");
        assert!(err(&done).contains("apportion.db"), "{line:?}: {}", err(&done));
    }
    let doctor = run(&["doctor", "--data", shown]);
    assert!(code(&doctor) == 1 && out(&doctor).contains("BAD database"), "{}", out(&doctor));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), garbage);
}

#[test]
fn a_bad_setting_or_flag_is_a_usage_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("settings.toml");
    std::fs::write(&file, "durabillity = \"os\"\n").unwrap();
    let done = run(&["serve", "--config", file.to_str().unwrap(), "--data", dir.path().to_str().unwrap()]);
    assert!(code(&done) == 2 && err(&done).contains("durabillity"), "{}", err(&done));
    let done =
        apportion(&["serve"]).env("APPORTION_REDIS_URL", "redis://:hunter2@127.0.0.1").output().unwrap();
    assert_eq!(code(&done), 2);
    assert!(err(&done).contains("`database_url` is missing") && !err(&done).contains("hunter2"));
    for line in [vec!["sevre"], vec!["serve", "--listen", "nowhere"], vec!["token", "mint", "--tenant", "t"]]
    {
        let done = run(&line);
        assert_eq!(code(&done), 2, "{line:?}: {}", err(&done));
    }
}

#[test]
fn no_demo_is_made_where_others_could_reach_it() {
    let data = tempfile::tempdir().unwrap();
    let shown = data.path().to_str().unwrap();
    let mut child = apportion(&["serve", "--listen", "0.0.0.0:0", "--data", shown])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let warned = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find(|line| line.contains("tenant create"));
    child.kill().unwrap();
    let said = child.wait_with_output().unwrap();
    assert!(warned.is_some(), "the log says what to do");
    assert!(!out(&said).contains("Bearer"));
}

#[tokio::test]
async fn keys_that_lost_their_secret_are_told_of_at_the_start() {
    let data = tempfile::tempdir().unwrap();
    let shown = data.path().to_str().unwrap();
    let first = Serving::first_start(data.path());
    let call = first.call.clone().expect("a call to paste");
    let address = call.strip_prefix(FIRST_START).and_then(|rest| rest.split('/').next()).expect("an address");
    let minted = run(&["token", "mint", "--tenant", "demo", "--scope", "admin:write", "--data", shown]);
    let client = reqwest::Client::new();
    for body in [
        r#"{"kind":"api","scopes":["check"],"name":"backend"}"#,
        r#"{"kind":"jwt","algorithm":"HS256","scopes":["check"]}"#,
    ] {
        let request = client.post(format!("http://{address}/v1/admin/keys")).bearer_auth(out(&minted).trim());
        let made = request.header("Content-Type", "application/json").body(body).send().await.unwrap();
        assert_eq!(made.status(), 201);
    }
    drop(first);
    std::fs::remove_dir_all(data.path().join("keys")).unwrap();
    let mut again = apportion(&["serve", "--listen", "127.0.0.1:0", "--data", shown])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(again.stderr.take().unwrap()).lines();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = lines.map_while(Result::ok);
        let _ = tell.send(lines.find(|line| line.contains("cannot be checked any more")));
    });
    let told = told.recv_timeout(std::time::Duration::from_secs(20));
    again.kill().unwrap();
    again.wait().unwrap();
    let told = told.expect("the log speaks").expect("the log tells");
    assert!(told.contains("WARN") && told.contains("keys=2"), "{told}");
}

#[test]
fn plans_are_checked_with_every_fault_and_an_exit_code() {
    assert_eq!(code(&run(&["plans", "check", "plans"])), 0);
    assert_eq!(code(&run(&["plans", "check", "no-such-folder"])), 2);
    let dir = tempfile::tempdir().unwrap();
    let sheet = "id = \"x\"\nname = \"X\"\n[[limits]]\nname = \"a\"\nkind = \"bucket\"\nmeter = \"requests\"\n\
                 capacity = -1\nrefill_per_minute = 1\n[[limits]]\nname = \"a\"\nkind = \"slots\"\nlimit = 1.5\n";
    std::fs::write(dir.path().join("x.toml"), sheet).unwrap();
    let done = run(&["plans", "check", dir.path().to_str().unwrap()]);
    assert_eq!(code(&done), 1);
    for field in ["/limits/0/capacity", "/limits/1/limit"] {
        assert!(out(&done).contains(&format!("x.toml: {field}")), "no {field} in {}", out(&done));
    }
}

#[test]
fn the_openapi_document_in_the_repository_is_current() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/openapi.json");
    let printed = out(&run(&["openapi"]));
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(printed == kept, "run: cargo run -- openapi > openapi/openapi.json");
}

#[test]
fn a_replay_repeats_itself_by_the_byte_and_agrees_with_the_ledger() {
    let trace = trace();
    let replay = |seed: &str, more: &[&str]| {
        let line = [&["replay", trace.to_str().unwrap(), "--users", "40", "--seed", seed], more].concat();
        let done = run(&line);
        assert_eq!(code(&done), 0, "{}", err(&done));
        out(&done)
    };
    let (first, second) = (replay("7", &[]), replay("7", &[]));
    assert_eq!(first, second);
    let report: Value = serde_json::from_str(&replay("7", &["--json"])).unwrap();
    assert_eq!(report["ledger"]["agrees"], true);
    assert_eq!(report["trace"]["calls"], 400);
    let total = &report["total"];
    assert_eq!(total["admitted"].as_u64().unwrap() + total["refused"].as_u64().unwrap(), 400);
    assert_eq!(total["used"], report["ledger"]["recorded"]);
    assert_ne!(replay("8", &[]), first);
}

#[test]
fn a_replay_beside_another_limiter_tells_where_they_differ_by_the_byte() {
    let (trace, dir) = (trace(), tempfile::tempdir().unwrap());
    for name in ["free", "standard", "pro"] {
        let sheet = std::fs::read_to_string(format!("plans/{name}.toml")).unwrap();
        let altered = sheet.replace("limit = 30\n", "limit = 3\n");
        std::fs::write(dir.path().join(format!("{name}.toml")), altered).unwrap();
    }
    let replay = |more: &[&str]| {
        let line = ["replay", trace.to_str().unwrap(), "--users", "40", "--seed", "7", "--against"];
        let done = run(&[&line, more].concat());
        assert_eq!(code(&done), 0, "{}", err(&done));
        out(&done)
    };
    // The same plans decide alike, call by call, also where they refuse.
    let same: Value = serde_json::from_str(&replay(&["plans", "--json"])).unwrap();
    assert_eq!(
        (&same["total"]["only_ours_refuse"], &same["total"]["only_theirs_refuse"]),
        (&0.into(), &0.into())
    );
    assert!(same["total"]["both_refuse"].as_u64().unwrap() > 0, "{same}");
    assert_eq!(same["top_users"], serde_json::json!([]));
    let altered = dir.path().to_str().unwrap();
    assert_eq!(replay(&[altered]), replay(&[altered]));
    let report: Value = serde_json::from_str(&replay(&[altered, "--json"])).unwrap();
    assert!(report["total"]["only_theirs_refuse"].as_u64().unwrap() > 0, "{report}");
    let sum = |rows: &Value, field: &str| {
        rows.as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((sum(&report["pairs"], "calls"), sum(&report["plans"], "calls")), (400, 400));
    assert_eq!(report["ledger"]["agrees"], true);
}

#[test]
fn a_replay_says_what_is_wrong_with_its_input() {
    let trace = trace();
    let trace = trace.to_str().unwrap();
    let no_users = run(&["replay", trace, "--users", "0"]);
    assert_eq!(code(&no_users), 2);
    let unknown = run(&["replay", trace, "--users", "5", "--mix", "gold=1"]);
    assert!(code(&unknown) == 2 && err(&unknown).contains("gold"), "{}", err(&unknown));
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.csv");
    std::fs::write(&bad, "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:00,1,x\n").unwrap();
    let done = run(&["replay", bad.to_str().unwrap(), "--users", "5"]);
    assert!(code(&done) == 1 && err(&done).contains("line 2"), "{}", err(&done));
}

#[test]
fn real_traces_replay_and_agree_with_the_ledger() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    for name in ["azure_llm_2023_code.csv", "azure_llm_2023_conv.csv"] {
        let file = folder.join(name);
        if !file.is_file() {
            println!("SKIPPED: {name} is not beside the project");
            continue;
        }
        let line = ["replay", file.to_str().unwrap(), "--users", "1000", "--seed", "1", "--json"];
        let done = run(&line);
        assert_eq!(code(&done), 0, "{}", err(&done));
        let report: Value = serde_json::from_str(&out(&done)).unwrap();
        assert_eq!(report["total"]["used"], report["ledger"]["recorded"], "{name}");
    }
}

#[test]
fn a_reader_that_went_away_is_no_failure_and_no_panic() {
    for line in [vec!["openapi"], vec!["plans", "check", "plans"]] {
        let mut child = apportion(&line)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        drop(child.stdout.take());
        let done = child.wait_with_output().expect("it ends");
        assert!(code(&done) == 0 && done.stderr.is_empty(), "{line:?}: {}", err(&done));
    }
}
