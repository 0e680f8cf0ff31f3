//! Traffic of every kind over some days, in zones whose days are not ours: what the feed tells is
//! what holds count, what reports add up, what minutes show and what windows have used.
//!
//! A small made-up trace; `SUMS_TRACES=folder` replays recorded ones in its place.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::sheets::Sheet;
use crate::harness::{Tenant, row};
use crate::model::oracle::calendar::{HOUR_MS, Ms, instant, wire};
use crate::model::rng::Rng;

const METERS: [&str; 5] = ["requests", "input_tokens", "output_tokens", "total_tokens", "credits"];
const USERS: i64 = 16;
/// Calls of one moment.
const AT_ONCE: usize = 25;
/// How much longer the traffic takes than it did.
const STRETCH: Ms = 300;
/// What is left open is ended by the rule after so long.
const RULE_HOURS: Ms = 2;
const LOOKS: usize = 4;

struct Job {
    at: Ms,
    input: i64,
    output: i64,
}

fn jobs() -> Vec<Job> {
    let recorded = std::env::var("SUMS_TRACES").map(|folder| {
        ["azure_llm_2023_conv.csv", "azure_llm_2023_code.csv"]
            .map(|file| Path::new(&folder).join(file))
            .to_vec()
    });
    let files = recorded.unwrap_or_else(|_| vec!["tests/data/trace.csv".into()]);
    let mut jobs: Vec<Job> = files.iter().flat_map(|file| read(file)).collect();
    jobs.sort_by_key(|job| job.at);
    jobs
}

fn read(file: &Path) -> Vec<Job> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut begin = None;
    let job = |line: &str| {
        let mut parts = line.trim().split(',');
        let mut next = || parts.next().expect("three columns");
        let at = instant(&format!("{}Z", next()[..23].replace(' ', "T")));
        let number = |text: &str| text.parse().expect("a count");
        Job { at: at - *begin.get_or_insert(at), input: number(next()), output: number(next()) }
    };
    text.lines().skip(1).map(job).collect()
}

struct World {
    t: Tenant,
    zone: &'static str,
    rng: Rng,
    open: Vec<String>,
    booked: usize,
    events: Vec<Value>,
    cursor: String,
}

impl World {
    async fn new(zone: &'static str, start: &str) -> Self {
        let t = Tenant::at(zone, start).await;
        let sheet = |id: &str| {
            let most = 1_000_000_000_000;
            let sheet = Sheet::named(id).per("day", json!("day"), most).per("month", json!("month"), most);
            sheet.per("life", json!("lifetime"), most).field("cache_read_weight", json!(0.3))
        };
        t.plan(&sheet("q")).await;
        t.plan(&sheet("p")).await;
        let models = json!([{"id": "opus", "aliases": ["o"], "input": 15_000_000, "output": 75_000_000, "cache_read": 1_500_001},
                            {"id": "haiku", "aliases": [], "input": 1_000_000, "output": 5_000_000, "cache_read": 100_000}]);
        t.put("/v1/admin/models", &json!({"models": models, "reason": "prices"})).await.ok();
        let rule = json!({"hours": RULE_HOURS, "then": "charge"});
        t.put_settings(json!({"in_doubt_after": rule, "max_hold_seconds": 3600})).await.ok();
        for user in 0..USERS / 2 {
            let (plan, org) =
                (if user % 3 == 0 { "q" } else { "p" }, if user % 2 == 0 { "acme" } else { "b/eu" });
            t.put(&format!("/v1/admin/users/u{user}"), &json!({"plan": plan, "org": org, "reason": "r"}))
                .await
                .ok();
        }
        let (open, events) = (Vec::new(), Vec::new());
        Self { t, zone, rng: Rng::new(7), open, booked: 0, events, cursor: String::new() }
    }

    /// The busiest user of some.
    fn user(&mut self) -> String {
        let some = (0..3).map(|_| self.rng.between(0, USERS - 1));
        format!("u{}", some.min().expect("some"))
    }

    fn check(&mut self, job: &Job) -> Value {
        let user = self.user();
        let feature = *self.rng.pick(&[Some("chat"), Some("batch"), None]);
        let model = *self.rng.pick(&[Some("o"), Some("haiku"), None]);
        let mut check = json!({"user": user, "input_tokens": job.input, "max_output_tokens": job.output + 50, "lease_seconds": 1800});
        for (name, value) in [("feature", feature), ("model", model)] {
            if let Some(value) = value {
                check[name] = value.into();
            }
        }
        check
    }

    /// A moment's calls, and the ends of most of those that are open.
    async fn step(&mut self, jobs: &[Job]) {
        let checks: Vec<Value> = jobs.iter().map(|job| self.check(job)).collect();
        let admitted = self.t.check_batch(&checks).await.ok();
        let mut settles = Vec::new();
        for (result, job) in admitted["results"].as_array().expect("results").iter().zip(jobs) {
            let hold = result["body"]["hold"]["id"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned();
            match self.rng.between(0, 99) {
                0..15 => self.open.push(hold),
                15..20 => _ = self.t.release(&hold).await.ok(),
                20..23 => _ = self.t.settle(&hold, json!({"usage": "unknown"})).await.ok(),
                other => settles.push(self.usage_of(hold, job, other < 30)),
            }
        }
        // Late, while in doubt, or when the rule has ended them.
        let places = self.rng.between(0, self.open.len() as i64);
        self.open.rotate_left(places as usize);
        for hold in self.open.split_off(self.open.len().min(8)) {
            match self.rng.between(0, 9) {
                0 => _ = self.t.release(&hold).await.ok(),
                _ => settles.push(self.usage_of(hold, &Job { at: 0, input: 77, output: 5 }, true)),
            }
        }
        for some in settles.chunks(100) {
            let results = self.t.settle_batch(some).await.ok();
            assert!(
                results["results"].as_array().expect("results").iter().all(|one| one["status"] == 200),
                "{results}"
            );
        }
        let at = wire(self.t.now() - self.rng.between(0, 30) * HOUR_MS);
        self.booked += 1;
        let user = self.user();
        self.t
            .usage(
                &json!({"id": format!("b{}", self.booked), "user": user, "model": "haiku", "feature": "voice",
                             "input_tokens": 40, "output_tokens": 2, "at": at}),
            )
            .await
            .ok();
    }

    fn usage_of(&mut self, hold: String, job: &Job, is_odd: bool) -> Value {
        let cached = job.input / 2;
        let mut settle = json!({"id": hold, "input_tokens": job.input, "output_tokens": job.output, "cache_read_tokens": cached});
        if is_odd && self.rng.chance(50) {
            settle["model"] = "haiku".into();
        }
        settle
    }

    async fn read_feed(&mut self) {
        loop {
            let page = self.t.get(&format!("/v1/admin/usage/events?limit=500{}", self.cursor)).await.ok();
            self.events.extend_from_slice(page["data"].as_array().expect("events"));
            self.cursor = format!("&after={}", page["next_cursor"].as_str().expect("a cursor"));
            if page["more"] == false {
                return;
            }
        }
    }

    /// Sums of the events by what `key` makes of them.
    fn sums(&self, key: impl Fn(&Value) -> Value) -> BTreeMap<String, [i64; 5]> {
        let mut sums = BTreeMap::<String, [i64; 5]>::new();
        for event in &self.events {
            let sum = sums.entry(key(event).to_string()).or_default();
            for (sum, meter) in sum.iter_mut().zip(METERS) {
                *sum += event["counted"][meter].as_i64().expect("a number");
            }
        }
        sums.retain(|_, sum| *sum != [0; 5]);
        sums
    }

    async fn compare(&mut self) {
        self.read_feed().await;
        let mut days: Vec<String> =
            self.events.iter().map(|event| event["day"].as_str().unwrap().to_owned()).collect();
        days.sort();
        days.dedup();
        let (first, last) = (days.first().expect("a day").clone(), days.last().expect("a day").clone());
        for group in ["user", "org", "feature", "model", "plan"] {
            let whole = self.consumers(group, &first, &last).await;
            assert_eq!(whole, self.sums(|event| event[group].clone()), "{group} in {}", self.zone);
        }
        for day in &days {
            let of_day = self.consumers("user", day, day).await;
            let expected =
                self.sums(|event| if event["day"] == **day { event["user"].clone() } else { json!("") });
            let expected: BTreeMap<_, _> = expected.into_iter().filter(|(user, _)| user != "\"\"").collect();
            assert_eq!(of_day, expected, "on {day} in {}", self.zone);
        }
        for user in 0..USERS {
            self.compare_windows(&format!("u{user}")).await;
        }
    }

    /// Rows that count anything, from the first to the last of these days.
    async fn consumers(&self, group: &str, first: &str, last: &str) -> BTreeMap<String, [i64; 5]> {
        let next = &wire(instant(&format!("{last}T00:00:00.000Z")) + 24 * HOUR_MS)[..10];
        let query = format!("/v1/admin/consumers?group={group}&from={first}&to={next}&limit=500");
        let page = self.t.get(&query).await.ok();
        assert_eq!(page["next_cursor"], Value::Null);
        let rows = page["data"].as_array().expect("rows").iter();
        let rows = rows
            .map(|row| (row[group].to_string(), METERS.map(|meter| row[meter].as_i64().expect("a number"))));
        rows.filter(|(_, sums)| *sums != [0; 5]).collect()
    }

    async fn compare_windows(&self, user: &str) {
        let quota = self.t.quota(user).await.ok();
        for window in ["day", "month", "life"] {
            let row = row(&quota, window);
            let begin = row["window"]["start"].as_str().map(instant).unwrap_or(Ms::MIN);
            let theirs =
                |event: &&Value| event["user"] == user && instant(event["at"].as_str().unwrap()) >= begin;
            let used: i64 = self
                .events
                .iter()
                .filter(theirs)
                .filter_map(|event| event["counted"]["total_tokens"].as_i64())
                .sum();
            assert_eq!(row["used"].as_i64(), Some(used), "{window} of {user} in {}: {row}", self.zone);
        }
    }

    /// Each hold's events are what the hold counts.
    async fn compare_holds(&self, every: usize) {
        let by_hold = self.sums(|event| event["hold"].clone());
        for event in self.events.iter().step_by(every) {
            let hold = self.t.hold(event["hold"].as_str().unwrap()).await.ok()["hold"].clone();
            let counted = METERS.map(|meter| hold["counted"][meter].as_i64().expect("it is finished"));
            let told = by_hold.get(&event["hold"].to_string()).copied().unwrap_or_default();
            assert_eq!((told, &event["at"]), (counted, &hold["created_at"]), "{hold}");
        }
    }

    async fn compare_minutes(&self) {
        let mut minutes = BTreeMap::<String, [i64; 5]>::new();
        let mut cursor = String::new();
        let to = wire(self.t.now() + HOUR_MS);
        loop {
            let query = format!("/v1/admin/features?from=2026-01-01T00:00:00.000Z&to={to}&limit=500{cursor}");
            let page = self.t.get(&query).await.ok();
            for row in page["data"].as_array().expect("rows") {
                let sums = METERS.map(|meter| row[meter].as_i64().expect("a number"));
                minutes.insert(json!([row["at"], row["feature"]]).to_string(), sums);
            }
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={}", crate::harness::percent(next));
        }
        minutes.retain(|_, sums| *sums != [0; 5]);
        let minute = |event: &Value| {
            let at = instant(event["at"].as_str().unwrap());
            json!([wire(at - at.rem_euclid(60_000)), event["feature"]])
        };
        assert_eq!(minutes, self.sums(minute), "by minute in {}", self.zone);
    }
}

async fn run(zone: &'static str, start: &str) {
    let jobs = jobs();
    let mut world = World::new(zone, start).await;
    let begin = instant(start);
    let stretch = if jobs.len() > 1000 { STRETCH / 4 } else { STRETCH };
    let steps: Vec<&[Job]> = jobs.chunks(AT_ONCE * jobs.len().div_ceil(10_000)).collect();
    for (nth, some) in steps.iter().enumerate() {
        let at = begin + some[0].at * stretch;
        if at > world.t.now() {
            world.t.set_clock(&wire(at)).await;
        }
        world.step(some).await;
        if nth % (steps.len() / LOOKS).max(1) == 0 {
            world.compare().await;
        }
    }
    // What is left is the rule's, and half of that is corrected.
    world.t.pass((RULE_HOURS + 1) * HOUR_MS).await;
    world.step(&jobs[..AT_ONCE]).await;
    world.t.pass((RULE_HOURS + 1) * HOUR_MS).await;
    world.compare().await;
    world.compare_minutes().await;
    world.compare_holds(jobs.len().div_ceil(400)).await;
    let parts = |part: &str| {
        world.events.iter().filter(|event| event["id"].as_str().unwrap().ends_with(part)).count()
    };
    println!("{zone}: {} events, {} corrections of rules", world.events.len(), parts(":2"));
    assert!(parts(":1") > jobs.len() && parts(":2") > 0 && parts(":3") > 0);
}

#[tokio::test]
async fn all_sums_agree_where_the_day_is_ours() {
    run("UTC", "2026-01-30T20:00:00.000Z").await;
}

/// A quarter of an hour off, over the end of a month.
#[tokio::test]
async fn all_sums_agree_where_hours_begin_at_a_quarter() {
    run("Asia/Kathmandu", "2026-01-30T20:00:00.000Z").await;
}

/// Over the night in which clocks go forward.
#[tokio::test]
async fn all_sums_agree_over_a_change_of_clocks() {
    run("America/New_York", "2026-03-07T12:00:00.000Z").await;
}
