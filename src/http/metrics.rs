//! What `/metrics` tells. Labels are bounded: routes and codes are tables of
//! ours; no user, hold or raw model name ever becomes one.
//!
//! Every counter of the hot path is looked up once, at the start.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use actix_web::http::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::problem::Kind;
use super::routes;
use crate::service::Service;
use crate::service::outage::Operation;

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

/// What the service counts by itself.
pub struct OfService(pub Arc<Service>);

impl std::fmt::Debug for OfService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OfService")
    }
}

impl Collector for OfService {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let outage = &self.0.outage;
        let help = "Refusals counted by code alone, since too many users were refused at once";
        encode_counter(&mut encoder, "refusals_uncounted", help, self.0.tallies.uncounted())?;
        self.encode_tokens(&mut encoder)?;
        let (interactive, bulk) = self.0.rooms.depth();
        let help = "Checks that wait for a pool or a slot on this node, by lane";
        let kind = ConstGauge::new(0i64).metric_type();
        let mut by_lane = encoder.encode_descriptor("queue_depth", help, None, kind)?;
        for (is_bulk, depth) in [(false, interactive), (true, bulk)] {
            ConstGauge::new(depth as i64).encode(by_lane.encode_family(&[("lane", lane(is_bulk))])?)?;
        }
        let lag = self.0.lag();
        let changes = ConstGauge::new(lag.changes as i64);
        let help = "Changes that Redis has and Postgres has not, as far as this node knows";
        let kind = changes.metric_type();
        changes.encode(encoder.encode_descriptor("ledger_lag_changes", help, None, kind)?)?;
        let seconds = ConstGauge::new(lag.for_ms as f64 / 1000.0);
        let help = "For how long some of them have been waiting";
        let kind = seconds.metric_type();
        seconds.encode(encoder.encode_descriptor("ledger_lag_seconds", help, None, kind)?)?;
        let away = ConstGauge::new(i64::from(outage.is_away()));
        let help = "1 while the store is away";
        away.encode(encoder.encode_descriptor("degraded", help, None, away.metric_type())?)?;
        let help = "Checks admitted by this node alone while the store was away";
        encode_counter(&mut encoder, "degraded_admissions", help, outage.admissions())?;
        let help = "Finished holds that this node removed since they were old";
        encode_counter(&mut encoder, "holds_pruned", help, self.0.pruned_holds())?;
        self.encode_pools(&mut encoder)?;
        self.encode_webhooks(&mut encoder)?;
        let help = "What failed because the store was away, by operation";
        let kind = ConstCounter::new(0u64).metric_type();
        let mut by_operation = encoder.encode_descriptor("store_errors", help, None, kind)?;
        for op in Operation::ALL {
            let errors = ConstCounter::new(outage.errors(op));
            errors.encode(by_operation.encode_family(&[("op", op.as_str())])?)?;
        }
        Ok(())
    }
}

impl OfService {
    /// Reserved far above used: estimates are too fat. Used above reserved: more was
    /// admitted than there was.
    fn encode_tokens(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let sums = &self.0.tokens;
        let meters = [("input_tokens", &sums.input), ("output_tokens", &sums.output)];
        let kind = || ConstCounter::new(0u64).metric_type();
        let help = "Tokens that calls settled on this node had reserved";
        let mut reserved = encoder.encode_descriptor("tokens_reserved", help, None, kind())?;
        for (meter, sums) in meters {
            let sum = ConstCounter::new(sums.reserved.load(Relaxed));
            sum.encode(reserved.encode_family(&[("meter", meter)])?)?;
        }
        let help = "Tokens that they used";
        let mut used = encoder.encode_descriptor("tokens_used", help, None, kind())?;
        for (meter, sums) in meters {
            let sum = ConstCounter::new(sums.used.load(Relaxed));
            sum.encode(used.encode_family(&[("meter", meter)])?)?;
        }
        Ok(())
    }

    fn encode_webhooks(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let outbox = &self.0.registry.outbox;
        let help = "Tries of this node to send a message to a webhook, by outcome";
        let kind = ConstCounter::new(0u64).metric_type();
        let mut tries = encoder.encode_descriptor("webhook_deliveries", help, None, kind)?;
        let outcomes = [("delivered", &outbox.delivered), ("failed", &outbox.failed), ("dead", &outbox.dead)];
        for (outcome, count) in outcomes {
            let count = ConstCounter::new(count.load(Relaxed));
            count.encode(tries.encode_family(&[("outcome", outcome)])?)?;
        }
        let help = "Messages that wait to be sent to webhooks, of all nodes, as last counted";
        let waiting = ConstGauge::new(outbox.waiting.load(Relaxed) as i64);
        waiting.encode(encoder.encode_descriptor("webhook_queue_depth", help, None, waiting.metric_type())?)
    }

    /// Sums over all pools of all tenants: there may be any number of either.
    fn encode_pools(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let told = &self.0.registry.conditions;
        for (name, help, count) in [
            ("pool_feedback", "Answers of vendors that callers told", &told.feedback),
            ("pool_pauses", "Pauses of pools that vendors asked for", &told.pauses),
            ("pool_closures", "Pools closed since a vendor's spend limit was reached", &told.closures),
            ("pool_openings", "Closed pools that an admin opened", &told.openings),
            ("pool_brakes", "Pauses of bulk calls since interactive ones fared badly", &told.brakes),
            ("pool_rates_lowered", "Pools slowed down since refusals repeated", &told.lowered),
            (
                "pool_overdrafts",
                "Changes after which users may draw more than a pool allows",
                &told.pushed_over,
            ),
            ("pool_corrections", "Stocks lowered to what a vendor has left", &told.corrections),
        ] {
            encode_counter(encoder, name, help, count.load(Relaxed))?;
        }
        let help = "Pools that are paused, closed, braked or slowed down now, as this node knows";
        let kind = ConstGauge::new(0i64).metric_type();
        let mut states = encoder.encode_descriptor("pools_troubled", help, None, kind)?;
        for (state, pools) in
            ["paused", "closed", "braked", "slowed"].into_iter().zip(self.0.registry.troubled_pools())
        {
            ConstGauge::new(pools as i64).encode(states.encode_family(&[("state", state)])?)?;
        }
        Ok(())
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
