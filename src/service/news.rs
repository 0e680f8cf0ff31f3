//! What nodes tell each other: that something was written, and whose accounts
//! have changed while somebody watches them.
//!
//! Nothing rests on it. What was written is found out by polling all the same,
//! and a message that may have been missed makes a node look at everything.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::{Service, random};
use crate::domain::charge::AccountKey;
use crate::engine::Channel;
use crate::ledger::Bucket;

/// Between two messages of one node.
const APART: Duration = Duration::from_millis(10);
/// How often a node says that somebody watches there, and for how long the
/// others believe it.
const WATCHING_EVERY: Duration = Duration::from_secs(5);
const WATCHING_FOR: Duration = Duration::from_secs(15);
/// Between two looks whether somebody has begun to watch.
const LOOKS_APART: Duration = Duration::from_millis(100);
/// Buckets told at a time; beyond them everybody looks.
const BUCKETS_MAX: usize = 4096;

/// How long what changed is kept for those who have begun to watch meanwhile.
const RECENT: Duration = Duration::from_secs(2);

const SENDER: usize = 8;
const WRITTEN: u8 = b'w';
const WATCHING: u8 = b'l';
const CHANGED: u8 = b'c';

/// What this node has to tell.
#[derive(Default)]
pub(super) struct News {
    pending: Mutex<Pending>,
    filled: Notify,
}

#[derive(Default)]
struct Pending {
    written: bool,
    watching: bool,
    changed: HashSet<Bucket>,
    /// Until when somebody watches at another node.
    watched_until: Option<Instant>,
    /// What changed of late while nobody was known to watch: whoever has begun
    /// to is told.
    recent: Recent,
}

/// The last one to two times [`RECENT`].
#[derive(Default)]
struct Recent {
    since: Option<Instant>,
    now: HashSet<Bucket>,
    before: HashSet<Bucket>,
}

impl Recent {
    fn add(&mut self, buckets: impl Iterator<Item = Bucket>, at: Instant) {
        if self.since.is_none_or(|since| at.saturating_duration_since(since) >= RECENT) {
            self.before = std::mem::take(&mut self.now);
            self.since = Some(at);
        }
        self.now.extend(buckets);
    }

    fn take(&mut self) -> impl Iterator<Item = Bucket> + use<> {
        let Self { now, before, .. } = std::mem::take(self);
        now.into_iter().chain(before)
    }
}

impl News {
    fn written(&self) {
        self.pending.lock().written = true;
        self.filled.notify_one();
    }

    /// These accounts changed.
    pub fn changed<'k>(&self, accounts: impl Iterator<Item = &'k AccountKey>) {
        let (mut pending, now) = (self.pending.lock(), Instant::now());
        let buckets = accounts.map(|key| Bucket::of(key.tenant, &key.owner));
        if pending.watched_until.is_none_or(|until| until < now) {
            return pending.recent.add(buckets, now);
        }
        pending.changed.extend(buckets);
        drop(pending);
        self.filled.notify_one();
    }

    /// Somebody watches at another node.
    fn watched(&self) {
        let (mut pending, now) = (self.pending.lock(), Instant::now());
        let was_watched = pending.watched_until.is_some_and(|until| until >= now);
        pending.watched_until = Some(now + WATCHING_FOR);
        if !was_watched {
            let recent = pending.recent.take();
            pending.changed.extend(recent);
            self.filled.notify_one();
        }
    }

    /// The messages that are due.
    fn take(&self, sender: [u8; SENDER]) -> Vec<Vec<u8>> {
        let mut pending = self.pending.lock();
        let message = |kind: u8| sender.into_iter().chain([kind]).collect::<Vec<u8>>();
        let mut messages = Vec::new();
        if std::mem::take(&mut pending.written) {
            messages.push(message(WRITTEN));
        }
        if std::mem::take(&mut pending.watching) {
            messages.push(message(WATCHING));
        }
        let changed = std::mem::take(&mut pending.changed);
        if !changed.is_empty() {
            let mut told = message(CHANGED);
            // None at all means everybody.
            if changed.len() <= BUCKETS_MAX {
                told.extend(changed.iter().flat_map(|bucket| bucket.0.to_le_bytes()));
            }
            messages.push(told);
        }
        messages
    }
}

impl Service {
    /// Starts telling and hearing; abort the tasks to stop.
    pub fn start_news(self: &Arc<Self>, channel: Arc<dyn Channel>) -> Vec<JoinHandle<()>> {
        let random = random::bytes();
        let sender: [u8; SENDER] = std::array::from_fn(|index| random[index]);
        let service = Arc::clone(self);
        self.registry.on_written(move || service.news.written());
        let (telling, hearing, watching) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let told = Arc::clone(&channel);
        vec![
            tokio::spawn(async move {
                loop {
                    telling.news.filled.notified().await;
                    for message in telling.news.take(sender) {
                        told.tell(message).await;
                    }
                    tokio::time::sleep(APART).await;
                }
            }),
            tokio::spawn(async move {
                loop {
                    let heard = channel.hear().await;
                    hearing.take_in(heard.as_deref(), sender);
                }
            }),
            tokio::spawn(async move { watching.say_who_watches().await }),
        ]
    }

    async fn say_who_watches(&self) {
        let mut said: Option<Instant> = None;
        loop {
            tokio::time::sleep(LOOKS_APART).await;
            let is_due = said.is_none_or(|said| said.elapsed() >= WATCHING_EVERY);
            if self.registry.watchers.nobody() && self.rooms.nobody() {
                said = None;
            } else if is_due {
                said = Some(Instant::now());
                self.news.pending.lock().watching = true;
                self.news.filled.notify_one();
            }
        }
    }

    fn take_in(&self, message: Option<&[u8]>, own: [u8; SENDER]) {
        let Some(message) = message else {
            self.registry.look_now();
            return self.registry.watchers.everything_changed();
        };
        // What we do not understand, a later version may.
        let Some((sender, [kind, rest @ ..])) = message.split_at_checked(SENDER) else { return };
        if sender == own {
            return;
        }
        match *kind {
            WRITTEN => self.registry.look_now(),
            WATCHING => self.news.watched(),
            CHANGED if rest.is_empty() => {
                self.registry.watchers.everything_changed();
                self.rooms.ring_those(|_| true);
            }
            CHANGED => {
                let buckets = rest.as_chunks::<2>().0.iter().map(|bytes| Bucket(u16::from_le_bytes(*bytes)));
                let buckets = buckets.collect();
                self.registry.watchers.owners_changed(&buckets);
                self.rooms.ring_those(|key| buckets.contains(&Bucket::of(key.tenant, &key.owner)));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::charge::TenantRef;
    use crate::domain::plan::Scope;

    fn key(owner: &str) -> AccountKey {
        AccountKey { tenant: TenantRef(1), scope: Scope::User, owner: owner.into() }
    }

    #[test]
    fn changes_are_told_only_while_somebody_watches_elsewhere() {
        let news = News::default();
        news.changed([key("w")].iter());
        assert!(news.take([0; 8]).is_empty());
        news.watched();
        assert_eq!(news.take([7; 8])[0].len(), 8 + 1 + 2, "what changed while they began to watch");
        news.watched();
        assert!(news.take([7; 8]).is_empty());
        news.changed([key("u"), key("v"), key("u")].iter());
        let told = news.take([7; 8]);
        assert_eq!((told.len(), told[0].len()), (1, 8 + 1 + 4), "{told:?}");
        assert!(news.take([0; 8]).is_empty(), "once");
    }

    #[test]
    fn too_many_changes_are_told_as_everybodys() {
        let news = News::default();
        news.watched();
        let many: Vec<AccountKey> = (0..20_000).map(|number| key(&format!("u{number}"))).collect();
        news.changed(many.iter());
        assert_eq!(news.take([0; 8]), [[[0; 8].as_slice(), b"c"].concat()]);
    }
}
