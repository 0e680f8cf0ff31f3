//! Jobs that go through the real service to vendors, on the tenant's own clock.
//!
//! One hand drives it all: it moves the clock from event to event, and the service says, each
//! time, who waits on and when one of them would look again. So a day passes in seconds, and
//! twice in the same way. Calls reach their vendor some milliseconds after they were let through,
//! unequally many.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::jobs::Dice;
use crate::harness::vendor::{Call, Vendor};
use crate::harness::{Reply, Tenant};
use crate::model::oracle::calendar::{Ms, instant, wire};

/// The service lets nobody wait for more than a minute of real time.
const LONGEST: Duration = Duration::from_secs(90);

#[derive(Debug, Clone)]
pub struct Job {
    /// Not before then.
    pub at: Ms,
    pub bulk: bool,
    pub input: i64,
    pub max_output: i64,
    pub output: i64,
    pub runs_ms: Ms,
    /// What it may be made with, best first; empty: whatever there is.
    pub models: &'static [&'static str],
}

/// Jobs that are sent one after another.
pub type Stream = Vec<Job>;

/// How callers ask.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Of interactive and of bulk calls; 0: refused or admitted at once.
    pub wait_ms: [Ms; 2],
    /// Less output than this is of no use, in percent of the most.
    pub least_percent: i64,
    /// Whether other models than the first will do.
    pub substitutes: bool,
    /// Who is refused asks again when it is told to.
    pub again: bool,
}

impl Manner {
    pub const PATIENT: Self =
        Self { wait_ms: [60_000; 2], least_percent: 100, substitutes: false, again: true };
}

/// What a run is made of besides jobs.
pub struct Stage {
    /// By model; `""` for calls that name none.
    pub vendors: BTreeMap<&'static str, Vendor>,
    pub manner: Manner,
    /// A call is on its way to its vendor for up to so long.
    pub on_its_way_ms: Ms,
    /// No job is begun later.
    pub until: Ms,
}

/// What came of all jobs.
#[derive(Debug, Default)]
pub struct Outcome {
    pub jobs: usize,
    pub done: usize,
    pub sends: usize,
    pub rejected: usize,
    /// Checks that were refused, and jobs given up.
    pub refused: usize,
    pub given_up: usize,
    /// From the beginning to the end of the last one.
    pub total_ms: Ms,
    /// From a job's time to its admission, of interactive and of bulk ones, ascending.
    pub waits: [Vec<Ms>; 2],
    /// Tokens that vendors counted, of interactive and of bulk jobs.
    pub tokens: [i64; 2],
    /// Those made with another model, and with less output.
    pub substituted: usize,
    pub smaller: usize,
    /// When bulk jobs were admitted.
    pub bulk_at: Vec<Ms>,
    /// How long somebody waited, and that time by how full the fullest limit of the vendors was.
    pub waiting_ms: Ms,
    filled_ms: f64,
}

impl Outcome {
    /// The wait that `share` of the jobs of a lane do not exceed.
    pub fn wait(&self, bulk: bool, share: f64) -> Ms {
        let waits = &self.waits[usize::from(bulk)];
        let place = (waits.len() as f64 * share).ceil() as usize;
        waits.get(place.saturating_sub(1)).copied().unwrap_or(0)
    }

    /// How full the limits were while somebody waited.
    pub fn filled(&self) -> f64 {
        if self.waiting_ms == 0 { 1.0 } else { self.filled_ms / self.waiting_ms as f64 }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A stream asks for its next job.
    Asks(usize),
    /// A call reaches its vendor.
    Reaches(usize),
    /// A call ends.
    Ends(usize),
}

/// One stream, and what is known of the job that it is at.
struct Sender {
    jobs: VecDeque<Job>,
    /// Since when it wants its job done.
    since: Ms,
    hold: String,
    model: String,
    output: i64,
}

struct World<'t> {
    tenant: &'t Tenant,
    began: Ms,
    now: Ms,
    stage: Stage,
    dice: Dice,
    senders: Vec<Sender>,
    events: BinaryHeap<Reverse<(Ms, u64, Event)>>,
    numbers: u64,
    /// Checks without an answer yet.
    asked: usize,
    tell: UnboundedSender<(usize, Reply)>,
    told: UnboundedReceiver<(usize, Reply)>,
    /// Those of them who wait and have looked, if that is known; and when one will look again.
    resting: Option<usize>,
    looks_at: Option<Ms>,
    outcome: Outcome,
}

/// Sends the jobs of all streams through the tenant's pools to the vendors of the stage.
pub async fn run(tenant: &Tenant, stage: Stage, streams: Vec<Stream>) -> Outcome {
    let (tell, told) = unbounded_channel();
    let jobs = streams.iter().map(Vec::len).sum();
    let sender = |jobs: Stream| Sender {
        since: jobs.first().map_or(0, |job| job.at),
        jobs: jobs.into(),
        hold: String::new(),
        model: String::new(),
        output: 0,
    };
    let mut world = World {
        tenant,
        began: tenant.now(),
        now: 0,
        stage,
        dice: Dice::new(7),
        senders: streams.into_iter().map(sender).collect(),
        events: BinaryHeap::new(),
        numbers: 0,
        asked: 0,
        tell,
        told,
        resting: Some(0),
        looks_at: None,
        outcome: Outcome { jobs, ..Outcome::default() },
    };
    for stream in 0..world.senders.len() {
        world.next_job(stream);
    }
    while world.step().await {}
    let mut outcome = world.outcome;
    outcome.waits.iter_mut().for_each(|waits| waits.sort_unstable());
    outcome.sends = world.stage.vendors.values().map(|vendor| vendor.sends).sum();
    outcome.rejected = world.stage.vendors.values().map(|vendor| vendor.rejected).sum();
    outcome
}

impl World<'_> {
    fn at(&mut self, at: Ms, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse((at.max(self.now), self.numbers, event)));
    }

    /// A stream goes on to the job that is its first now.
    fn next_job(&mut self, stream: usize) {
        let now = self.now;
        let sender = &mut self.senders[stream];
        let Some(job) = sender.jobs.front() else { return };
        sender.since = job.at.max(now);
        let since = sender.since;
        if since <= self.stage.until {
            self.at(since, Event::Asks(stream));
        }
    }

    /// Goes on to what happens next; `false`: nothing more does.
    async fn step(&mut self) -> bool {
        let next = self.events.peek().map(|Reverse((at, ..))| *at);
        let looks_at = self.looks_at.filter(|_| self.asked > 0);
        let Some(to) = next.into_iter().chain(looks_at).min() else {
            assert_eq!(self.asked, 0, "they wait, and nothing will ever happen");
            return false;
        };
        self.pass(to);
        if looks_at == Some(to) {
            self.move_clock().await;
            self.answers().await;
        }
        while let Some(Reverse((at, ..))) = self.events.peek()
            && *at <= self.now
        {
            let Some(Reverse((_, _, event))) = self.events.pop() else { break };
            match event {
                Event::Asks(stream) => self.ask(stream).await,
                Event::Reaches(stream) => self.reach(stream).await,
                Event::Ends(stream) => self.end(stream).await,
            }
        }
        true
    }

    /// Time goes by, for vendors and those who watch them.
    fn pass(&mut self, to: Ms) {
        if self.asked > 0 && to > self.now {
            let mut full =
                |at| self.stage.vendors.values_mut().map(|vendor| vendor.filled(at)).fold(0.0, f64::max);
            let filled = f64::midpoint(full(self.now), full(to - 1));
            self.outcome.waiting_ms += to - self.now;
            self.outcome.filled_ms += (to - self.now) as f64 * filled;
        }
        self.now = to;
    }

    /// The service's clock follows.
    async fn move_clock(&mut self) {
        let at = self.began + self.now;
        if self.tenant.now() != at {
            let moved = self.tenant.move_clock(&wire(at)).await;
            self.looked(&moved);
        }
    }

    fn looked(&mut self, clock: &Value) {
        self.resting = clock["waiting"].as_u64().map(|waiting| waiting as usize);
        self.looks_at = clock["next_look_at"].as_str().map(|at| instant(at) - self.began);
    }

    /// Takes answers until everybody else is known to wait and to have looked.
    async fn answers(&mut self) {
        loop {
            while let Ok((stream, reply)) = self.told.try_recv() {
                self.answered(stream, &reply);
            }
            if self.asked == 0 || self.resting == Some(self.asked) {
                return;
            }
            match tokio::time::timeout(Duration::from_millis(2), self.told.recv()).await {
                Ok(answer) => {
                    let (stream, reply) = answer.expect("this side of the channel is open");
                    self.answered(stream, &reply);
                }
                Err(_) => {
                    let clock = self.tenant.get("/v1/admin/clock").await.ok();
                    self.looked(&clock);
                }
            }
        }
    }

    async fn ask(&mut self, stream: usize) {
        self.move_clock().await;
        self.answers().await;
        let (job, manner) = (&self.senders[stream].jobs[0], self.stage.manner);
        let mut body = json!({
            "user": format!("u{}", stream % 500),
            "priority": if job.bulk { "bulk" } else { "interactive" },
            "input_tokens": job.input,
            "max_output_tokens": job.max_output,
        });
        let wait_ms = manner.wait_ms[usize::from(job.bulk)];
        if wait_ms > 0 {
            body["wait_ms"] = json!(wait_ms);
        }
        if manner.least_percent < 100 {
            body["min_output_tokens"] = json!(job.max_output * manner.least_percent / 100);
        }
        match job.models {
            [] => {}
            [first, ..] if !manner.substitutes => body["model"] = json!(first),
            models => body["models"] = json!(models),
        }
        let (client, tell) = (self.tenant.client.clone(), self.tell.clone());
        self.asked += 1;
        tokio::spawn(async move {
            // Nobody listens any more when a test has failed.
            let check = client.request(Method::POST, "/v1/check").timeout(LONGEST).json(&body);
            let _ = tell.send((stream, client.send(check).await));
        });
        self.answers().await;
    }

    fn answered(&mut self, stream: usize, reply: &Reply) {
        self.asked -= 1;
        let now = self.now;
        if reply.status != 200 {
            assert_eq!(reply.status, 429, "{}", reply.text);
            self.outcome.refused += 1;
            if self.stage.manner.again {
                let wait = reply.body["retry_after_ms"].as_i64().expect("a wait");
                self.at(now + wait, Event::Asks(stream));
            } else {
                self.outcome.given_up += 1;
                self.senders[stream].jobs.pop_front();
                self.next_job(stream);
            }
            return;
        }
        let sender = &mut self.senders[stream];
        let job = &sender.jobs[0];
        self.outcome.waits[usize::from(job.bulk)].push(now - sender.since);
        if job.bulk {
            self.outcome.bulk_at.push(now);
        }
        let granted = &reply.body["granted"];
        sender.hold = reply.hold_id();
        let first = job.models.first().copied().unwrap_or("");
        sender.model = granted["model"].as_str().filter(|_| !first.is_empty()).unwrap_or(first).to_owned();
        sender.output = granted["max_output_tokens"].as_i64().unwrap_or(job.max_output);
        self.outcome.smaller += usize::from(sender.output < job.max_output);
        self.outcome.substituted += usize::from(granted["substituted"] == true);
        let way = self.dice.below(self.stage.on_its_way_ms.unsigned_abs() + 1) as Ms;
        self.at(now + way, Event::Reaches(stream));
    }

    fn vendor(&mut self, stream: usize) -> &mut Vendor {
        let model = self.senders[stream].model.as_str();
        self.stage.vendors.get_mut(model).unwrap_or_else(|| panic!("a vendor of {model}"))
    }

    async fn reach(&mut self, stream: usize) {
        let (now, sender) = (self.now, &self.senders[stream]);
        let (job, hold) = (sender.jobs[0].clone(), sender.hold.clone());
        let call = Call { input: job.input, max_output: sender.output };
        let counts_now = call.input + sender.output.min(job.output);
        match self.vendor(stream).begin(call, now) {
            Ok(()) => {
                self.outcome.tokens[usize::from(job.bulk)] += counts_now;
                self.at(now + job.runs_ms, Event::Ends(stream));
            }
            Err(rejected) => {
                self.move_clock().await;
                self.tenant.release(&hold).await.ok();
                let headers: BTreeMap<_, _> = rejected.headers.into_iter().collect();
                let told = json!({"status": 429, "headers": headers, "body": rejected.body});
                let pool = Some(self.senders[stream].model.as_str()).filter(|model| !model.is_empty());
                let path = format!("/v1/pools/{}/feedback", pool.unwrap_or("default"));
                self.tenant.post(&path, &told).await.ok();
                self.resting = None;
                self.answers().await;
                self.at(now + rejected.wait_ms, Event::Asks(stream));
            }
        }
    }

    async fn end(&mut self, stream: usize) {
        let (now, sender) = (self.now, &mut self.senders[stream]);
        let job = sender.jobs.pop_front().expect("it has begun");
        let output = job.output.min(sender.output);
        let hold = std::mem::take(&mut sender.hold);
        self.vendor(stream).end(output, now);
        self.move_clock().await;
        let usage = json!({"input_tokens": job.input, "output_tokens": output});
        self.tenant.settle(&hold, usage).await.ok();
        // Somebody may have heard of it.
        self.resting = None;
        self.answers().await;
        self.outcome.done += 1;
        self.outcome.total_ms = self.outcome.total_ms.max(now);
        self.next_job(stream);
    }
}
