//! Callers who work with both nodes and note everything: what they sent, what was answered, and
//! how long it took.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Pair;
use crate::harness::{Client, Reply};
use crate::model::rng::Rng;

pub const USERS: [&str; 4] = ["u0", "u1", "u2", "tight"];
const CALLERS: usize = 8;
/// How long a caller waits until it asks again.
const PAUSE: Duration = Duration::from_millis(20);
/// How long until enough must have been answered on a crowded machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// What one caller knows of one of its calls.
#[derive(Clone, Debug, Default)]
pub struct Call {
    pub user: &'static str,
    pub request_id: String,
    /// The hold's id, once a check was answered.
    pub hold: Option<String>,
    /// What ended it, once that was sent: the path and the body.
    pub ending: Option<(&'static str, Value)>,
    /// The hold as it was answered at its end.
    pub ended: Option<Value>,
    /// Nobody knew the hold when its end was told.
    pub gone: bool,
}

/// What answering took.
#[derive(Clone, Copy, Debug)]
struct Answer {
    begun: Instant,
    ended: Instant,
    status: u16,
}

#[derive(Default)]
struct Shared {
    calls: Mutex<Vec<Call>>,
    answers: Mutex<Vec<Answer>>,
    answered: AtomicUsize,
    stops: AtomicBool,
}

pub struct Load {
    shared: Arc<Shared>,
    callers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Begins, and goes on until it is told to stop.
    pub fn start(pair: &Pair) -> Self {
        Self::of(pair.clients(), "")
    }

    /// The same at these nodes, with request ids that begin in a way of their own.
    pub fn of(nodes: &[Client], mark: &str) -> Self {
        let shared = Arc::new(Shared::default());
        let caller = |number: usize| {
            let (shared, nodes) = (Arc::clone(&shared), nodes.to_vec());
            let mark = mark.to_owned();
            tokio::spawn(async move {
                let mut rng = Rng::new(number as u64);
                for count in 0.. {
                    if shared.stops.load(SeqCst) {
                        return;
                    }
                    shared.one_call(&nodes, &mut rng, format!("{mark}{number}-{count}")).await;
                }
            })
        };
        let callers = (0..CALLERS).map(caller).collect();
        Self { shared, callers }
    }

    /// Waits until so many more calls were answered with what they asked for.
    pub async fn answers(&self, more: usize) {
        let target = self.shared.answered.load(SeqCst) + more;
        let from = Instant::now();
        while self.shared.answered.load(SeqCst) < target {
            assert!(from.elapsed() < PATIENCE, "{more} more answers do not come: {}", self.told());
            assert!(!self.callers.iter().any(JoinHandle::is_finished), "a caller has ended");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until somebody was refused since there is no store.
    pub async fn refusals(&self) {
        let from = Instant::now();
        while !self.shared.answers.lock().unwrap().iter().any(|answer| answer.status == 503) {
            assert!(from.elapsed() < PATIENCE, "nobody is refused: {}", self.told());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn told(&self) -> String {
        let mut count: HashMap<u16, usize> = HashMap::new();
        self.shared.answers.lock().unwrap().iter().for_each(|a| *count.entry(a.status).or_default() += 1);
        format!("{count:?}")
    }

    /// Lets every call end, and gives what the callers know.
    pub async fn stop(self) -> Told {
        self.shared.stops.store(true, SeqCst);
        for caller in self.callers {
            caller.await.expect("no caller met what it cannot explain");
        }
        let calls = std::mem::take(&mut *self.shared.calls.lock().unwrap());
        let answers = std::mem::take(&mut *self.shared.answers.lock().unwrap());
        Told { calls, answers }
    }
}

/// What callers know in the end.
pub struct Told {
    pub calls: Vec<Call>,
    answers: Vec<Answer>,
}

impl Told {
    /// From the first call that was refused (or broken off) to the last one.
    pub fn refused_for(&self) -> Duration {
        let bad = || self.answers.iter().filter(|answer| matches!(answer.status, 0 | 503));
        let begun = bad().map(|answer| answer.begun).min();
        let ended = bad().map(|answer| answer.ended).max();
        begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| ended - begun)
    }

    pub fn refused(&self) -> usize {
        self.answers.iter().filter(|answer| answer.status == 503).count()
    }

    /// The longest that a call took which was answered with what it asked for.
    pub fn slowest(&self) -> Duration {
        let good = self.answers.iter().filter(|answer| answer.status == 200);
        good.map(|answer| answer.ended - answer.begun).max().unwrap_or_default()
    }

    pub fn answered(&self) -> usize {
        self.answers.iter().filter(|answer| answer.status == 200).count()
    }
}

impl Shared {
    /// A check and, mostly, its end. Whoever gets no answer asks another time, wherever.
    async fn one_call(&self, nodes: &[Client], rng: &mut Rng, request_id: String) {
        let user = *rng.pick(&USERS);
        let (input, output) = (rng.between(0, 900), rng.between(1, 900));
        let body = json!({
            "user": user, "request_id": request_id, "model": "m",
            "input_tokens": input, "max_output_tokens": output, "lease_seconds": 3600,
        });
        let place = {
            let mut calls = self.calls.lock().unwrap();
            calls.push(Call { user, request_id, ..Call::default() });
            calls.len() - 1
        };
        // Some give up at once: what became of theirs is to be found out.
        let patient = rng.chance(70);
        let Some(made) = self.ask(nodes, rng, "/v1/check", &body, patient).await else { return };
        match made.status {
            200 => {}
            429 if user == "tight" => return,
            _ => panic!("{body}: {} {}", made.status, made.text),
        }
        let hold = made.hold_id();
        self.calls.lock().unwrap()[place].hold = Some(hold.clone());
        let (verb, body) = match rng.between(0, 9) {
            0 => return,
            1 | 2 => ("release", json!({})),
            3 => ("settle", json!({"usage": "unknown"})),
            // Never more than was reserved, so that what is used stays within the limit.
            _ => {
                let (input, output) = (rng.between(0, input), rng.between(0, output));
                ("settle", json!({"input_tokens": input, "output_tokens": output}))
            }
        };
        self.calls.lock().unwrap()[place].ending = Some((verb, body.clone()));
        let path = format!("/v1/holds/{hold}/{verb}");
        let Some(ended) = self.ask(nodes, rng, &path, &body, true).await else { return };
        let call = &mut self.calls.lock().unwrap()[place];
        match ended.status {
            200 => call.ended = Some(ended.body["hold"].clone()),
            404 => call.gone = true,
            _ => panic!("{call:?}: {} {}", ended.status, ended.text),
        }
    }

    /// The answer of some node; `None` if there was none before the end.
    async fn ask(
        &self,
        nodes: &[Client],
        rng: &mut Rng,
        path: &str,
        body: &Value,
        patient: bool,
    ) -> Option<Reply> {
        loop {
            let node = rng.pick(nodes);
            let begun = Instant::now();
            let sent = node.request(reqwest::Method::POST, path).json(body).send().await;
            let reply = match sent {
                Ok(response) => Some(Reply::read(response).await),
                Err(_) => None,
            };
            let status = reply.as_ref().map_or(0, |reply| reply.status);
            self.answers.lock().unwrap().push(Answer { begun, ended: Instant::now(), status });
            match reply {
                Some(reply) if reply.status == 503 => reply.assert_problem(),
                Some(reply) => {
                    assert!(reply.status < 500, "{path} {body}: {}", reply.text);
                    self.answered.fetch_add(1, SeqCst);
                    return Some(reply);
                }
                None => {}
            }
            if !patient || self.stops.load(SeqCst) {
                return None;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
