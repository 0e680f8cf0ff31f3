//! What the service counts by itself: read when somebody asks for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{encode_counter, lane};
use crate::service::Service;
use crate::service::outage::Operation;

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
        self.encode_plans(&mut encoder)?;
        self.encode_looked(&mut encoder)?;
        self.encode_commits(&mut encoder)?;
        self.encode_gate(&mut encoder)?;
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
    /// Plans' ids are tenants' words: the service bounds how many are told.
    fn encode_plans(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let help = "Checks decided, by plan; those of plans beyond a bound are of the plan `other`";
        let kind = ConstCounter::new(0u64).metric_type();
        let mut by_plan = encoder.encode_descriptor("plan_decisions", help, None, kind)?;
        for (plan, decision, code, count) in self.0.by_plan.all() {
            let labels = [("plan", &*plan), ("decision", decision), ("code", code)];
            ConstCounter::new(count).encode(by_plan.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn encode_looked(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let looked = &self.0.looked;
        let kind = || ConstGauge::new(0i64).metric_type();
        let help = "Holds that are not finished, of all nodes, as last counted: open, or in doubt";
        let mut holds = encoder.encode_descriptor("holds", help, None, kind())?;
        for (state, count) in ["open", "in_doubt"].into_iter().zip(looked.holds()) {
            ConstGauge::new(count as i64).encode(holds.encode_family(&[("state", state)])?)?;
        }
        let help = "Share of enforced pools' limits that is taken, over all nodes, as last seen";
        let mut loads = encoder.encode_descriptor("pool_load", help, None, kind())?;
        for ((pool, limit), load) in looked.loads() {
            let labels = [("pool", &*pool), ("limit", &*limit)];
            ConstGauge::new(load).encode(loads.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn encode_gate(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let gate = &self.0.gate;
        let in_flight = ConstGauge::new(gate.in_flight() as i64);
        let help = "Operations that Redis was asked for and has not answered";
        let kind = in_flight.metric_type();
        in_flight.encode(encoder.encode_descriptor("engine_in_flight", help, None, kind)?)?;
        let help = "Operations that found no room on the way to Redis in time";
        encode_counter(encoder, "engine_turned_away", help, gate.turned_away())
    }

    fn encode_commits(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        for (name, help, figures) in [
            ("commit_changes", "Changes that this node put on record together", &self.0.commits.changes),
            ("commit_seconds", "How long that took", &self.0.commits.seconds),
        ] {
            figures.encode(encoder.encode_descriptor(name, help, None, figures.metric_type())?)?;
        }
        Ok(())
    }

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
