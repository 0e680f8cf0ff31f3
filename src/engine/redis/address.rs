//! `redis://`, `redis+cluster://`, `redis+sentinel://`, and with TLS `rediss…`.

use std::fmt;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use secrecy::{ExposeSecret, SecretString};

use super::error::RedisError;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Endpoint {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Endpoint {
    /// `host`, `host:port`, `[v6]:port`; Redis itself writes v6 without brackets.
    pub fn parse(text: &str, usual_port: u16) -> Result<Self, RedisError> {
        let wrong = |what: &str| RedisError::Url(format!("{text:?} {what}"));
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = match port {
            Some(port) => {
                port.parse().ok().filter(|port| *port != 0).ok_or_else(|| wrong("has no valid port"))?
            }
            None => usual_port,
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "/?#@[]".contains(c)) {
            return Err(wrong("names no host"));
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    One(Endpoint),
    /// Some of the cluster's nodes.
    Cluster(Vec<Endpoint>),
    /// The Sentinels, and the name under which they watch the primary.
    Sentinel(Vec<Endpoint>, String),
}

/// Where Redis is, and how to be let in.
#[derive(Debug, Clone)]
pub(super) struct Address {
    pub target: Target,
    tls: bool,
    user: Option<String>,
    password: Option<SecretString>,
    database: i64,
}

impl Address {
    pub fn parse(url: &str) -> Result<Self, RedisError> {
        let wrong = |what: &str| RedisError::Url(what.to_owned());
        let (scheme, rest) =
            url.trim().split_once("://").ok_or_else(|| wrong("it has no scheme such as redis://"))?;
        let (tls, kind) = match scheme.strip_prefix("rediss") {
            Some(kind) => (true, kind),
            None => (false, scheme.strip_prefix("redis").unwrap_or("?")),
        };
        // The last one: a password may have been written as it is.
        let (credentials, place) = match rest.rsplit_once('@') {
            Some((credentials, place)) => (Some(credentials), place),
            None => (None, rest),
        };
        let (user, password) = credentials.map(parse_credentials).transpose()?.unwrap_or_default();
        if place.contains(['?', '#']) {
            return Err(wrong("it takes no parameters"));
        }
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let list =
            |port| hosts.split(',').map(|host| Endpoint::parse(host, port)).collect::<Result<Vec<_>, _>>();
        let mut database = 0;
        let target = match kind {
            "" => {
                if !path.is_empty() {
                    database = path
                        .parse()
                        .map_err(|_| wrong("after the host only a database's number may follow"))?;
                }
                if hosts.contains(',') {
                    return Err(wrong("several hosts need redis+cluster:// or redis+sentinel://"));
                }
                Target::One(Endpoint::parse(hosts, PORT)?)
            }
            "+cluster" if matches!(path, "" | "0") => Target::Cluster(list(PORT)?),
            "+cluster" => return Err(wrong("a cluster has no databases but 0")),
            "+sentinel" if path.is_empty() || path.contains('/') => {
                return Err(wrong(
                    "the name that the Sentinels watch is missing: redis+sentinel://h1,h2/NAME",
                ));
            }
            "+sentinel" => Target::Sentinel(list(SENTINEL_PORT)?, path.to_owned()),
            _ => {
                return Err(wrong(
                    "its scheme is none of redis, redis+cluster, redis+sentinel (with TLS: rediss…)",
                ));
            }
        };
        Ok(Self { target, tls, user, password, database })
    }

    /// How to be let in at a node that keeps data.
    pub fn ways(&self, to: &Endpoint) -> Result<Vec<ConnectionInfo>, RedisError> {
        Ok(vec![self.way(to, true)?])
    }

    /// How to be let in at a Sentinel, which may have the same users or none.
    pub fn ways_to_sentinel(&self, to: &Endpoint) -> Result<Vec<ConnectionInfo>, RedisError> {
        let known = self.password.as_ref().map(|_| self.way(to, true));
        known.into_iter().chain([self.way(to, false)]).collect()
    }

    fn way(&self, to: &Endpoint, known: bool) -> Result<ConnectionInfo, RedisError> {
        let (host, port) = (to.host.clone(), to.port);
        let place = if self.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let mut settings = RedisConnectionInfo::default()
            .set_db(self.database)
            .set_lib_name("apportion", env!("CARGO_PKG_VERSION"));
        if let Some(user) = self.user.as_ref().filter(|_| known) {
            settings = settings.set_username(user);
        }
        if let Some(password) = self.password.as_ref().filter(|_| known) {
            settings = settings.set_password(password.expose_secret());
        }
        let info = place.into_connection_info().map_err(|error| RedisError::Url(error.to_string()))?;
        Ok(info.set_redis_settings(settings))
    }
}

type Credentials = (Option<String>, Option<SecretString>);

fn parse_credentials(text: &str) -> Result<Credentials, RedisError> {
    let wrong = |what: &str| RedisError::Url(what.to_owned());
    let (user, password) =
        text.split_once(':').ok_or_else(|| wrong("before the @ it takes user:password, or :password"))?;
    let decoded =
        |text| percent_decoded(text).ok_or_else(|| wrong("its user or password has a % that is no %XX"));
    let (user, password) = (decoded(user)?, decoded(password)?);
    if password.is_empty() {
        return Err(wrong("its password is empty"));
    }
    Ok(((!user.is_empty()).then_some(user), Some(password.into())))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Endpoint {
        Endpoint { host: host.to_owned(), port }
    }

    fn target(url: &str) -> Target {
        Address::parse(url).unwrap().target
    }

    #[test]
    fn every_topology_has_its_scheme() {
        assert_eq!(target("redis://h:7000"), Target::One(at("h", 7000)));
        assert_eq!(target("redis://h"), Target::One(at("h", 6379)));
        assert_eq!(target("redis://[::1]:7000/"), Target::One(at("::1", 7000)));
        assert_eq!(target("redis+cluster://a:1,b:2"), Target::Cluster(vec![at("a", 1), at("b", 2)]));
        let watched = Target::Sentinel(vec![at("a", 26379), at("b", 2)], "main".to_owned());
        assert_eq!(target("redis+sentinel://a,b:2/main"), watched);
        assert!(Address::parse("rediss+cluster://a:1").unwrap().tls);
        assert_eq!(Address::parse("redis://h/3").unwrap().database, 3);
    }

    #[test]
    fn credentials_are_read_and_never_shown() {
        let address = Address::parse("redis://me:p%40s/s@w0rd@h:1").unwrap();
        assert_eq!(address.user.as_deref(), Some("me"));
        assert_eq!(address.password.as_ref().unwrap().expose_secret(), "p@s/s@w0rd");
        assert_eq!(address.target, Target::One(at("h", 1)));
        assert!(!format!("{address:?}").contains("w0rd"));
        assert_eq!(Address::parse("redis://:secret@h").unwrap().user, None);
    }

    #[test]
    fn a_wrong_url_is_told_without_its_password() {
        for (url, part) in [
            ("h:6379", "scheme"),
            ("http://h", "scheme"),
            ("redis+x://h", "scheme"),
            ("redis://u:secret@h:x", "port"),
            ("redis://u:secret@h:0", "port"),
            ("redis://u:secret@", "host"),
            ("redis://u:secret@a,b", "several"),
            ("redis://u:secret@h/x", "database"),
            ("redis://u:sec%ret@h", "%"),
            ("redis://secret@h", "user:password"),
            ("redis://u:@h", "empty"),
            ("redis://u:secret@h?x=1", "parameters"),
            ("redis+cluster://u:secret@h/1", "databases"),
            ("redis+cluster://u:secret@h,", "host"),
            ("redis+sentinel://u:secret@h", "name"),
        ] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn redis_writes_v6_addresses_without_brackets() {
        assert_eq!(Endpoint::parse("::1:7000", 0).unwrap(), at("::1", 7000));
        assert_eq!(at("::1", 7000).to_string(), "[::1]:7000");
    }
}
