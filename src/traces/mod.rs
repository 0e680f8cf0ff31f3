//! Traces of calls, sent to a collector over OTLP (floor 1).
//!
//! **Knows** trace contexts, spans, and how a collector wants to have them.
//! **Never knows** what a call is about: other floors name spans and attributes.
//!
//! A call that is traced has a [`Recording`]; whatever works for it adds spans
//! and attributes without being handed anything ([`span`], [`note`]), since the
//! recording goes with the task. Of a call that is not, these cost a look at a
//! task's own memory and allocate nothing.
//!
//! Decision: our own encoding and sender in place of OpenTelemetry's SDK (2026-11).
//! Of OTLP one message is written and nothing read, which takes a hundred lines;
//! the SDK is a dozen crates, and its spans go through a second subscriber. The
//! tests decode with the official definitions, and with a collector of others.

mod context;
mod encoding;
mod sending;
mod settings;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::mpsc;

pub use context::{Context, TraceId};
pub use sending::{Sender, Unreachable, reach};
pub use settings::Settings;

use context::{SpanId, fresh};

/// Calls that wait to be sent; further ones are dropped.
const QUEUE: usize = 2048;
/// Spans within a call; further ones are dropped.
const SPANS_MAX: usize = 64;

tokio::task_local! {
    static CURRENT: Option<Arc<Call>>;
}

/// What an attribute says.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(Cow<'static, str>),
    Number(i64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

pub type Attribute = (&'static str, Value);

/// A step within a call.
#[derive(Debug)]
struct Step {
    name: &'static str,
    begun_ns: u64,
    ended_ns: u64,
}

/// What is known of a call while it runs.
#[derive(Debug, Default)]
struct Known {
    attributes: Vec<Attribute>,
    steps: Vec<Step>,
    left_out: u64,
}

#[derive(Debug)]
struct Call {
    context: Context,
    span: SpanId,
    begun: Instant,
    begun_ns: u64,
    /// `None` once it is over.
    known: Mutex<Option<Known>>,
}

impl Call {
    fn ns(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.begun).as_nanos();
        self.begun_ns.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

/// A call that is over.
#[derive(Debug)]
struct Ended {
    call: Arc<Call>,
    known: Known,
    name: Cow<'static, str>,
    ended_ns: u64,
    failed: bool,
}

impl Ended {
    fn spans(&self) -> u64 {
        self.known.steps.len() as u64 + 1
    }
}

/// What became of spans.
#[derive(Debug, Default)]
pub struct Counts {
    pub sent: AtomicU64,
    /// There was no room for them, or the collector did not take them.
    pub dropped: AtomicU64,
}

/// Decides which calls are traced.
pub struct Tracer {
    /// Of calls without a parent those are traced whose draw is below.
    threshold: u64,
    queue: mpsc::Sender<Ended>,
    counts: Arc<Counts>,
}

impl Tracer {
    /// With whoever sends what it records. Nothing is connected to yet.
    pub fn start(settings: Settings) -> (Self, Sender) {
        let counts = Arc::<Counts>::default();
        let (queue, queued) = mpsc::channel(QUEUE);
        // Casts saturate: all calls at 1.
        let threshold = (settings.ratio * u64::MAX as f64) as u64;
        let sender = Sender::start(settings, queued, counts.clone());
        (Self { threshold, queue, counts }, sender)
    }

    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Begins a call. With a parent it is traced if that is; without, one in so
    /// many is, if it `may` be.
    pub fn begin(&self, parent: Option<Context>, may: impl FnOnce() -> bool) -> Option<Recording> {
        let context = match parent {
            Some(parent) => Some(parent).filter(Context::is_sampled),
            None => (self.threshold > 0 && fresh() <= self.threshold && may()).then(Context::root).flatten(),
        }?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(Recording(Arc::new(Call {
            context,
            span: SpanId::fresh(),
            begun: Instant::now(),
            begun_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
            known: Mutex::new(Some(Known::default())),
        })))
    }

    /// Ends a call and queues it to be sent; waits for nothing.
    pub fn end(&self, Recording(call): Recording, name: Cow<'static, str>, failed: bool) {
        let Some(known) = call.known.lock().take() else { return };
        self.counts.dropped.fetch_add(known.left_out, Relaxed);
        let ended_ns = call.ns(Instant::now());
        let ended = Ended { call, known, name, ended_ns, failed };
        if let Err(error) = self.queue.try_send(ended) {
            self.counts.dropped.fetch_add(error.into_inner().spans(), Relaxed);
        }
    }
}

/// A call that is traced, until it is ended.
#[derive(Debug, Clone)]
pub struct Recording(Arc<Call>);

impl Recording {
    /// Says something about the call.
    pub fn note(&self, attributes: impl IntoIterator<Item = Attribute>) {
        if let Some(known) = &mut *self.0.known.lock() {
            known.attributes.extend(attributes);
        }
    }

    pub fn trace_id(&self) -> TraceId {
        self.0.context.trace
    }
}

/// Runs a future as work for a call, or for none that is traced.
pub fn within<F: Future>(recording: Option<&Recording>, work: F) -> impl Future<Output = F::Output> + use<F> {
    CURRENT.scope(recording.map(|recording| recording.0.clone()), work)
}

/// The call that this task works for, to be handed to another task.
pub fn current() -> Option<Recording> {
    CURRENT.try_with(Clone::clone).ok().flatten().map(Recording)
}

/// Says something about the call that this task works for, if it is traced.
pub fn note<const N: usize>(attributes: impl FnOnce() -> [Attribute; N]) {
    if let Some(recording) = current() {
        recording.note(attributes());
    }
}

/// A step of the call that this task works for, until it is dropped.
#[must_use = "the span ends when this is dropped"]
pub fn span(name: &'static str) -> Option<Span> {
    current().map(|Recording(call)| Span { call, name, begun: Instant::now() })
}

pub struct Span {
    call: Arc<Call>,
    name: &'static str,
    begun: Instant,
}

impl Drop for Span {
    fn drop(&mut self) {
        let (begun_ns, ended_ns) = (self.call.ns(self.begun), self.call.ns(Instant::now()));
        if let Some(known) = &mut *self.call.known.lock() {
            if known.steps.len() < SPANS_MAX {
                known.steps.push(Step { name: self.name, begun_ns, ended_ns });
            } else {
                known.left_out += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
