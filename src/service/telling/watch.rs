//! A user watches what they have left.
//!
//! A watch looks when its bell has rung or something happens by itself (a
//! window turns, a lease ends), and tells only what is not the refill alone.
//! One timer a watch; what is told is read when it is told.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::watchers::Seat;
use crate::domain::cell::Standing;
use crate::domain::decision::LimitRow;
use crate::domain::ids::UserId;
use crate::domain::plan::{Enforce, Scope};
use crate::domain::time::{Millis, Zone};
use crate::service::access::keyring::Key;
use crate::service::tenancy::clock::{real_unix_seconds, until_unix_seconds};
use crate::service::{Caller, QuotaView, Service, ServiceError, Tenant};

/// Between two events: at most two a second.
const BETWEEN_EVENTS: Duration = Duration::from_millis(500);
/// After a look that found nothing to tell.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// After a look that failed.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);
/// Silence that is broken by a sign of life.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// To a listener who may have gone, signs of life come after this silence,
const SILENCE_IN_DOUBT: Duration = Duration::from_secs(1);
/// and so many: the first one after a hang-up is answered that nobody is
/// there, the second one fails.
const SIGNS_IN_DOUBT: u8 = 2;
/// What is said stirs the connection by itself for this long.
const ECHO: Duration = Duration::from_millis(2);

impl Service {
    /// Watches what `user` has left, for as long as the credentials of
    /// `caller` are good. The first thing told is how it stands now.
    ///
    /// # Errors
    /// `StreamLimit` when too many watch already; else as
    /// [`quota`](Self::quota).
    pub async fn watch(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        user: &UserId,
        caller: &Caller,
    ) -> Result<Watch, ServiceError> {
        let watchers = &self.registry.watchers;
        // The place is taken before the look: what changes in between rings.
        let seat = watchers.enter(tenant.number, user).ok_or(ServiceError::StreamLimit)?;
        let mut watch = Watch {
            service: Arc::clone(self),
            tenant: Arc::clone(tenant),
            user: user.clone(),
            key: self.registry.key(&caller.key_id),
            expires_at_unix: caller.expires_at_unix,
            seat,
            first: None,
            told: Told::default(),
            next_change: None,
            rest_until: Instant::now(),
            spoke: Instant::now(),
            signs_due: 0,
        };
        watch.first = Some(watch.look().await?);
        Ok(watch)
    }

    /// Ends all watches, for a server that is about to stop.
    pub fn end_watches(&self) {
        self.registry.watchers.close();
    }
}

/// See the module's text.
pub struct Watch {
    service: Arc<Service>,
    tenant: Arc<Tenant>,
    user: UserId,
    /// What the credentials rest on.
    key: Option<Arc<Key>>,
    expires_at_unix: Option<i64>,
    seat: Seat,
    first: Option<QuotaView>,
    told: Told,
    /// The next thing that happens by itself.
    next_change: Option<Millis>,
    /// No look before this.
    rest_until: Instant,
    /// When something was last said.
    spoke: Instant,
    /// Signs of life that a doubtful listener is still to be given.
    signs_due: u8,
}

/// What a watch has to say.
pub enum Heard {
    Quota(Box<QuotaView>),
    /// Nothing has changed; the watch lives.
    StillThere,
}

impl Watch {
    /// Waits for what is to be told next; `None`: the watch has ended.
    pub async fn next(&mut self) -> Option<Heard> {
        if let Some(first) = self.first.take() {
            return Some(self.tell(first));
        }
        loop {
            if !self.may_go_on() {
                return None;
            }
            let now = Instant::now();
            let is_due = self.seat.bell.has_rung() || self.has_changed_by_itself();
            if is_due && now >= self.rest_until {
                match self.look_again().await {
                    Some(view) => return Some(self.tell(view)),
                    None => continue,
                }
            }
            if self.seat.bell.is_asked_for() {
                self.signs_due = SIGNS_IN_DOUBT;
            }
            if now >= self.speaks_at() {
                self.signs_due = self.signs_due.saturating_sub(1);
                self.spoke = now;
                return Some(Heard::StillThere);
            }
            let wake_at = self.wake_at(now, is_due);
            tokio::select! {
                biased;
                () = self.seat.bell.wait() => {}
                () = tokio::time::sleep_until(wake_at) => {}
                () = stirred() => {
                    if self.spoke.elapsed() > ECHO {
                        self.signs_due = SIGNS_IN_DOUBT;
                    }
                }
            }
        }
    }

    /// Whether the credentials are still good, and the server does not stop.
    fn may_go_on(&self) -> bool {
        let is_in_time = self.expires_at_unix.is_none_or(|end| real_unix_seconds() < end);
        let is_key_good = self.key.as_ref().is_some_and(|key| !key.is_removed());
        is_in_time && is_key_good && !self.tenant.is_suspended() && !self.seat.watchers().is_closed()
    }

    fn has_changed_by_itself(&self) -> bool {
        self.next_change.is_some_and(|at| at <= self.tenant.now())
    }

    /// When a sign of life is due if there is nothing else to say.
    fn speaks_at(&self) -> Instant {
        self.spoke + if self.signs_due > 0 { SILENCE_IN_DOUBT } else { SILENCE_MAX }
    }

    fn wake_at(&self, now: Instant, is_due: bool) -> Instant {
        let mut wake_at = self.speaks_at();
        if is_due {
            wake_at = wake_at.min(self.rest_until);
        } else if let Some(at) = self.next_change.filter(|_| !self.tenant.clock_stands()) {
            let ms = at.0.saturating_sub(self.tenant.now().0);
            let wait = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
            wake_at = wake_at.min(now + wait.min(SILENCE_MAX));
        }
        if let Some(end) = self.expires_at_unix {
            wake_at = wake_at.min(now + until_unix_seconds(end).min(SILENCE_MAX));
        }
        wake_at
    }

    fn tell(&mut self, view: QuotaView) -> Heard {
        self.spoke = Instant::now();
        self.rest_until = self.spoke + BETWEEN_EVENTS;
        Heard::Quota(Box::new(view))
    }

    /// Looks; `None`: there is nothing to tell.
    async fn look_again(&mut self) -> Option<QuotaView> {
        let before = std::mem::take(&mut self.told);
        // Boxed: a watch at rest must not keep room for a look.
        match Box::pin(self.look()).await {
            Ok(view) if !self.told.is_same(&before, view.now) => Some(view),
            Ok(_) => {
                self.rest_until = Instant::now() + BETWEEN_LOOKS;
                None
            }
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "a watch cannot look");
                self.told = before;
                self.seat.bell.ring();
                self.rest_until = Instant::now() + BETWEEN_TRIES;
                None
            }
        }
    }

    async fn look(&mut self) -> Result<QuotaView, ServiceError> {
        let watchers = &self.service.registry.watchers;
        // It is never closed; without a turn the look is only less polite.
        let _turn = watchers.looks.acquire().await.ok();
        loop {
            self.seat.bell.hear();
            let view = self.service.quota(&self.tenant, self.user.clone()).await?;
            if !self.seat.is_in(self.tenant.number, view.org.as_ref()) {
                self.next_change = view.next_change(view.now);
                self.told = Told::of(&view);
                return Ok(view);
            }
        }
    }
}

/// Ready when somebody polls again although nothing that we wait for has
/// happened: then it was the connection, and the listener may have hung up.
fn stirred() -> impl Future<Output = ()> {
    let mut is_first = true;
    std::future::poll_fn(move |_| match std::mem::replace(&mut is_first, false) {
        true => std::task::Poll::Pending,
        false => std::task::Poll::Ready(()),
    })
}

impl QuotaView {
    /// When the figures next change by themselves, refill apart.
    fn next_change(&self, now: Millis) -> Option<Millis> {
        let window_end = |row: &LimitRow| match row.standing {
            Standing::Window { window: Some((_, end)), .. } => Some(end),
            _ => None,
        };
        let turns = self.limits.iter().filter_map(|(row, _)| window_end(row));
        turns.chain(self.next_lease_end).chain(self.next_terms).filter(|at| *at > now).min()
    }
}

/// What was told, as far as it changes by more than refill.
#[derive(Default)]
struct Told {
    /// A hash of everything that time leaves alone.
    figures: u64,
    /// Of each bucket, when it is full if nothing else happens: refill leaves
    /// that alone, everything else moves it. `None`: it is full.
    full_at: SmallVec<[Option<Millis>; 4]>,
}

impl Told {
    fn of(view: &QuotaView) -> Self {
        let mut hasher = DefaultHasher::new();
        let mut full_at = SmallVec::new();
        view.plan.hash(&mut hasher);
        view.upcoming.hash(&mut hasher);
        (view.per_call.max_input_tokens, view.per_call.max_output_tokens).hash(&mut hasher);
        view.cache_read_weight.0.hash(&mut hasher);
        let shown = view.limits.iter().filter(|(row, _)| matches!(row.scope, Scope::User | Scope::Org));
        for (row, _) in shown {
            (&row.name, row.scope, &row.meter, row.enforce as u8, row.visibility).hash(&mut hasher);
            (row.zone.as_deref().map(Zone::name), row.window_seconds).hash(&mut hasher);
            if row.enforce == Enforce::Shadow {
                row.would_refuse.hash(&mut hasher);
            }
            match row.standing {
                Standing::Bucket { capacity, refill_per_minute, remaining, held, full_at: full, .. } => {
                    (0, capacity, refill_per_minute, held).hash(&mut hasher);
                    match full {
                        Some(at) => full_at.push(Some(at).filter(|at| *at > view.now)),
                        None => remaining.hash(&mut hasher),
                    }
                }
                Standing::Window { limit, granted, used, held, window, .. } => {
                    (1, limit, granted, used, held, window).hash(&mut hasher);
                }
                Standing::Slots { limit, in_use, .. } => (2, limit, in_use).hash(&mut hasher),
                Standing::Rolling { limit, used, .. } => (3, limit, used).hash(&mut hasher),
            }
        }
        Self { figures: hasher.finish(), full_at }
    }

    /// Whether refill alone leads from `before` to this, which is of `now`.
    fn is_same(&self, before: &Self, now: Millis) -> bool {
        let by_now = before.full_at.iter().map(|at| at.filter(|at| *at > now));
        self.figures == before.figures && self.full_at.iter().copied().eq(by_now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::{Label, Name};
    use crate::domain::plan::{Meter, PerCall, Visibility};
    use crate::domain::quantity::Ppm;
    use crate::service::{CallState, QuotaState};

    fn view(now: i64, rows: &[(Scope, Standing)]) -> QuotaView {
        let row = |(scope, standing): &(Scope, Standing)| {
            let row = LimitRow {
                name: Label::parse("l").unwrap(),
                scope: *scope,
                meter: Some(Meter::Requests),
                enforce: Enforce::Hard,
                standing: *standing,
                would_refuse: 0,
                visibility: Visibility::Exact,
                zone: None,
                window_seconds: None,
            };
            (row, QuotaState { state: CallState::Ok, next_call_at: None, forecast_exhausted_at: None })
        };
        QuotaView {
            owner: "u".into(),
            org: None,
            plan: Some((Name::parse("free").unwrap(), 1)),
            per_call: PerCall::default(),
            cache_read_weight: Ppm::ONE,
            limits: rows.iter().map(row).collect(),
            state: CallState::Ok,
            next_call_at: None,
            next_lease_end: None,
            upcoming: None,
            next_terms: None,
            now: Millis(now),
        }
    }

    fn bucket(remaining: u64, held: u64, full_at: i64) -> (Scope, Standing) {
        let standing = Standing::Bucket {
            capacity: 10,
            refill_per_minute: 60,
            remaining,
            held,
            in_debt: false,
            full_at: Some(Millis(full_at)),
            next_unit_at: None,
        };
        (Scope::User, standing)
    }

    fn window(scope: Scope, used: u64, end: i64) -> (Scope, Standing) {
        let window = Some((Millis(0), Millis(end)));
        let remaining = 100 - used;
        (scope, Standing::Window { limit: 100, granted: 0, used, held: 0, remaining, over_by: 0, window })
    }

    fn is_same(before: &QuotaView, after: &QuotaView) -> bool {
        Told::of(after).is_same(&Told::of(before), after.now)
    }

    #[test]
    fn refill_is_no_news_and_everything_else_is() {
        let before = view(0, &[bucket(4, 0, 6_000)]);
        assert!(is_same(&before, &view(2_500, &[bucket(6, 0, 6_000)])), "on its way");
        assert!(is_same(&before, &view(6_000, &[bucket(10, 0, 6_000)])), "just full");
        assert!(is_same(&before, &view(9_000, &[bucket(10, 0, 9_000)])), "long full");
        assert!(!is_same(&before, &view(2_500, &[bucket(5, 0, 7_000)])), "one was taken");
        assert!(!is_same(&before, &view(9_000, &[bucket(9, 0, 10_000)])), "one was taken when full");
        assert!(!is_same(&before, &view(2_500, &[bucket(6, 1, 5_000)])), "held");
        assert!(!is_same(&before, &view(2_500, &[])), "gone");
    }

    #[test]
    fn windows_count_by_what_is_used_and_where_they_end() {
        let before = view(0, &[window(Scope::User, 1, 50)]);
        assert!(is_same(&before, &view(20, &[window(Scope::User, 1, 50)])));
        assert!(!is_same(&before, &view(20, &[window(Scope::User, 2, 50)])));
        assert!(!is_same(&before, &view(60, &[window(Scope::User, 1, 100)])));
    }

    #[test]
    fn what_users_are_not_shown_is_no_news() {
        let before = view(0, &[window(Scope::Tenant, 1, 50)]);
        assert!(is_same(&before, &view(1, &[window(Scope::Tenant, 2, 50)])));
        let org = view(0, &[window(Scope::Org, 1, 50)]);
        assert!(!is_same(&org, &view(1, &[window(Scope::Org, 2, 50)])));
    }

    #[test]
    fn the_first_thing_to_come_wakes() {
        let mut quota = view(10, &[window(Scope::User, 1, 50), window(Scope::Org, 1, 40)]);
        assert_eq!(quota.next_change(Millis(10)), Some(Millis(40)));
        quota.next_lease_end = Some(Millis(30));
        assert_eq!(quota.next_change(Millis(10)), Some(Millis(30)));
        assert_eq!(quota.next_change(Millis(45)), Some(Millis(50)));
        assert_eq!(quota.next_change(Millis(50)), None);
    }
}
