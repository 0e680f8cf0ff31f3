//! Jobs that go through the real service to a vendor, each as a caller of its own would send it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde_json::json;

use crate::harness::vendor::{Call, Rules, Vendor};
use crate::harness::{Client, Tenant};
use crate::model::oracle::calendar::Ms;

#[derive(Debug, Clone)]
pub struct Job {
    pub at: Ms,
    pub bulk: bool,
    pub input: i64,
    pub max_output: i64,
    pub output: i64,
    pub runs_ms: Ms,
}

/// What became of a job.
#[derive(Debug, Clone, Copy)]
struct Fate {
    bulk: bool,
    waited_ms: Ms,
    done_at: Ms,
    refused: usize,
}

/// The outcome of all jobs.
#[derive(Debug)]
pub struct Outcome {
    pub jobs: usize,
    pub sends: usize,
    pub rejected: usize,
    pub refused: usize,
    /// From the first job's time to the last one's end.
    pub total_ms: Ms,
    /// From a job's time to its start, of interactive and of bulk ones, ascending.
    pub waits: [Vec<Ms>; 2],
}

impl Outcome {
    /// The wait that `share` of the interactive jobs do not exceed.
    pub fn interactive(&self, share: f64) -> Ms {
        let place = (self.waits[0].len() as f64 * share).ceil() as usize;
        self.waits[0].get(place.saturating_sub(1)).copied().unwrap_or(0)
    }
}

struct World {
    client: Client,
    vendor: Mutex<Vendor>,
    began: Instant,
}

/// Sends `jobs` through the pool `p` of the tenant to a vendor with these rules.
pub async fn run(tenant: &Tenant, rules: Rules, jobs: &[Job]) -> Outcome {
    let world = Arc::new(World {
        client: tenant.client.clone(),
        vendor: Mutex::new(Vendor::new(rules, 0)),
        began: Instant::now(),
    });
    let all = jobs.iter().enumerate().map(|(number, job)| world.one(number, job));
    let fates = join_all(all).await;
    let mut waits = [Vec::new(), Vec::new()];
    fates.iter().for_each(|fate| waits[usize::from(fate.bulk)].push(fate.waited_ms));
    waits.iter_mut().for_each(|waits| waits.sort_unstable());
    let vendor = world.vendor.lock();
    Outcome {
        jobs: fates.len(),
        sends: vendor.sends,
        rejected: vendor.rejected,
        refused: fates.iter().map(|fate| fate.refused).sum(),
        total_ms: fates.iter().map(|fate| fate.done_at).max().unwrap_or(0),
        waits,
    }
}

impl World {
    fn now(&self) -> Ms {
        self.began.elapsed().as_millis() as Ms
    }

    async fn one(&self, number: usize, job: &Job) -> Fate {
        pause(job.at - self.now()).await;
        let body = json!({
            "user": format!("u{number}"),
            "priority": if job.bulk { "bulk" } else { "interactive" },
            "input_tokens": job.input,
            "max_output_tokens": job.max_output,
            "wait_ms": 60_000,
        });
        let mut refused = 0;
        loop {
            let reply = self.client.check(body.clone()).await;
            if reply.status != 200 {
                assert_eq!(reply.status, 429, "{}", reply.text);
                refused += 1;
                pause(reply.body["retry_after_ms"].as_i64().expect("a wait")).await;
                continue;
            }
            let hold = reply.hold_id();
            let (now, call) = (self.now(), Call { input: job.input, max_output: job.max_output });
            let begun = self.vendor.lock().begin(call, now);
            if let Err(rejected) = begun {
                self.client.release(&hold).await.ok();
                let headers: BTreeMap<_, _> = rejected.headers.into_iter().collect();
                let told = json!({"status": 429, "headers": headers, "body": rejected.body});
                self.client.post("/v1/pools/default/feedback", &told).await.ok();
                pause(rejected.wait_ms).await;
                continue;
            }
            pause(job.runs_ms).await;
            self.vendor.lock().end(job.output, self.now());
            let usage = json!({"input_tokens": job.input, "output_tokens": job.output});
            self.client.settle(&hold, usage).await.ok();
            return Fate { bulk: job.bulk, waited_ms: now - job.at, done_at: self.now(), refused };
        }
    }
}

async fn pause(ms: Ms) {
    tokio::time::sleep(Duration::from_millis(ms.max(0).cast_unsigned())).await;
}
