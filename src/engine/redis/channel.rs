//! Messages among the nodes of one installation, by publish and subscribe.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use super::{Heard, Redis, Subscription};
use crate::engine::Channel;

/// See the module's text.
pub struct RedisChannel {
    redis: Redis,
    name: String,
    heard: Mutex<Subscription>,
}

impl RedisChannel {
    pub fn new(redis: Redis, installation: u64) -> Self {
        let name = format!("ap:{installation:016x}:news");
        let heard = Mutex::new(redis.subscribe(&name));
        Self { redis, name, heard }
    }
}

impl Channel for RedisChannel {
    fn tell(&self, message: Vec<u8>) -> BoxFuture<'_, ()> {
        async move {
            if let Err(error) = self.redis.publish(&self.name, &message).await {
                tracing::debug!(%error, "the other nodes could not be told");
            }
        }
        .boxed()
    }

    fn hear(&self) -> BoxFuture<'_, Option<Vec<u8>>> {
        async move {
            match self.heard.lock().await.next().await {
                Some(Heard::Message(message)) => Some(message),
                Some(Heard::Gap) => None,
                // There is nothing to be heard any more.
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}
