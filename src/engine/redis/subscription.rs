//! Hearing what is published on a channel, over a connection of its own.

use std::io::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, PushInfo, PushKind, Value, cmd};
use tokio::sync::mpsc;
use tokio::time::{interval, sleep, timeout};

use super::Redis;
use super::connection::{ATTEMPT, Node};

/// Messages that may wait for whoever listens; beyond them there is a gap.
const WAITING_MAX: usize = 1024;
const AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    Message(Vec<u8>),
    /// What was published until now may have been missed: also the first
    /// thing that is heard.
    Gap,
}

/// Ends when it is dropped.
pub struct Subscription(mpsc::Receiver<Heard>);

impl Subscription {
    /// `None`: the connection to Redis was dropped as a whole.
    pub async fn next(&mut self) -> Option<Heard> {
        self.0.recv().await
    }
}

impl Redis {
    /// Subscribes to a channel, and again whenever the connection breaks.
    pub fn subscribe(&self, channel: &str) -> Subscription {
        let (tell, heard) = mpsc::channel(WAITING_MAX);
        let (shared, channel) = (Arc::downgrade(&self.shared), channel.to_owned());
        self.shared.runtime.spawn(async move {
            // Another node each time: the last one may be of no use.
            for turn in 0.. {
                let Some(map) = shared.upgrade().map(|shared| shared.map.load_full()) else { return };
                if tell.is_closed() {
                    return;
                }
                let Some(node) = map.primaries.get(turn % map.primaries.len().max(1)).cloned() else {
                    continue;
                };
                drop(map);
                let is_primary = || {
                    let map = shared.upgrade().map(|shared| shared.map.load_full());
                    map.is_some_and(|map| map.primaries.iter().any(|other| Arc::ptr_eq(other, &node)))
                };
                if let Err(error) = listen(&node, &channel, &tell, is_primary).await {
                    tracing::debug!(redis = %node.endpoint, %error, "a subscription is broken");
                }
                sleep(AGAIN).await;
            }
        });
        Subscription(heard)
    }
}

/// Returns when nobody listens, or the node should not be listened to any more.
async fn listen(
    node: &Node,
    channel: &str,
    tell: &mpsc::Sender<Heard>,
    is_primary: impl Fn() -> bool,
) -> redis::RedisResult<()> {
    let missed = Arc::new(AtomicBool::new(false));
    let mut connection = timeout(ATTEMPT, subscribe(node, channel, tell.clone(), missed.clone()))
        .await
        .map_err(Error::from)??;
    let _ = tell.send(Heard::Gap).await;
    let mut round = interval(ATTEMPT);
    loop {
        tokio::select! {
            _ = round.tick() => (),
            () = tell.closed() => return Ok(()),
        }
        // A frozen server keeps its connections open.
        timeout(ATTEMPT, cmd("PING").query_async::<()>(&mut connection)).await.map_err(Error::from)??;
        if missed.swap(false, Relaxed) {
            let _ = tell.send(Heard::Gap).await;
        }
        if !is_primary() {
            return Ok(());
        }
    }
}

async fn subscribe(
    node: &Node,
    channel: &str,
    tell: mpsc::Sender<Heard>,
    missed: Arc<AtomicBool>,
) -> redis::RedisResult<MultiplexedConnection> {
    // With RESP3 a connection that listens can be asked whether it lives.
    let info = node.client().get_connection_info().clone();
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let client = Client::open(info.set_redis_settings(settings))?;
    let hear = move |push: PushInfo| {
        let message = match (push.kind, push.data.into_iter().nth(1)) {
            (PushKind::Message, Some(Value::BulkString(payload))) => Heard::Message(payload),
            _ => return Ok(()),
        };
        if let Err(mpsc::error::TrySendError::Full(_)) = tell.try_send(message) {
            missed.store(true, Relaxed);
        }
        Ok::<(), redis::aio::SendError>(())
    };
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_push_sender(hear);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    connection.subscribe(channel).await?;
    Ok(connection)
}
