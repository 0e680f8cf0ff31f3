//! Plans, pools, models and settings.

use utoipa::ToSchema;

use super::PlanWarning;
use crate::http::quota::QuotaRowView;

/// A plan sheet.
#[derive(ToSchema)]
pub struct Sheet {
    /// As in the path, if at all.
    #[schema(example = "free", pattern = "^[A-Za-z0-9._:/-]{1,128}$")]
    pub id: Option<String>,
    #[schema(example = "Free")]
    pub name: Option<String>,
    /// Refuses users who are not marked as verified.
    #[schema(default = false)]
    pub requires_verified: Option<bool>,
    /// How much of a cache-read token counts toward input and total.
    #[schema(default = 1.0, minimum = 0, maximum = 1)]
    pub cache_read_weight: Option<f64>,
    pub per_call: Option<PerCallCaps>,
    #[schema(max_items = 32)]
    pub limits: Option<Vec<SheetLimit>>,
    /// What is advised as limits are used up.
    #[schema(max_items = 32)]
    pub degrade: Option<Vec<SheetDegrade>>,
}

/// Advice that `warnings` of a check carry once so much of a limit is used:
/// another model, a smaller output, or both.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SheetDegrade {
    /// Of this sheet.
    #[schema(example = "tokens_per_month")]
    pub limit: String,
    /// The share of the limit from which on it is told.
    #[schema(example = 0.8, exclusive_minimum = 0, maximum = 1)]
    pub at: f64,
    #[schema(example = "haiku")]
    pub model: Option<String>,
    #[schema(example = 256)]
    pub max_output_tokens: Option<u64>,
}

/// Caps of one call, in tokens; left out or `null` is none.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PerCallCaps {
    #[schema(example = 4000)]
    pub max_input_tokens: Option<u64>,
    #[schema(example = 512)]
    pub max_output_tokens: Option<u64>,
}

/// One named rule. Which fields there are depends on `kind`.
#[derive(ToSchema)]
pub struct SheetLimit {
    #[schema(example = "requests_per_minute", pattern = "^[a-z0-9_]{1,64}$")]
    pub name: String,
    #[schema(example = "bucket", pattern = "^(bucket|window|slots)$")]
    pub kind: String,
    /// `requests`, `input_tokens`, `output_tokens`, `total_tokens`, `credits`,
    /// or a name of your own that `amounts` feeds. Not for slots.
    #[schema(example = "requests")]
    pub meter: Option<String>,
    #[schema(default = "user", pattern = "^(user|org|tenant)$")]
    pub scope: Option<String>,
    #[schema(default = "hard", pattern = "^(hard|soft|shadow)$")]
    pub enforce: Option<String>,
    /// Globs: only calls of these models count.
    pub models: Option<Vec<String>>,
    /// Globs: only calls of these features count.
    pub features: Option<Vec<String>>,
    /// Buckets: what there is at most.
    #[schema(example = 3)]
    pub capacity: Option<u64>,
    /// Buckets: what comes back in a minute.
    #[schema(example = 3)]
    pub refill_per_minute: Option<u64>,
    /// Windows and slots. `null` is the limit left out.
    pub limit: Option<u64>,
    /// Windows: `day`, `week`, `month`, `lifetime`, or an object with one of
    /// `hours`, `days`, `session_hours`.
    pub period: Option<serde_json::Value>,
    /// Of a monthly window: `calendar` (default) or the user's `anchor_day`.
    #[schema(pattern = "^(calendar|user)$")]
    pub anchor: Option<String>,
    /// IANA name; default: the user's, else the tenant's.
    pub zone: Option<String>,
    /// Windows: shares at which a warning is given.
    #[schema(example = json!([0.8, 0.95]))]
    pub warn_at: Option<Vec<f64>>,
    /// What users see of it in `me/quota`: amounts, whole percents, or nothing.
    #[schema(default = "exact", pattern = "^(exact|percent|hidden)$")]
    pub visibility: Option<String>,
}

/// A sheet, and how it comes into force.
#[derive(ToSchema)]
pub struct PlanPutRequest {
    #[serde(flatten)]
    pub sheet: Sheet,
    /// `now`, `next_window` (when the running month of each user ends) or a
    /// time. By default an upgrade acts now, a downgrade in the next window.
    pub applies: Option<String>,
    /// `everyone`, or `new_users`: those who come on record later.
    #[schema(pattern = "^(everyone|new_users)$", default = "everyone")]
    pub to: Option<String>,
    /// Shows what would be written and writes nothing.
    #[schema(default = false)]
    pub dry_run: Option<bool>,
    /// Required, except on a dry run.
    pub reason: Option<String>,
}

/// A sheet in force.
#[derive(ToSchema)]
pub struct PlanReply {
    #[serde(flatten)]
    pub sheet: Sheet,
    pub version: u32,
    pub applies: String,
    pub to: String,
    /// Of a version that waits for each user's month to end: when the tenant's
    /// does.
    #[schema(format = DateTime)]
    pub effective_at: String,
    /// After a PUT only.
    pub warnings: Option<Vec<PlanWarning>>,
}

#[derive(ToSchema)]
pub struct PlanList {
    pub data: Vec<PlanReply>,
    pub next_cursor: Option<String>,
}

/// The sheet of an earlier version is to hold again.
#[derive(ToSchema)]
pub struct PlanRestoreRequest {
    /// As of a new version.
    pub applies: Option<String>,
    #[schema(pattern = "^(everyone|new_users)$", default = "everyone")]
    pub to: Option<String>,
    /// Shows what would be written and writes nothing.
    #[schema(default = false)]
    pub dry_run: Option<bool>,
    /// Required, except on a dry run.
    pub reason: Option<String>,
}

/// A field that differs from the version before.
#[derive(ToSchema)]
pub struct PlanChange {
    /// A JSON pointer into the sheet, in which limits stand by their names.
    #[schema(example = "/limits/tokens_per_month/limit")]
    pub path: String,
    /// Null: it was not there.
    #[schema(value_type = Option<Value>)]
    pub before: Option<()>,
    #[schema(value_type = Option<Value>)]
    pub after: Option<()>,
}

#[derive(ToSchema)]
pub struct PlanVersionRow {
    #[serde(flatten)]
    pub plan: PlanReply,
    #[schema(format = DateTime)]
    pub written_at: String,
    pub written_by: String,
    pub reason: Option<String>,
    /// What differs from the version before; of the first one nothing.
    pub changes: Vec<PlanChange>,
}

#[derive(ToSchema)]
pub struct PlanVersions {
    /// Newest first.
    pub data: Vec<PlanVersionRow>,
    pub next_cursor: Option<String>,
}

/// Shared upstream capacity.
#[derive(ToSchema)]
pub struct PoolDocument {
    #[schema(example = "default")]
    pub id: Option<String>,
    /// Globs.
    #[schema(example = json!(["*"]))]
    pub models: Option<Vec<String>>,
    /// `false`: for planning only.
    #[schema(default = true)]
    pub enforced: Option<bool>,
    /// The share of the vendor's figures that is used.
    #[schema(default = 1.0, minimum = 0, maximum = 1)]
    pub margin: Option<f64>,
    #[schema(default = "reserved", pattern = "^(reserved|actual)$")]
    pub counts: Option<String>,
    /// What bulk calls must leave.
    #[schema(default = 0.0, minimum = 0, maximum = 1)]
    pub interactive_share: Option<f64>,
    pub max_queue: Option<u64>,
    pub ramp: Option<RampDocument>,
    #[schema(max_items = 32)]
    pub limits: Option<Vec<PoolLimitDocument>>,
}

/// How fast a pool's traffic may grow: no minute has more than `growth` above the
/// busiest one that is `minutes` to twice that ago, or more than `floor`.
#[derive(ToSchema)]
pub struct RampDocument {
    #[schema(default = "input_tokens")]
    pub meter: Option<String>,
    #[schema(example = 1_000_000, minimum = 1)]
    pub floor: u64,
    #[schema(default = 0.5, maximum = 1)]
    pub growth: Option<f64>,
    #[schema(default = 15, minimum = 1, maximum = 60)]
    pub minutes: Option<u32>,
}

/// A pool's limit: the vendor's figure, or ours outright.
#[derive(ToSchema)]
pub struct PoolLimitDocument {
    #[schema(example = "output_tokens_per_minute")]
    pub name: String,
    #[schema(example = "bucket", pattern = "^(bucket|rolling|window|slots)$")]
    pub kind: String,
    #[schema(example = "output_tokens")]
    pub meter: Option<String>,
    /// Per `window_seconds`.
    #[schema(example = 100_000)]
    pub vendor_limit: Option<u64>,
    #[schema(example = 60)]
    pub window_seconds: Option<u32>,
    /// How long a call may be on its way to the vendor.
    #[schema(default = 0, maximum = 60_000)]
    pub guard_ms: Option<u32>,
    #[schema(example = 0.2)]
    pub burst_share: Option<f64>,
    pub capacity: Option<u64>,
    pub refill_per_minute: Option<u64>,
    pub limit: Option<u64>,
    /// Windows, as in a sheet: `day`, `week`, `month`, `lifetime`, or an object with one
    /// of `hours`, `days`, `session_hours`.
    pub period: Option<serde_json::Value>,
    /// Windows: an IANA name; default: the tenant's.
    pub zone: Option<String>,
    #[schema(default = "hard", pattern = "^(hard|soft|shadow)$")]
    pub enforce: Option<String>,
    /// Globs: only calls of these models count.
    pub models: Option<Vec<String>>,
    /// Globs: only calls of these features count.
    pub features: Option<Vec<String>>,
}

#[derive(ToSchema)]
pub struct PoolPutRequest {
    #[serde(flatten)]
    pub pool: PoolDocument,
    pub reason: Option<String>,
}

#[derive(ToSchema)]
pub struct PoolReply {
    #[serde(flatten)]
    pub pool: PoolDocument,
    pub version: u32,
    #[schema(format = DateTime)]
    pub effective_at: String,
    pub condition: PoolConditionDocument,
    /// What held its callers back of late, the latest first.
    pub pauses: Vec<PoolPauseDocument>,
    /// Where each of its limits stands at this moment, in the sheet's order, with the rate in
    /// force, and after them its `ramp`. `null`: it is for planning only, or the store is away.
    pub load: Option<Vec<QuotaRowView<'static>>>,
}

/// A while in which callers of a pool waited.
#[derive(ToSchema)]
pub struct PoolPauseDocument {
    /// `pause` (the vendor said how long), `closure` (its spend limit was reached) or `brake`
    /// (bulk calls made room for interactive ones).
    #[schema(pattern = "^(pause|closure|brake)$")]
    pub kind: String,
    #[schema(format = DateTime)]
    pub from: String,
    /// May be to come.
    #[schema(format = DateTime)]
    pub until: String,
    /// Those less than a minute apart are one.
    #[schema(example = 1)]
    pub times: u32,
}

#[derive(ToSchema)]
pub struct PoolList {
    pub data: Vec<PoolReply>,
    pub next_cursor: Option<String>,
}

/// A model: names and prices in micro-credits per million tokens.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelDocument {
    #[schema(example = "sonnet")]
    pub id: String,
    pub aliases: Option<Vec<String>>,
    #[schema(maximum = 1_000_000_000_000_i64, default = 0)]
    pub input: Option<u64>,
    #[schema(maximum = 1_000_000_000_000_i64, default = 0)]
    pub output: Option<u64>,
    #[schema(maximum = 1_000_000_000_000_i64)]
    pub cache_read: Option<u64>,
    /// Default: `input`.
    #[schema(maximum = 1_000_000_000_000_i64)]
    pub cache_write: Option<u64>,
    #[schema(minimum = 1, maximum = 3600)]
    pub lease_seconds: Option<u32>,
}

#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelsPutRequest {
    pub models: Vec<ModelDocument>,
    pub reason: Option<String>,
}

#[derive(ToSchema)]
pub struct ModelsReply {
    pub models: Vec<ModelDocument>,
    pub version: u32,
}

/// What a product may set.
#[derive(ToSchema)]
pub struct SettingsDocument {
    #[schema(example = "UTC")]
    pub zone: Option<String>,
    /// `null`: users who are not on record are refused.
    #[schema(example = "free")]
    pub default_plan: Option<String>,
    pub default_pool_only: Option<bool>,
    #[schema(example = 3600)]
    pub max_hold_seconds: Option<u32>,
    #[schema(example = 10_000_000, maximum = 1_000_000_000)]
    pub max_tokens_per_call: Option<u64>,
    pub in_doubt_after: Option<InDoubtAfterDocument>,
    /// 429, 402 or 403.
    #[schema(example = 429)]
    pub denial_status: Option<u16>,
    #[schema(example = 60)]
    pub max_auto_retry_seconds: Option<u32>,
    #[schema(pattern = "^(openai|anthropic)$")]
    pub shape: Option<String>,
    #[schema(pattern = "^(closed|bounded)$")]
    pub on_outage: Option<String>,
    #[schema(example = 3)]
    pub outage_share: Option<u32>,
    #[schema(pattern = "^(enforce|shadow)$")]
    pub enforcement: Option<String>,
    #[schema(maximum = 100)]
    pub shadow_percent: Option<u8>,
    pub cors_origins: Option<Vec<String>>,
    pub allow_private_targets: Option<bool>,
    pub requests_per_second: Option<u32>,
}

/// When and how amounts in doubt are resolved by rule.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InDoubtAfterDocument {
    #[schema(example = 72)]
    pub hours: u32,
    #[schema(example = "charge", pattern = "^(charge|release|progress)$")]
    pub then: String,
}

/// Settings that are not named stay.
#[derive(ToSchema)]
pub struct SettingsPutRequest {
    #[serde(flatten)]
    pub settings: SettingsDocument,
    pub reason: Option<String>,
}

#[derive(ToSchema)]
pub struct SettingsReply {
    #[serde(flatten)]
    pub settings: SettingsDocument,
    pub version: u32,
}

/// What holds a pool's callers back now.
#[derive(ToSchema)]
pub struct PoolConditionDocument {
    /// `open`, `paused` (the vendor said how long) or `closed` (its spend limit
    /// is reached: an admin opens it, or the month turns).
    #[schema(pattern = "^(open|paused|closed)$")]
    pub state: String,
    #[schema(format = DateTime)]
    pub paused_until: Option<String>,
    /// Bulk calls make room for interactive ones until then.
    #[schema(format = DateTime)]
    pub bulk_paused_until: Option<String>,
    #[schema(format = DateTime)]
    pub closed_since: Option<String>,
    #[schema(format = DateTime)]
    pub closed_until: Option<String>,
    pub closed_because: Option<String>,
    /// The share of its buckets' figures that is in force: below 1 after repeated 429s.
    #[schema(example = 1.0)]
    pub rate: f64,
    /// What its `ramp` allows in the minute that ends now; `null` without one.
    pub ramp: Option<u64>,
}

/// What the vendor answered to a call of the pool.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FeedbackRequest {
    /// The vendor's status.
    #[schema(example = 200, minimum = 100, maximum = 599)]
    pub status: u16,
    /// The vendor's headers as they came; values are texts, numbers or lists of texts.
    /// Those of no interest may be among them, or left out.
    #[schema(value_type = Option<Object>)]
    pub headers: Option<serde_json::Value>,
    /// The body of a refusal, parsed or as text. It tells a rate limit from a spend
    /// limit where the headers do not.
    pub body: Option<serde_json::Value>,
    #[schema(example = 2100)]
    pub latency_ms: Option<u64>,
    /// The lane of the call, as in its check.
    #[schema(default = "interactive", pattern = "^(interactive|bulk)$")]
    pub priority: Option<String>,
}

#[derive(ToSchema)]
pub struct FeedbackReplyBody {
    pub pool: String,
    /// `nothing`, `wait` (everybody does) or `spent` (the pool is closed).
    #[schema(pattern = "^(nothing|wait|spent)$")]
    pub meaning: String,
    pub because: Option<String>,
    /// Limits of which the vendor has far less left than was counted here.
    pub corrected: Vec<CorrectedDocument>,
    pub condition: PoolConditionDocument,
}

#[derive(ToSchema)]
pub struct CorrectedDocument {
    pub limit: String,
    pub left: u64,
}

/// Why calls go through again.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolOpenRequest {
    #[schema(example = "the vendor raised our limit")]
    pub reason: String,
}
