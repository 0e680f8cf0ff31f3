//! A reader of server-sent events.

use std::time::Duration;

use serde_json::Value;

use super::{Client, Reply};

/// Longer than anything here should take.
const PATIENCE: Duration = Duration::from_secs(20);

/// An open stream of events. It hangs up when it is dropped.
#[derive(Debug)]
pub struct Events {
    response: reqwest::Response,
    read: Vec<u8>,
}

impl Events {
    /// Opens the stream of the client's user.
    pub async fn open(client: &Client) -> Result<Self, Reply> {
        let request = client.request(reqwest::Method::GET, "/v1/me/quota/stream");
        let response = request.send().await.expect("the service answers");
        match response.status().as_u16() {
            200 => Ok(Self { response, read: Vec::new() }),
            _ => Err(Reply::read(response).await),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).and_then(|value| value.to_str().ok())
    }

    /// The data of the next quota, as it was sent.
    pub async fn text(&mut self) -> String {
        self.next().await.expect("the stream goes on")
    }

    /// The next quota.
    pub async fn quota(&mut self) -> Value {
        serde_json::from_str(&self.text().await).expect("JSON")
    }

    /// Quotas up to the first of which `is_it` holds; changes may come as one event or as several.
    pub async fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        let find = async {
            loop {
                let quota = self.quota().await;
                if is_it(&quota) {
                    return quota;
                }
            }
        };
        tokio::time::timeout(PATIENCE, find).await.expect("it comes in time")
    }

    /// Waits until the stream ends; gives how many quotas came before that.
    pub async fn end(&mut self) -> usize {
        let mut quotas = 0;
        while self.next().await.is_some() {
            quotas += 1;
        }
        quotas
    }

    /// Whether nothing but comments comes for a while that is longer than events are held back.
    pub async fn is_silent(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(800), self.next()).await.is_err()
    }

    async fn next(&mut self) -> Option<String> {
        tokio::time::timeout(PATIENCE, self.read()).await.expect("something comes in time")
    }

    async fn read(&mut self) -> Option<String> {
        loop {
            while let Some(end) = self.read.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.read.drain(..end + 2).collect();
                let event = String::from_utf8(event).expect("text");
                if event == ":\n\n" {
                    continue;
                }
                let data = event.strip_prefix("event: quota\ndata: ").expect("an event of ours");
                return Some(data.trim_end().to_owned());
            }
            match self.response.chunk().await.expect("a body that ends in order") {
                Some(chunk) => self.read.extend_from_slice(&chunk),
                None => {
                    assert!(self.read.is_empty(), "the last event is whole");
                    return None;
                }
            }
        }
    }
}
