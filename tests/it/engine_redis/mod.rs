//! Redis as it really is: killed, frozen, emptied, failed over, moved.

mod answers;
mod moves;
mod outages;
mod servers;

use std::future::Future;
use std::time::Duration;

use apportion::engine::redis::{Generation, HashSlot, Redis, RedisError, slot_of};
use redis::{Value, cmd};

const TAG: &str = "a";

fn slot() -> HashSlot {
    slot_of(TAG.as_bytes())
}

/// A key in [`slot`].
fn key(name: &str) -> String {
    format!("{{{TAG}}}{name}")
}

async fn connect(url: &str) -> Redis {
    Redis::connect(url).await.unwrap()
}

async fn set(redis: &Redis, name: &str, value: &str) -> Result<Generation, RedisError> {
    let (answer, generation) = redis.run(slot(), cmd("SET").arg(key(name)).arg(value)).await?;
    assert_eq!(answer, Value::Okay);
    Ok(generation)
}

async fn get(redis: &Redis, name: &str) -> Result<String, RedisError> {
    let (answer, _) = redis.run(slot(), cmd("GET").arg(key(name))).await?;
    Ok(redis::from_redis_value(answer).unwrap())
}

/// Repeats until it goes well, as a caller of the service would.
async fn eventually<T, F: Future<Output = Result<T, RedisError>>>(mut call: impl FnMut() -> F) -> T {
    let patient = async {
        loop {
            match call().await {
                Ok(value) => return value,
                Err(RedisError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    in_time(patient).await
}

/// What must not take for ever.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it ends")
}

fn is_unavailable<T>(result: &Result<T, RedisError>) -> bool {
    matches!(result, Err(RedisError::Unavailable(_)))
}
