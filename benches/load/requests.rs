//! The requests, as bytes. A request is a template in which a few digits are
//! put right, so the asking side does next to nothing.

use std::collections::VecDeque;

use crate::sheet::{INPUT_TOKENS, MAX_OUTPUT_TOKENS, OUTPUT_TOKENS, Random};

/// Items of one batch.
pub const BATCH: usize = 100;

/// A hold's id as text: `hold_` and a UUID.
pub type HoldText = [u8; 41];

/// A source of requests.
pub trait Work: Send {
    /// Puts the next request into `request`; `None` when there are no more,
    /// else the number of items in it.
    fn next(&mut self, request: &mut Vec<u8>) -> Option<usize>;

    /// Is told of a hold that an answer names; gives it back if it has no use
    /// for it.
    fn made(&mut self, hold: HoldText) -> Option<HoldText> {
        Some(hold)
    }
}

/// Whose turn it is: drawn beforehand, repeated when used up.
pub struct Picks {
    drawn: Vec<u32>,
    at: usize,
}

impl Picks {
    const DRAWN: usize = 1 << 20;

    /// User n (from 1) is drawn with weight 1/n^exponent.
    pub fn new(users: usize, exponent: f64, seed: u64) -> Self {
        let mut random = Random(seed);
        let drawn = if exponent == 0.0 {
            (0..Self::DRAWN).map(|_| random.below(users) as u32).collect()
        } else {
            let mut sum = 0.0;
            let weights: Vec<f64> = (1..=users)
                .map(|rank| {
                    sum += (rank as f64).powf(-exponent);
                    sum
                })
                .collect();
            let draw = |_| {
                let place = random.next() as f64 / u64::MAX as f64 * sum;
                weights.partition_point(|up_to| *up_to < place).min(users - 1) as u32
            };
            (0..Self::DRAWN).map(draw).collect()
        };
        Self { drawn, at: 0 }
    }

    /// `count` of the users, each once, from everywhere among them.
    pub fn spread(users: usize, count: usize) -> Self {
        let mut drawn: Vec<u32> = (0..count).map(|place| (place * users / count) as u32).collect();
        let mut random = Random(1);
        for place in (1..count).rev() {
            drawn.swap(place, random.below(place + 1));
        }
        Self { drawn, at: 0 }
    }

    fn next(&mut self) -> u32 {
        self.at = if self.at + 1 < self.drawn.len() { self.at + 1 } else { 0 };
        self.drawn[self.at]
    }
}

/// One JSON body under one path, with places to be filled in.
fn post(path: &str, token: &str, length: usize) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    .into_bytes()
}

const USER: &str = "00000000";
const REQUEST_ID: &str = "r-0000000000000000";

/// The body of a check without a request id.
pub fn check_for(user: &str) -> Vec<u8> {
    check_body(false).replace(&format!("u_{USER}"), user).into_bytes()
}

fn check_body(with_id: bool) -> String {
    let id = if with_id { format!("\"request_id\":\"{REQUEST_ID}\",") } else { String::new() };
    format!(
        "{{\"user\":\"u_{USER}\",{id}\"model\":\"sonnet\",\"feature\":\"chat\",\"priority\":\"interactive\",\
         \"input_tokens\":{INPUT_TOKENS},\"max_output_tokens\":{MAX_OUTPUT_TOKENS},\"lease_seconds\":600}}"
    )
}

fn write_digits(place: &mut [u8], mut number: u64, base: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number % base) as usize];
        number /= base;
    }
}

fn find(haystack: &[u8], needle: &str) -> usize {
    let found = haystack.windows(needle.len()).position(|window| window == needle.as_bytes());
    found.expect("the template has the place")
}

/// Checks, each a new call.
pub struct Checks {
    template: Vec<u8>,
    user_at: usize,
    /// Where the digits of the request id begin, if it has one.
    id_at: Option<usize>,
    next_id: u64,
    picks: Picks,
    left: usize,
}

impl Checks {
    /// `first_id`: the first request id of the run, if checks have one.
    pub fn new(token: &str, picks: Picks, first_id: Option<u64>) -> Self {
        let body = check_body(first_id.is_some());
        let mut template = post("/v1/check", token, body.len());
        template.extend_from_slice(body.as_bytes());
        let user_at = find(&template, &format!("u_{USER}")) + 2;
        let id_at = first_id.map(|_| find(&template, REQUEST_ID) + 2);
        Self { template, user_at, id_at, next_id: first_id.unwrap_or(0), picks, left: usize::MAX }
    }

    /// So many checks and no more.
    pub fn some(token: &str, picks: Picks, count: usize) -> Self {
        Self { left: count, ..Self::new(token, picks, None) }
    }
}

impl Work for Checks {
    fn next(&mut self, request: &mut Vec<u8>) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        request.clear();
        request.extend_from_slice(&self.template);
        write_digits(&mut request[self.user_at..self.user_at + USER.len()], self.picks.next().into(), 10);
        if let Some(at) = self.id_at {
            write_digits(&mut request[at..at + REQUEST_ID.len() - 2], self.next_id, 16);
            self.next_id += 1;
        }
        Some(1)
    }
}

/// Batches of checks.
pub struct CheckBatches {
    head: Vec<u8>,
    item: Vec<u8>,
    user_at: usize,
    picks: Picks,
}

impl CheckBatches {
    pub fn new(token: &str, picks: Picks) -> Self {
        let item = check_body(false).into_bytes();
        let length = OPEN_CHECKS.len() + BATCH * (item.len() + 1) - 1 + CLOSE.len();
        let user_at = find(&item, &format!("u_{USER}")) + 2;
        Self { head: post("/v1/check/batch", token, length), item, user_at, picks }
    }
}

const OPEN_CHECKS: &[u8] = b"{\"checks\":[";
const OPEN_SETTLES: &[u8] = b"{\"settles\":[";
const CLOSE: &[u8] = b"]}";

impl Work for CheckBatches {
    fn next(&mut self, request: &mut Vec<u8>) -> Option<usize> {
        request.clear();
        request.extend_from_slice(&self.head);
        request.extend_from_slice(OPEN_CHECKS);
        for index in 0..BATCH {
            if index > 0 {
                request.push(b',');
            }
            let user_at = request.len() + self.user_at;
            request.extend_from_slice(&self.item);
            write_digits(&mut request[user_at..user_at + USER.len()], self.picks.next().into(), 10);
        }
        request.extend_from_slice(CLOSE);
        Some(BATCH)
    }
}

fn usage() -> String {
    format!(
        "\"input_tokens\":{INPUT_TOKENS},\"output_tokens\":{OUTPUT_TOKENS},\"cache_read_tokens\":0,\
         \"model\":\"sonnet\",\"outcome\":\"completed\"}}"
    )
}

/// Settles of holds, oldest first.
pub struct Settles {
    template: Vec<u8>,
    id_at: usize,
    holds: std::vec::IntoIter<HoldText>,
}

impl Settles {
    pub fn new(token: &str, holds: Vec<HoldText>) -> Self {
        let body = format!("{{{}", usage());
        let hole = "_".repeat(size_of::<HoldText>());
        let mut template = post(&format!("/v1/holds/{hole}/settle"), token, body.len());
        template.extend_from_slice(body.as_bytes());
        let id_at = find(&template, &hole);
        Self { template, id_at, holds: holds.into_iter() }
    }

    fn put(&self, request: &mut Vec<u8>, hold: &HoldText) {
        request.clear();
        request.extend_from_slice(&self.template);
        request[self.id_at..self.id_at + hold.len()].copy_from_slice(hold);
    }

    /// What was not settled.
    pub fn rest(&mut self) -> Vec<HoldText> {
        std::mem::take(&mut self.holds).collect()
    }
}

impl Work for Settles {
    fn next(&mut self, request: &mut Vec<u8>) -> Option<usize> {
        let hold = self.holds.next()?;
        self.put(request, &hold);
        Some(1)
    }
}

/// Checks and settles in turn: as many calls begin as end.
pub struct Cycles {
    checks: Checks,
    settles: Settles,
    open: VecDeque<HoldText>,
    /// Calls under way when the first one ends.
    under_way: usize,
}

impl Cycles {
    pub fn new(checks: Checks, token: &str, under_way: usize) -> Self {
        Self { checks, settles: Settles::new(token, Vec::new()), open: VecDeque::new(), under_way }
    }

    /// What was not settled.
    pub fn rest(&mut self) -> Vec<HoldText> {
        std::mem::take(&mut self.open).into()
    }
}

impl Work for Cycles {
    fn next(&mut self, request: &mut Vec<u8>) -> Option<usize> {
        if self.open.len() <= self.under_way {
            return self.checks.next(request);
        }
        let hold = self.open.pop_front()?;
        self.settles.put(request, &hold);
        Some(1)
    }

    fn made(&mut self, hold: HoldText) -> Option<HoldText> {
        self.open.push_back(hold);
        None
    }
}

/// Batches of settles.
pub struct SettleBatches {
    token: String,
    usage: String,
    holds: std::vec::IntoIter<HoldText>,
}

impl SettleBatches {
    pub fn new(token: &str, holds: Vec<HoldText>) -> Self {
        Self { token: token.to_owned(), usage: usage(), holds: holds.into_iter() }
    }

    /// What was not settled.
    pub fn rest(&mut self) -> Vec<HoldText> {
        std::mem::take(&mut self.holds).collect()
    }
}

impl Work for SettleBatches {
    fn next(&mut self, request: &mut Vec<u8>) -> Option<usize> {
        const OPEN: &[u8] = b"{\"id\":\"";
        const MIDDLE: &[u8] = b"\",";
        let items = self.holds.len().min(BATCH);
        if items == 0 {
            return None;
        }
        let item = OPEN.len() + size_of::<HoldText>() + MIDDLE.len() + self.usage.len();
        let length = OPEN_SETTLES.len() + items * (item + 1) - 1 + CLOSE.len();
        *request = post("/v1/holds/settle/batch", &self.token, length);
        request.extend_from_slice(OPEN_SETTLES);
        for (index, hold) in self.holds.by_ref().take(items).enumerate() {
            if index > 0 {
                request.push(b',');
            }
            for part in [OPEN, &hold, MIDDLE, self.usage.as_bytes()] {
                request.extend_from_slice(part);
            }
        }
        request.extend_from_slice(CLOSE);
        Some(items)
    }
}

/// Looks at users' quotas.
pub struct Quotas {
    template: Vec<u8>,
    user_at: usize,
    picks: Picks,
}

impl Quotas {
    pub fn new(token: &str, picks: Picks) -> Self {
        let template = format!(
            "GET /v1/users/u_{USER}/quota HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        let template = template.into_bytes();
        let user_at = find(&template, USER);
        Self { template, user_at, picks }
    }
}

impl Work for Quotas {
    fn next(&mut self, request: &mut Vec<u8>) -> Option<usize> {
        request.clear();
        request.extend_from_slice(&self.template);
        write_digits(&mut request[self.user_at..self.user_at + USER.len()], self.picks.next().into(), 10);
        Some(1)
    }
}
