//! The way to the collector: many calls in one request, beside everything else.
//! A collector that is away costs spans, never calls.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Attribute, Counts, Ended, Settings, encoding};

/// Calls sent in one request at most.
const BATCH: usize = 512;
/// How long the first of them waits for others.
const GATHER: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Waits before a request that was not taken is sent again; then it is dropped.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];
/// How long what is left may take when the process ends.
const FAREWELL: Duration = Duration::from_secs(3);

/// Why a collector did not take what it was sent.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    #[error("no connection")]
    NoConnection,
    #[error("no answer in time")]
    TimedOut,
    #[error("the connection broke, or the answer was no HTTP")]
    Broken,
    #[error("it answered {0}")]
    Refused(u16),
}

impl Unreachable {
    fn may_pass(&self) -> bool {
        !matches!(self, Self::Refused(status) if ![429, 502, 503, 504].contains(status))
    }
}

impl From<reqwest::Error> for Unreachable {
    /// The error's text may have the address, and stays here.
    fn from(error: reqwest::Error) -> Self {
        match () {
            () if error.is_timeout() => Self::TimedOut,
            () if error.is_connect() => Self::NoConnection,
            () => Self::Broken,
        }
    }
}

/// Sends what is recorded; stop it last.
pub struct Sender {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Sender {
    pub(super) fn start(settings: Settings, queued: mpsc::Receiver<Ended>, counts: Arc<Counts>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            match client() {
                Ok(client) => {
                    let resource = resource();
                    let collector = Collector { settings, client, resource, counts, is_away: false };
                    collector.run(queued, stopped).await;
                }
                Err(error) => {
                    tracing::error!(error = &error as &dyn std::error::Error, "traces are not sent")
                }
            }
        });
        Self { task, stop }
    }

    /// Sends what is queued, if the collector takes it soon, and ends.
    pub async fn stop(self) {
        // The receiver is gone only if the task is.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Whether a collector takes what is sent to it: a request without a span.
///
/// # Errors
/// Why it does not.
pub async fn reach(settings: &Settings) -> Result<(), Unreachable> {
    post(&client()?, settings, Vec::new()).await
}

fn client() -> reqwest::Result<reqwest::Client> {
    let builder = reqwest::Client::builder().redirect(Policy::none()).no_proxy().timeout(TIMEOUT);
    builder.user_agent(concat!("apportion/", env!("CARGO_PKG_VERSION"))).build()
}

async fn post(client: &reqwest::Client, settings: &Settings, body: Vec<u8>) -> Result<(), Unreachable> {
    let request = client.post(settings.url.clone()).headers(settings.headers.clone());
    let answer = request.header(CONTENT_TYPE, "application/x-protobuf").body(body).send().await?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status => Err(Unreachable::Refused(status.as_u16())),
    }
}

/// Who sends: the service, its version, and this process of it.
fn resource() -> [Attribute; 3] {
    let mut id = [0; 16];
    // All zero without random numbers: no reason to send nothing.
    let _ = getrandom::fill(&mut id);
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    [
        ("service.name", "apportion".into()),
        ("service.version", env!("CARGO_PKG_VERSION").into()),
        ("service.instance.id", hex.into()),
    ]
}

struct Collector {
    settings: Settings,
    client: reqwest::Client,
    resource: [Attribute; 3],
    counts: Arc<Counts>,
    is_away: bool,
}

impl Collector {
    async fn run(mut self, mut queued: mpsc::Receiver<Ended>, mut stopped: oneshot::Receiver<()>) {
        let mut calls = Vec::with_capacity(BATCH);
        let running = async {
            while queued.recv_many(&mut calls, BATCH).await > 0 {
                let gathered = async {
                    loop {
                        let room = BATCH - calls.len();
                        if room == 0 || queued.recv_many(&mut calls, room).await == 0 {
                            return;
                        }
                    }
                };
                // What came until then stays in `calls`.
                let _ = timeout(GATHER, gathered).await;
                self.send_patiently(&calls).await;
                calls.clear();
            }
        };
        tokio::select! {
            () = running => {}
            _ = &mut stopped => {}
        }
        // One more try for what is at hand, without patience.
        let rest = async {
            loop {
                while calls.len() < BATCH
                    && let Ok(call) = queued.try_recv()
                {
                    calls.push(call);
                }
                if calls.is_empty() || self.send(&calls).await.is_err() {
                    return;
                }
                calls.clear();
            }
        };
        let _ = timeout(FAREWELL, rest).await;
    }

    /// Until it is taken or there is no hope; how many were lost is counted.
    async fn send_patiently(&mut self, calls: &[Ended]) {
        let mut pauses = PAUSES.iter();
        loop {
            let error = match self.send(calls).await {
                Ok(()) => {
                    if std::mem::take(&mut self.is_away) {
                        tracing::info!("the collector of traces takes them again");
                    }
                    return;
                }
                Err(error) => error,
            };
            if !std::mem::replace(&mut self.is_away, true) {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "traces are not taken: some will be lost"
                );
            }
            match pauses.next().filter(|_| error.may_pass()) {
                Some(pause) => sleep(*pause).await,
                None => break,
            }
        }
        self.counts.dropped.fetch_add(calls.iter().map(Ended::spans).sum(), Relaxed);
    }

    async fn send(&self, calls: &[Ended]) -> Result<(), Unreachable> {
        post(&self.client, &self.settings, encoding::request(&self.resource, calls)).await?;
        self.counts.sent.fetch_add(calls.iter().map(Ended::spans).sum(), Relaxed);
        Ok(())
    }
}
