//! What can go wrong, and what follows from it.

use redis::{ErrorKind, ServerErrorKind, Value};

use super::address::Endpoint;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedisError {
    /// The URL is none; never has the password in it.
    #[error("the Redis URL: {0}")]
    Url(String),
    /// Nobody answered in time, or nobody serves the slot now.
    #[error("Redis is not available: {0}")]
    Unavailable(String),
    /// `maxmemory` is reached: nothing was written.
    #[error("Redis is out of memory")]
    OutOfMemory,
    /// It would have gone over another connection than the one asked for:
    /// nothing was sent, but an earlier try may have arrived.
    #[error("the connection to Redis is a new one")]
    NewConnection,
    /// It answered, and would answer the same again.
    #[error("Redis refused the command: {0}")]
    Refused(String),
}

/// What to do about an answer that is none.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The slot has gone over to another node.
    Moved(Endpoint),
    /// Only this key, so far.
    Ask(Endpoint),
    /// The same node can do it soon.
    Later(String),
    /// The node does not serve the slot now; another may.
    NotServing(String),
    /// The connection is of no use any more.
    Broken(String),
    NoScript,
    Final(RedisError),
}

impl Trouble {
    pub fn of(error: &redis::RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(kind) => Self::of_server(kind, error),
            ErrorKind::Io | ErrorKind::Parse => Self::Broken(error.to_string()),
            ErrorKind::Extension => match error.code() {
                Some("OOM") => Self::Final(RedisError::OutOfMemory),
                // A script or a save that blocks writes; too few replicas.
                Some("BUSY" | "MISCONF" | "NOREPLICAS") => Self::Later(error.to_string()),
                _ => Self::Final(RedisError::Refused(error.to_string())),
            },
            _ => Self::Final(RedisError::Refused(error.to_string())),
        }
    }

    fn of_server(kind: ServerErrorKind, error: &redis::RedisError) -> Self {
        use ServerErrorKind::{
            Ask, BusyLoading, ClusterDown, MasterDown, Moved, NoScript, ReadOnly, TryAgain,
        };
        let node = || Endpoint::parse(error.redirect_node()?.0, 0).ok();
        match kind {
            Moved => node().map_or_else(|| Self::NotServing(error.to_string()), Self::Moved),
            Ask => node().map_or_else(|| Self::NotServing(error.to_string()), Self::Ask),
            TryAgain => Self::Later(error.to_string()),
            BusyLoading | ClusterDown | MasterDown | ReadOnly => Self::NotServing(error.to_string()),
            NoScript => Self::NoScript,
            _ => Self::Final(RedisError::Refused(error.to_string())),
        }
    }
}

/// An answer that should have had another shape.
pub(super) fn odd(command: &str, value: &Value) -> RedisError {
    RedisError::Refused(format!("{command} was answered {value:?}"))
}
