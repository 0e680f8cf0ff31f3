//! The calls: each begins when it is due, whatever became of those before it, and goes on
//! to another node when one does not answer.

use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::Options;
use crate::client::Connection;
use crate::nodes::Nodes;
use crate::requests::{Checks, HoldText, Picks, Settles, Work};

/// How a call went; times in us from the moment at which each part was due.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub check_us: u32,
    /// `None`: the check was not answered with a hold.
    pub settle_us: Option<u32>,
    /// Requests that had to be sent again, to another node.
    pub again: u32,
    pub is_lost: bool,
}

/// Tries of one request, at all nodes in turn: at the next one at once where a connection
/// breaks; after a pause where all of them have broken, or one says that it cannot now.
const TRIES: u32 = 400;
const PAUSE: Duration = Duration::from_millis(10);
const REST: Duration = Duration::from_millis(250);
/// Servers close connections that were idle for longer than they say.
const IDLE: Duration = Duration::from_secs(30);

pub struct Calls {
    nodes: Vec<SocketAddr>,
    /// Connections nobody uses now, by node, and since when.
    idle: Vec<Mutex<Vec<(Connection, Instant)>>>,
    checks: Mutex<Checks>,
    token: String,
    call: Duration,
}

impl Calls {
    pub fn new(nodes: &Nodes, options: &Options) -> Self {
        let picks = Picks::new(options.users, 0.0, 1);
        let addresses = nodes.addresses();
        Self {
            idle: addresses.iter().map(|_| Mutex::default()).collect(),
            nodes: addresses,
            checks: Mutex::new(Checks::new(&nodes.token, picks, Some(1 << 40))),
            token: nodes.token.clone(),
            call: Duration::from_millis(options.call_ms),
        }
    }

    /// Begins `rate` calls a second for as long as `length`, and waits for the last.
    pub fn run(self: Arc<Self>, rate: u64, length: Duration, tell: Sender<Outcome>) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let begun = Instant::now();
            let mut calls = tokio::task::JoinSet::new();
            for number in 0.. {
                let due = begun + Duration::from_secs_f64(number as f64 / rate as f64);
                if due.duration_since(begun) >= length {
                    break;
                }
                tokio::time::sleep_until(due.into()).await;
                let (own, tell) = (Arc::clone(&self), tell.clone());
                calls.spawn(async move {
                    // Nobody listens any more: the run was given up.
                    let _ = tell.send(own.call(number, due).await);
                });
                while calls.try_join_next().is_some() {}
            }
            calls.join_all().await;
            Ok(())
        })
    }

    async fn call(&self, number: usize, due: Instant) -> Outcome {
        let mut request = Vec::with_capacity(1024);
        lock(&self.checks).next(&mut request);
        let (hold, again) = self.ask(number, &request).await;
        let mut outcome = Outcome { check_us: us(due), settle_us: None, again, is_lost: true };
        let Some(Ok(hold)) = hold.map(HoldText::try_from) else { return outcome };
        let settle_due = Instant::now() + self.call;
        tokio::time::sleep_until(settle_due.into()).await;
        Settles::new(&self.token, vec![hold]).next(&mut request);
        let (settled, again) = self.ask(number, &request).await;
        outcome.again += again;
        outcome.settle_us = Some(us(settle_due));
        outcome.is_lost = settled.is_none();
        outcome
    }

    /// The hold that the answer names, once a node gives one, and how often others did not.
    async fn ask(&self, number: usize, request: &[u8]) -> (Option<Vec<u8>>, u32) {
        for again in 0..TRIES {
            let node = (number + again as usize) % self.nodes.len();
            match self.ask_at(node, request).await {
                Ok(Some(hold)) => return (Some(hold), again),
                Ok(None) => tokio::time::sleep(REST).await,
                Err(_) if (again as usize + 1).is_multiple_of(self.nodes.len()) => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(_) => {}
            }
        }
        (None, TRIES)
    }

    /// The hold that the answer names; `None`: the node answered that it cannot.
    async fn ask_at(&self, node: usize, request: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        let idle = lock(&self.idle[node]).pop();
        let mut connection = match idle {
            Some((connection, since)) if since.elapsed() < IDLE => connection,
            _ => {
                let stream = TcpStream::connect(self.nodes[node]).await?;
                stream.set_nodelay(true)?;
                Connection::new(stream)
            }
        };
        let (status, body) = connection.exchange(request).await?;
        let at = body.find("\"id\":\"hold_").filter(|_| status == 200).map(|at| at + 6);
        let hold = at.and_then(|at| body.as_bytes().get(at..at + size_of::<HoldText>()));
        let hold = hold.map(<[u8]>::to_vec);
        lock(&self.idle[node]).push((connection, Instant::now()));
        Ok(hold)
    }
}

fn us(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
