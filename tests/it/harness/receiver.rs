//! Where webhooks are sent to: notes what comes, and answers as it is told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// How to answer.
#[derive(Clone, Debug)]
pub enum Answer {
    Status(u16),
    /// With these header lines.
    With(u16, String),
    Never,
    /// A body without an end.
    Endless,
}

/// A message as it came.
#[derive(Clone, Debug)]
pub struct Came {
    pub head: String,
    pub headers: HashMap<String, String>,
    pub text: String,
    pub body: Value,
}

impl Came {
    pub fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    /// Of the signatures, how many are by this secret.
    pub fn signed_by(&self, secret: &str) -> usize {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").expect("a secret")).expect("base64");
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        let signed = format!("{}.{}.{}", self.id(), self.headers["webhook-timestamp"], self.text);
        let signatures = self.headers["webhook-signature"].split(' ');
        let is_good = |signature: &&str| {
            let tag = signature.strip_prefix("v1,").expect("version 1");
            hmac::verify(&key, signed.as_bytes(), &STANDARD.decode(tag).expect("base64")).is_ok()
        };
        signatures.filter(is_good).count()
    }
}

pub struct Receiver {
    pub url: String,
    came: Arc<Mutex<Vec<Came>>>,
    more: Arc<Notify>,
}

impl Receiver {
    pub async fn start(answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/hook", listener.local_addr().expect("it is bound"));
        let (came, more) = (Arc::<Mutex<Vec<Came>>>::default(), Arc::new(Notify::new()));
        let receiver = Self { url, came: came.clone(), more: more.clone() };
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (came, more, answer) = (came.clone(), more.clone(), answer.clone());
                tokio::spawn(async move {
                    // Whoever sends may hang up.
                    let _ = serve(stream, &came, &more, &*answer).await;
                });
            }
        });
        receiver
    }

    /// That always answers so.
    pub async fn always(status: u16) -> Self {
        Self::start(move |_| Answer::Status(status)).await
    }

    pub fn came(&self) -> Vec<Came> {
        self.came.lock().unwrap().clone()
    }

    /// Waits until so many have come.
    pub async fn wait_for(&self, count: usize) -> Vec<Came> {
        let enough = async {
            loop {
                let more = self.more.notified();
                let came = self.came();
                if came.len() >= count {
                    return came;
                }
                more.await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), enough).await;
        waited.unwrap_or_else(|_| panic!("{count} messages: {:?}", self.came()))
    }
}

async fn serve(
    mut stream: TcpStream,
    came: &Mutex<Vec<Came>>,
    more: &Notify,
    answer: &(dyn Fn(usize) -> Answer + Send + Sync),
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let Some(message) = parse(&bytes) else {
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
            continue;
        };
        bytes.clear();
        let place = {
            let mut came = came.lock().unwrap();
            came.push(message);
            came.len() - 1
        };
        more.notify_waiters();
        let (status, lines) = match answer(place) {
            Answer::Status(status) => (status, String::new()),
            Answer::With(status, lines) => (status, lines),
            Answer::Never => return std::future::pending().await,
            Answer::Endless => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
                loop {
                    stream.write_all(b"400\r\n").await?;
                    stream.write_all(&[b'x'; 0x400]).await?;
                    stream.write_all(b"\r\n").await?;
                }
            }
        };
        let text = format!("HTTP/1.1 {status} X\r\n{lines}content-length: 0\r\n\r\n");
        stream.write_all(text.as_bytes()).await?;
    }
}

/// A message that is there wholly.
fn parse(bytes: &[u8]) -> Option<Came> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let (head, lines) = head.split_once("\r\n")?;
    let pair =
        |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    let headers: HashMap<String, String> = lines.lines().filter_map(pair).collect();
    let length: usize = headers.get("content-length")?.parse().ok()?;
    (body.len() >= length).then(|| Came {
        head: head.to_owned(),
        body: serde_json::from_str(body).unwrap_or(Value::Null),
        text: body.to_owned(),
        headers,
    })
}
