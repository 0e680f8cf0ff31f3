//! What webhooks are to be told: on record with what it tells of, and taken
//! from there to be sent.

use std::sync::Arc;

use super::{Answer, Change, DoubtKey, Note, Org, PoolCondition, Record, User, Written};
use crate::domain::charge::{AccountKey, CellId, TenantRef};
use crate::domain::ids::UserId;
use crate::domain::quantity::Ppm;
use crate::domain::slot::Fence;
use crate::domain::time::Millis;
use crate::domain::webhook::EventKind;

/// Something to be told to one webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub tenant: TenantRef,
    pub webhook: Arc<str>,
    /// The same for every webhook, and whenever the same thing is told: it
    /// comes on record once.
    pub id: Arc<str>,
    pub kind: EventKind,
    /// Whom it is about: it goes when they are erased.
    pub user: Option<UserId>,
    /// As it is sent, every time.
    pub body: Arc<str>,
    /// By the clock on the wall, as all times of sending: receivers live by it.
    pub made_at: Millis,
}

/// A threshold that an account's use has reached. It is told unless that was
/// done in this window at this figure or a higher one.
#[derive(Debug, Clone)]
pub struct Alert {
    pub account: AccountKey,
    pub cell: CellId,
    pub threshold: Ppm,
    pub window: Millis,
    /// The limit with what is granted.
    pub figure: u64,
    /// The figure is each caller's: a lower one is no news, so that two callers
    /// in turn do not raise it again and again.
    pub is_shared: bool,
    pub messages: Vec<Message>,
}

/// What is told of changes that are committed.
#[derive(Debug, Clone, Default)]
pub struct Telling {
    pub messages: Vec<Message>,
    pub alerts: Vec<Alert>,
}

/// An administrative write that something is told of.
#[derive(Debug, Clone)]
pub enum Write {
    User(Box<User>, Written),
    Org(Box<Org>, Written),
    Record(Record),
    Condition(PoolCondition, Option<(Note, Written)>),
    /// A row of the audit by itself.
    Note(Note, Written),
}

/// Where a message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryState {
    Pending,
    Delivered,
    /// Put aside.
    Dead,
}

/// A message with what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub message: Message,
    pub state: DeliveryState,
    /// Tries that were begun.
    pub tries: u32,
    /// When the next one is due, or a try under way is given up as lost; `None`:
    /// none is.
    pub next_at: Option<Millis>,
    pub last_at: Option<Millis>,
    /// HTTP status of the last answer.
    pub status: Option<u32>,
    /// Why the last try failed.
    pub error: Option<String>,
}

/// What became of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    pub state: DeliveryState,
    pub next_at: Option<Millis>,
    pub status: Option<u32>,
    pub error: Option<String>,
}

/// A page of a webhook's messages, newest first.
#[derive(Debug, Clone)]
pub struct DeliveriesQuery {
    pub webhook: String,
    pub state: Option<DeliveryState>,
    /// Made before that one.
    pub before: Option<(Millis, String)>,
    pub limit: u32,
}

/// Which messages stay.
#[derive(Debug, Clone, Copy)]
pub struct Keeping {
    /// Of a webhook, those that wait to be sent: the oldest beyond that are put
    /// aside.
    pub pending: u32,
    /// None of the others that was made before.
    pub since: Millis,
}

/// The outbox of webhooks. No decision waits for it.
pub trait Webhooks: Send + Sync + 'static {
    /// As [`Ledger::commit`](super::Ledger::commit) or
    /// [`Ledger::commit_fenced`](super::Ledger::commit_fenced), and in the same
    /// transaction what is told of the changes.
    fn commit_telling(&self, changes: Vec<Change>, fence: Option<Fence>, telling: Telling) -> Answer<'_, ()>;
    /// As `put_user`, `put_org`, `put_record` or `put_condition`, and in the
    /// same transaction what is told of it.
    fn write_telling(&self, tenant: TenantRef, write: Write, messages: Vec<Message>) -> Answer<'_, ()>;
    /// Puts messages on record that tell of nothing that is.
    fn tell(&self, messages: Vec<Message>) -> Answer<'_, ()>;
    /// Puts messages about holds in doubt on record, and notes up to where holds
    /// were told of. Nothing, if somebody else did since.
    fn tell_doubts(&self, tenant: TenantRef, told: ToldDoubts) -> Answer<'_, ()>;
    /// Up to where doubts were told of.
    fn doubts_told(&self, tenant: TenantRef) -> Answer<'_, Option<DoubtKey>>;
    /// Messages that are due, the oldest `each` of every webhook, `limit` in all.
    fn due(&self, now: Millis, each: u32, limit: u32) -> Answer<'_, Vec<Delivery>>;
    /// Begins a try of each, unless another process did: it is this one's until
    /// `until`, then anybody's. Answers those that are.
    fn begin_tries(&self, deliveries: Vec<Delivery>, now: Millis, until: Millis)
    -> Answer<'_, Vec<Delivery>>;
    /// Notes what became of a try; one that was given up as lost says nothing.
    fn end_try(&self, delivery: Delivery, tried: Tried) -> Answer<'_, ()>;
    fn deliveries(&self, tenant: TenantRef, query: DeliveriesQuery) -> Answer<'_, Vec<Delivery>>;
    /// Makes a message due again, with all its tries; `None`: there is no such
    /// message.
    fn send_again(
        &self,
        tenant: TenantRef,
        webhook: String,
        id: String,
        now: Millis,
    ) -> Answer<'_, Option<Delivery>>;
    /// Removes the messages of a webhook that is no more.
    fn forget_webhook(&self, tenant: TenantRef, webhook: String) -> Answer<'_, ()>;
    /// Removes some of what is old and puts aside what is too much. Answers how
    /// many messages wait to be sent.
    fn prune_deliveries(&self, keeping: Keeping) -> Answer<'_, u64>;
}

/// A step of [`Webhooks::tell_doubts`].
#[derive(Debug, Clone)]
pub struct ToldDoubts {
    /// What was told before, as [`Webhooks::doubts_told`] said; somebody else's
    /// step in between makes this one void.
    pub after: Option<DoubtKey>,
    pub upto: DoubtKey,
    pub messages: Vec<Message>,
}

impl DeliveryState {
    pub const NAMED: [(&'static str, Self); 3] =
        [("pending", Self::Pending), ("delivered", Self::Delivered), ("dead", Self::Dead)];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}

impl Telling {
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.alerts.is_empty()
    }
}
