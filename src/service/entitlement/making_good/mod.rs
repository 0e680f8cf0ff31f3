//! Making good: an extra amount, or what a window has used, back to many users at
//! once; once each, and to be undone.
//!
//! What is asked goes on record first, as a record of its own, then the users get
//! their grants, page by page, each under a key that names the make-good: whoever
//! begins again after a crash, or at the same time on another node, gives nobody
//! anything twice. A window is reset by a grant of what was used in it, which ends
//! with it: nothing is forgotten, and there is one way to have more.

mod asked;
mod running;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use asked::{Asked, Chosen, Give, MakeGoodPut, Refused};

use crate::domain::ids::Name;
use crate::domain::time::Millis;
use crate::ledger::{LedgerError, Record, RecordKind, Written};
use crate::service::tenancy::catalog::Tenant;
use crate::service::{Service, ServiceError};

/// Make-goods of one tenant, ever.
const MAKE_GOODS_MAX: usize = 1_000;
/// How long a caller waits for the end of a short one.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
/// Whoever was at work for so long may have gone away: another one goes on.
const ORPHANED_MS: i64 = 60_000;

/// A make-good as it is on record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MakeGood {
    #[serde(flatten)]
    pub asked: Asked,
    pub state: State,
    pub by: String,
    /// On the tenant's clock: who came later, or a window that began later, is not meant.
    pub began_at: Millis,
    /// In real time, since when this state has been worked on.
    worked_from: Millis,
    pub counts: Counts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Running,
    Done,
    Undoing,
    Undone,
}

/// What it came to so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Users whom the filter names.
    pub matched: u64,
    /// Those of them who got something.
    pub given: u64,
    /// Those who have no such limit, or nothing to be reset, or too many grants.
    pub skipped: u64,
    /// All that was given, in the limit's units.
    pub amount: u64,
    /// Users from whom it was taken back.
    pub undone: u64,
}

/// A make-good with its place among the records.
#[derive(Debug, Clone)]
pub struct Kept {
    pub id: Name,
    pub version: u32,
    pub made: MakeGood,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Undoing => "undoing",
            Self::Undone => "undone",
        }
    }

    fn is_under_way(self) -> bool {
        matches!(self, Self::Running | Self::Undoing)
    }
}

impl Service {
    /// What a make-good would come to; nothing is changed.
    pub async fn try_making_good(&self, tenant: &Tenant, asked: &Asked) -> Result<Counts, ServiceError> {
        asked.check(tenant)?;
        self.give_all(tenant, &running::Run::dry(asked, tenant.now())).await
    }

    /// Makes good, once by its id. A long one is still running when this returns.
    ///
    /// # Errors
    /// `KeyReused`: the id stands for another one. `Invalid`.
    pub async fn make_good(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        id: Name,
        asked: Asked,
        by: &str,
    ) -> Result<Kept, ServiceError> {
        if let Some(known) = self.make_good_kept(tenant, &id).await? {
            return self.same(tenant, known, &asked).await;
        }
        asked.check(tenant)?;
        if self.make_goods(tenant).await?.len() >= MAKE_GOODS_MAX {
            let message = format!("is one too many: a tenant has at most {MAKE_GOODS_MAX}");
            return Err(ServiceError::invalid("", message));
        }
        let (began_at, worked_from) = (tenant.now(), self.registry.wall().now());
        let (state, counts) = (State::Running, Counts::default());
        let made = MakeGood { asked, state, by: by.to_owned(), began_at, worked_from, counts };
        let kept = Kept { id, version: 1, made };
        let reason = Some(kept.made.asked.reason.clone());
        match self.keep_make_good(tenant, &kept, by, reason).await {
            Ok(()) => self.work_on(tenant, kept).await,
            // Somebody asked for the same a moment before.
            Err(ServiceError::ChangedMeanwhile) => {
                let known = self.make_good_kept(tenant, &kept.id).await?;
                let known = known.ok_or(ServiceError::ChangedMeanwhile)?;
                self.same(tenant, known, &kept.made.asked).await
            }
            Err(error) => Err(error),
        }
    }

    async fn same(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        known: Kept,
        asked: &Asked,
    ) -> Result<Kept, ServiceError> {
        if known.made.asked != *asked {
            return Err(ServiceError::KeyReused);
        }
        if known.made.state.is_under_way() { self.work_on(tenant, known).await } else { Ok(known) }
    }

    /// Takes back what is left of what was given. What was used of it stays used.
    ///
    /// # Errors
    /// `NotFound`; `ChangedMeanwhile` while it is still being given.
    pub async fn undo_make_good(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        id: &Name,
        by: &str,
        reason: String,
    ) -> Result<Kept, ServiceError> {
        let known = self.make_good_kept(tenant, id).await?.ok_or(ServiceError::NotFound("make-good"))?;
        match known.made.state {
            State::Running => return Err(ServiceError::ChangedMeanwhile),
            State::Undone => return Ok(known),
            State::Undoing => return self.work_on(tenant, known).await,
            State::Done => {}
        }
        let worked_from = self.registry.wall().now();
        let made = MakeGood { state: State::Undoing, worked_from, ..known.made };
        let kept = Kept { version: known.version + 1, made, ..known };
        self.keep_make_good(tenant, &kept, by, Some(reason)).await?;
        self.work_on(tenant, kept).await
    }

    /// All make-goods of the tenant, by id.
    pub async fn make_goods(&self, tenant: &Tenant) -> Result<Vec<Kept>, ServiceError> {
        let records = self.ledger.records(Some(tenant.number)).await?;
        let kept = records.iter().filter(|record| record.kind == RecordKind::MakeGood).map(read);
        let mut kept: Vec<Kept> = kept.collect::<Result<_, _>>()?;
        kept.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(kept)
    }

    pub async fn make_good_kept(&self, tenant: &Tenant, id: &Name) -> Result<Option<Kept>, ServiceError> {
        let (number, kind) = (Some(tenant.number), RecordKind::MakeGood);
        let versions = self.ledger.versions(number, kind, id.as_str().to_owned()).await?;
        versions.first().map(read).transpose()
    }

    async fn keep_make_good(
        &self,
        tenant: &Tenant,
        kept: &Kept,
        by: &str,
        reason: Option<String>,
    ) -> Result<(), ServiceError> {
        let now = tenant.now();
        let record = Record {
            kind: RecordKind::MakeGood,
            id: kept.id.as_str().to_owned(),
            version: kept.version,
            body: Some(serde_json::json!(kept.made).to_string()),
            effective_at: now,
            written: Written { at: now, by: by.to_owned(), reason },
            revision: 0,
        };
        self.registry.put_make_good(tenant, record).await.map_err(|error| match error {
            LedgerError::Conflict => ServiceError::ChangedMeanwhile,
            error => error.into(),
        })
    }

    /// Works on those that were begun by whoever is not there any more.
    pub(in crate::service) async fn go_on_making_good(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
    ) -> Result<(), ServiceError> {
        let before = self.registry.wall().now().plus_ms(-ORPHANED_MS);
        for kept in self.make_goods(tenant).await? {
            if kept.made.state.is_under_way() && kept.made.worked_from < before {
                self.work_on(tenant, kept).await?;
            }
        }
        Ok(())
    }
}

fn read(record: &Record) -> Result<Kept, ServiceError> {
    let unreadable = |what: String| ServiceError::Corrupt(format!("a make-good: {what}"));
    let body = record.body.as_deref().unwrap_or_default();
    let made = serde_json::from_str(body).map_err(|error| unreadable(error.to_string()))?;
    let id = Name::parse(&record.id).map_err(|error| unreadable(error.to_string()))?;
    Ok(Kept { id, version: record.version, made })
}
