//! The work of a make-good: users page by page, a few statements a page.

use std::sync::Arc;

use super::{Asked, Counts, Give, Kept, MakeGood, PATIENCE, State};
use crate::domain::cell::Standing;
use crate::domain::ids::{Name, RequestId, UserId};
use crate::domain::plan::Scope;
use crate::domain::quantity::add_saturating;
use crate::domain::time::Millis;
use crate::ledger::{User, UserQuery, Written};
use crate::service::entitlement::rights::GrantPost;
use crate::service::entitlement::users::Outcome;
use crate::service::tenancy::catalog::Tenant;
use crate::service::{Service, ServiceError};

/// Users read, and changed, in one go.
const AT_ONCE: usize = 500;
/// Refused users of whom one make-good can know.
const REFUSED_MAX: u32 = 1_000_000;

/// One pass over the users.
pub(super) struct Run<'r> {
    asked: &'r Asked,
    /// Who came later, and a window that began later, is not meant.
    began_at: Millis,
    /// `None`: nothing is written.
    writing: Option<Writing<'r>>,
}

struct Writing<'r> {
    key: RequestId,
    by: &'r str,
}

impl<'r> Run<'r> {
    pub fn dry(asked: &'r Asked, began_at: Millis) -> Self {
        Self { asked, began_at, writing: None }
    }

    fn of(kept: &'r Kept) -> Result<Self, ServiceError> {
        let MakeGood { asked, by, began_at, .. } = &kept.made;
        let writing = Writing { key: key_of(&kept.id)?, by };
        Ok(Self { asked, began_at: *began_at, writing: Some(writing) })
    }

    fn means(&self, user: &User) -> bool {
        let chosen = &self.asked.users;
        !user.erased
            && user.created_at <= self.began_at
            && chosen.plan.as_ref().is_none_or(|plan| *plan == user.plan)
            && chosen.org.as_ref().is_none_or(|org| user.org.as_ref() == Some(org))
    }
}

/// The key under which each user is given what a make-good gives.
fn key_of(id: &Name) -> Result<RequestId, ServiceError> {
    RequestId::parse(&format!("make-good:{id}")).map_err(|error| ServiceError::Corrupt(error.to_string()))
}

impl Service {
    /// Works on a make-good that is on record as under way, unless this node does
    /// already. Short work is done when this returns, long work goes on.
    pub(super) async fn work_on(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        kept: Kept,
    ) -> Result<Kept, ServiceError> {
        let place = (tenant.number, kept.id.clone());
        if self.making_good.lock().insert(place.clone()) {
            let (service, tenant, kept) = (Arc::clone(self), Arc::clone(tenant), kept.clone());
            let work = tokio::spawn(async move {
                let done = service.work(&tenant, &kept).await;
                service.making_good.lock().remove(&place);
                if let Err(error) = &done {
                    let error = error as &dyn std::error::Error;
                    tracing::warn!(tenant.id = %tenant.id, make_good.id = %kept.id, error,
                        "cannot go on making good; it will be tried again");
                }
            });
            // A long one goes on by itself.
            let _ = tokio::time::timeout(PATIENCE, work).await;
        }
        let now = self.make_good_kept(tenant, &kept.id).await?;
        Ok(now.unwrap_or(kept))
    }

    async fn work(&self, tenant: &Tenant, kept: &Kept) -> Result<(), ServiceError> {
        let (state, counts) = match kept.made.state {
            State::Running => (State::Done, self.give_all(tenant, &Run::of(kept)?).await?),
            State::Undoing => {
                let undone = self.take_all_back(tenant, kept).await?;
                (State::Undone, Counts { undone, ..kept.made.counts })
            }
            State::Done | State::Undone => return Ok(()),
        };
        let made = MakeGood { state, counts, ..kept.made.clone() };
        let ended = Kept { version: kept.version + 1, made, id: kept.id.clone() };
        match self.keep_make_good(tenant, &ended, &kept.made.by, None).await {
            // Another node came to the end as well.
            Err(ServiceError::ChangedMeanwhile) => Ok(()),
            done => done,
        }
    }

    /// Gives every user who is meant what they are to get.
    pub(super) async fn give_all(&self, tenant: &Tenant, run: &Run<'_>) -> Result<Counts, ServiceError> {
        // So that a plan's users are those on it now.
        self.record_moves(tenant).await?;
        let mut counts = Counts::default();
        let mut users = self.chosen(tenant, run).await?;
        while let Some(page) = users.next(self, tenant).await? {
            let meant: Vec<User> = page.into_iter().filter(|user| run.means(user)).collect();
            counts.matched += meant.len() as u64;
            self.give_page(tenant, run, meant, &mut counts).await?;
        }
        Ok(counts)
    }

    async fn chosen(&self, tenant: &Tenant, run: &Run<'_>) -> Result<Users, ServiceError> {
        let chosen = &run.asked.users;
        let mut ids = chosen.ids.clone();
        if let Some(refused) = &chosen.refused {
            self.flush_tallies().await?;
            let (days, code) = (refused.from..refused.to, refused.code.clone());
            let mut some = self.ledger.refused_users(tenant.number, days, code, REFUSED_MAX).await?;
            if some.len() >= REFUSED_MAX as usize {
                return Err(ServiceError::invalid("/users/refused", "means too many users: narrow it down"));
            }
            if let Some(named) = &ids {
                some.retain(|id| named.binary_search(id).is_ok());
            }
            ids = Some(some);
        }
        let (plan, org) = (chosen.plan.clone(), chosen.org.clone());
        Ok(match ids {
            Some(ids) => Users::Named(ids.into_iter()),
            None => Users::All(Some(UserQuery { plan, org, ..every_user() })),
        })
    }

    async fn give_page(
        &self,
        tenant: &Tenant,
        run: &Run<'_>,
        page: Vec<User>,
        counts: &mut Counts,
    ) -> Result<(), ServiceError> {
        let mut changes = Vec::with_capacity(page.len());
        for user in page {
            let Some(post) = self.gift(tenant, run, &user).await? else {
                counts.skipped += 1;
                continue;
            };
            let mut changed = user.clone();
            let by = run.writing.as_ref().map_or("", |writing| writing.by);
            match self.registry.add_grant(tenant, &mut changed, &post, by) {
                Ok(outcome) => {
                    counts.given += 1;
                    counts.amount = add_saturating(counts.amount, post.amount());
                    if let Outcome::Changed(_) = outcome {
                        changes.push((user, changed, post));
                    }
                }
                // No such limit, or no room for one more.
                Err(_) => counts.skipped += 1,
            }
        }
        let Some(writing) = &run.writing else { return Ok(()) };
        let reason = Some(run.asked.reason.clone());
        let written = Written { at: tenant.now(), by: writing.by.to_owned(), reason };
        let users = changes.iter().map(|(user, changed, _)| (user.clone(), changed.clone())).collect();
        if self.registry.put_users(tenant, users, written).await? {
            return Ok(());
        }
        // Somebody changed one of them meanwhile: one by one.
        for (user, _, post) in changes {
            match self.grant(tenant, &user.id, &post, writing.by).await {
                // Erased meanwhile.
                Ok(_) | Err(ServiceError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What a user is to get; `None`: nothing.
    async fn gift(
        &self,
        tenant: &Tenant,
        run: &Run<'_>,
        user: &User,
    ) -> Result<Option<GrantPost>, ServiceError> {
        let (amount, expires_at) = match &run.asked.give {
            Give::Grant { amount, expires_at, .. } => (*amount, *expires_at),
            Give::Reset { .. } => match self.used_in_window(tenant, run, &user.id).await? {
                Some(used) => used,
                None => return Ok(None),
            },
        };
        let key = run.writing.as_ref().map(|writing| writing.key.clone());
        let limit = run.asked.give.limit().clone();
        Ok(Some(GrantPost::new(limit, amount, expires_at, run.asked.reason.clone(), key)))
    }

    /// What the running window has used, and when it ends.
    async fn used_in_window(
        &self,
        tenant: &Tenant,
        run: &Run<'_>,
        user: &UserId,
    ) -> Result<Option<(u64, Option<Millis>)>, ServiceError> {
        let now = tenant.now();
        let party = self.party(tenant, user).await?;
        let catalog = tenant.catalog();
        let subject = party.subject_or(&self.no_plan, tenant, &catalog, user, now)?;
        let charging = subject.all_limits(&[Scope::User]);
        let limit = run.asked.give.limit();
        let Some(place) = charging.limits.iter().position(|known| known.name == *limit) else {
            return Ok(None);
        };
        let shown = self.standings(&charging.accounts, &charging.charges, now).await?;
        Ok(match shown.get(place).map(|shown| shown.standing) {
            Some(Standing::Window { used, window, .. }) if used > 0 => {
                let is_meant = window.is_none_or(|(start, _)| start <= run.began_at);
                is_meant.then_some((used, window.map(|(_, end)| end)))
            }
            _ => None,
        })
    }

    /// Takes away what is left of what a make-good gave. Returns from how many.
    async fn take_all_back(&self, tenant: &Tenant, kept: &Kept) -> Result<u64, ServiceError> {
        let key = key_of(&kept.id)?;
        let mut undone = 0;
        let mut users = Users::All(Some(every_user()));
        // Those who are erased keep what they were given, too.
        let erased = self.ledger.erased_due(tenant.number, Millis::MAX, u32::MAX).await?;
        let mut erased = erased.chunks(AT_ONCE).map(<[User]>::to_vec);
        while let Some(page) = users.next(self, tenant).await?.or_else(|| erased.next()) {
            let has = |user: &User| {
                let grants = user.rights.iter().flat_map(|rights| &rights.grants);
                grants.into_iter().any(|grant| grant.key.as_ref() == Some(&key))
            };
            let without = |user: User| {
                let mut changed = user.clone();
                changed.version += 1;
                if let Some(rights) = &mut changed.rights {
                    rights.grants.retain(|grant| grant.key.as_ref() != Some(&key));
                }
                (user, changed)
            };
            let changes: Vec<(User, User)> = page.into_iter().filter(has).map(without).collect();
            undone += changes.len() as u64;
            let reason = Some(format!("undone: {}", kept.made.asked.reason));
            let written = Written { at: tenant.now(), by: kept.made.by.clone(), reason };
            if !self.registry.put_users(tenant, changes.clone(), written.clone()).await? {
                for (user, _) in changes {
                    match self.take_grant_back(tenant, &user.id, &key, &written).await {
                        Ok(()) | Err(ServiceError::NotFound(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(undone)
    }
}

fn every_user() -> UserQuery {
    UserQuery { limit: AT_ONCE as u32, ..UserQuery::default() }
}

/// Users, page by page.
enum Users {
    Named(std::vec::IntoIter<UserId>),
    /// `None`: there are no more.
    All(Option<UserQuery>),
}

impl Users {
    async fn next(&mut self, service: &Service, tenant: &Tenant) -> Result<Option<Vec<User>>, ServiceError> {
        match self {
            Self::Named(ids) => {
                let some: Vec<UserId> = ids.take(AT_ONCE).collect();
                let mut page = Vec::with_capacity(some.len());
                for id in &some {
                    page.extend(service.ledger.user(tenant.number, id.clone()).await?);
                }
                Ok((!some.is_empty()).then_some(page))
            }
            Self::All(next) => {
                let Some(query) = next.take() else { return Ok(None) };
                let page = service.ledger.users(tenant.number, query.clone()).await?;
                if page.len() == AT_ONCE {
                    let after = page.last().map(|user| user.id.to_string());
                    *next = Some(UserQuery { after, ..query });
                }
                Ok(Some(page))
            }
        }
    }
}
