//! Those who listen: one stream each, and some of them call as well, so that
//! they are told of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;

use crate::requests::check_for;
use crate::sheet::OUTPUT_TOKENS;

/// Streams that are opened at the same time.
const OPENED_AT_ONCE: usize = 64;
/// Longer than events are held back: what comes after it is told at once.
const PAUSE_MS: u64 = 650;

/// Streams of the users `l_0`, `l_1`, ...; they end with this value.
pub struct Listeners {
    runtime: Runtime,
    address: SocketAddr,
    streams: Vec<Arc<Mutex<Stream>>>,
    /// Requests of callers that were answered.
    pub answers: Arc<AtomicU64>,
}

/// How long it took, in ms, until a settle was answered and told.
#[derive(Default)]
pub struct Times {
    told: Vec<f64>,
    answered: Vec<f64>,
    seconds: f64,
}

impl Times {
    pub fn add(&mut self, other: Self) {
        self.told.extend(other.told);
        self.answered.extend(other.answered);
        self.seconds += other.seconds;
    }

    pub fn told(&mut self, share: f64) -> f64 {
        quantile(&mut self.told, share)
    }

    pub fn answered(&mut self, share: f64) -> f64 {
        quantile(&mut self.answered, share)
    }

    pub fn count(&self) -> usize {
        self.told.len()
    }

    pub fn per_second(&self) -> f64 {
        self.told.len() as f64 / self.seconds
    }
}

fn quantile(figures: &mut [f64], share: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    let place = (figures.len() as f64 * share) as usize;
    figures.get(place.min(figures.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Callers at work.
pub struct Calling {
    stop: Arc<AtomicBool>,
    begun: Instant,
    tasks: Vec<JoinHandle<anyhow::Result<Times>>>,
}

impl Listeners {
    /// Opens the streams and waits for the first quota of each.
    pub fn open(address: SocketAddr, secret: &str, kid: &str, count: usize) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let key = EncodingKey::from_secret(secret.as_bytes())?;
        let streams = runtime.block_on(async {
            let places = Arc::new(Semaphore::new(OPENED_AT_ONCE));
            let mut opening = Vec::with_capacity(count);
            for number in 0..count {
                let token = token(&key, kid, &user(number))?;
                let place = Arc::clone(&places).acquire_owned().await?;
                opening.push(tokio::spawn(async move {
                    let _place = place;
                    Stream::open(address, &token).await
                }));
            }
            let mut streams = Vec::with_capacity(count);
            for stream in opening {
                streams.push(Arc::new(Mutex::new(stream.await??)));
            }
            anyhow::Ok(streams)
        })?;
        Ok(Self { runtime, address, streams, answers: Arc::default() })
    }

    /// Lets some of them call for so long.
    pub fn call(&mut self, token: &str, callers: usize, seconds: f64) -> anyhow::Result<Times> {
        let calling = self.begin_calling(token, callers)?;
        std::thread::sleep(Duration::from_secs_f64(seconds));
        self.end_calling(calling)
    }

    pub fn begin_calling(&mut self, token: &str, callers: usize) -> anyhow::Result<Calling> {
        let stop = Arc::new(AtomicBool::new(false));
        let call = |(number, stream): (usize, &Arc<Mutex<Stream>>)| {
            let caller = Caller {
                stream: Arc::clone(stream),
                address: self.address,
                token: token.to_owned(),
                number,
                stop: Arc::clone(&stop),
                answers: Arc::clone(&self.answers),
            };
            self.runtime.spawn(caller.run())
        };
        let tasks = self.streams.iter().enumerate().take(callers).map(call).collect();
        Ok(Calling { stop, begun: Instant::now(), tasks })
    }

    pub fn end_calling(&mut self, calling: Calling) -> anyhow::Result<Times> {
        calling.stop.store(true, Relaxed);
        let mut all = Times { seconds: calling.begun.elapsed().as_secs_f64(), ..Times::default() };
        for task in calling.tasks {
            let times = self.runtime.block_on(task)??;
            all.told.extend(times.told);
            all.answered.extend(times.answered);
        }
        Ok(all)
    }
}

fn user(number: usize) -> String {
    format!("l_{number}")
}

fn token(key: &EncodingKey, kid: &str, user: &str) -> anyhow::Result<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let claims = json!({"aud": "apportion", "sub": user, "scope": "me", "iat": now, "exp": now + 86_400});
    let header = Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::HS256) };
    Ok(encode(&header, &claims, key)?)
}

/// An open stream of events.
struct Stream {
    stream: TcpStream,
    read: Vec<u8>,
}

const EVENT: &[u8] = b"event: quota\n";

impl Stream {
    async fn open(address: SocketAddr, token: &str) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let head = format!(
            "GET /v1/me/quota/stream HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut opened = Self { stream, read: Vec::new() };
        opened.event().await.context("a stream did not begin")?;
        Ok(opened)
    }

    /// Waits until the next event has come to its end; gives when it did.
    async fn event(&mut self) -> anyhow::Result<Instant> {
        loop {
            let begins = self.read.windows(EVENT.len()).position(|part| part == EVENT);
            if let Some(begins) = begins
                && let Some(length) = self.read[begins..].windows(2).position(|part| part == b"\n\n")
            {
                self.read.drain(..begins + length + 2);
                return Ok(Instant::now());
            }
            if self.stream.read_buf(&mut self.read).await? == 0 {
                bail!("a stream ended: {}", String::from_utf8_lossy(&self.read));
            }
        }
    }
}

struct Caller {
    stream: Arc<Mutex<Stream>>,
    address: SocketAddr,
    token: String,
    number: usize,
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
}

impl Caller {
    /// Checks, is told, settles, is told, in turn, each when the last event is
    /// long enough ago not to hold back the next.
    async fn run(self) -> anyhow::Result<Times> {
        let mut events = self.stream.lock().await;
        let mut connection = TcpStream::connect(self.address).await?;
        connection.set_nodelay(true)?;
        let check = String::from_utf8(check_for(&user(self.number)))?;
        let settle =
            json!({"input_tokens": 1200, "output_tokens": OUTPUT_TOKENS, "model": "sonnet"}).to_string();
        let mut times = Times::default();
        // Not all at the same time.
        let apart = self.number as u64 * 7919 % 500;
        tokio::time::sleep(Duration::from_millis(apart)).await;
        while !self.stop.load(Relaxed) {
            tokio::time::sleep(Duration::from_millis(PAUSE_MS + apart % 100)).await;
            let check = post(&mut connection, "/v1/check", &self.token, &check);
            let (answer, told) = tokio::join!(check, events.event());
            told?;
            let (body, _) = answer?;
            let id = body.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next());
            let path = format!("/v1/holds/{}/settle", id.context("a check names its hold")?);
            tokio::time::sleep(Duration::from_millis(PAUSE_MS + apart % 100)).await;
            let sent = Instant::now();
            let settle = post(&mut connection, &path, &self.token, &settle);
            let (answer, told) = tokio::join!(settle, events.event());
            let (_, answered) = answer?;
            self.answers.fetch_add(2, Relaxed);
            times.told.push(told?.duration_since(sent).as_secs_f64() * 1e3);
            times.answered.push(answered.duration_since(sent).as_secs_f64() * 1e3);
        }
        Ok(times)
    }
}

/// Sends a request and reads its answer: the body, and when it was there.
async fn post(
    connection: &mut TcpStream,
    path: &str,
    token: &str,
    body: &str,
) -> anyhow::Result<(String, Instant)> {
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).await?;
    let mut read = Vec::with_capacity(4096);
    loop {
        if connection.read_buf(&mut read).await? == 0 {
            bail!("the server closed the connection");
        }
        let text = String::from_utf8_lossy(&read);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.context("no length")?.parse()?;
        if body.len() >= length {
            if !head.starts_with("HTTP/1.1 200") {
                bail!("{text}");
            }
            return Ok((body.to_owned(), Instant::now()));
        }
    }
}
