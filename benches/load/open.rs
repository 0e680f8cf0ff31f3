//! Requests that are due at a rate, whatever became of those before.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::net::TcpStream;

use crate::client::{Connection, holds_in};
use crate::requests::Work;

/// Callers do not wait longer for their turn.
const PATIENCE: Duration = Duration::from_secs(2);

/// What to offer.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    pub address: SocketAddr,
    pub connections: usize,
    pub rate: f64,
    pub seconds: f64,
}

/// One answer.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// When the request was due, from the beginning.
    pub due_s: f32,
    /// From then on.
    pub latency_ms: f32,
    pub status: u16,
}

#[derive(Default)]
pub struct Outcome {
    pub answers: Vec<Answer>,
    pub given_up: u64,
    /// An answer that was neither good nor a limit's.
    pub one_bad: Option<String>,
    /// Connections that broke, and why one did.
    pub broken: u64,
    pub one_broken: Option<String>,
}

struct Source<W> {
    work: W,
    offer: Offer,
    begun: Instant,
    taken: u64,
    outcome: Outcome,
}

impl<W: Work> Source<W> {
    /// When the next request is due; `None`: that was all.
    fn due(&mut self) -> Option<Instant> {
        loop {
            let due_s = self.taken as f64 / self.offer.rate;
            if due_s >= self.offer.seconds {
                return None;
            }
            self.taken += 1;
            let due = self.begun + Duration::from_secs_f64(due_s);
            if due.elapsed() <= PATIENCE {
                return Some(due);
            }
            self.outcome.given_up += 1;
        }
    }
}

/// Offers work in this thread until all that was due is answered or given up.
pub fn offer(offer: Offer, work: impl Work + 'static) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut streams = Vec::with_capacity(offer.connections);
        for _ in 0..offer.connections {
            let stream = TcpStream::connect(offer.address).await.context("cannot connect")?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        let source = Source { work, offer, begun: Instant::now(), taken: 0, outcome: Outcome::default() };
        let source = Arc::new(Mutex::new(source));
        let tasks: Vec<_> =
            streams.into_iter().map(|stream| tokio::spawn(ask(stream, source.clone()))).collect();
        for task in tasks {
            if let Err(error) = task.await? {
                let outcome = &mut lock(&source).outcome;
                outcome.broken += 1;
                outcome.one_broken.get_or_insert_with(|| format!("{error:#}"));
            }
        }
        Ok(std::mem::take(&mut lock(&source).outcome))
    })
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn ask<W: Work>(stream: TcpStream, source: Arc<Mutex<Source<W>>>) -> anyhow::Result<()> {
    let (mut request, mut connection) = (Vec::with_capacity(1024), Connection::new(stream));
    let begun = lock(&source).begun;
    loop {
        let Some(due) = lock(&source).due() else { return Ok(()) };
        tokio::time::sleep_until(due.into()).await;
        if lock(&source).work.next(&mut request).is_none() {
            return Ok(());
        }
        let (status, body) = connection.exchange(&request).await?;
        let latency_ms = due.elapsed().as_secs_f32() * 1e3;
        let due_s = due.saturating_duration_since(begun).as_secs_f32();
        let source = &mut *lock(&source);
        source.outcome.answers.push(Answer { due_s, latency_ms, status });
        if ![200, 429].contains(&status) {
            source.outcome.one_bad.get_or_insert_with(|| format!("{status} {body}"));
        }
        if status == 200 && body.contains("\"decision\":\"allow\"") {
            for hold in holds_in(&body, 1) {
                source.work.made(hold);
            }
        }
    }
}

impl Outcome {
    pub fn count(&self, statuses: impl Fn(u16) -> bool) -> usize {
        self.answers.iter().filter(|answer| statuses(answer.status)).count()
    }

    /// The latency in ms below which this share of the good answers came, of requests due in
    /// this time.
    pub fn quantile(&self, share: f64, due_s: std::ops::Range<f32>) -> f32 {
        let good = self.answers.iter().filter(|answer| answer.status == 200 && due_s.contains(&answer.due_s));
        let mut latencies: Vec<f32> = good.map(|answer| answer.latency_ms).collect();
        latencies.sort_unstable_by(f32::total_cmp);
        let place = ((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1));
        latencies.get(place).copied().unwrap_or(f32::NAN)
    }
}
