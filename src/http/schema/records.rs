//! What is on record: the audit, a user's ledger, comparisons, lengths of answers.

use utoipa::ToSchema;

/// A row of the audit. Rows only ever come.
#[derive(ToSchema)]
pub struct AuditRow {
    #[schema(format = DateTime)]
    pub at: String,
    /// The key or the command line that did it.
    pub by: String,
    /// Such as `user.put`, `user.plan`, `plan.put`, `pool.put`, `models.put`,
    /// `settings.put`, `key.create`, `key.delete`, `tenant.create`,
    /// `clock.set`.
    #[schema(example = "user.plan")]
    pub action: String,
    /// The id of what was changed.
    #[schema(example = "u_42")]
    pub target: String,
    /// As it was; null where there was nothing, or nothing to be shown.
    #[schema(value_type = Option<Object>)]
    pub before: Option<()>,
    /// As it is now.
    #[schema(value_type = Option<Object>)]
    pub after: Option<()>,
    pub reason: Option<String>,
}

#[derive(ToSchema)]
pub struct AuditList {
    pub data: Vec<AuditRow>,
    pub next_cursor: Option<String>,
}

/// Something that happened to a user.
#[derive(ToSchema)]
pub struct UserLedgerRow {
    #[schema(format = DateTime)]
    pub at: String,
    #[schema(pattern = "^(checked|settled|released|in_doubt|refused|changed)$")]
    pub kind: String,
    /// Of the first four kinds.
    pub hold: Option<String>,
    /// Of a refusal its code, of a release its reason, of a change the audit's
    /// action.
    pub code: Option<String>,
    /// `checked` and `in_doubt`: what was reserved. `settled`: what the limits
    /// took. A release gives everything back: null.
    #[schema(value_type = Option<crate::http::views::AmountsView>)]
    pub amounts: Option<()>,
    /// `caller`, `rule` (a limit, the end of a lease, `in_doubt_after`),
    /// `admin`, or the author of a change.
    pub by: String,
    /// Of a refusal: the limit that decided, if one did.
    #[schema(required = false)]
    pub limit: Option<String>,
}

/// Refusals of a local day.
#[derive(ToSchema)]
pub struct RefusalCountRow {
    #[schema(format = Date, example = "2026-11-30")]
    pub day: String,
    #[schema(example = "request_rate_exceeded")]
    pub code: String,
    pub count: u64,
}

#[derive(ToSchema)]
pub struct UserLedgerReply {
    /// Newest first. Of refusals the last 100 of the user stand here.
    pub data: Vec<UserLedgerRow>,
    pub next_cursor: Option<String>,
    /// All refusals of the span's last 31 days, newest day first.
    pub refusals: Vec<RefusalCountRow>,
}

/// The version of a plan that held, and who wrote it.
#[derive(ToSchema)]
pub struct HeldPlan {
    #[schema(example = "free")]
    pub id: String,
    pub version: u32,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub written_at: Option<()>,
    pub written_by: Option<String>,
    pub reason: Option<String>,
}

/// What a refused call asked.
#[derive(ToSchema)]
pub struct AskedCall {
    pub model: Option<String>,
    pub feature: Option<String>,
    #[schema(pattern = "^(interactive|bulk)$")]
    pub lane: String,
    pub input_tokens: u64,
    /// Null: as much as was allowed.
    pub max_output_tokens: Option<u64>,
    pub min_output_tokens: Option<u64>,
}

/// A refusal, with what explains it.
#[derive(ToSchema)]
pub struct RefusalRow {
    #[schema(format = DateTime)]
    pub at: String,
    #[schema(example = "monthly_quota_exhausted")]
    pub code: String,
    /// The limit that decided, if one did.
    pub limit: Option<String>,
    /// Null: the user had no plan, or it was not kept.
    pub plan: Option<HeldPlan>,
    /// Null: it was not kept.
    pub asked: Option<AskedCall>,
    /// The failing limits (at most 4) as they stood then; null: they were not kept.
    #[schema(value_type = Option<Vec<crate::http::problem::ViolationView>>)]
    pub violations: Option<()>,
    /// What was changed of the user, their plan and their org until then, newest
    /// first; at most 5 of each.
    pub changed_before: Vec<AuditRow>,
    /// The newest 5 changes of each since then, oldest first.
    pub changed_since: Vec<AuditRow>,
}

#[derive(ToSchema)]
pub struct RefusalList {
    pub data: Vec<RefusalRow>,
    /// Always null.
    pub next_cursor: Option<String>,
}

/// Checks of a local day that we decided one way and another limiter one way.
#[derive(ToSchema)]
pub struct DecisionRow {
    #[schema(format = Date, example = "2026-11-30")]
    pub day: String,
    /// `allow` or our code.
    #[schema(example = "allow")]
    pub ours: String,
    /// `allow`, the cause that was given with `their_decision`, or `other`
    /// where a day had more than 64 of them.
    #[schema(example = "daily_cap")]
    pub theirs: String,
    pub checks: u64,
}

#[derive(ToSchema)]
pub struct DecisionList {
    pub data: Vec<DecisionRow>,
    pub next_cursor: Option<String>,
}

/// What one feature's calls of a minute came to.
#[derive(ToSchema)]
pub struct FeatureRow {
    /// The minute's first instant.
    #[schema(format = DateTime, example = "2026-11-30T09:41:00.000Z")]
    pub at: String,
    /// Null: calls that named none.
    #[schema(example = "chat")]
    pub feature: Option<String>,
    /// Admitted in this minute and settled by now.
    pub requests: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub total_tokens: u64,
    /// In millionths.
    pub credits: u64,
    /// Refused in this minute.
    pub refusals: u64,
}

#[derive(ToSchema)]
pub struct FeatureList {
    /// Ascending by minute, then feature.
    pub data: Vec<FeatureRow>,
    pub next_cursor: Option<String>,
}

/// Users who have a device or an address in common, as their product told it.
#[derive(ToSchema)]
pub struct DuplicateRow {
    /// What they share.
    pub signal: String,
    /// Who used most comes first; at most 50.
    pub users: Vec<String>,
    /// How many they are in all.
    pub count: u64,
    /// What all of them used in the span.
    pub total_tokens: u64,
}

#[derive(ToSchema)]
pub struct DuplicateList {
    /// Ascending by what is shared.
    pub data: Vec<DuplicateRow>,
    pub next_cursor: Option<String>,
}

/// What a user, org, feature, model or plan used.
#[derive(ToSchema)]
pub struct ConsumerRow {
    /// From 1 on, also on later pages.
    pub rank: u32,
    /// With `group=user`; null: refusals that were not counted one by one.
    #[schema(required = false, example = "u_42")]
    pub user: Option<String>,
    /// With `group=org`; null: use without one.
    #[schema(required = false)]
    pub org: Option<String>,
    /// With `group=feature`; null: use without one.
    #[schema(required = false)]
    pub feature: Option<String>,
    /// With `group=model`; null: use without one.
    #[schema(required = false)]
    pub model: Option<String>,
    /// With `group=plan` the plan of the time of use; of users and orgs the
    /// present one, null where there is none on record.
    #[schema(required = false, example = "pro")]
    pub plan: Option<String>,
    #[serde(flatten)]
    pub sums: ConsumerSums,
    /// The part of all that was used, from 0 to 1.
    pub share: f64,
    /// The part of the longest calendar window of this meter in the present
    /// plan of a user or an org; null where it has none.
    pub quota_share: Option<f64>,
}

/// What was used, as counted by the limits.
#[derive(ToSchema)]
pub struct ConsumerSums {
    pub requests: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub total_tokens: u64,
    /// In millionths.
    pub credits: u64,
    pub refusals: u64,
}

#[derive(ToSchema)]
pub struct ConsumerList {
    /// Descending by `by`, equal ones by name.
    pub data: Vec<ConsumerRow>,
    pub next_cursor: Option<String>,
    /// The first day.
    #[schema(format = Date, example = "2026-11-01")]
    pub from: String,
    /// The day after the last one.
    #[schema(format = Date, example = "2026-12-01")]
    pub to: String,
    #[schema(pattern = "^(user|org|feature|model|plan)$")]
    pub group: String,
    #[schema(pattern = "^(total_tokens|input_tokens|output_tokens|requests|credits|refusals)$")]
    pub by: String,
    /// How many rows there are in all.
    pub count: u64,
    /// Of all rows.
    pub total: ConsumerSums,
}

/// How long answers were. Quantiles are rounded up by 6.25 % at most.
#[derive(ToSchema)]
pub struct OutputFigures {
    /// Calls that were settled.
    #[schema(example = 19366)]
    pub count: u64,
    /// Of these, what reached its reservation and may have been cut off there.
    #[schema(example = 44)]
    pub cut: u64,
    #[schema(example = 131)]
    pub p50: u64,
    #[schema(example = 431)]
    pub p90: u64,
    #[schema(example = 607)]
    pub p99: u64,
    /// The longest answer.
    #[schema(example = 1000)]
    pub max: u64,
    /// Rounded down.
    #[schema(example = 211)]
    pub mean: u64,
    pub reserved_tokens: u64,
    pub used_tokens: u64,
    /// p99 and a quarter of it: what is enough for nearly all calls. Null while
    /// fewer than 200 calls are known.
    #[schema(example = 759)]
    pub suggested_max_output_tokens: Option<u64>,
}

/// Calls of one feature by one model.
#[derive(ToSchema)]
pub struct OutputRow {
    /// Null: the calls named none. `*`: of those that are not counted one by one.
    #[schema(example = "chat")]
    pub feature: Option<String>,
    /// That served, aliases resolved. The same.
    #[schema(example = "sonnet")]
    pub model: Option<String>,
    #[serde(flatten)]
    pub figures: OutputFigures,
}

/// Calls of one feature by all models.
#[derive(ToSchema)]
pub struct OutputFeature {
    #[schema(example = "chat")]
    pub feature: Option<String>,
    #[serde(flatten)]
    pub figures: OutputFigures,
}

#[derive(ToSchema)]
pub struct OutputList {
    /// By feature, then by model.
    pub data: Vec<OutputRow>,
    pub next_cursor: Option<String>,
    /// Every feature, whatever the page.
    pub features: Vec<OutputFeature>,
}
