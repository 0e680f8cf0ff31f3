//! The one task that keeps the map and the connections, and reads the clocks.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant as Moment};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, Value, cmd};
use tokio::time::{Instant, timeout};

use super::address::{Endpoint, Target};
use super::connection::{Call, Node};
use super::error::RedisError;
use super::map::{Map, Range, ranges};
use super::topology::{Shared, unavailable};

/// How often it looks when all is well …
const ROUND: Duration = Duration::from_secs(1);
/// … and while a node is away.
const ROUND_AWAY: Duration = Duration::from_millis(200);
/// Between two looks, however often it is called.
const GAP: Duration = Duration::from_millis(20);
/// How long nodes may take to say where the primaries are.
const ANSWER: Duration = Duration::from_millis(500);
/// How many nodes of a cluster are asked.
const ASKED_MAX: usize = 5;

/// Runs until the last [`Redis`](super::Redis) is dropped.
pub(super) fn start(shared: &Arc<Shared>) {
    tokio::spawn(keep(Arc::downgrade(shared)));
}

async fn keep(shared: Weak<Shared>) {
    let mut measure_at = Instant::now();
    loop {
        let Some(shared) = shared.upgrade() else { return };
        // What comes of it is seen at the calls.
        if let Err(error) = look(&shared).await {
            tracing::debug!(%error, "the primaries of Redis are not known");
        }
        reach_all(&shared).await;
        if Instant::now() >= measure_at {
            measure(&shared).await;
            measure_at = Instant::now() + ROUND;
        }
        let is_away = shared.map.load().primaries.iter().any(|node| node.is_away());
        let wait = timeout(if is_away { ROUND_AWAY } else { ROUND }, shared.look.notified());
        // Weak while it waits for nothing; at most a round longer than the rest.
        let _ = wait.await;
        drop(shared);
        tokio::time::sleep(GAP).await;
    }
}

/// Asks where the primaries are.
pub(super) async fn look(shared: &Shared) -> Result<(), RedisError> {
    match &shared.address.target {
        Target::One(_) => Ok(()),
        Target::Cluster(_) => look_at_cluster(shared).await,
        Target::Sentinel(_, name) => look_at_sentinels(shared, name).await,
    }
}

async fn look_at_cluster(shared: &Shared) -> Result<(), RedisError> {
    let mut asked = shared.map.load().primaries.clone();
    for guide in &shared.guides {
        if !asked.iter().any(|node| Arc::ptr_eq(node, guide)) {
            asked.push(guide.clone());
        }
    }
    asked.sort_by_key(|node| node.is_away() || !node.is_connected());
    asked.truncate(ASKED_MAX);
    let mut question = Pipeline::with_capacity(2);
    question.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("INFO");
    let answers = ask(&asked, Call::Many(&question)).await?;
    // A node that was cut off knows an older state of things.
    let best = answers
        .iter()
        .filter_map(|(node, answer)| told_by(answer, &node.endpoint))
        .max_by_key(|told| told.rank);
    let Some(best) = best else {
        let (node, answer) = &answers[0];
        return Err(RedisError::Unavailable(format!(
            "{} is no node of a cluster: {}",
            node.endpoint,
            why_not(answer)
        )));
    };
    shared.adopt(Map::of_ranges(&best.ranges, |endpoint| shared.node(endpoint))?);
    Ok(())
}

struct Told {
    /// Whether the cluster works, and how often it has changed.
    rank: (bool, u64),
    ranges: Vec<Range>,
}

fn told_by(answer: &Value, asked: &Endpoint) -> Option<Told> {
    let Value::Array(parts) = answer else { return None };
    let [slots, Value::BulkString(info)] = &parts[..] else { return None };
    let info = String::from_utf8_lossy(info);
    let line = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let epoch = line("cluster_current_epoch")?.trim().parse().ok()?;
    let works = line("cluster_state")?.trim() == "ok";
    let ranges = ranges(slots, asked).filter(|ranges| !ranges.is_empty())?;
    Some(Told { rank: (works, epoch), ranges })
}

fn why_not(answer: &Value) -> String {
    let Value::Array(parts) = answer else { return format!("{answer:?}") };
    let error = parts.iter().find_map(|part| match part {
        Value::ServerError(error) => Some(redis::RedisError::from(error.clone()).to_string()),
        _ => None,
    });
    error.unwrap_or_else(|| "it serves no slots".to_owned())
}

async fn look_at_sentinels(shared: &Shared, name: &str) -> Result<(), RedisError> {
    let question = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).to_owned();
    let answers = ask(&shared.guides, Call::One(&question)).await?;
    let named: Vec<Endpoint> = answers.iter().filter_map(|(_, answer)| primary_named(answer)).collect();
    let votes = |endpoint: &Endpoint| named.iter().filter(|other| *other == endpoint).count();
    let Some(primary) = named.iter().max_by_key(|endpoint| votes(endpoint)) else {
        return Err(RedisError::Unavailable(format!("the Sentinels watch nothing by the name {name:?}")));
    };
    let node = shared.node(primary)?;
    let is_new = !shared.map.load().primaries.iter().any(|old| Arc::ptr_eq(old, &node));
    if is_new {
        let (role, _) = node
            .send(Call::One(&cmd("ROLE")), false, Instant::now() + ANSWER)
            .await
            .map_err(|trouble| unavailable(&node.endpoint, trouble))?;
        let is_primary = matches!(&role, Value::Array(parts) if parts.first() == Some(&Value::BulkString(b"master".to_vec())));
        if !is_primary {
            return Err(RedisError::Unavailable(format!("{primary} is not the primary yet")));
        }
    }
    shared.adopt(Map::of_one(node));
    Ok(())
}

fn primary_named(answer: &Value) -> Option<Endpoint> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = &parts[..] else { return None };
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    Some(Endpoint { host: String::from_utf8(host.clone()).ok()?, port })
}

type Answers = Vec<(Arc<Node>, Value)>;

/// Asks all at once and is content with the answers of most: one that is
/// frozen must not hold up the others. An error if nobody answers.
async fn ask(nodes: &[Arc<Node>], call: Call<'_>) -> Result<Answers, RedisError> {
    let until = Instant::now() + ANSWER;
    let mut open: FuturesUnordered<_> =
        nodes.iter().map(async |node| (node, node.send(call, false, until).await)).collect();
    let mut answers = Vec::new();
    let mut error = RedisError::Unavailable("no node is known".to_owned());
    while let Some((node, answer)) = open.next().await {
        match answer {
            Ok((value, _)) => answers.push((node.clone(), value)),
            Err(trouble) => error = unavailable(&node.endpoint, trouble),
        }
        if answers.len() > nodes.len() / 2 {
            break;
        }
    }
    if answers.is_empty() { Err(error) } else { Ok(answers) }
}

/// Connects to every primary, and sees whether those that were away are back.
async fn reach_all(shared: &Shared) {
    let map = shared.map.load_full();
    let until = Instant::now() + ANSWER;
    let gone = map.primaries.iter().filter(|node| !node.is_connected() || node.is_away());
    // Refused while a server loads its data, or has lost its primary.
    let question = cmd("DBSIZE");
    let reached = gone.map(async |node| {
        if node.connect(until).await.is_ok() {
            // Its answer is noted at the node.
            let _ = node.send(Call::One(&question), false, until).await;
        }
    });
    futures_util::future::join_all(reached).await;
}

/// How the servers' clocks stand to ours.
pub(super) struct Calibration {
    /// Our own: it never steps.
    started: Moment,
    /// Microseconds from `started` to theirs since 1970; `UNKNOWN` at first.
    offset: AtomicI64,
}

const UNKNOWN: i64 = i64::MIN;
/// Differences up to this are taken on little by little: they are chance.
const CHANCE_US: i64 = 50_000;

impl Default for Calibration {
    fn default() -> Self {
        Self { started: Moment::now(), offset: AtomicI64::new(UNKNOWN) }
    }
}

impl Calibration {
    pub fn server_ms(&self) -> Option<i64> {
        let offset = self.offset.load(Relaxed);
        (offset != UNKNOWN).then(|| (self.started.elapsed().as_micros() as i64 + offset).div_euclid(1000))
    }

    fn take(&self, measured: i64) {
        let old = self.offset.load(Relaxed);
        let far = old == UNKNOWN || (measured - old).abs() > CHANCE_US;
        self.offset.store(if far { measured } else { old + (measured - old) / 4 }, Relaxed);
    }
}

pub(super) async fn measure(shared: &Shared) {
    let map = shared.map.load_full();
    let from = &shared.calibration;
    let offsets = map.primaries.iter().filter(|node| node.is_connected()).map(|node| offset(node, from));
    let mut offsets: Vec<i64> = futures_util::future::join_all(offsets).await.into_iter().flatten().collect();
    offsets.sort_unstable();
    // The middle one: a single server whose clock is wrong shall not lead.
    if let Some(middle) = offsets.get(offsets.len() / 2) {
        from.take(*middle);
    }
}

/// By the quickest of a few answers: what it took on its way is what may be wrong.
async fn offset(node: &Node, calibration: &Calibration) -> Option<i64> {
    let question = cmd("TIME");
    let mut best: Option<(Duration, i64)> = None;
    for _ in 0..3 {
        let before = calibration.started.elapsed();
        let (answer, _) = node.send(Call::One(&question), false, Instant::now() + ANSWER).await.ok()?;
        let took = calibration.started.elapsed() - before;
        let offset = micros(&answer)? - (before + took / 2).as_micros() as i64;
        if best.is_none_or(|(quickest, _)| took < quickest) {
            best = Some((took, offset));
        }
    }
    best.map(|(_, offset)| offset)
}

/// What `TIME` answers, in microseconds since 1970.
pub(super) fn micros(answer: &Value) -> Option<i64> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(seconds), Value::BulkString(micros)] = &parts[..] else { return None };
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i64>().ok();
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_differences_are_taken_on_slowly_and_large_ones_at_once() {
        let calibration = Calibration::default();
        assert_eq!(calibration.server_ms(), None);
        calibration.take(1_000_000);
        assert_eq!(calibration.offset.load(Relaxed), 1_000_000);
        calibration.take(1_004_000);
        assert_eq!(calibration.offset.load(Relaxed), 1_001_000);
        calibration.take(9_000_000);
        assert_eq!(calibration.offset.load(Relaxed), 9_000_000);
    }

    #[test]
    fn a_time_is_read_in_microseconds() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(micros(&Value::Array(vec![text("1700000000"), text("42")])), Some(1_700_000_000_000_042));
        assert_eq!(micros(&Value::Array(vec![text("x"), text("42")])), None);
        assert_eq!(micros(&Value::Nil), None);
    }
}
