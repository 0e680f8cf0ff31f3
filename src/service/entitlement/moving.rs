//! Moving a user to another plan: now, when the running month ends, at a time,
//! or for a time.

use std::sync::Arc;

use serde_json::json;

use crate::domain::document::{Fault, Node};
use crate::domain::ids::{Name, UserId};
use crate::domain::quantity::MAX_AMOUNT;
use crate::domain::time::Millis;
use crate::ledger::{Move, Note, Rights, User, Written};

use super::plans::Applies;
use super::profiles::Profile;
use super::terms::REMEMBERED_MS;
use super::users::{TRIES, new_user};
use crate::service::error::ServiceError;
use crate::service::tenancy::catalog::Tenant;
use crate::service::tenancy::reason::required_reason;
use crate::service::tenancy::registry::Registry;

/// Moves to come of one user, at most.
const SCHEDULE_MAX: usize = 8;
/// Whoever moves users when their time has come.
const BY_SCHEDULE: &str = "schedule";

/// What `POST users/{user}/plan` asks for.
#[derive(Debug, Clone)]
pub struct PlanChange {
    plan: Name,
    /// `None`: an upgrade at once, a downgrade when the running month ends.
    effective: Option<Applies>,
    sequence: Option<u64>,
    /// A trial: when it ends, and what follows (the plan of before).
    until: Option<Millis>,
    then: Option<Name>,
    reason: Option<String>,
}

impl PlanChange {
    /// Reads `{"plan","effective","sequence","until","then","reason"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let plan = fields.required("plan").parsed(Name::parse);
            let effective = Applies::read(fields, "effective");
            let sequence = fields.optional("sequence").amount(MAX_AMOUNT);
            let until = fields.optional("until").parsed(Millis::parse);
            let then = fields.optional("then").parsed(Name::parse);
            if then.is_some() && !fields.has("until") {
                fields.fault("until", "is required beside then");
            }
            let reason = required_reason(fields);
            Some(Self { plan: plan?, effective, sequence, until, then, reason: Some(reason?) })
        })
    }
}

/// How a numbered change of plan went.
#[derive(Debug)]
pub struct PlanChanged {
    pub user: Arc<Profile>,
    /// A newer change was on record: nothing was done.
    pub stale: bool,
}

impl Registry {
    /// The record's part of [`Service::change_plan`](crate::service::Service::change_plan),
    /// which brings the account to now and knows when the running month ends.
    pub(super) async fn change_plan(
        &self,
        tenant: &Tenant,
        id: &UserId,
        change: PlanChange,
        next_window: Millis,
        by: &str,
    ) -> Result<PlanChanged, ServiceError> {
        self.check_plan(tenant, Some(&change.plan))?;
        self.check_plan(tenant, change.then.as_ref())?;
        for _ in 0..TRIES {
            let now = tenant.now();
            let stored = self.ledger.user(tenant.number, id.clone()).await?;
            let last = stored.as_ref().and_then(|user| user.plan_sequence);
            // Whoever is not on record has been on the default plan, if any.
            let is_first = stored.is_none() && tenant.catalog().settings.default_plan.is_none();
            let mut user = match stored {
                Some(user) => user,
                None => new_user(tenant, id, is_first.then_some(&change.plan), now)?,
            };
            match (last, change.sequence) {
                (Some(_), None) => return Err(ServiceError::SequenceRequired),
                (Some(last), Some(this)) if this <= last => {
                    let stale = this < last;
                    if stale {
                        self.note_stale(tenant, &user, &change, now, by).await?;
                    }
                    return Ok(PlanChanged { user: Arc::new(Profile::of(user)), stale });
                }
                _ => {}
            }
            let mut before = user.clone();
            fold(&mut before, now);
            let before = (before.version > 0).then_some(before);
            let start = if is_first { now } else { starts_at(tenant, &user, &change, next_window, now)? };
            plan_moves(&mut user, &change, start, now)?;
            user.plan_sequence = change.sequence;
            if let Some(user) =
                self.store_user(tenant, (before.as_ref(), user), now, by, change.reason.clone()).await?
            {
                return Ok(PlanChanged { user, stale: false });
            }
        }
        Err(ServiceError::ChangedMeanwhile)
    }

    /// What came too late changes nothing, and is told in the audit: what was
    /// on record, and what was asked for.
    async fn note_stale(
        &self,
        tenant: &Tenant,
        user: &User,
        change: &PlanChange,
        now: Millis,
        by: &str,
    ) -> Result<(), ServiceError> {
        let note = Note {
            action: "user.plan_stale",
            target: user.id.as_str().to_owned(),
            before: Some(json!({"plan": user.plan.as_str(), "sequence": user.plan_sequence})),
            after: Some(json!({"plan": change.plan.as_str(), "sequence": change.sequence})),
        };
        let written = Written { at: now, by: by.to_owned(), reason: change.reason.clone() };
        Ok(self.ledger.note(tenant.number, note, written).await?)
    }

    /// Puts a user's moves that have come on record. Nothing waits for it:
    /// until then they are read off the clock.
    pub(in crate::service) async fn record_moves(
        &self,
        tenant: &Tenant,
        user: User,
    ) -> Result<(), ServiceError> {
        let now = tenant.now();
        let mut moved = user.clone();
        fold(&mut moved, now);
        if moved != user {
            // Whoever wrote first has done it.
            self.store_user(tenant, (Some(&moved.clone()), moved), now, BY_SCHEDULE, None).await?;
        }
        Ok(())
    }
}

/// When a change takes hold of a user on record.
fn starts_at(
    tenant: &Tenant,
    user: &User,
    change: &PlanChange,
    next_window: Millis,
    now: Millis,
) -> Result<Millis, ServiceError> {
    Ok(match change.effective {
        Some(Applies::Now) => now,
        Some(Applies::At(at)) => at.max(now),
        Some(Applies::NextWindow) => next_window,
        None => {
            let there = moved_to(user, &change.plan, now);
            let (here, there) = (Profile::of(user.clone()), Profile::of(there));
            let catalog = tenant.catalog();
            let here = here.holder().terms(&user.plan, &catalog, now)?;
            let there = there.holder().terms(&change.plan, &catalog, now)?;
            match here.version().sheet.is_downgrade_to(&there.version().sheet) {
                true => next_window,
                false => now,
            }
        }
    })
}

/// The user as they would be if they moved now.
fn moved_to(user: &User, plan: &Name, now: Millis) -> User {
    let mut there = user.clone();
    fold(&mut there, now);
    set_schedule(&mut there, Vec::new());
    if there.plan != *plan {
        move_to(&mut there, plan.clone(), now);
        // Later than all that is on record.
        there.moved = u64::MAX;
    }
    there
}

/// Notes the moves of a change; they replace whatever was to come.
fn plan_moves(user: &mut User, change: &PlanChange, start: Millis, now: Millis) -> Result<(), ServiceError> {
    fold(user, now);
    if change.until.is_some_and(|until| until <= start) {
        return Err(ServiceError::invalid("/until", format!("must be later than the start, {start}")));
    }
    let before = user.clone();
    let mut schedule = Vec::new();
    if start <= now {
        move_to(user, change.plan.clone(), now);
    } else {
        schedule.push(Move { at: start, plan: change.plan.clone() });
    }
    if let Some(until) = change.until {
        match &change.then {
            Some(then) => schedule.push(Move { at: until, plan: then.clone() }),
            // Then it goes on as it would have without the trial.
            None => {
                let to_come = before.rights.as_ref().map_or(&[][..], |rights| &rights.schedule);
                let (by_then, later) = to_come.split_at(to_come.partition_point(|come| come.at <= until));
                let plan = by_then.last().map_or(&before.plan, |come| &come.plan);
                schedule.push(Move { at: until, plan: plan.clone() });
                schedule.extend_from_slice(later);
            }
        }
    }
    if schedule.len() > SCHEDULE_MAX {
        return Err(ServiceError::invalid("/until", "is one trial too many within another"));
    }
    set_schedule(user, schedule);
    Ok(())
}

/// The plan's figures hold from now on; staying on a plan changes nothing.
pub(super) fn move_to(user: &mut User, plan: Name, now: Millis) {
    if user.plan != plan {
        user.plan = plan;
        user.plan_since = now;
    }
}

pub(super) fn set_schedule(user: &mut User, schedule: Vec<Move>) {
    if !schedule.is_empty() || user.rights.is_some() {
        user.rights.get_or_insert_default().schedule = schedule;
    }
    drop_empty(&mut user.rights);
}

/// Puts what has come, and what has ended, into the record.
pub(super) fn fold(user: &mut User, now: Millis) {
    let Some(rights) = &mut user.rights else { return };
    let come = rights.schedule.iter().take_while(|to_come| to_come.at <= now).count();
    for to_come in rights.schedule.drain(..come) {
        if user.plan != to_come.plan {
            user.plan = to_come.plan;
            user.plan_since = to_come.at;
        }
    }
    drop_ended(rights, now);
    drop_empty(&mut user.rights);
}

/// Drops overrides and grants that are over. The account was brought to now
/// before: it knows what they did.
pub(super) fn drop_ended(rights: &mut Rights, now: Millis) {
    rights.overrides.retain(|_, entry| entry.expires_at.is_none_or(|end| end > now));
    rights.grants.retain(|entry| entry.grant.expires_at.is_none_or(|end| end > now));
    rights.month = rights.month.filter(|month| month.end.plus_ms(REMEMBERED_MS) > now);
}

pub(super) fn drop_empty(rights: &mut Option<Box<Rights>>) {
    if rights.as_ref().is_some_and(|rights| rights.is_empty()) {
        *rights = None;
    }
}
