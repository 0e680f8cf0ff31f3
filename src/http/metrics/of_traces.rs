//! What became of the spans that were recorded.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

use crate::traces::Counts;

#[derive(Debug)]
pub struct OfTraces(pub Arc<Counts>);

impl Collector for OfTraces {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let help = "Spans for the collector of traces, by outcome: sent, or dropped for want of room or of an answer";
        let kind = ConstCounter::new(0u64).metric_type();
        let mut spans = encoder.encode_descriptor("trace_spans", help, None, kind)?;
        for (outcome, count) in [("sent", &self.0.sent), ("dropped", &self.0.dropped)] {
            let count = ConstCounter::new(count.load(Relaxed));
            count.encode(spans.encode_family(&[("outcome", outcome)])?)?;
        }
        Ok(())
    }
}
