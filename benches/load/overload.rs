//! More than a server can do, and more than a tenant may. See `benches/README.md`.

use anyhow::Context;
use serde_json::json;

use crate::client::{Way, drive};
use crate::open::{Offer, Outcome, offer};
use crate::options::Options;
use crate::process;
use crate::requests::{Checks, Cycles, Picks};
use crate::sheet::SHEET;
use crate::targets::{Target, put, put_sheet};

const CALM_SECONDS: f64 = 8.0;
const ALL: std::ops::Range<f32> = 0.0..f32::INFINITY;

pub fn run(options: &Options) -> anyhow::Result<()> {
    for name in options.servers.iter().filter(|name| *name != "echo") {
        let target = Target::start(options, name)?;
        let on = Overloaded { options, capacity: capacity(options, &target)?, target };
        println!("{name}: {:.0} requests a second", on.capacity);
        on.too_much()?;
        on.flood().context("one tenant's flood")?;
    }
    Ok(())
}

fn cycles(options: &Options, target: &Target, seed: u64) -> Cycles {
    let token = target.tokens.open.as_str();
    let checks = Checks::new(token, Picks::new(options.users, options.zipf, seed), None);
    Cycles::new(checks, token, 4 * options.overload_connections)
}

/// Requests a second as fast as they are answered, over as many connections as
/// later: changes that arrive together are committed together.
fn capacity(options: &Options, target: &Target) -> anyhow::Result<f64> {
    let connections = options.overload_connections;
    let way = Way { connections, seconds: Some(5.0), rate: 0, keeps_holds: true, ..target.way(options) };
    let tally = drive(way, cycles(options, target, 1))?;
    if let Some(wrong) = tally.one_wrong {
        anyhow::bail!("{} answers such as {wrong}", tally.wrong);
    }
    Ok(tally.items as f64 / tally.seconds)
}

struct Overloaded<'o> {
    options: &'o Options,
    target: Target,
    capacity: f64,
}

impl Overloaded<'_> {
    fn offer(&self, times: f64, seconds: f64, seed: u64) -> anyhow::Result<Outcome> {
        let own = process::own_cpu()?;
        let wanted = Offer {
            address: self.target.address(),
            connections: self.options.overload_connections,
            rate: self.capacity * times,
            seconds,
        };
        let outcome = offer(wanted, cycles(self.options, &self.target, seed))?;
        let busy = process::own_cpu()?.since(own).total() / 1e4 / seconds;
        let good = outcome.count(|status| status == 200);
        println!(
            "  {times:>4} x for {seconds} s: good {:.0}/s ({:.0} % of capacity), 429 {}, 503 {}, other {}, \
             given up {}, broken {}; p50 {:.1} p99 {:.1} max {:.0} ms; RSS {:.0} MB; asker busy {busy:.0} %",
            good as f64 / seconds,
            100.0 * good as f64 / seconds / self.capacity,
            outcome.count(|status| status == 429),
            outcome.count(|status| status == 503),
            outcome.count(|status| ![200, 429, 503].contains(&status)),
            outcome.given_up,
            outcome.broken,
            outcome.quantile(0.5, ALL),
            outcome.quantile(0.99, ALL),
            outcome.quantile(1.0, ALL),
            self.target.process.rss()? as f64 / 1e6,
        );
        if let Some(bad) = &outcome.one_bad {
            println!("       an answer was {bad}");
        }
        if let Some(why) = &outcome.one_broken {
            println!("       a connection broke: {why}");
        }
        Ok(outcome)
    }

    fn too_much(&self) -> anyhow::Result<()> {
        let before = self.offer(0.5, CALM_SECONDS, 2)?.quantile(0.99, ALL);
        self.offer(self.options.times, self.options.overload_seconds, 3)?;
        let after = self.offer(0.5, CALM_SECONDS, 4)?;
        let well = (0..CALM_SECONDS as u32).find(|second| {
            let second = *second as f32;
            after.quantile(0.99, second..second + 1.0) <= 2.0 * before
        });
        match well {
            Some(second) => println!("  p99 is what it was before after {second} s"),
            None => println!("  p99 is not what it was before after {CALM_SECONDS} s"),
        }
        Ok(())
    }

    fn flood(&self) -> anyhow::Result<()> {
        let (address, options) = (self.target.address(), self.options);
        let most = (self.capacity / 20.0).ceil() as u64;
        let settings = json!({"requests_per_second": most, "default_plan": "bench"});
        let sheet = serde_json::from_str(SHEET)?;
        put_sheet(address, &self.target.tokens.closed, sheet)?;
        put(address, &self.target.tokens.closed, "/v1/admin/settings", settings)?;
        let wanted = |rate| Offer { address, connections: 200, rate, seconds: CALM_SECONDS };
        let calm = |seed| offer(wanted(self.capacity / 10.0), cycles(options, &self.target, seed));
        let alone = calm(5)?.quantile(0.99, ALL);
        let token = self.target.tokens.closed.clone();
        let flooding = wanted(self.capacity / 2.0);
        let picks = Picks::new(options.users, options.zipf, 6);
        let flood = std::thread::spawn(move || offer(flooding, Checks::new(&token, picks, None)));
        let beside = calm(7)?;
        let flooded = flood.join().map_err(|_| anyhow::anyhow!("the flood ended early"))??;
        println!(
            "  another tenant's flood of {:.0}/s ({} were let in, {} were 429, {} others, {} given up, {} broken): p99 {:.1} ms, alone {:.1} ms ({:.1} x), \
             {} of its answers were not good",
            flooding.rate,
            flooded.count(|status| status == 200),
            flooded.count(|status| status == 429),
            flooded.count(|status| ![200, 429].contains(&status)),
            flooded.given_up,
            flooded.broken,
            beside.quantile(0.99, ALL),
            alone,
            beside.quantile(0.99, ALL) / alone,
            beside.count(|status| status != 200),
        );
        Ok(())
    }
}
