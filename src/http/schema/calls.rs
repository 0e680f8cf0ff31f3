//! Bodies of checks, holds and usage.

use std::collections::HashMap;

use utoipa::ToSchema;

/// The body of a check. Only `user` is required.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// The end user, 1-256 bytes, compared byte for byte.
    #[schema(example = "u_42", min_length = 1, max_length = 256)]
    pub user: String,
    /// Names one logical call: a repetition gives the same hold again.
    #[schema(example = "7f13", min_length = 1, max_length = 256)]
    pub request_id: Option<String>,
    #[schema(example = "sonnet", pattern = "^[A-Za-z0-9._:/-]{1,128}$")]
    pub model: Option<String>,
    /// In place of `model`: models in the caller's order of choice, none twice.
    /// The first that the limits and its pool allow serves; a whole grant of any
    /// comes before a smaller one.
    #[schema(min_items = 1, max_items = 8)]
    pub models: Option<Vec<String>>,
    #[schema(example = "chat", pattern = "^[a-z0-9_]{1,64}$")]
    pub feature: Option<String>,
    /// `interactive` (default) or `bulk`, which leaves a share of a pool.
    #[schema(value_type = Option<Priority>)]
    pub priority: Option<Priority>,
    #[schema(example = 1200, maximum = 9_007_199_254_740_991_i64, default = 0)]
    pub input_tokens: Option<u64>,
    /// Missing under an output cap: the cap is reserved. `auto`: as much as calls
    /// of this feature and model are likely to take at most.
    #[schema(value_type = Option<MaxOutputTokens>, example = 512)]
    pub max_output_tokens: Option<MaxOutputTokens>,
    /// The smallest output that is of use: what fits is granted.
    #[schema(example = 64, maximum = 9_007_199_254_740_991_i64)]
    pub min_output_tokens: Option<u64>,
    #[schema(example = 120, minimum = 1, maximum = 3600)]
    pub lease_seconds: Option<u32>,
    /// How long it may wait for room in the pool, or for a slot, before it is
    /// refused. It holds nothing meanwhile; whoever hangs up waits no more.
    #[schema(example = 0, maximum = 60_000, default = 0)]
    pub wait_ms: Option<u32>,
    /// Decides and takes nothing.
    #[schema(example = false, default = false)]
    pub dry_run: Option<bool>,
    /// What the call takes of the tenant's own meters.
    #[schema(example = json!({"images": 2}))]
    pub amounts: Option<HashMap<String, u64>>,
    /// What another limiter decided of this call: `allow`, or why it refused.
    /// Counted beside the decision made here; it changes nothing.
    #[schema(example = "allow", pattern = "^[a-z0-9_]{1,64}$")]
    pub their_decision: Option<String>,
}

/// Most output tokens: an amount, or `auto`.
#[derive(ToSchema)]
#[serde(untagged)]
pub enum MaxOutputTokens {
    Tokens(u64),
    Auto(AutoOutput),
}

#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum AutoOutput {
    Auto,
}

/// Who waits for the answer.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum Priority {
    Interactive,
    Bulk,
}

#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckBatchRequest {
    #[schema(min_items = 1, max_items = 100)]
    pub checks: Vec<CheckRequest>,
}

/// What was used, or `{"usage":"unknown"}`.
#[derive(ToSchema)]
pub struct SettleRequest {
    /// Required, unless the usage is unknown. Includes cache reads and writes.
    #[schema(example = 1180, maximum = 9_007_199_254_740_991_i64)]
    pub input_tokens: Option<u64>,
    /// Required, unless the usage is unknown.
    #[schema(example = 380, maximum = 9_007_199_254_740_991_i64)]
    pub output_tokens: Option<u64>,
    /// Part of the input; with `cache_write_tokens` at most all of it.
    #[schema(example = 0, default = 0)]
    pub cache_read_tokens: Option<u64>,
    #[schema(example = 0, default = 0)]
    pub cache_write_tokens: Option<u64>,
    /// What really served.
    #[schema(example = "sonnet")]
    pub model: Option<String>,
    #[schema(example = "completed", max_length = 64)]
    pub outcome: Option<String>,
    pub upstream: Option<UpstreamRequest>,
    /// Corrects what the check took of the tenant's own meters.
    pub amounts: Option<HashMap<String, u64>>,
    /// `unknown`: the hold is in doubt from now on. With `usage_format`: the
    /// vendor's own report, in place of the figures.
    pub usage: Option<SettleUsageBody>,
    pub usage_format: Option<UsageFormat>,
}

/// What nobody knows, or what the vendor says.
#[derive(ToSchema)]
#[serde(untagged)]
pub enum SettleUsageBody {
    Unknown(UnknownUsage),
    /// As the vendor reported it; what is of no interest may be there.
    #[schema(value_type = Object, example = json!({"prompt_tokens": 1180, "completion_tokens": 380, "total_tokens": 1560}))]
    Verbatim(()),
}

#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub enum UnknownUsage {
    Unknown,
}

/// Whose report of usage it is. OpenAI: of chat completions, responses or
/// realtime.
#[derive(ToSchema)]
pub enum UsageFormat {
    #[schema(rename = "openai")]
    OpenAi,
    #[schema(rename = "anthropic")]
    Anthropic,
    #[schema(rename = "gemini")]
    Gemini,
}

/// The vendor's side of the call, kept for support.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamRequest {
    #[schema(max_length = 256)]
    pub request_id: Option<String>,
    #[schema(example = 200, minimum = 100, maximum = 599)]
    pub status: Option<u16>,
    #[schema(example = 2100)]
    pub latency_ms: Option<u64>,
}

#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleBatchRequest {
    #[schema(min_items = 1, max_items = 100)]
    pub settles: Vec<SettleItem>,
}

/// A settle with the hold it is for.
#[derive(ToSchema)]
pub struct SettleItem {
    pub id: String,
    #[schema(inline)]
    #[serde(flatten)]
    pub settle: SettleRequest,
}

#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// `not_sent` (default) or `upstream_refused`.
    #[schema(pattern = "^(not_sent|upstream_refused)$")]
    pub reason: Option<String>,
}

#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// Default: the lease last asked for.
    #[schema(example = 120, minimum = 1, maximum = 3600)]
    pub lease_seconds: Option<u32>,
    /// Reserves more, under the rules of a check.
    #[schema(example = 512, default = 0)]
    pub add_output_tokens: Option<u64>,
    /// Progress; it never goes down.
    #[schema(example = 250)]
    pub output_tokens_so_far: Option<u64>,
}

/// One use, or many.
#[derive(ToSchema)]
#[serde(untagged)]
pub enum UsageBody {
    One(Box<UsageRequest>),
    Many(UsageItems),
}

#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageItems {
    #[schema(min_items = 1, max_items = 100)]
    pub items: Vec<UsageRequest>,
}

/// Use without a hold.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageRequest {
    /// Makes a repetition harmless: the first body of an id wins.
    #[schema(example = "import-000017", min_length = 1, max_length = 256)]
    pub id: String,
    #[schema(example = "u_42", min_length = 1, max_length = 256)]
    pub user: String,
    #[schema(example = "sonnet")]
    pub model: Option<String>,
    #[schema(example = "voice")]
    pub feature: Option<String>,
    /// Required, unless `usage` has the figures.
    #[schema(example = 1180)]
    pub input_tokens: Option<u64>,
    /// Required, unless `usage` has the figures.
    #[schema(example = 380)]
    pub output_tokens: Option<u64>,
    #[schema(default = 0)]
    pub cache_read_tokens: Option<u64>,
    #[schema(default = 0)]
    pub cache_write_tokens: Option<u64>,
    /// When it was used: at most 31 days ago. Default: now.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub at: Option<String>,
    #[schema(max_length = 64)]
    pub outcome: Option<String>,
    pub upstream: Option<UpstreamRequest>,
    pub amounts: Option<HashMap<String, u64>>,
    /// The vendor's own report, in place of the figures.
    #[schema(value_type = Option<Object>)]
    pub usage: Option<()>,
    pub usage_format: Option<UsageFormat>,
}

/// One result per item, in order.
#[derive(ToSchema)]
pub struct BatchReply {
    pub results: Vec<BatchResult>,
}

/// An item's own answer, as it would have come alone.
#[derive(ToSchema)]
pub struct BatchResult {
    #[schema(example = 200)]
    pub status: u16,
    /// Headers of the item's answer.
    pub headers: HashMap<String, String>,
    #[schema(value_type = Object)]
    pub body: (),
}
