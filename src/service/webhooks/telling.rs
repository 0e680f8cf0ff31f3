//! What is told of administrative changes: plans of users and orgs, sheets,
//! conditions of pools.

use serde_json::{Value, json};

use super::Event;
use crate::domain::condition::Condition;
use crate::domain::ids::Name;
use crate::domain::time::Millis;
use crate::domain::webhook::EventKind;
use crate::ledger::{Message, Move, Org, PoolCondition, User, Written};
use crate::service::entitlement::plans::PlanVersion;
use crate::service::tenancy::catalog::{Catalog, Tenant};
use crate::service::tenancy::registry::Registry;

/// A plan that holds from an instant on.
struct Holding<'a> {
    at: Millis,
    plan: &'a Name,
    before: Option<&'a Name>,
    /// It was to come, and will not.
    is_cancelled: bool,
}

impl Registry {
    /// What is told of a user's new record: the plan that holds from now on, and
    /// those that are to come. `before`: the record with all that had come by
    /// now; `None`: there was none. When a plan that was to come does come, it
    /// has been told.
    pub(in crate::service) fn told_of_user(
        &self,
        tenant: &Tenant,
        before: Option<&User>,
        after: &User,
        written: &Written,
    ) -> Vec<Message> {
        let catalog = tenant.catalog();
        if !catalog.tells(EventKind::PlanChanged) || after.erased {
            return Vec::new();
        }
        // Whoever was not on record was on the default plan, if there is one.
        let default = catalog.settings.default_plan.as_ref();
        let plan_before = before.map(|user| &user.plan).or(default);
        let (old, new) = (before.map_or(&[][..], schedule), schedule(after));
        let mut steps = Vec::new();
        if plan_before != Some(&after.plan) {
            let (at, plan) = (written.at, &after.plan);
            steps.push(Holding { at, plan, before: plan_before, is_cancelled: false });
        }
        let mut last = &after.plan;
        for to_come in new {
            let (at, plan) = (to_come.at, &to_come.plan);
            if !old.contains(to_come) {
                steps.push(Holding { at, plan, before: Some(last), is_cancelled: false });
            }
            last = plan;
        }
        for gone in old.iter().filter(|gone| !new.contains(gone)) {
            let (at, plan) = (gone.at, &gone.plan);
            steps.push(Holding { at, plan, before: plan_before, is_cancelled: true });
        }
        let event = |(n, step): (usize, &Holding<'_>)| {
            let mut data = change(&catalog, step, written);
            data["changed"] = "user".into();
            data["user"] = after.id.as_str().into();
            data["org"] = after.org.as_ref().map(|org| org.as_str()).into();
            data["sequence"] = after.plan_sequence.into();
            Event {
                kind: EventKind::PlanChanged,
                identity: format!("user {} {n} {}", after.version, after.id),
                user: Some(after.id.clone()),
                at: written.at,
                data,
            }
        };
        let events = steps.iter().enumerate().map(event);
        events.flat_map(|event| tenant.messages(&event, self.wall.now())).collect()
    }

    /// The same of an org's new record.
    pub(in crate::service) fn told_of_org(
        &self,
        tenant: &Tenant,
        before: Option<&Name>,
        after: &Org,
        written: &Written,
    ) -> Vec<Message> {
        let catalog = tenant.catalog();
        if !catalog.tells(EventKind::PlanChanged) || before == after.plan.as_ref() {
            return Vec::new();
        }
        let mut data = match &after.plan {
            Some(plan) => {
                change(&catalog, &Holding { at: written.at, plan, before, is_cancelled: false }, written)
            }
            // From now on each caller's own plan says what the limits are.
            None => {
                let mut data = base(written, written.at);
                data["plan"] = Value::Null;
                data["previous_plan"] = named(&catalog, before);
                data
            }
        };
        data["changed"] = "org".into();
        data["org"] = after.id.as_str().into();
        let identity = format!("org {} {}", after.version, after.id);
        let event = Event { kind: EventKind::PlanChanged, identity, user: None, at: written.at, data };
        tenant.messages(&event, self.wall.now())
    }

    /// The same of a sheet's new version, which holds from `at` on: for those
    /// whose month runs, when it ends.
    pub(in crate::service) fn told_of_sheet(
        &self,
        tenant: &Tenant,
        sheet: &PlanVersion,
        at: Millis,
        (by, reason): (&str, Option<&str>),
    ) -> Vec<Message> {
        if !tenant.catalog().tells(EventKind::PlanChanged) {
            return Vec::new();
        }
        let (id, version, now) = (&sheet.sheet.id, sheet.version, sheet.written_at);
        let written = Written { at: now, by: by.to_owned(), reason: reason.map(str::to_owned) };
        let mut data = base(&written, at);
        data["changed"] = "sheet".into();
        data["plan"] = json!({ "id": id.as_str(), "version": version });
        let before = (version > 1).then(|| json!({ "id": id.as_str(), "version": version - 1 }));
        data["previous_plan"] = before.into();
        sheet.terms.describe(&mut data);
        let identity = format!("sheet {version} {id}");
        let event = Event { kind: EventKind::PlanChanged, identity, user: None, at: now, data };
        tenant.messages(&event, self.wall.now())
    }

    /// What is told of a pool's new condition: that it is paused or closed, and
    /// was not.
    pub(in crate::service) fn told_of_pool(
        &self,
        tenant: &Tenant,
        (before, after): (&Condition, &Condition),
        stored: &PoolCondition,
        now: Millis,
    ) -> Vec<Message> {
        let is_closed = before.closed(now).is_none() && after.closed(now).is_some();
        let is_paused = before.paused_until(now).is_none() && after.paused_until(now).is_some();
        let kind = match (is_closed, is_paused) {
            (true, _) => EventKind::PoolClosed,
            (false, true) if after.closed(now).is_none() => EventKind::PoolPaused,
            _ => return Vec::new(),
        };
        let closed = after.closed(now);
        let data = json!({
            "pool": stored.pool,
            "state": if closed.is_some() { "closed" } else { "paused" },
            "paused_until": after.paused_until(now).map(|at| at.to_string()),
            "closed_since": closed.map(|closed| closed.since.to_string()),
            "closed_until": closed.map(|closed| closed.until.to_string()),
            "closed_because": closed.map(|closed| closed.why.as_str()),
            "rate": after.share(now).as_f64(),
        });
        let identity = format!("{} {}", stored.version, stored.pool);
        tenant.messages(&Event { kind, identity, user: None, at: now, data }, self.wall.now())
    }
}

fn schedule(user: &User) -> &[Move] {
    user.rights.as_ref().map_or(&[], |rights| &rights.schedule)
}

fn change(catalog: &Catalog, step: &Holding<'_>, written: &Written) -> Value {
    let mut data = base(written, step.at);
    data["plan"] = named(catalog, Some(step.plan));
    data["previous_plan"] = named(catalog, step.before);
    data["cancelled"] = step.is_cancelled.into();
    data
}

fn base(written: &Written, effective_at: Millis) -> Value {
    json!({
        "effective_at": effective_at.to_string(),
        "scheduled": effective_at > written.at,
        "by": written.by,
        "reason": written.reason,
    })
}

/// A plan with its newest version.
fn named(catalog: &Catalog, plan: Option<&Name>) -> Value {
    let version = plan.and_then(|plan| catalog.plan(plan)).map(|plan| plan.newest().version);
    plan.map_or(Value::Null, |plan| json!({ "id": plan.as_str(), "version": version }))
}
