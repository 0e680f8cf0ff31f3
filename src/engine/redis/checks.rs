//! What must be so at a Redis before it is trusted with accounts.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{Cmd, Value, cmd};

use super::{Redis, RedisError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// It must not be used like this.
    Error,
    Warning,
    Info,
}

/// Something that the operator should know about one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// The server's address.
    pub server: String,
    pub text: String,
}

/// Clocks further apart than this are worth a word.
const APART_MS: i64 = 250;
/// The same of Redis and this machine.
const OFF_MS: i64 = 2_000;
/// An answer that takes longer is worth a word.
const SLOW: Duration = Duration::from_millis(5);

impl Redis {
    /// Looks at every primary.
    pub async fn check(&self) -> Vec<Finding> {
        let is_cluster = self.shared.is_cluster();
        let mut findings = Vec::new();
        for (server, info) in self.everywhere(cmd("INFO").arg("everything")).await {
            let mut tell =
                |severity, text: String| findings.push(Finding { severity, server: server.clone(), text });
            match info.and_then(|value| text_of(&value)) {
                Ok(info) => judge(&Info(&info), is_cluster, &mut tell),
                Err(error) => tell(Severity::Error, error.to_string()),
            }
        }
        self.check_persistence(&mut findings).await;
        if is_cluster {
            self.check_cluster(&mut findings).await;
        }
        self.check_clocks(&mut findings).await;
        self.check_latency(&mut findings).await;
        findings
    }

    /// Often forbidden where Redis is rented; then nothing is told.
    async fn check_persistence(&self, findings: &mut Vec<Finding>) {
        for (name, what) in [("appendfsync", "appendfsync"), ("save", "snapshots (save)")] {
            for (server, answer) in self.everywhere(cmd("CONFIG").arg("GET").arg(name)).await {
                let Ok((_, value)) = answer.and_then(read::<(String, String)>) else {
                    continue;
                };
                let value = if value.is_empty() { "off".to_owned() } else { value };
                findings.push(Finding { severity: Severity::Info, server, text: format!("{what}: {value}") });
            }
        }
    }

    async fn check_cluster(&self, findings: &mut Vec<Finding>) {
        for (server, answer) in self.everywhere(cmd("CLUSTER").arg("INFO")).await {
            let info = answer.and_then(|value| text_of(&value)).unwrap_or_default();
            let info = Info(&info);
            let (state, served) = (info.get("cluster_state"), info.get("cluster_slots_ok"));
            if state != Some("ok") || served != Some("16384") {
                let text = format!(
                    "the cluster's state is {}, with {} of 16384 slots served",
                    state.unwrap_or("unknown"),
                    served.unwrap_or("an unknown number")
                );
                findings.push(Finding { severity: Severity::Error, server, text });
            }
        }
    }

    async fn check_clocks(&self, findings: &mut Vec<Finding>) {
        let told = self.everywhere(&Cmd::new().arg("TIME").to_owned()).await;
        let times: Vec<i64> =
            told.iter().filter_map(|(_, answer)| super::keeper::micros(answer.as_ref().ok()?)).collect();
        let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) else { return };
        let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64;
        let off_ms = (first - here).abs().max((last - here).abs()) / 1000;
        if off_ms > OFF_MS {
            let text = format!(
                "its clock and this machine's are {} s apart: Redis' decides; keep both by NTP",
                off_ms / 1000
            );
            findings.push(Finding { severity: Severity::Warning, server: "all".to_owned(), text });
        }
        let apart_ms = (last - first) / 1000;
        if apart_ms > APART_MS {
            let text = format!("the primaries' clocks are {apart_ms} ms apart");
            findings.push(Finding { severity: Severity::Warning, server: "all".to_owned(), text });
        }
    }

    /// Every check waits for an answer.
    async fn check_latency(&self, findings: &mut Vec<Finding>) {
        let mut quickest = Duration::MAX;
        for _ in 0..5 {
            let from = Instant::now();
            self.everywhere(&cmd("PING")).await;
            quickest = quickest.min(from.elapsed());
        }
        if quickest > SLOW {
            let text = format!("an answer takes {} ms: put it nearer to the nodes", quickest.as_millis());
            findings.push(Finding { severity: Severity::Warning, server: "all".to_owned(), text });
        }
    }
}

fn judge(info: &Info<'_>, is_cluster: bool, tell: &mut impl FnMut(Severity, String)) {
    let version = info.get("redis_version").unwrap_or("unknown");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < 7) {
        tell(Severity::Error, format!("version {version}: 7.0 or later is needed"));
    } else {
        tell(Severity::Info, format!("version {version}"));
    }
    let policy = info.get("maxmemory_policy").unwrap_or("unknown");
    if policy != "noeviction" {
        tell(
            Severity::Error,
            format!(
                "maxmemory-policy is {policy}: it must be noeviction, or accounts vanish when memory is short"
            ),
        );
    }
    if info.get("role") != Some("master") {
        tell(
            Severity::Error,
            "it is a replica: give the URL of its primary, or redis+sentinel://".to_owned(),
        );
    }
    if info.get("cluster_enabled") == Some("1") && !is_cluster {
        tell(Severity::Error, "it belongs to a cluster: its URL must begin with redis+cluster://".to_owned());
    }
    let number = |name| info.get(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    match (number("used_memory"), number("maxmemory")) {
        (_, 0) => tell(Severity::Info, "no maxmemory is set".to_owned()),
        // When it is full checks are refused.
        (used, most) if used / 4 >= most / 5 => {
            tell(Severity::Warning, format!("{used} of {most} bytes (maxmemory) are used: give it more"));
        }
        (_, most) => tell(Severity::Info, format!("maxmemory is {most} bytes")),
    }
    match info.get("aof_enabled") {
        Some("1") => tell(Severity::Info, "append-only file: on".to_owned()),
        _ => tell(
            Severity::Warning,
            "append-only file: off: a restart loses what Postgres does not have yet; set appendonly yes"
                .to_owned(),
        ),
    }
    tell(Severity::Info, format!("replicas: {}", info.get("connected_slaves").unwrap_or("unknown")));
}

/// Lines of `name:value`.
struct Info<'a>(&'a str);

impl Info<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

fn text_of(value: &Value) -> Result<String, RedisError> {
    read(value.clone())
}

fn read<T: redis::FromRedisValue>(value: Value) -> Result<T, RedisError> {
    redis::from_redis_value(value).map_err(|error| RedisError::Refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(info: &str, is_cluster: bool, level: Severity) -> Vec<String> {
        let mut all = Vec::new();
        judge(&Info(info), is_cluster, &mut |severity, text| {
            if severity == level {
                all.push(text);
            }
        });
        all
    }

    fn errors(info: &str, is_cluster: bool) -> Vec<String> {
        told(info, is_cluster, Severity::Error)
    }

    #[test]
    fn what_may_be_lost_or_full_is_a_warning() {
        let good = "aof_enabled:1\r\nused_memory:79\r\nmaxmemory:100\r\n";
        assert_eq!(told(good, false, Severity::Warning), [""; 0]);
        for (from, to, part) in [("enabled:1", "enabled:0", "appendonly"), (":79", ":80", "80 of 100")] {
            let found = told(&good.replace(from, to), false, Severity::Warning);
            assert!(found.len() == 1 && found[0].contains(part), "{found:?}");
        }
    }

    #[test]
    fn what_must_not_be_used_is_an_error() {
        let good = "redis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\nrole:master\r\n";
        assert_eq!(errors(good, false), [""; 0]);
        for (from, to, part) in [
            ("7.0.15", "6.2.1", "7.0 or later"),
            ("noeviction", "allkeys-lru", "noeviction"),
            ("master", "slave", "replica"),
            ("role:master", "role:master\r\ncluster_enabled:1", "redis+cluster"),
        ] {
            let found = errors(&good.replace(from, to), false);
            assert!(found.len() == 1 && found[0].contains(part), "{found:?}");
        }
        assert_eq!(errors(&format!("{good}cluster_enabled:1"), true), [""; 0]);
    }
}
