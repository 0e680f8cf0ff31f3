//! Clocks: the wall's, which never goes back, and those of test tenants,
//! which stand where they were set.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::domain::time::Millis;

/// The time of the machine, made safe to decide by.
///
/// It runs on the monotonic clock, so that a step of the machine's clock is
/// never an hour of refill or the end of a lease. [`follow`](Self::follow),
/// called a few times a second, leads it back to the machine's clock: forward
/// at once (the machine slept, or was late), backward by going at half speed.
#[derive(Debug)]
pub struct WallClock {
    started: Instant,
    /// Milliseconds between 1970 and `started`, as believed now.
    offset: AtomicI64,
    /// What is added to the machine's clock: that of another machine decides.
    lead: AtomicI64,
    /// Shows that one's, once it has been measured.
    other: OnceLock<OtherClock>,
    /// When `follow` last looked, in ms since `started`.
    followed: AtomicI64,
    /// The latest answer given: no later one is earlier.
    latest: AtomicI64,
}

struct OtherClock(Box<dyn Fn() -> Option<Millis> + Send + Sync>);

impl std::fmt::Debug for OtherClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OtherClock")
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl WallClock {
    pub fn new() -> Self {
        let now = machine_ms();
        Self {
            started: Instant::now(),
            offset: AtomicI64::new(now),
            lead: AtomicI64::new(0),
            other: OnceLock::new(),
            followed: AtomicI64::new(0),
            latest: AtomicI64::new(now),
        }
    }

    pub fn now(&self) -> Millis {
        self.at(self.running_ms())
    }

    /// Compares with the machine's clock; see the type.
    pub fn follow(&self) {
        if let Some(now) = self.other.get().and_then(|other| (other.0)()) {
            self.lead.store(now.0 - machine_ms(), Relaxed);
        }
        self.follow_to(self.running_ms(), machine_ms() + self.lead.load(Relaxed));
    }

    /// From now on the clock follows another one instead of the machine's:
    /// first at once, also back, for nothing has been decided yet.
    pub fn follow_other(&self, other: impl Fn() -> Option<Millis> + Send + Sync + 'static) {
        if let Some(now) = other() {
            self.lead.store(now.0 - machine_ms(), Relaxed);
            self.offset.store(now.0 - self.running_ms(), Relaxed);
            self.latest.store(now.0, Relaxed);
        }
        let _ = self.other.set(OtherClock(Box::new(other)));
    }

    /// From now on the clock follows one that says `now` at this moment.
    pub fn lead_to(&self, now: Millis) {
        self.lead.store(now.0 - machine_ms(), Relaxed);
        self.follow_to(self.running_ms(), now.0);
    }

    fn running_ms(&self) -> i64 {
        self.started.elapsed().as_millis() as i64
    }

    fn at(&self, running: i64) -> Millis {
        let now = running + self.offset.load(Relaxed);
        // Mostly nothing to write: the line stays shared between cores.
        let latest = self.latest.load(Relaxed);
        if now > latest { Millis(now.max(self.latest.fetch_max(now, Relaxed))) } else { Millis(latest) }
    }

    fn follow_to(&self, running: i64, machine: i64) {
        let since_last = running - self.followed.swap(running, Relaxed);
        let offset = self.offset.load(Relaxed);
        let wanted = machine - running;
        let slowest = offset - (since_last / 2).max(0);
        self.offset.store(wanted.max(slowest), Relaxed);
    }
}

fn machine_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// Seconds since 1970 of the machine's own clock: tokens live in real time,
/// whatever a tenant's clock says.
pub fn real_unix_seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// How long it is until so many seconds since 1970, by the machine's own clock.
pub(in crate::service) fn until_unix_seconds(seconds: i64) -> Duration {
    let ms = seconds.saturating_mul(1000).saturating_sub(machine_ms());
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// A tenant's own clock: the wall's until it is set, and standing from then on.
#[derive(Debug)]
pub(in crate::service) struct TenantClock(AtomicI64);

impl TenantClock {
    const RUNNING: i64 = i64::MIN;

    pub fn new(set: Option<Millis>) -> Self {
        Self(AtomicI64::new(set.map_or(Self::RUNNING, |at| at.0)))
    }

    /// Where it stands; `None` while it runs with the wall.
    pub fn standing(&self) -> Option<Millis> {
        let at = self.0.load(Relaxed);
        (at != Self::RUNNING).then_some(Millis(at))
    }

    pub fn stand_at(&self, at: Option<Millis>) {
        self.0.store(at.map_or(Self::RUNNING, |at| at.0), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock_at(machine: i64) -> WallClock {
        let clock = WallClock::new();
        clock.offset.store(machine, Relaxed);
        clock.latest.store(machine, Relaxed);
        clock
    }

    #[test]
    fn a_step_back_makes_it_slower_but_never_earlier() {
        let clock = clock_at(1_000_000);
        assert_eq!(clock.at(500), Millis(1_000_500));
        clock.follow_to(500, 1_000_500);
        // The machine's clock steps back by a second.
        clock.follow_to(1_000, 1_000_000);
        assert_eq!(clock.at(1_000), Millis(1_000_750));
        let mut last = clock.at(1_000);
        for tick in 1..20 {
            let running = 1_000 + tick * 500;
            assert!(clock.at(running - 250) >= last);
            clock.follow_to(running, 1_000_000 + tick * 500);
            last = clock.at(running);
        }
        assert_eq!(clock.at(11_000), Millis(1_010_000), "back in step with the machine");
    }

    #[test]
    fn a_step_forward_is_followed() {
        let clock = clock_at(1_000_000);
        clock.follow_to(500, 1_060_500);
        assert_eq!(clock.at(500), Millis(1_060_500));
    }

    #[test]
    fn a_tenant_clock_runs_until_it_is_set() {
        let clock = TenantClock::new(None);
        assert_eq!(clock.standing(), None);
        clock.stand_at(Some(Millis(5)));
        assert_eq!(clock.standing(), Some(Millis(5)));
    }
}
