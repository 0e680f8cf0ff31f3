//! The clock: it stops at every instant at which something changes, and does what is due there.

use super::calendar::Ms;
use super::cells::Cell;
use super::sheet::Kind;
use super::window::Span;
use super::{Account, Asked, CellKey, Oracle};

impl Oracle {
    /// The clock moves on: leases end, doubts are resolved, plans change, rights expire.
    pub fn set_clock(&mut self, now: Ms) {
        assert!(now >= self.now, "the model's clock only goes forward");
        while let Some(at) = self.changes().into_iter().filter(|at| *at > self.now && *at <= now).min() {
            self.step(at);
        }
        self.step(now);
    }

    /// Every instant, past or to come, at which something happens by itself.
    pub fn changes(&self) -> Vec<Ms> {
        let mut all: Vec<Ms> = Vec::new();
        for no in 0..self.holds.len() {
            all.extend(self.next_age(no));
        }
        for user in self.users.values() {
            all.extend(user.standing.instants());
            all.extend(user.pending.iter().map(|m| m.0));
        }
        all.extend(self.orgs.values().flat_map(|o| o.instants()));
        all.extend(self.granted_windows().into_iter().map(|(_, span)| span.1));
        all
    }

    fn step(&mut self, at: Ms) {
        for (cell, _) in self.cells.values_mut() {
            cell.advance(at);
        }
        // What a window used beyond the plan's own is known at its end, by the figures it had.
        let ended: Vec<(Asked, Span)> =
            self.granted_windows().into_iter().filter(|(_, span)| span.1 <= at).collect();
        self.blurred |= self.unpaid(at);
        self.now = at;
        for (asked, span) in ended {
            self.pay(&asked, span);
        }
        for no in 0..self.holds.len() {
            self.age(no);
        }
        self.move_on();
        self.tune(true);
    }

    /// The running windows of limits on which there are grants.
    fn granted_windows(&self) -> Vec<(Asked, Span)> {
        let mut found = Vec::new();
        let mut limits: Vec<Asked> = Vec::new();
        for (name, user) in &self.users {
            if !user.standing.grants.is_empty() {
                limits.extend(self.plan_limits(name));
            }
        }
        for (name, org) in &self.orgs {
            if !org.grants.is_empty() {
                limits.extend(self.org_limits(name));
            }
        }
        for asked in limits {
            // An org's limits are among those of each member as well, and pay once.
            if found.iter().any(|(known, _): &(Asked, Span)| known.key == asked.key) {
                continue;
            }
            if !self.grants_of(&asked.key).iter().any(|g| g.limit == asked.limit.name) {
                continue;
            }
            if let Some((Cell::Window(window), _)) = self.cells.get(&asked.key)
                && let Some(span) = window.running(self.now)
            {
                found.push((asked, span));
            }
        }
        found
    }

    /// Whether a window of which something was used ends while its limit is not in the plan, and
    /// there is a grant: what it pays then is left open.
    fn unpaid(&self, at: Ms) -> bool {
        let present: Vec<CellKey> = self.granted_windows().into_iter().map(|(asked, _)| asked.key).collect();
        self.cells.iter().any(|(key, (cell, limit))| {
            let Cell::Window(window) = cell else { return false };
            let book = window.book(window.running(self.now));
            window.running(self.now).is_some_and(|span| span.1 <= at)
                && book.used + book.held > 0
                && self.grants_of(key).iter().any(|g| g.limit == limit.name && g.lives_at(self.now))
                && !present.contains(key)
        })
    }

    pub fn grants_of(&self, key: &CellKey) -> &[super::terms::Grant] {
        match &key.0 {
            Account::User(user) => self.users.get(user).map_or(&[], |u| &u.standing.grants),
            Account::Org(org) => self.orgs.get(org).map_or(&[], |o| &o.grants),
            _ => &[],
        }
    }

    /// The grant that expires first pays first; only those alive at the end pay (13.32, 13.58): at
    /// the last instant of the window, so that one which covers all of it pays for it.
    fn pay(&mut self, asked: &Asked, span: Span) {
        let Some((Cell::Window(window), _)) = self.cells.get(&asked.key) else { return };
        let Kind::Window { limit, .. } = asked.limit.kind else { return };
        let book = window.book(Some(span));
        let mut due = (book.used + book.held - limit).max(0);
        let last = span.1 - 1;
        let grants = match &asked.key.0 {
            Account::User(user) => &mut self.users.get_mut(user).expect("on record").standing.grants,
            Account::Org(org) => &mut self.orgs.get_mut(org).expect("on record").grants,
            _ => return,
        };
        let mut alive: Vec<&mut super::terms::Grant> =
            grants.iter_mut().filter(|g| g.limit == asked.limit.name && g.lives_at(last)).collect();
        alive.sort_by_key(|g| g.expires.unwrap_or(Ms::MAX));
        for grant in alive {
            let part = due.min(grant.left);
            grant.left -= part;
            due -= part;
        }
    }

    /// Moves and versions whose time has come.
    fn move_on(&mut self) {
        let now = self.now;
        let names: Vec<String> = self.users.keys().cloned().collect();
        for name in names {
            let mut user = self.users[&name].clone();
            while let Some((at, plan)) = user.pending.first().cloned().filter(|m| m.0 <= now) {
                user.pending.remove(0);
                self.arrive(&mut user.standing, Some(&plan), at);
                user.standing.plan = Some(plan);
            }
            user.standing.wake(now);
            self.users.insert(name, user);
        }
        for org in self.orgs.values_mut() {
            org.wake(now);
        }
    }
}

impl super::terms::Standing {
    pub fn wake(&mut self, now: Ms) {
        if let Some((version, _)) = self.waiting.filter(|w| w.1 <= now) {
            self.version = version;
            self.waiting = None;
        }
    }
}
