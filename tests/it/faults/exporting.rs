//! Handing usage on: exporters that may die at any step, and a receiver who keeps the first of
//! each id.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::harness::Client;
use crate::model::rng::Rng;

/// What was handed on.
#[derive(Default)]
pub struct Receiver {
    kept: Mutex<BTreeMap<String, Value>>,
    pub repeated: AtomicUsize,
}

impl Receiver {
    fn take(&self, event: &Value) {
        let id = event["id"].as_str().expect("an event has an id").to_owned();
        let mut kept = self.kept.lock().unwrap();
        match kept.get(&id) {
            Some(first) => {
                assert_eq!(first, event, "it is told the same way again");
                self.repeated.fetch_add(1, Ordering::SeqCst);
            }
            None => _ = kept.insert(id, event.clone()),
        }
    }

    pub fn kept(&self) -> BTreeMap<String, Value> {
        self.kept.lock().unwrap().clone()
    }

    /// The sum of one figure over events that match.
    pub fn sum(&self, meter: &str, matches: impl Fn(&Value) -> bool) -> i64 {
        let kept = self.kept.lock().unwrap();
        kept.values()
            .filter(|event| matches(event))
            .filter_map(|event| event["counted"][meter].as_i64())
            .sum()
    }
}

/// How the life of an exporter went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It died at some step, whatever that was.
    Killed,
    /// The service did not answer.
    Unanswered,
    /// There was nothing more.
    Done,
}

/// Reads and hands on from where it left off for so many steps at most: a page, an event, a note of
/// the place are one each. The place outlives it.
pub async fn export(
    client: &Client,
    receiver: &Receiver,
    place: &Mutex<Option<String>>,
    steps: usize,
    rng: &mut Rng,
) -> Life {
    let mut left = steps;
    let mut step = || {
        left = left.saturating_sub(1);
        left > 0
    };
    loop {
        let after =
            place.lock().unwrap().clone().map(|cursor| format!("&after={cursor}")).unwrap_or_default();
        let path = format!("/v1/admin/usage/events?limit={}{after}", rng.between(1, 9));
        let Ok(answer) = client.request(reqwest::Method::GET, &path).send().await else {
            return Life::Unanswered;
        };
        if answer.status() == 503 {
            return Life::Unanswered;
        }
        assert_eq!(answer.status(), 200, "{path}");
        let Ok(page) = answer.json::<Value>().await else { return Life::Unanswered };
        if !step() {
            return Life::Killed;
        }
        for event in page["data"].as_array().expect("events") {
            receiver.take(event);
            tokio::task::yield_now().await;
            if !step() {
                return Life::Killed;
            }
        }
        *place.lock().unwrap() = Some(page["next_cursor"].as_str().expect("it is never null").to_owned());
        if !step() {
            return Life::Killed;
        }
        if page["more"] == false {
            return Life::Done;
        }
    }
}
