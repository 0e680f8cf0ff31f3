//! What a user's own calls took, by feature or model, and which run now: read off the
//! holds themselves, so that it comes to what the limits counted.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::domain::hold::{Amounts, Hold, Stage};
use crate::domain::ids::{Label, Name, UserId};
use crate::domain::plan::{Scope, Visibility};
use crate::domain::time::Millis;
use crate::ledger::{DoubtFilter, DoubtKey, DoubtQuery, Edge, HistoryQuery};
use crate::service::telling::consumers::ratio;
use crate::service::{Service, ServiceError, Tenant};

/// Finished calls that one answer looks at: about 50 ms of work.
const CALLS_MAX: usize = 10_000;
/// Read at once.
const PORTION: u32 = 1_000;
/// Running calls that are told one by one.
const RUNNING_MAX: u32 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsedBy {
    Feature,
    Model,
}

/// What a user's calls of a span took.
#[derive(Debug)]
pub struct OwnUse {
    /// The most first.
    pub rows: Vec<UsedRow>,
    pub total: Amounts,
    /// `false`: there were more calls than one answer looks at, and the oldest are not in it.
    pub complete: bool,
    /// The plan shows its users amounts; else they are for reckoning shares only.
    pub exact: bool,
    /// Begun and not finished, those first whose lease ends first.
    pub running: Vec<Hold>,
}

/// What the calls of one feature or model took; without a name: of those that named none.
#[derive(Debug)]
pub struct UsedRow {
    pub name: Option<Arc<str>>,
    pub amounts: Amounts,
    /// Of the total tokens; of the requests where there were no tokens.
    pub share: f64,
}

impl OwnUse {
    /// What one call took on average, rounded up.
    pub fn usual(&self) -> Option<Amounts> {
        let calls = self.total.requests;
        (calls > 0).then(|| Amounts {
            requests: 1,
            input_tokens: self.total.input_tokens.div_ceil(calls),
            output_tokens: self.total.output_tokens.div_ceil(calls),
            total_tokens: self.total.total_tokens.div_ceil(calls),
            credits: self.total.credits.div_ceil(calls),
        })
    }
}

impl Service {
    /// What the calls took that `user` made within `instants` and that are settled.
    ///
    /// # Errors
    /// As [`quota`](Self::quota).
    pub async fn own_use(
        &self,
        tenant: &Tenant,
        user: &UserId,
        by: UsedBy,
        instants: Range<Millis>,
    ) -> Result<OwnUse, ServiceError> {
        let quota = self.quota(tenant, user.clone()).await?;
        let own = |scope| matches!(scope, Scope::User | Scope::Org);
        let exact =
            quota.limits.iter().all(|(row, _)| !own(row.scope) || row.visibility == Visibility::Exact);
        let mut sums: HashMap<Option<Arc<str>>, Amounts> = HashMap::new();
        let mut total = Amounts::default();
        let mut looked_at = 0;
        // What was made since then has ended since then, or runs.
        let mut place = Edge { at: Millis::MAX, id: 0 };
        let complete = loop {
            let query = ended(user, instants.start, place);
            let calls = self.ledger.history(tenant.number, query).await?.ended;
            let last = calls.last().and_then(|hold| Some(Edge { at: hold.finished_at()?, id: hold.id.0 }));
            for hold in &calls {
                let Stage::Settled(settled) = &hold.stage else { continue };
                if !instants.contains(&hold.created_at) {
                    continue;
                }
                let name = match by {
                    UsedBy::Feature => hold.feature.as_ref().map(Label::shared),
                    UsedBy::Model => settled.reported.model.as_ref().map(Name::shared),
                };
                add(sums.entry(name).or_default(), &settled.counted);
                add(&mut total, &settled.counted);
            }
            looked_at += calls.len();
            match last {
                Some(last) if calls.len() >= PORTION as usize => place = last,
                _ => break true,
            }
            if looked_at >= CALLS_MAX {
                break false;
            }
        };
        let running = self.running(tenant, user).await?;
        Ok(OwnUse { rows: ranked(sums, &total), total, complete, exact, running })
    }

    async fn running(&self, tenant: &Tenant, user: &UserId) -> Result<Vec<Hold>, ServiceError> {
        let now = tenant.now();
        let filter = DoubtFilter { user: Some(user.clone()), ..DoubtFilter::default() };
        // What will be in doubt some day, and is not yet.
        let query =
            DoubtQuery { now: Millis::MAX, filter, after: Some(DoubtKey::end_of(now)), limit: RUNNING_MAX };
        Ok(self.ledger.doubts(tenant.number, query).await?.holds)
    }
}

fn ranked(sums: HashMap<Option<Arc<str>>, Amounts>, total: &Amounts) -> Vec<UsedRow> {
    let share = |used: &Amounts| match total.total_tokens {
        0 => ratio(used.requests, total.requests),
        tokens => ratio(used.total_tokens, tokens),
    };
    let mut rows: Vec<UsedRow> = sums
        .into_iter()
        .map(|(name, amounts)| UsedRow { share: share(&amounts).unwrap_or(0.0), name, amounts })
        .collect();
    let size = |row: &UsedRow| Reverse((row.amounts.total_tokens, row.amounts.requests));
    rows.sort_by(|a, b| size(a).cmp(&size(b)).then_with(|| a.name.cmp(&b.name)));
    rows
}

fn ended(user: &UserId, from: Millis, place: Edge) -> HistoryQuery {
    let nothing = Edge { at: from, id: 0 };
    HistoryQuery {
        user: user.clone(),
        from,
        now: from,
        made: nothing,
        ended: place,
        doubtful: nothing,
        changed: nothing,
        limit: PORTION,
    }
}

fn add(sum: &mut Amounts, used: &Amounts) {
    let both = |a: u64, b: u64| a.saturating_add(b);
    *sum = Amounts {
        requests: both(sum.requests, used.requests),
        input_tokens: both(sum.input_tokens, used.input_tokens),
        output_tokens: both(sum.output_tokens, used.output_tokens),
        total_tokens: both(sum.total_tokens, used.total_tokens),
        credits: both(sum.credits, used.credits),
    };
}
