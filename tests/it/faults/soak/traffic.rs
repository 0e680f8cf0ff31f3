//! Real traffic at two nodes: when calls come and how large they are is as it was recorded; who
//! makes them, and how the service is spoken to, is drawn. Callers note what they were answered.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Client, Reply};
use crate::model::rng::Rng;

/// One call of the recorded hour.
#[derive(Clone, Copy)]
pub struct Arrival {
    pub at: Duration,
    pub model: &'static str,
    pub input: i64,
    pub output: i64,
}

/// The trace and where it is from: recorded traffic, or a small one of the same form.
pub fn trace() -> (String, Vec<Arrival>) {
    let folder = std::env::var("SOAK_TRACES").unwrap_or_else(|_| "../shared/data".into());
    let recorded = [("azure_llm_2023_conv.csv", "conv"), ("azure_llm_2023_code.csv", "code")];
    let mut calls = Vec::new();
    for (file, model) in recorded {
        read(&Path::new(&folder).join(file), model, &mut calls);
    }
    calls.sort_by_key(|call| call.at);
    if calls.is_empty() { made_up() } else { (folder, calls) }
}

/// A small trace of the same form.
pub fn made_up() -> (String, Vec<Arrival>) {
    let (from, mut calls) = ("tests/data/trace.csv".to_owned(), Vec::new());
    read(Path::new(&from), "conv", &mut calls);
    (from, calls)
}

fn read(file: &Path, model: &'static str, into: &mut Vec<Arrival>) {
    let Ok(text) = std::fs::read_to_string(file) else { return };
    let mut begin = None;
    for line in text.lines().skip(1) {
        let mut parts = line.trim().split(',');
        let mut next = || parts.next().expect("three columns");
        let (time, input, output) = (next(), next(), next());
        let clock: Vec<f64> =
            time.split(' ').nth(1).unwrap().split(':').map(|part| part.parse().unwrap()).collect();
        let at = Duration::from_secs_f64((clock[0] * 60.0 + clock[1]) * 60.0 + clock[2]);
        let at = at - *begin.get_or_insert(at);
        into.push(Arrival { at, model, input: input.parse().unwrap(), output: output.parse().unwrap() });
    }
}

/// What a caller knows of one of its calls.
#[derive(Clone, Debug, Default)]
pub struct Call {
    pub user: usize,
    pub request_id: String,
    /// A request of the check was broken off: what became of it is not known.
    pub broken: bool,
    /// The hold's id, and when that was answered.
    pub hold: Option<(String, Instant)>,
    pub refused: bool,
    /// What ended it was sent.
    pub ending: bool,
    /// The hold as it was answered at its end.
    pub ended: Option<(Value, Instant)>,
    /// Nobody knew the hold when its end was told.
    pub gone: bool,
    /// An answer that nobody can explain.
    pub odd: Option<String>,
}

/// What was answered since the last look.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    pub good: usize,
    pub refused: usize,
    pub broken: usize,
    pub slowest: Duration,
    bad: Option<(Instant, Instant)>,
}

impl Seen {
    /// From the first call that was refused or broken off to the last one.
    pub fn bad_for(&self) -> Duration {
        self.bad.map_or(Duration::ZERO, |(first, last)| last - first)
    }
}

pub struct Traffic {
    nodes: [Client; 2],
    users: Vec<String>,
    lease: i64,
    pub calls: Mutex<Vec<Call>>,
    pub seen: Mutex<Seen>,
    pub open: AtomicUsize,
    stops: AtomicBool,
}

/// How long a token takes, so much faster than in life as the calls come.
const TOKEN: Duration = Duration::from_millis(3);
/// Calls under way at once.
const OPEN_MAX: usize = 400;
/// Whoever gets no answer within this asks elsewhere.
const PATIENCE: Duration = Duration::from_secs(8);

impl Traffic {
    pub fn new(nodes: [Client; 2], users: Vec<String>, lease: i64) -> Arc<Self> {
        Arc::new(Self {
            nodes,
            users,
            lease,
            calls: Mutex::default(),
            seen: Mutex::default(),
            open: AtomicUsize::new(0),
            stops: AtomicBool::new(false),
        })
    }

    /// Sends the trace, `speed` times as fast as it was and over and over, until told to stop.
    /// Each part of a soak has request ids of its own.
    pub async fn run(self: Arc<Self>, trace: Vec<Arrival>, speed: f64, seed: u64, part: usize) {
        self.stops.store(false, SeqCst);
        let mut rng = Rng::new(seed ^ (part as u64) << 32);
        let sums: Vec<f64> = (1..=self.users.len())
            .scan(0.0, |sum, rank| {
                *sum += 1.0 / rank as f64;
                Some(*sum)
            })
            .collect();
        let (begun, mut lap) = (Instant::now(), Duration::ZERO);
        for count in 0.. {
            let arrival = trace[count % trace.len()];
            if count > 0 && count % trace.len() == 0 {
                lap += trace.last().unwrap().at + Duration::from_secs(1);
            }
            let due = begun + (lap + arrival.at).div_f64(speed);
            tokio::time::sleep_until(due.into()).await;
            // Where the machine cannot keep up, the trace waits.
            while self.open.load(SeqCst) >= OPEN_MAX {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if self.stops.load(SeqCst) {
                return;
            }
            let drawn = rng.between(0, 1 << 40) as f64 / (1_i64 << 40) as f64 * sums.last().unwrap();
            let user = sums.partition_point(|sum| *sum < drawn).min(self.users.len() - 1);
            let own = Rng::new(rng.next());
            let traffic = Arc::clone(&self);
            self.open.fetch_add(1, SeqCst);
            tokio::spawn(async move {
                let call = traffic.call(arrival, user, format!("r{part}-{count}"), own).await;
                traffic.calls.lock().unwrap().push(call);
                traffic.open.fetch_sub(1, SeqCst);
            });
        }
    }

    /// No new calls; those under way end.
    pub async fn stop(&self) {
        self.stops.store(true, SeqCst);
        let from = Instant::now();
        while self.open.load(SeqCst) > 0 {
            let open = self.open.load(SeqCst);
            assert!(from.elapsed() < Duration::from_secs(300), "{open} calls do not end");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn call(&self, arrival: Arrival, user: usize, request_id: String, mut rng: Rng) -> Call {
        let mut call = Call { user, request_id, ..Call::default() };
        let most = arrival.output.max(16).cast_unsigned().next_power_of_two().cast_signed();
        // Some leave and never say how it ended.
        let (leaves, stays) = (rng.chance(2), rng.chance(1));
        let body = json!({
            "user": self.users[user], "request_id": call.request_id, "model": arrival.model,
            "input_tokens": arrival.input, "max_output_tokens": most,
            "lease_seconds": if stays { 3600 } else { self.lease },
        });
        let impatient = rng.chance(3);
        let made = if rng.chance(3) {
            self.twice(&mut call, &mut rng, "/v1/check", &body).await
        } else {
            self.ask(&mut rng, "/v1/check", &body, impatient, &mut call.broken).await
        };
        let Some(made) = made else { return call };
        match made.status {
            200 => call.hold = Some((made.hold_id(), Instant::now())),
            429 => call.refused = true,
            _ => call.odd = Some(format!("{} {}", made.status, made.text)),
        }
        let Some((hold, _)) = call.hold.clone() else { return call };
        let takes = TOKEN * u32::try_from(arrival.output).unwrap();
        tokio::time::sleep(takes / 2).await;
        let extended = self.users[user].starts_with("big") && rng.chance(10);
        if extended {
            let body =
                json!({"lease_seconds": self.lease, "add_output_tokens": 64, "output_tokens_so_far": 1});
            let path = format!("/v1/holds/{hold}/extend");
            if let Some(reply) = self.ask(&mut rng, &path, &body, false, &mut false).await
                && !matches!(reply.status, 200 | 404 | 429)
                && reply.code() != "lease_ended"
            {
                call.odd = Some(format!("extend: {} {}", reply.status, reply.text));
            }
        }
        tokio::time::sleep(takes / 2).await;
        if leaves || stays {
            return call;
        }
        self.end(&mut call, &hold, arrival, extended, rng).await;
        call
    }

    async fn end(&self, call: &mut Call, hold: &str, arrival: Arrival, extended: bool, mut rng: Rng) {
        if rng.chance(2) {
            // Too late: after the lease.
            tokio::time::sleep(Duration::from_secs(self.lease.cast_unsigned() + 1)).await;
        }
        let (verb, body) = match rng.between(0, 99) {
            0..8 if !extended => ("release", json!({"reason": "upstream_refused"})),
            8..12 => ("settle", json!({"usage": "unknown"})),
            _ => ("settle", json!({"input_tokens": arrival.input, "output_tokens": arrival.output})),
        };
        call.ending = true;
        let path = format!("/v1/holds/{hold}/{verb}");
        let ended = if rng.chance(3) {
            self.twice(call, &mut rng, &path, &body).await
        } else {
            self.ask(&mut rng, &path, &body, false, &mut false).await
        };
        match ended {
            Some(reply) if reply.status == 200 => {
                call.ended = Some((reply.body["hold"].clone(), Instant::now()));
            }
            Some(reply) if reply.status == 404 => call.gone = true,
            Some(reply) => call.odd = Some(format!("{verb}: {} {}", reply.status, reply.text)),
            None => {}
        }
    }

    /// The same request at both nodes at once: one hold, one end.
    async fn twice(&self, call: &mut Call, rng: &mut Rng, path: &str, body: &Value) -> Option<Reply> {
        let mut other = rng.clone();
        let _ = rng.next();
        let (mut broken, mut too) = (false, false);
        let (one, two) = tokio::join!(
            self.ask(rng, path, body, false, &mut broken),
            self.ask(&mut other, path, body, false, &mut too)
        );
        call.broken |= broken || too;
        let (one, two) = (one?, two?);
        if one.status == 200 && two.status == 200 && one.body["hold"]["id"] != two.body["hold"]["id"] {
            call.odd = Some(format!("two holds for one request: {} {}", one.text, two.text));
        }
        // One may have been refused before the other one fitted.
        Some(if one.status == 200 { one } else { two })
    }

    /// The answer of some node. Whoever gets none asks again, with patience, at another one.
    async fn ask(
        &self,
        rng: &mut Rng,
        path: &str,
        body: &Value,
        once: bool,
        broken: &mut bool,
    ) -> Option<Reply> {
        let (mut node, mut pause, from) = (rng.between(0, 1), 50, Instant::now());
        loop {
            let client = &self.nodes[usize::from(node == 1)];
            let begun = Instant::now();
            let request = client.request(reqwest::Method::POST, path).timeout(PATIENCE).json(body);
            let reply = match request.send().await {
                Ok(response) => read_whole(response).await,
                Err(_) => None,
            };
            self.note(begun, reply.as_ref().map_or(0, |reply| reply.status));
            match reply {
                Some(reply) if reply.status == 503 => {}
                Some(reply) => return Some(reply),
                None => *broken = true,
            }
            // A node that answers 503 may have had the engine take it.
            *broken |= once;
            if once || from.elapsed() > Duration::from_secs(240) {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(pause + rng.next() % pause)).await;
            (node, pause) = (1 - node, (pause * 2).min(800));
        }
    }

    fn note(&self, begun: Instant, status: u16) {
        let (mut seen, now) = (self.seen.lock().unwrap(), Instant::now());
        match status {
            0 => seen.broken += 1,
            503 => seen.refused += 1,
            _ => {
                seen.good += 1;
                seen.slowest = seen.slowest.max(now - begun);
                return;
            }
        }
        let first = seen.bad.map_or(begun, |(first, _)| first.min(begun));
        seen.bad = Some((first, now));
    }
}

/// `None`: it was cut off.
async fn read_whole(response: reqwest::Response) -> Option<Reply> {
    let status = response.status().as_u16();
    let text = response.text().await.ok()?;
    let body = serde_json::from_str(&text).ok()?;
    Some(Reply { status, headers: Default::default(), body, text })
}
