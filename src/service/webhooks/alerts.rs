//! Thresholds of limits, told where every change goes by on its way to the
//! ledger: whatever operation it was, on whichever node, the alert is on record
//! in its transaction. The ledger tells a threshold once in a window; this
//! looks at the state that each change left, so nothing that was reached only
//! for a moment is missed.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use ahash::RandomState;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Event, doubts};
use crate::domain::account::Account;
use crate::domain::cell::{Cell, Standing};
use crate::domain::charge::{AccountKey, CellId, TenantRef};
use crate::domain::hold::{Hold, Stage};
use crate::domain::ids::{Name, UserId};
use crate::domain::plan::{Enforce, Scope};
use crate::domain::quantity::{Ppm, add_saturating};
use crate::domain::time::Millis;
use crate::domain::webhook::{EventKind, reaches};
use crate::engine::{Batch, Change};
use crate::ledger::{Alert, Message, Telling};
use crate::service::calls::charging::{Charging, Subject};
use crate::service::entitlement::subject::Party;
use crate::service::tenancy::catalog::Tenant;
use crate::service::{Service, ServiceError};

/// Thresholds that this node knows to be told of. Beyond that the ledger is
/// asked again.
const KNOWN_MAX: usize = 100_000;

/// A threshold of an account.
type Mark = (AccountKey, CellId, Ppm);

/// Of thresholds that were reached, the window and the figure then.
#[derive(Default)]
pub(in crate::service) struct Told(Mutex<HashMap<Mark, (Millis, u64), RandomState>>);

impl Told {
    fn is_known(&self, mark: &Mark, at: (Millis, u64)) -> bool {
        self.0.lock().get(mark) == Some(&at)
    }

    /// These are on record.
    pub fn note(&self, alerts: Vec<Alert>) {
        if alerts.is_empty() {
            return;
        }
        let mut known = self.0.lock();
        if known.len() + alerts.len() > KNOWN_MAX {
            known.clear();
        }
        for alert in alerts {
            known.insert((alert.account, alert.cell, alert.threshold), (alert.window, alert.figure));
        }
    }
}

/// Those of one batch, each once.
type Found = BTreeMap<(Mark, (Millis, u64)), Alert>;

/// Whose calls the changes of one batch are: the limits of now are theirs.
type Parties = HashMap<(TenantRef, UserId, Option<Name>), Option<Party>, RandomState>;

impl Service {
    /// What is told of changes that are about to be recorded. Tenants that have
    /// no webhook cost a look-up.
    ///
    /// # Errors
    /// What is on record of those concerned cannot be read.
    pub(in crate::service) async fn telling(&self, batch: &Batch) -> Result<Telling, ServiceError> {
        let mut telling = Telling::default();
        let mut parties = Parties::default();
        let mut found = Found::default();
        for change in &batch.changes {
            // Whatever is used is used by a call.
            let Some(hold) = &change.hold else { continue };
            let Some(tenant) = self.registry.outbox.tenant(hold.tenant) else { continue };
            let catalog = tenant.catalog();
            if catalog.tells(EventKind::HoldInDoubt) {
                telling.messages.extend(self.told_of_doubt(&tenant, change));
            }
            if !catalog.tells(EventKind::QuotaWarned) && !catalog.tells(EventKind::QuotaExhausted) {
                continue;
            }
            let key = (hold.tenant, hold.user.clone(), hold.org.clone());
            let party = match parties.entry(key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(self.party_told(&tenant, hold).await?),
            };
            if let Some(party) = party {
                for (key, state) in &change.accounts {
                    self.look_at(&tenant, (key, state), (party, hold), &mut found)?;
                }
            }
        }
        telling.alerts = found.into_values().collect();
        Ok(telling)
    }

    /// What is on record by now is sent, and not told again.
    pub(in crate::service) fn told_on_record(&self, told: Telling) {
        if !told.is_empty() {
            self.told.note(told.alerts);
            self.registry.outbox.due.notify_one();
        }
    }

    /// A call that ended without figures.
    fn told_of_doubt(&self, tenant: &Tenant, change: &Change) -> Vec<Message> {
        let Some(hold) = &change.hold else { return Vec::new() };
        let was =
            change.before.as_deref().is_some_and(|before| matches!(before.stage, Stage::InDoubt { .. }));
        match hold.stage {
            Stage::InDoubt { since } if !was => {
                tenant.messages(&doubts::event(hold, since, "usage_unknown"), self.registry.wall.now())
            }
            _ => Vec::new(),
        }
    }

    /// `None`: nothing is told of whoever is erased.
    async fn party_told(&self, tenant: &Tenant, hold: &Hold) -> Result<Option<Party>, ServiceError> {
        let profile = self.registry.profile(tenant, &hold.user).await?;
        match profile.is_erased() {
            true => Ok(None),
            false => self.party_by_rules(tenant, profile, hold.org.clone()).await.map(Some),
        }
    }

    fn look_at(
        &self,
        tenant: &Tenant,
        (key, state): (&AccountKey, &[u8]),
        (party, hold): (&Party, &Hold),
        found: &mut Found,
    ) -> Result<(), ServiceError> {
        let is_others = key.scope == Scope::User && *key.owner != *hold.user.as_str();
        if key.scope == Scope::Pool || state.is_empty() || is_others {
            return Ok(());
        }
        let account = Account::unpack(Some(state), key.scope, std::iter::empty());
        let account = account.map_err(ServiceError::Corrupt)?;
        // By the clock of the change: a window that it filled may be over by now.
        let (now, catalog) = (account.advanced_to(), tenant.catalog());
        let subject = party.subject_or(&self.no_plan, tenant, &catalog, &hold.user, now)?;
        let charging = subject.all_limits(&[key.scope]);
        let Some(place) = charging.accounts.iter().position(|known| known == key) else { return Ok(()) };
        let projection = account.project(place as u8, &charging.charges, now);
        for (index, charge) in charging.charges.iter().enumerate() {
            let limit = charging.limits[index];
            let (Some(place), Some(span)) = (projection.place(index), charge.figures.span()) else {
                continue;
            };
            let Cell::Window(window) = projection.cell(place) else { continue };
            let Some(begun) = window.current_start().filter(|_| limit.enforce != Enforce::Shadow) else {
                continue;
            };
            let standing = window.standing(charge.figures.ceiling(), projection.granted(charge), span);
            let Standing::Window { limit: own, granted, used, .. } = standing else { continue };
            let figure = add_saturating(own, granted);
            for (kind, threshold) in thresholds(&limit.warn_at) {
                let mark = (key.clone(), charge.cell, threshold);
                let at = (begun, figure);
                let is_known = || self.told.is_known(&mark, at) || found.contains_key(&(mark.clone(), at));
                if !reaches(used, threshold, figure) || !catalog.tells(kind) || is_known() {
                    continue;
                }
                let seen = Seen { key, index, charging: &charging, standing, begun, figure, now };
                let event = seen.event(&subject, kind, threshold);
                let alert = Alert {
                    account: key.clone(),
                    cell: charge.cell,
                    threshold,
                    window: begun,
                    figure,
                    is_shared: !charging.is_ones_own(charge.account),
                    messages: tenant.messages(&event, self.registry.wall.now()),
                };
                found.insert((mark, at), alert);
            }
        }
        Ok(())
    }
}

/// A limit all of which is used is exhausted, whatever its sheet warns of.
fn thresholds(warn_at: &[Ppm]) -> impl Iterator<Item = (EventKind, Ppm)> + '_ {
    let warned = warn_at.iter().filter(|at| **at < Ppm::ONE).map(|at| (EventKind::QuotaWarned, *at));
    warned.chain(std::iter::once((EventKind::QuotaExhausted, Ppm::ONE)))
}

/// A limit with a threshold that is reached.
struct Seen<'s, 'a> {
    key: &'s AccountKey,
    index: usize,
    charging: &'s Charging<'a>,
    standing: Standing,
    begun: Millis,
    figure: u64,
    now: Millis,
}

impl<'a> Seen<'_, 'a> {
    fn event(&self, subject: &Subject<'a>, kind: EventKind, threshold: Ppm) -> Event {
        let (key, charge) = (self.key, &self.charging.charges[self.index]);
        let user = (key.scope == Scope::User).then(|| subject.user.clone());
        let identity = format!(
            "{} {} {} {} {} {}",
            key.scope as u8, charge.cell.0, threshold.0, self.begun.0, self.figure, key.owner
        );
        Event { kind, identity, user, at: self.now, data: self.data(subject, threshold) }
    }

    fn data(&self, subject: &Subject<'a>, threshold: Ppm) -> Value {
        let scope = self.key.scope;
        let limit = self.charging.limits[self.index];
        let source = subject.source(scope);
        let Standing::Window { limit: own, granted, used, held, remaining, over_by, window } = self.standing
        else {
            return Value::Null;
        };
        let zone = subject.zone_of(&source, limit).map(|zone| zone.name());
        let resets_at = window.map(|(_, end)| end.to_string());
        let window = window
            .map(|(start, end)| json!({"start": start.to_string(), "end": end.to_string(), "zone": zone}));
        let is_user = scope == Scope::User;
        json!({
            "user": is_user.then(|| subject.user.as_str()),
            "org": (scope != Scope::Tenant).then(|| subject.org.as_ref().map(|org| org.id.as_str())),
            "scope": scope.as_str(),
            "plan": {"id": source.version.sheet.id.as_str(), "version": source.version.version},
            "limit": limit.name.as_str(),
            "kind": "window",
            "meter": limit.rule.meter().map(|meter| meter.as_str()),
            "threshold": threshold.as_f64(),
            "limit_amount": own,
            "granted": granted,
            "used": used,
            "held": held,
            "remaining": remaining,
            "over_by": over_by,
            "used_ratio": ratio(used, self.figure),
            "window": window,
            "resets_at": resets_at,
        })
    }
}

/// Five decimals, half up, as in the answers to checks.
fn ratio(used: u64, whole: u64) -> Option<f64> {
    let whole = u128::from(whole);
    let ratio = (whole > 0).then(|| (u128::from(used) * 200_000 + whole) / (2 * whole))?;
    Some(ratio as f64 / 100_000.0)
}
