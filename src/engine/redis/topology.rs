//! Every call finds the primary of its slot, wherever that is by now.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{Cmd, Pipeline, Value, cmd};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::address::{Address, Endpoint, Target};
use super::connection::{Call, Generation, Node};
use super::error::{RedisError, Trouble, odd};
use super::keeper::{self, Calibration};
use super::map::{HashSlot, Map};
use super::script::Script;

/// How long a call may take in all.
const DEADLINE: Duration = Duration::from_secs(2);
/// How many calls may be under way: more could only wait for memory to end.
const CALLS_MAX: usize = 10_000;
/// Pauses before a call is repeated grow from this …
const PAUSE: Duration = Duration::from_millis(4);
/// … to this.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The primaries behind a URL. Cheap to clone.
#[derive(Clone)]
pub struct Redis {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub address: Address,
    /// Nodes that were named in the URL: they know the others.
    pub guides: Vec<Arc<Node>>,
    nodes: Mutex<HashMap<Endpoint, Arc<Node>>>,
    pub map: ArcSwap<Map>,
    /// The map is wrong, or a node does not answer: look now.
    pub look: Notify,
    pub calibration: Calibration,
    room: Semaphore,
    pub runtime: Handle,
}

impl Redis {
    /// Connects to `redis://`, `redis+cluster://`, `redis+sentinel://` (with
    /// TLS: `rediss…`). Must be called where tokio's runtime of the whole
    /// process is: connections live on it.
    pub async fn connect(url: &str) -> Result<Self, RedisError> {
        let shared = Shared::new(Address::parse(url)?)?;
        let until = Instant::now() + DEADLINE;
        let mut pause = Pause::default();
        while let Err(error) = keeper::look(&shared).await {
            pause.or_fail(until, || error).await?;
        }
        let shared = Arc::new(shared);
        // One that is away must not keep a node from starting; all must.
        let map = shared.map.load_full();
        let reached = map.primaries.iter().map(async |node| match node.connect(until).await {
            Ok(_) => None,
            Err(trouble) => Some(unavailable(&node.endpoint, trouble)),
        });
        let errors: Vec<_> = futures_util::future::join_all(reached).await.into_iter().collect();
        if let Some(errors) = errors.into_iter().collect::<Option<Vec<_>>>() {
            return Err(errors
                .into_iter()
                .next()
                .unwrap_or_else(|| RedisError::Unavailable("there are no primaries".to_owned())));
        }
        // Whoever starts with a clock that is ahead would have to wait for it.
        keeper::measure(&shared).await;
        keeper::start(&shared);
        Ok(Self { shared })
    }

    /// One command to the primary of a slot. It is repeated when its answer
    /// is lost, so it must be one that does no harm when carried out twice.
    pub async fn run(&self, slot: HashSlot, command: &Cmd) -> Result<(Value, Generation), RedisError> {
        self.deliver(slot, Call::One(command), None).await.map_err(Undelivered::into_error)
    }

    /// Commands in one go; not one step: others may come between. Repeated
    /// like those of [`run`](Self::run).
    pub async fn pipeline(
        &self,
        slot: HashSlot,
        pipeline: &Pipeline,
    ) -> Result<(Vec<Value>, Generation), RedisError> {
        let (answer, mut generation) =
            self.deliver(slot, Call::Many(pipeline), None).await.map_err(Undelivered::into_error)?;
        let Value::Array(mut values) = answer else { return Err(odd("a pipeline", &answer)) };
        for (value, command) in values.iter_mut().zip(pipeline.cmd_iter()) {
            // Keys move one by one: each command goes its own way.
            if matches!(value, Value::ServerError(_)) {
                (*value, generation) = self.run(slot, command).await?;
            }
        }
        Ok((values, generation))
    }

    /// A script by its digest, and with its code where it is not known.
    pub async fn script(
        &self,
        slot: HashSlot,
        script: &Script,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<(Value, Generation), RedisError> {
        self.script_over(None, slot, script, keys, args).await
    }

    /// The same, and over no connection but this one: behind a new one there
    /// may be a server that knows less.
    pub async fn script_over(
        &self,
        only: Option<Generation>,
        slot: HashSlot,
        script: &Script,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<(Value, Generation), RedisError> {
        let answer = match self.deliver(slot, Call::One(&script.known(keys, args)), only).await {
            Err(Undelivered::NoScript) => {
                self.deliver(slot, Call::One(&script.whole(keys, args)), only).await
            }
            answer => answer,
        };
        answer.map_err(Undelivered::into_error)
    }

    /// The time of a slot's primary, in microseconds since 1970.
    pub async fn time(&self, slot: HashSlot) -> Result<i64, RedisError> {
        let (value, _) = self.run(slot, &cmd("TIME")).await?;
        keeper::micros(&value).ok_or_else(|| odd("TIME", &value))
    }

    /// One command to every primary, once each; with their addresses.
    pub async fn everywhere(&self, command: &Cmd) -> Vec<(String, Result<Value, RedisError>)> {
        let until = Instant::now() + DEADLINE;
        let map = self.shared.map.load_full();
        let asked = map.primaries.iter().map(async |node| {
            let answer = node.send(Call::One(command), false, until).await;
            let answer =
                answer.map(|(value, _)| value).map_err(|trouble| unavailable(&node.endpoint, trouble));
            (node.endpoint.to_string(), answer)
        });
        futures_util::future::join_all(asked).await
    }

    /// Tells every subscriber of a channel, on whichever node.
    pub async fn publish(&self, channel: &str, payload: &[u8]) -> Result<(), RedisError> {
        let slot = super::slot_of(channel.as_bytes());
        self.run(slot, cmd("PUBLISH").arg(channel).arg(payload)).await.map(|_| ())
    }

    /// The primaries that do not serve at the moment.
    pub fn away(&self) -> Vec<String> {
        let map = self.shared.map.load();
        map.primaries.iter().filter(|node| node.is_away()).map(|node| node.endpoint.to_string()).collect()
    }

    /// What the servers' clocks show, in ms since 1970, as measured about once
    /// a second; `None` until the first time.
    pub fn server_ms(&self) -> Option<i64> {
        self.shared.calibration.server_ms()
    }

    async fn deliver(
        &self,
        slot: HashSlot,
        call: Call<'_>,
        only: Option<Generation>,
    ) -> Result<(Value, Generation), Undelivered> {
        let shared = &*self.shared;
        let full = |_| RedisError::Unavailable("too many calls wait for it".to_owned());
        let _room = shared.room.try_acquire().map_err(full)?;
        let until = Instant::now() + DEADLINE;
        let mut pause = Pause::default();
        let mut redirect: Option<(Arc<Node>, bool)> = None;
        loop {
            let (node, asking) = match redirect.take() {
                Some(there) => there,
                None => (shared.primary_of(slot, until, &mut pause).await?, false),
            };
            if let Some(trouble) = node.given_up() {
                return Err(unavailable(&node.endpoint, trouble).into());
            }
            let trouble = match node.send_over(only, call, asking, until).await {
                Ok(answer) => return Ok(answer),
                Err(trouble) => trouble,
            };
            match &trouble {
                Trouble::Moved(to) => {
                    shared.look.notify_one();
                    redirect = Some((shared.node(to)?, false));
                }
                Trouble::Ask(to) => redirect = Some((shared.node(to)?, true)),
                Trouble::Later(_) => (),
                Trouble::Broken(_) => shared.look.notify_one(),
                Trouble::NotServing(_) => {
                    // Behind the same name there may be another server by now.
                    if matches!(shared.address.target, Target::One(_)) {
                        node.hang_up();
                    }
                    shared.look.notify_one();
                }
                Trouble::NoScript => return Err(Undelivered::NoScript),
                Trouble::Final(error) => return Err(error.clone().into()),
            }
            pause.or_fail(until, || unavailable(&node.endpoint, trouble)).await?;
        }
    }
}

impl Shared {
    fn new(address: Address) -> Result<Self, RedisError> {
        let runtime = Handle::current();
        let mut nodes = HashMap::new();
        let known = |endpoint: &Endpoint| -> Result<Arc<Node>, RedisError> {
            let node = Node::new(address.ways(endpoint)?, endpoint.clone(), runtime.clone())?;
            nodes.insert(endpoint.clone(), node.clone());
            Ok(node)
        };
        let mut map = Map::default();
        let guides = match &address.target {
            Target::One(endpoint) => {
                let node = Node::alone(address.ways(endpoint)?, endpoint.clone(), runtime.clone())?;
                map = Map::of_one(node);
                Vec::new()
            }
            Target::Cluster(endpoints) => endpoints.iter().map(known).collect::<Result<_, _>>()?,
            // A Sentinel has users of its own, or none.
            Target::Sentinel(endpoints, _) => endpoints
                .iter()
                .map(|endpoint| {
                    Node::new(address.ways_to_sentinel(endpoint)?, endpoint.clone(), runtime.clone())
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Self {
            guides,
            nodes: Mutex::new(nodes),
            map: ArcSwap::from_pointee(map),
            look: Notify::new(),
            calibration: Calibration::default(),
            room: Semaphore::new(CALLS_MAX),
            runtime,
            address,
        })
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self.address.target, Target::Cluster(_))
    }

    /// The node at an address, whether or not it is a primary.
    pub fn node(&self, endpoint: &Endpoint) -> Result<Arc<Node>, RedisError> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(endpoint) {
            return Ok(node.clone());
        }
        let node = Node::new(self.address.ways(endpoint)?, endpoint.clone(), self.runtime.clone())?;
        nodes.insert(endpoint.clone(), node.clone());
        Ok(node)
    }

    /// Takes a new map, and lets go of nodes that have no part in it.
    pub fn adopt(&self, map: Map) {
        let old = self.map.load();
        if !old.is_same(&map) {
            if !old.primaries.is_empty() {
                tracing::info!(was = old.told(), now = map.told(), "the primaries of Redis have changed");
            }
            self.map.store(Arc::new(map));
        }
        let map = self.map.load();
        let in_use =
            |node: &Arc<Node>| map.primaries.iter().chain(&self.guides).any(|used| Arc::ptr_eq(used, node));
        self.nodes.lock().retain(|_, node| in_use(node));
    }

    async fn primary_of(
        &self,
        slot: HashSlot,
        until: Instant,
        pause: &mut Pause,
    ) -> Result<Arc<Node>, RedisError> {
        loop {
            if let Some(node) = self.map.load().primary_of(slot) {
                return Ok(node.clone());
            }
            self.look.notify_one();
            let nobody = || RedisError::Unavailable(format!("nobody serves slot {}", slot.number()));
            pause.or_fail(until, nobody).await?;
        }
    }
}

/// Longer and longer pauses, each somewhat by chance, so that callers who
/// failed together do not come back together.
#[derive(Default)]
struct Pause {
    count: u32,
}

impl Pause {
    async fn or_fail(
        &mut self,
        until: Instant,
        error: impl FnOnce() -> RedisError,
    ) -> Result<(), RedisError> {
        let whole = PAUSE_MAX.min(PAUSE * 2_u32.saturating_pow(self.count));
        let chance = getrandom::u32().unwrap_or(0) % 1024;
        // The first time at once: a slot has moved, a connection was cut.
        let pause = if self.count == 0 { Duration::ZERO } else { whole / 2 + whole / 2 * chance / 1024 };
        self.count += 1;
        if Instant::now() + pause >= until {
            return Err(error());
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }
}

/// Why a call came to nothing.
#[derive(Debug)]
enum Undelivered {
    NoScript,
    Error(RedisError),
}

impl Undelivered {
    fn into_error(self) -> RedisError {
        match self {
            Self::NoScript => RedisError::Refused("it does not know the script".to_owned()),
            Self::Error(error) => error,
        }
    }
}

impl From<RedisError> for Undelivered {
    fn from(error: RedisError) -> Self {
        Self::Error(error)
    }
}

pub(super) fn unavailable(endpoint: &Endpoint, trouble: Trouble) -> RedisError {
    RedisError::Unavailable(match trouble {
        Trouble::Final(error) => return error,
        Trouble::Moved(to) | Trouble::Ask(to) => format!("{endpoint} and {to} send from one to the other"),
        Trouble::NoScript => format!("{endpoint} does not know the script"),
        Trouble::Later(why) | Trouble::NotServing(why) | Trouble::Broken(why) => format!("{endpoint}: {why}"),
    })
}
