//! One server: its connection, made anew when it breaks, and whether it answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use super::address::Endpoint;
use super::error::{RedisError, Trouble};

/// How long one attempt may take before its connection is given up. A frozen
/// server keeps its connections open: only time tells.
pub(super) const ATTEMPT: Duration = Duration::from_secs(1);
/// Pauses between tries to connect grow up to this.
const DIAL_PAUSE_MAX: Duration = Duration::from_millis(250);
/// A server that has been away for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Over which connection, or those to the same life of a server, an answer came.
/// Another number than before means that something may have happened to the
/// server meanwhile, or that it is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(u64);

impl Generation {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Relaxed) + 1)
    }
}

/// What is sent in one go.
#[derive(Clone, Copy)]
pub(super) enum Call<'a> {
    One(&'a Cmd),
    /// Answered by an array, in which single answers may be errors.
    Many(&'a Pipeline),
}

pub(super) struct Node {
    pub endpoint: Endpoint,
    /// Ways to be let in; the first that works is taken.
    clients: Vec<Client>,
    /// Connections live here, whichever thread asked for them: those that
    /// serve requests come and go.
    runtime: Handle,
    live: ArcSwapOption<Live>,
    dial: tokio::sync::Mutex<Dial>,
    /// Nobody else ever takes over for it: who is the same server, and has not
    /// started anew, has forgotten nothing.
    is_alone: bool,
    outage: Outage,
}

pub(super) struct Live {
    connection: MultiplexedConnection,
    generation: Generation,
}

/// The tries to connect.
#[derive(Default)]
struct Dial {
    pause: Duration,
    not_before: Option<Instant>,
    error: String,
    /// Whom the last connection led to.
    reached: Option<(Life, Generation)>,
}

/// A server from its start to its end, for as long as it was a primary.
type Life = [String; 2];

impl Node {
    pub fn new(
        ways: Vec<ConnectionInfo>,
        endpoint: Endpoint,
        runtime: Handle,
    ) -> Result<Arc<Self>, RedisError> {
        let clients = ways.into_iter().map(Client::open).collect::<Result<_, _>>();
        Ok(Arc::new(Self {
            endpoint,
            clients: clients.map_err(|error| RedisError::Url(error.to_string()))?,
            runtime,
            live: ArcSwapOption::empty(),
            dial: tokio::sync::Mutex::default(),
            is_alone: false,
            outage: Outage::default(),
        }))
    }

    /// The only server there is.
    pub fn alone(
        ways: Vec<ConnectionInfo>,
        endpoint: Endpoint,
        runtime: Handle,
    ) -> Result<Arc<Self>, RedisError> {
        let mut node = Self::new(ways, endpoint, runtime)?;
        if let Some(node) = Arc::get_mut(&mut node) {
            node.is_alone = true;
        }
        Ok(node)
    }

    /// How it is connected to, for connections of another kind.
    pub fn client(&self) -> &Client {
        &self.clients[0]
    }

    pub fn is_connected(&self) -> bool {
        self.live.load().is_some()
    }

    /// Whether its last answers were none.
    pub fn is_away(&self) -> bool {
        self.outage.is_on.load(Relaxed)
    }

    /// Sends a call once. `asking`: the key may be at this node although the
    /// slot is not its own yet.
    pub async fn send(
        &self,
        call: Call<'_>,
        asking: bool,
        until: Instant,
    ) -> Result<(Value, Generation), Trouble> {
        self.send_over(None, call, asking, until).await
    }

    /// The same, and over no connection but this one, if there is one.
    pub async fn send_over(
        &self,
        only: Option<Generation>,
        call: Call<'_>,
        asking: bool,
        until: Instant,
    ) -> Result<(Value, Generation), Trouble> {
        let live = match self.live.load_full() {
            Some(live) => live,
            None => self.connect(until).await?,
        };
        if only.is_some_and(|only| only != live.generation) {
            return Err(Trouble::Final(RedisError::NewConnection));
        }
        let mut connection = live.connection.clone();
        let until = until.min(Instant::now() + ATTEMPT);
        let answer = match timeout_at(until, exchange(&mut connection, call, asking)).await {
            Ok(Ok(value)) => {
                self.outage.ends(&self.endpoint);
                return Ok((value, live.generation));
            }
            Ok(Err(error)) => Trouble::of(&error),
            Err(_) => Trouble::Broken("it does not answer in time".to_owned()),
        };
        match &answer {
            Trouble::Broken(error) => {
                self.give_up(live.generation);
                // A connection that breaks is no outage: a new one may do.
                tracing::debug!(redis = %self.endpoint, error, "a connection to Redis is given up");
            }
            Trouble::NotServing(error) => self.outage.begins(&self.endpoint, error),
            _ => self.outage.ends(&self.endpoint),
        }
        Err(answer)
    }

    /// The next call connects anew (and looks the host's name up again).
    pub fn hang_up(&self) {
        self.live.store(None);
    }

    fn give_up(&self, generation: Generation) {
        let now = self.live.load();
        if now.as_ref().is_some_and(|live| live.generation == generation) {
            self.live.compare_and_swap(&now, None);
        }
    }

    /// Why callers should not wait for it: it has been away for long, and the
    /// keeper goes on trying.
    pub fn given_up(&self) -> Option<Trouble> {
        if self.live.load().is_some() {
            return None;
        }
        self.outage.reason_if_longer(PATIENCE).map(Trouble::Broken)
    }

    /// Connects, if nobody else does so or has just failed.
    pub async fn connect(&self, until: Instant) -> Result<Arc<Live>, Trouble> {
        let slow = || Trouble::Broken("it does not accept connections in time".to_owned());
        let mut dial = timeout_at(until, self.dial.lock()).await.map_err(|_| slow())?;
        if let Some(live) = self.live.load_full() {
            return Ok(live);
        }
        if dial.not_before.is_some_and(|from| Instant::now() < from) {
            return Err(Trouble::Broken(dial.error.clone()));
        }
        let (clients, asks) = (self.clients.clone(), self.is_alone);
        let dialled = self.runtime.spawn(timeout(ATTEMPT, dial_each(clients, asks)));
        let trouble = match timeout_at(until, dialled).await {
            Ok(Ok(Ok(Ok((connection, life))))) => {
                let before = dial.reached.take().filter(|(known, _)| life.as_ref() == Some(known));
                let generation = before.map_or_else(Generation::next, |(_, generation)| generation);
                *dial = Dial { reached: life.map(|life| (life, generation)), ..Dial::default() };
                let live = Arc::new(Live { connection, generation });
                self.live.store(Some(live.clone()));
                return Ok(live);
            }
            Ok(Ok(Ok(Err(error)))) => match Trouble::of(&error) {
                Trouble::Final(error) => Trouble::Final(error),
                _ => Trouble::Broken(error.to_string()),
            },
            _ => slow(),
        };
        let (Trouble::Broken(error) | Trouble::Final(RedisError::Refused(error))) = &trouble else {
            return Err(trouble);
        };
        dial.pause = (dial.pause * 2).clamp(Duration::from_millis(10), DIAL_PAUSE_MAX);
        dial.not_before = Some(Instant::now() + dial.pause);
        dial.error.clone_from(error);
        self.outage.begins(&self.endpoint, error);
        Err(trouble)
    }
}

/// `asks`: also which life of which server it is.
async fn dial_each(
    clients: Vec<Client>,
    asks: bool,
) -> redis::RedisResult<(MultiplexedConnection, Option<Life>)> {
    let mut error = None;
    for client in clients {
        match client.get_multiplexed_async_connection_with_config(&settings()).await {
            Ok(mut connection) => {
                let life = if asks { life(&mut connection).await? } else { None };
                return Ok((connection, life));
            }
            Err(why) => error = error.or(Some(why)),
        }
    }
    Err(error.unwrap_or_else(|| (redis::ErrorKind::InvalidClientConfig, "no way to connect").into()))
}

/// `None`: it does not say (not everybody may ask).
///
/// # Errors
/// Nothing was heard. That must not pass for a server of which nothing is known: while the
/// ledger is away, nobody could vouch for what it has.
async fn life(connection: &mut MultiplexedConnection) -> redis::RedisResult<Option<Life>> {
    let mut question = redis::cmd("INFO");
    question.arg("server").arg("replication");
    let text: String = match question.query_async(connection).await {
        Err(error) if matches!(Trouble::of(&error), Trouble::Final(_)) => return Ok(None),
        answer => answer?,
    };
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    // The first ends with the process, the second with its time as a primary.
    let life = line("run_id").zip(line("master_replid"));
    Ok(life.map(|(process, primary)| [process.trim().to_owned(), primary.trim().to_owned()]))
}

/// We have our own time-outs, and the crate's would come on top.
fn settings() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

async fn exchange(
    connection: &mut MultiplexedConnection,
    call: Call<'_>,
    asking: bool,
) -> redis::RedisResult<Value> {
    match call {
        Call::One(command) if asking => {
            let mut both = Pipeline::with_capacity(2);
            both.cmd("ASKING").add_command(command.clone());
            match connection.send_packed_commands(&both, 0, 2).await?.pop() {
                Some(Value::ServerError(error)) => Err(error.into()),
                value => Ok(value.unwrap_or(Value::Nil)),
            }
        }
        Call::One(command) => match connection.send_packed_command(command).await? {
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        },
        Call::Many(pipeline) => {
            connection.send_packed_commands(pipeline, 0, pipeline.len()).await.map(Value::Array)
        }
    }
}

/// From the first time that a server does not serve until it does again: one
/// line in the log at each end.
#[derive(Default)]
struct Outage {
    is_on: AtomicBool,
    begun: Mutex<Option<(Instant, String)>>,
}

impl Outage {
    fn begins(&self, endpoint: &Endpoint, reason: &str) {
        let mut begun = self.begun.lock();
        match &mut *begun {
            Some((_, last)) => reason.clone_into(last),
            None => {
                *begun = Some((Instant::now(), reason.to_owned()));
                self.is_on.store(true, Relaxed);
                tracing::warn!(redis = %endpoint, error = reason, "Redis does not serve");
            }
        }
    }

    fn ends(&self, endpoint: &Endpoint) {
        if !self.is_on.load(Relaxed) {
            return;
        }
        if let Some((from, _)) = self.begun.lock().take() {
            self.is_on.store(false, Relaxed);
            let after_ms = from.elapsed().as_millis() as u64;
            tracing::info!(redis = %endpoint, after_ms, "Redis serves again");
        }
    }

    fn reason_if_longer(&self, time: Duration) -> Option<String> {
        if !self.is_on.load(Relaxed) {
            return None;
        }
        let begun = self.begun.lock();
        begun.as_ref().filter(|(from, _)| from.elapsed() > time).map(|(_, reason)| reason.clone())
    }
}
