//! What `/metrics` tells. Labels are bounded: routes and codes are tables of
//! ours; no user, hold or raw model name ever becomes one.
//!
//! Every counter of the hot path is looked up once, at the start.

mod of_service;
mod of_traces;

use std::time::Duration;

use actix_web::http::StatusCode;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::problem::Kind;
use super::routes;

pub use of_service::OfService;
pub use of_traces::OfTraces;

/// What names of metrics begin with.
pub const PREFIX: &str = "apportion";

/// Upper bounds in seconds: a check takes tens of microseconds, a stalled disk
/// takes seconds.
const BUCKETS: [f64; 13] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    code: &'static str,
    /// `allow`, `refuse` or `would_refuse`.
    decision: &'static str,
}

/// What became of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    Allowed,
    Refused(Kind),
    /// Admitted, because the user is decided and not refused.
    WouldRefuse(Kind),
}

/// How long a call may wait is bounded.
const WAITS: [f64; 10] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabels {
    lane: &'static str,
    outcome: &'static str,
}

/// What became of a check that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    Admitted,
    /// By something that waiting does not help against.
    Refused,
    TimedOut,
    /// It found no place in the line.
    Full,
    HungUp,
}

fn lane(bulk: bool) -> &'static str {
    if bulk { "bulk" } else { "interactive" }
}

/// Our decision (also where it is not enforced) and another limiter's:
/// `allow` or `refuse`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ComparedLabels {
    ours: &'static str,
    theirs: &'static str,
}

impl ComparedLabels {
    fn new(we_allow: bool, they_allow: bool) -> Self {
        let word = |allow| if allow { "allow" } else { "refuse" };
        Self { ours: word(we_allow), theirs: word(they_allow) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HitLabels {
    kind: &'static str,
    scope: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DuplicateLabel {
    of: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: &'static str,
}

const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

pub struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    allowed: Counter,
    compared: Family<ComparedLabels, Counter>,
    waits: Family<WaitLabels, Histogram, fn() -> Histogram>,
    limit_hits: Family<HitLabels, Counter>,
    duplicates: Family<DuplicateLabel, Counter>,
    orphan_holds: Counter,
    usage_implausible: Counter,
    in_flight: Gauge,
    streams: Gauge,
    stream_events: Counter,
    /// By route, the last one for what is no route.
    durations: Vec<Histogram>,
    /// By class of status.
    responses: Vec<Counter>,
}

impl Metrics {
    /// Adds the metrics of this floor to a registry that may hold others.
    /// `registry` must have been made with [`PREFIX`].
    pub fn new(mut registry: Registry) -> Self {
        let decisions = Family::<DecisionLabels, Counter>::default();
        let allow = DecisionLabels { code: "allow", decision: "allow" };
        let allowed = decisions.get_or_create(&allow).clone();
        let compared = Family::<ComparedLabels, Counter>::default();
        let waits = Family::new_with_constructor((|| Histogram::new(WAITS)) as fn() -> Histogram);
        let limit_hits = Family::<HitLabels, Counter>::default();
        let duplicates = Family::<DuplicateLabel, Counter>::default();
        let orphan_holds = Counter::default();
        let usage_implausible = Counter::default();
        let in_flight = Gauge::default();
        let streams = Gauge::default();
        let stream_events = Counter::default();
        let by_route = Family::<RouteLabels, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        let names = routes::every().map(|route| (route.method_name(), route.path));
        let durations = names
            .chain([("_OTHER", "none")])
            .map(|(method, route)| by_route.get_or_create(&RouteLabels { method, route }).clone())
            .collect();
        let by_status = Family::<StatusLabel, Counter>::default();
        let of_class = |status| by_status.get_or_create(&StatusLabel { status }).clone();
        let responses = STATUS_CLASSES.into_iter().map(of_class).collect();

        registry.register(
            "decisions",
            "Checks decided, by code; those not enforced are would_refuse",
            decisions.clone(),
        );
        registry.register(
            "compared_decisions",
            "Checks that told another limiter's decision, by ours and theirs",
            compared.clone(),
        );
        registry.register(
            "queue_wait_seconds",
            "Time that checks waited for a pool or a slot, by lane and outcome",
            waits.clone(),
        );
        let help = "Limits that refused a check, by kind and scope: every one that failed";
        registry.register("limit_hits", help, limit_hits.clone());
        let help = "Repetitions that were answered as the first time, and took nothing";
        registry.register("duplicates", help, duplicates.clone());
        registry.register(
            "orphan_holds",
            "Calls for a hold that the tenant does not have",
            orphan_holds.clone(),
        );
        registry.register("usage_implausible", "Reports of use beyond belief", usage_implausible.clone());
        registry.register("requests_in_flight", "Requests being answered", in_flight.clone());
        registry.register("quota_streams", "Streams of quotas that are open", streams.clone());
        registry.register("quota_events", "Quotas told on streams", stream_events.clone());
        registry.register("request_duration_seconds", "Time to answer, by route", by_route);
        registry.register("responses", "Answers, by class of status", by_status);
        Self {
            registry,
            decisions,
            allowed,
            compared,
            waits,
            limit_hits,
            duplicates,
            orphan_holds,
            usage_implausible,
            in_flight,
            streams,
            stream_events,
            durations,
            responses,
        }
    }

    /// Counts a request as in flight for as long as the guard lives.
    pub fn enter(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// Counts a stream as open for as long as the guard lives.
    pub fn stream_opened(&self) -> OpenStream {
        self.streams.inc();
        OpenStream { streams: self.streams.clone(), events: self.stream_events.clone() }
    }

    /// A check was decided. Dry runs do not count.
    pub fn decided(&self, decided: Decided) {
        let (kind, decision) = match decided {
            Decided::Allowed => {
                self.allowed.inc();
                return;
            }
            Decided::Refused(kind) => (kind, "refuse"),
            Decided::WouldRefuse(kind) => (kind, "would_refuse"),
        };
        self.decisions.get_or_create(&DecisionLabels { code: kind.entry().code, decision }).inc();
    }

    /// A check was decided that another limiter decided, too.
    pub fn compared(&self, we_allow: bool, they_allow: bool) {
        self.compared.get_or_create(&ComparedLabels::new(we_allow, they_allow)).inc();
    }

    /// A check that waited has its answer, or nobody to hear it.
    pub fn waited(&self, bulk: bool, outcome: Waiting, waited: Duration) {
        let outcome = match outcome {
            Waiting::Admitted => "admitted",
            Waiting::Refused => "refused",
            Waiting::TimedOut => "timed_out",
            Waiting::Full => "full",
            Waiting::HungUp => "hung_up",
        };
        self.waits.get_or_create(&WaitLabels { lane: lane(bulk), outcome }).observe(waited.as_secs_f64());
    }

    /// A limit had no room for a check.
    pub fn limit_hit(&self, kind: &'static str, scope: &'static str) {
        self.limit_hits.get_or_create(&HitLabels { kind, scope }).inc();
    }

    /// A check, a finish or a usage came again.
    pub fn duplicate(&self, of: &'static str) {
        self.duplicates.get_or_create(&DuplicateLabel { of }).inc();
    }

    pub fn orphan_hold(&self) {
        self.orphan_holds.inc();
    }

    pub fn usage_implausible(&self) {
        self.usage_implausible.inc();
    }

    /// A request was answered; `route` is its place in the table of routes.
    pub fn answered(&self, route: Option<usize>, status: StatusCode, duration: Duration) {
        let place = route.unwrap_or(self.durations.len() - 1);
        if let Some(histogram) = self.durations.get(place) {
            histogram.observe(duration.as_secs_f64());
        }
        if let Some(counter) = self.responses.get(usize::from(status.as_u16() / 100).wrapping_sub(1)) {
            counter.inc();
        }
    }

    /// All metrics in the text format of OpenMetrics.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(16 * 1024);
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn encode_counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> std::fmt::Result {
    let counter = ConstCounter::new(value);
    let kind = counter.metric_type();
    counter.encode(encoder.encode_descriptor(name, help, None, kind)?)
}

/// A request in flight.
pub struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// A stream that is open.
pub struct OpenStream {
    streams: Gauge,
    events: Counter,
}

impl OpenStream {
    /// A quota is told on it.
    pub fn told(&self) {
        self.events.inc();
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_code_and_says_so_under_our_prefix() {
        let metrics = Metrics::new(Registry::with_prefix(PREFIX));
        metrics.decided(Decided::Allowed);
        metrics.decided(Decided::Refused(Kind::DailyQuotaExhausted));
        metrics.decided(Decided::WouldRefuse(Kind::DailyQuotaExhausted));
        metrics.compared(false, true);
        metrics.orphan_hold();
        metrics.answered(Some(0), StatusCode::OK, Duration::from_micros(70));
        metrics.answered(None, StatusCode::NOT_FOUND, Duration::from_micros(7));
        let in_flight = metrics.enter();
        let text = metrics.render();
        for line in [
            "apportion_decisions_total{code=\"allow\",decision=\"allow\"} 1",
            "apportion_decisions_total{code=\"daily_quota_exhausted\",decision=\"refuse\"} 1",
            "apportion_decisions_total{code=\"daily_quota_exhausted\",decision=\"would_refuse\"} 1",
            "apportion_compared_decisions_total{ours=\"refuse\",theirs=\"allow\"} 1",
            "apportion_orphan_holds_total 1",
            "apportion_requests_in_flight 1",
            "apportion_responses_total{status=\"2xx\"} 1",
            "apportion_responses_total{status=\"4xx\"} 1",
            "apportion_request_duration_seconds_count{method=\"POST\",route=\"/v1/check\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
        drop(in_flight);
        assert!(metrics.render().contains("apportion_requests_in_flight 0"));
    }
}
