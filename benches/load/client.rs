//! The asking side: one thread, many kept-alive connections, each with one
//! request on its way at a time.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::requests::{HoldText, Work};

/// How to ask.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub address: SocketAddr,
    pub connections: usize,
    /// No request begins later than this; `None`: until there are no more.
    pub seconds: Option<f64>,
    /// Requests begun per second at most; 0 is no bound.
    pub rate: u64,
    /// The status that every answer must have.
    pub status: u16,
    /// Answers name holds, to be settled later.
    pub keeps_holds: bool,
}

/// What came back.
#[derive(Default)]
pub struct Tally {
    /// Of each answer, in ns.
    pub latencies: Vec<u32>,
    pub items: u64,
    /// Answers with another status, and one of them.
    pub wrong: u64,
    pub one_wrong: Option<String>,
    pub holds: Vec<HoldText>,
    pub seconds: f64,
}

/// Asks until the time or the work is over.
pub fn drive(way: Way, work: impl Work + 'static) -> anyhow::Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut streams = Vec::with_capacity(way.connections);
        for _ in 0..way.connections {
            let stream = TcpStream::connect(way.address).await.context("cannot connect")?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        let begun = Instant::now();
        let source = Arc::new(Mutex::new(Source { work, begun, taken: 0 }));
        let tasks: Vec<_> = streams
            .into_iter()
            .map(|stream| tokio::spawn(Asker::new(stream, way).run(source.clone(), begun)))
            .collect();
        let mut all = Tally::default();
        for task in tasks {
            all.add(task.await??);
        }
        all.seconds = begun.elapsed().as_secs_f64();
        Ok(all)
    })
}

struct Source<W> {
    work: W,
    begun: Instant,
    taken: u64,
}

impl<W: Work> Source<W> {
    /// The next request's items, and when it is due at that rate.
    fn next(&mut self, request: &mut Vec<u8>, rate: u64) -> Option<(usize, Option<Instant>)> {
        let items = self.work.next(request)?;
        let due = (rate > 0).then(|| self.begun + Duration::from_secs_f64(self.taken as f64 / rate as f64));
        self.taken += 1;
        Some((items, due))
    }
}

/// One that is kept alive, with at most one request on its way.
pub struct Connection {
    stream: TcpStream,
    answer: Vec<u8>,
}

/// Asks over one connection, one request after the other.
struct Asker {
    connection: Connection,
    way: Way,
    request: Vec<u8>,
    tally: Tally,
}

impl Asker {
    fn new(stream: TcpStream, way: Way) -> Self {
        let connection = Connection::new(stream);
        Self { connection, way, request: Vec::with_capacity(1024), tally: Tally::default() }
    }

    async fn run<W: Work>(mut self, source: Arc<Mutex<Source<W>>>, begun: Instant) -> anyhow::Result<Tally> {
        let end = self.way.seconds.map(|seconds| begun + Duration::from_secs_f64(seconds));
        // Looked at before work is taken, so that no hold is taken in vain.
        while end.is_none_or(|end| Instant::now() < end) {
            let next = {
                let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
                source.next(&mut self.request, self.way.rate)
            };
            let Some((items, due)) = next else { break };
            // What waits for its time begins then; what is late has been
            // waiting since.
            let mut asked = Instant::now();
            if let Some(due) = due {
                if due > asked {
                    tokio::time::sleep_until(due.into()).await;
                    asked = Instant::now();
                } else {
                    asked = due;
                }
            }
            let (status, body) = self.connection.exchange(&self.request).await?;
            let latency = asked.elapsed().as_nanos();
            self.tally.latencies.push(u32::try_from(latency).unwrap_or(u32::MAX));
            let made = note(&mut self.tally, self.way, status, &body, items);
            if !made.is_empty() {
                let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
                self.tally.holds.extend(made.into_iter().filter_map(|hold| source.work.made(hold)));
            }
        }
        Ok(self.tally)
    }
}

impl Connection {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, answer: vec![0; 64 * 1024] }
    }

    /// Sends a request and reads its answer: status and body.
    pub async fn exchange(&mut self, request: &[u8]) -> anyhow::Result<(u16, Cow<'_, str>)> {
        self.stream.write_all(request).await?;
        let (status, head, whole) = self.read_answer().await?;
        Ok((status, String::from_utf8_lossy(&self.answer[head..whole])))
    }

    /// Reads one answer to its end: status, end of the head, end of the body.
    async fn read_answer(&mut self) -> anyhow::Result<(u16, usize, usize)> {
        let (mut filled, mut head) = (0, None);
        loop {
            if filled == self.answer.len() {
                self.answer.resize(2 * filled, 0);
            }
            let read = self.stream.read(&mut self.answer[filled..]).await?;
            if read == 0 {
                bail!("the server closed the connection");
            }
            filled += read;
            if head.is_none() {
                head = read_head(&self.answer[..filled])?;
            }
            if let Some((status, end, length)) = head
                && filled >= end + length
            {
                return Ok((status, end, end + length));
            }
        }
    }
}

/// Counts an answer; gives the holds that it made.
fn note(tally: &mut Tally, way: Way, status: u16, body: &str, items: usize) -> Vec<HoldText> {
    let all_well = items == 1 || body.matches("{\"status\":200,").count() == items;
    if status != way.status || !all_well {
        tally.wrong += 1;
        let text = || format!("{status} {}", body.chars().take(600).collect::<String>());
        tally.one_wrong.get_or_insert_with(text);
        return Vec::new();
    }
    tally.items += items as u64;
    if !way.keeps_holds || !body.contains("\"decision\":\"allow\"") {
        return Vec::new();
    }
    holds_in(body, items)
}

/// The first ids of holds that an answer names.
pub fn holds_in(body: &str, most: usize) -> Vec<HoldText> {
    let found = body.match_indices("\"id\":\"hold_").take(most);
    let id = |(at, _): (usize, &str)| body.as_bytes().get(at + 6..at + 6 + size_of::<HoldText>());
    found.filter_map(id).filter_map(|id| HoldText::try_from(id).ok()).collect()
}

/// The status, the end of the head and the length of the body, once the head
/// is complete.
fn read_head(bytes: &[u8]) -> anyhow::Result<Option<(u16, usize, usize)>> {
    let mut length = 0;
    let mut start = 0;
    while let Some(end) = bytes[start..].iter().position(|byte| *byte == b'\n') {
        let line = bytes[start..start + end].trim_ascii_end();
        start += end + 1;
        if line.is_empty() {
            let status = bytes.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
            return Ok(Some((status.context("no HTTP answer")?, start, length)));
        }
        const NAME: &[u8] = b"content-length:";
        if line.len() > NAME.len() && line[..NAME.len()].eq_ignore_ascii_case(NAME) {
            let digits = std::str::from_utf8(line[NAME.len()..].trim_ascii())?;
            length = digits.parse().context("a length that is no number")?;
        }
    }
    Ok(None)
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.items += other.items;
        self.wrong += other.wrong;
        self.one_wrong = self.one_wrong.take().or(other.one_wrong);
        self.holds.extend(other.holds);
    }

    /// The latency below which this share of the answers came, in us.
    pub fn quantile(&mut self, share: f64) -> f64 {
        let count = self.latencies.len();
        if count == 0 {
            return f64::NAN;
        }
        let place = ((count as f64 * share) as usize).min(count - 1);
        let (_, latency, _) = self.latencies.select_nth_unstable(place);
        f64::from(*latency) / 1e3
    }
}
