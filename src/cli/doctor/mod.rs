//! `apportion doctor`: looks at everything a server needs and says in plain
//! words what is wrong and what to do. It changes nothing.

mod machine;

use std::cmp::Ordering;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use secrecy::{ExposeSecret, SecretString};

use crate::config::{Config, Stores};
use crate::domain::time::{Millis, set_tzdata_dir, tz_version};
use crate::engine::redis::{Redis, Severity};
use crate::ledger::{Inspection, PostgresLook, inspect, look_at_postgres};
use crate::startup::{self, DataDir};
use crate::traces;

use super::{Common, say};

/// Zone rules older than this are wrong for zones that changed since.
const OLDEST_ZONE_RULES: &str = "2026f";
/// 2026-01-01: a clock before it was never set.
const CLOCK_MIN: Duration = Duration::from_secs(1_767_225_600);
/// What a server should find free at least, in bytes.
const PROBE_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Good,
    Odd,
    Bad,
}

/// One thing that was looked at.
#[derive(Debug)]
struct Finding {
    level: Level,
    subject: &'static str,
    text: String,
}

impl Finding {
    fn good(subject: &'static str, text: impl Into<String>) -> Self {
        Self { level: Level::Good, subject, text: text.into() }
    }

    fn odd(subject: &'static str, text: impl Into<String>) -> Self {
        Self { level: Level::Odd, subject, text: text.into() }
    }

    fn bad(subject: &'static str, text: impl Into<String>) -> Self {
        Self { level: Level::Bad, subject, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.level {
            Level::Good => "ok",
            Level::Odd => "odd",
            Level::Bad => "BAD",
        };
        write!(f, "{mark:<4}{:<11}{}", self.subject, self.text)
    }
}

/// Exit code 0 when nothing stands in the way of a server, else 1.
pub fn run(common: &Common) -> anyhow::Result<ExitCode> {
    let findings = match common.load(None) {
        Ok(config) => examine(&config),
        Err(error) => vec![Finding::bad("settings", chain(&error))],
    };
    for finding in &findings {
        say(finding)?;
    }
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Good);
    say(format_args!(
        "\n{}",
        match worst {
            Level::Good => "Nothing is wrong.",
            Level::Odd => "A server would run; what is marked `odd` deserves a look.",
            Level::Bad => "A server would not run, or not soundly; see what is marked `BAD`.",
        }
    ))?;
    Ok(ExitCode::from(if worst == Level::Bad { 1 } else { 0 }))
}

fn examine(config: &Config) -> Vec<Finding> {
    let dir = DataDir::at(&config.data);
    let holder = dir.holder();
    let mut findings = vec![Finding::good("settings", "read, every value makes sense")];
    findings.extend(directory(dir.path()));
    findings.extend(machine::disk(dir.path(), matches!(config.stores, Stores::Embedded(_))));
    findings.push(lock(holder.as_deref()));
    findings.extend(machine::open_files(config.http.max_connections, holder.as_deref().and_then(pid_of)));
    match &config.stores {
        Stores::Embedded(_) => findings.extend(database(&dir)),
        Stores::Shared { redis_url, database_url, .. } => {
            let servers = async {
                let mut findings = postgres(config, database_url).await;
                findings.extend(redis(redis_url).await);
                findings
            };
            match startup::runtime() {
                Ok(runtime) => findings.extend(runtime.block_on(servers)),
                Err(error) => findings.push(Finding::bad("redis", format!("{error:#}"))),
            }
        }
    }
    findings.extend(keys(&dir.keys()));
    findings.push(zones(config));
    findings.push(clock(&dir));
    findings.push(port(config.listen, holder.is_some()));
    findings.extend(config.traces.as_ref().map(collector));
    findings.extend(exposure(config));
    findings
}

/// Nothing waits for a collector, so that it is away stands in nobody's way.
fn collector(settings: &traces::Settings) -> Finding {
    const SUBJECT: &str = "traces";
    let shown = settings.shown();
    let reached = startup::runtime().map(|runtime| runtime.block_on(traces::reach(settings)));
    match reached {
        Ok(Ok(())) => Finding::good(SUBJECT, format!("the collector at {shown} takes them")),
        Ok(Err(error)) => Finding::odd(
            SUBJECT,
            format!(
                "the collector at {shown} does not take them ({error}); see otlp_endpoint and otlp_headers"
            ),
        ),
        Err(error) => Finding::bad(SUBJECT, format!("{error:#}")),
    }
}

fn directory(path: &Path) -> Vec<Finding> {
    const SUBJECT: &str = "directory";
    let shown = path.display();
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return vec![Finding::good(
                SUBJECT,
                format!("{shown} is not there yet; the first start makes it"),
            )];
        }
        Err(error) => return vec![Finding::bad(SUBJECT, format!("{shown} cannot be looked at: {error}"))],
    };
    if !metadata.is_dir() {
        return vec![Finding::bad(SUBJECT, format!("{shown} is no directory; set `data` to one"))];
    }
    let mut findings = Vec::new();
    if metadata.permissions().mode() & 0o077 != 0 {
        let text = format!("other users may look into {shown}; run: chmod 700 {shown}");
        findings.push(Finding::odd(SUBJECT, text));
    }
    findings.push(match probe(path) {
        Ok(()) => Finding::good(SUBJECT, format!("{shown} can be written")),
        Err(error) => {
            let advice = match error.kind() {
                ErrorKind::PermissionDenied => "; it must belong to the user that runs the server",
                ErrorKind::ReadOnlyFilesystem => "; its file system is mounted read-only",
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room on its disk",
                _ => "",
            };
            Finding::bad(SUBJECT, format!("{shown} cannot be written: {error}{advice}"))
        }
    });
    findings
}

/// Writes a file of its own to the disk and removes it.
fn probe(dir: &Path) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(".doctor-").tempfile_in(dir)?;
    file.write_all(&vec![0u8; PROBE_BYTES])?;
    file.as_file().sync_all()
}

fn lock(holder: Option<&str>) -> Finding {
    match holder {
        Some(holder) => Finding::good("server", format!("one is running on this data: {holder}")),
        None => Finding::good("server", "none is running on this data"),
    }
}

/// Of the server that wrote this about itself.
fn pid_of(holder: &str) -> Option<u32> {
    holder.strip_prefix("process ")?.split(',').next()?.parse().ok()
}

fn database(dir: &DataDir) -> Vec<Finding> {
    const SUBJECT: &str = "database";
    let path = dir.database();
    let shown = path.display();
    let inspected = super::runtime().map(|runtime| runtime.block_on(inspect(&path)));
    let found = match inspected {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return vec![Finding::bad(SUBJECT, chain(&error))],
        Err(error) => return vec![Finding::bad(SUBJECT, format!("{error:#}"))],
    };
    let Some(Inspection { schema, schema_known, damage }) = found else {
        return vec![Finding::good(SUBJECT, format!("{shown} is not there yet; the first start makes it"))];
    };
    let version = of_schema(SUBJECT, &shown.to_string(), schema, schema_known);
    let damage = damage.map(|damage| {
        Finding::bad(
            SUBJECT,
            format!("{shown} is damaged ({damage}); restore a backup beside it, keep this one"),
        )
    });
    [Some(version), damage].into_iter().flatten().collect()
}

/// What a ledger's schema means to this program.
fn of_schema(subject: &'static str, ledger: &str, schema: i64, known: i64) -> Finding {
    match schema.cmp(&known) {
        Ordering::Greater => {
            let text =
                format!("{ledger} has schema {schema}, this program knows {known}: use a newer version");
            Finding::bad(subject, text)
        }
        Ordering::Less => {
            let text = format!(
                "{ledger} has schema {schema}; the next start (or `apportion migrate`) makes it {known}"
            );
            Finding::good(subject, text)
        }
        Ordering::Equal => Finding::good(subject, format!("{ledger} has this version's schema ({schema})")),
    }
}

async fn postgres(config: &Config, url: &SecretString) -> Vec<Finding> {
    const SUBJECT: &str = "postgres";
    let look = match look_at_postgres(url.expose_secret()).await {
        Ok(look) => look,
        Err(error) => return vec![Finding::bad(SUBJECT, chain(&error))],
    };
    let PostgresLook { place, version, schema, schema_known, bad, odd } = look;
    let (about, is_current) = (format!("{place} (version {version})"), schema == Some(schema_known));
    let mut findings = Vec::new();
    if let Some(schema) = schema {
        findings.push(of_schema(SUBJECT, &about, schema, schema_known));
    }
    findings.extend(bad.into_iter().map(|text| Finding::bad(SUBJECT, format!("{place}: {text}"))));
    findings.extend(odd.into_iter().map(|text| Finding::odd(SUBJECT, format!("{place}: {text}"))));
    if is_current && findings.iter().all(|finding| finding.level != Level::Bad) {
        findings.extend(common_key(config).await);
    }
    findings
}

/// Whether this node believes the API keys that other nodes made. Where it has no
/// secret yet it is not made here.
async fn common_key(config: &Config) -> Option<Finding> {
    const SUBJECT: &str = "server_key";
    if config.server_key.is_none() && !DataDir::at(&config.data).keys().join("server.key").is_file() {
        let text = "none yet: the first node makes one, others need it as APPORTION_SERVER_KEY";
        return Some(Finding::good(SUBJECT, text));
    }
    let data = match startup::open(config).await {
        Ok(data) => data,
        Err(error) => return Some(Finding::bad(SUBJECT, format!("{error:#}"))),
    };
    let same = data.registry.has_the_common_key().await;
    data.ledger.close().await;
    Some(match same {
        Ok(()) => Finding::good(SUBJECT, "the one that the installation has"),
        Err(error) => Finding::bad(SUBJECT, chain(&error)),
    })
}

async fn redis(url: &SecretString) -> Vec<Finding> {
    const SUBJECT: &str = "redis";
    let servers = match Redis::connect(url.expose_secret()).await {
        Ok(servers) => servers,
        Err(error) => return vec![Finding::bad(SUBJECT, chain(&error))],
    };
    let told = servers.check().await.into_iter().map(|found| {
        let text = format!("{}: {}", found.server, found.text);
        match found.severity {
            Severity::Error => Finding::bad(SUBJECT, text),
            Severity::Warning => Finding::odd(SUBJECT, text),
            Severity::Info => Finding::good(SUBJECT, text),
        }
    });
    told.collect()
}

fn keys(dir: &Path) -> Vec<Finding> {
    const SUBJECT: &str = "keys";
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return vec![Finding::good(SUBJECT, "none yet; they are made when they are needed")];
        }
        Err(error) => {
            return vec![Finding::bad(SUBJECT, format!("{} cannot be read: {error}", dir.display()))];
        }
    };
    let mut findings = Vec::new();
    let mut count = 0;
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()) {
        count += 1;
        if let Err(error) = std::fs::File::open(&path) {
            findings.push(Finding::bad(SUBJECT, format!("{} cannot be read: {error}", path.display())));
        }
        let mode = std::fs::metadata(&path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o077 != 0 {
            let shown = path.display();
            findings
                .push(Finding::bad(SUBJECT, format!("other users may read {shown}; run: chmod 600 {shown}")));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::good(SUBJECT, format!("{count} files, for their owner alone")));
    }
    findings
}

fn zones(config: &Config) -> Finding {
    const SUBJECT: &str = "zones";
    if let Some(dir) = &config.tzdir
        && let Err(error) = set_tzdata_dir(dir)
    {
        return Finding::bad(SUBJECT, format!("the zone files in {} cannot be used: {error}", dir.display()));
    }
    let version = tz_version();
    if version.as_str() < OLDEST_ZONE_RULES {
        let text = format!(
            "zone rules {version}: zones that changed since have wrong midnights; use {OLDEST_ZONE_RULES} or later"
        );
        return Finding::odd(SUBJECT, text);
    }
    Finding::good(SUBJECT, format!("zone rules {version}"))
}

/// A clock that is behind what was already written would freeze refills until
/// it has caught up.
fn clock(dir: &DataDir) -> Finding {
    const SUBJECT: &str = "clock";
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Millis(i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX));
    if since_1970 < CLOCK_MIN {
        return Finding::bad(SUBJECT, format!("it is {now} by this machine's clock; set it"));
    }
    let written = std::fs::metadata(dir.database()).and_then(|metadata| metadata.modified());
    match written.ok().and_then(|written| written.duration_since(SystemTime::now()).ok()) {
        Some(ahead) if ahead > Duration::from_secs(60) => {
            let text = format!(
                "it is {now} by this machine's clock, but the database was written {} s later than that; set the clock",
                ahead.as_secs()
            );
            Finding::bad(SUBJECT, text)
        }
        _ => Finding::good(SUBJECT, format!("it is {now}")),
    }
}

fn port(listen: SocketAddr, server_runs: bool) -> Finding {
    const SUBJECT: &str = "port";
    match TcpListener::bind(listen) {
        Ok(_) => Finding::good(SUBJECT, format!("{listen} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse && server_runs => {
            Finding::good(SUBJECT, format!("{listen} is in use, as it should be while the server runs"))
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => Finding::bad(
            SUBJECT,
            format!("{listen} is in use by another program; choose another with --listen"),
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let text =
                format!("{listen} may not be used by this user; ports below 1024 need a right of their own");
            Finding::bad(SUBJECT, text)
        }
        Err(error) => Finding::bad(SUBJECT, format!("{listen} cannot be used: {error}")),
    }
}

fn exposure(config: &Config) -> Option<Finding> {
    if config.listen.ip().is_loopback() {
        return None;
    }
    let text = match config.allow_generated_keys {
        true => "keys made here are accepted on a public address, as `allow_generated_keys` says",
        false => {
            "on a public address, tokens of keys made here are refused; `allow_generated_keys = true` \
             accepts them, keys of your own (POST /v1/admin/keys) need nothing"
        }
    };
    Some(Finding::odd("exposure", text))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(findings: &[Finding]) -> Level {
        findings.iter().map(|finding| finding.level).max().unwrap()
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_fine_and_a_file_is_not() {
        let parent = tempfile::tempdir().unwrap();
        assert_eq!(worst(&directory(&parent.path().join("new"))), Level::Good);
        let file = parent.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(worst(&directory(&file)), Level::Bad);
    }

    #[test]
    fn key_files_that_others_may_read_are_named_with_the_cure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.pem");
        std::fs::write(&path, "x").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let findings = keys(dir.path());
        assert_eq!(worst(&findings), Level::Bad);
        assert!(findings[0].text.contains("chmod 600"), "{findings:?}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(worst(&keys(dir.path())), Level::Good);
    }

    #[test]
    fn a_taken_port_is_bad_unless_our_server_has_it() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert_eq!(port(address, false).level, Level::Bad);
        assert_eq!(port(address, true).level, Level::Good);
    }
}
