//! Making good to many users at once.

use utoipa::ToSchema;

/// Who was refused on some days.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RefusedChoice {
    /// A date in the tenant's zone.
    #[schema(format = Date, example = "2026-11-30")]
    pub from: String,
    /// The same, not included.
    #[schema(format = Date, example = "2026-12-01")]
    pub to: String,
    /// By this code; by default by any.
    #[schema(example = "monthly_quota_exhausted")]
    pub code: Option<String>,
}

/// Users to whom all of it applies; `{}`: everybody on record.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserChoice {
    #[schema(example = "free")]
    pub plan: Option<String>,
    pub org: Option<String>,
    #[schema(max_items = 1000)]
    pub ids: Option<Vec<String>>,
    pub refused: Option<RefusedChoice>,
}

/// An extra amount on a window limit.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantChoice {
    #[schema(example = "tokens_per_month")]
    pub limit: String,
    #[schema(example = 50000, minimum = 1)]
    pub amount: u64,
    /// By default it lasts until it is used.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

/// What the running window of a limit has used is given back, until it ends.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetChoice {
    #[schema(example = "requests_per_day")]
    pub limit: String,
}

/// `grant` or `reset`, one of the two.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeGoodRequest {
    pub users: UserChoice,
    pub grant: Option<GrantChoice>,
    pub reset: Option<ResetChoice>,
    /// Tells what it would come to and gives nothing.
    #[schema(default = false)]
    pub dry_run: Option<bool>,
    #[schema(example = "the outage of Monday")]
    pub reason: String,
}

/// Users as they were chosen, those named one by one as their number.
#[derive(ToSchema)]
pub struct ChosenUsers {
    pub plan: Option<String>,
    pub org: Option<String>,
    pub ids: Option<u64>,
    pub refused: Option<RefusedChoice>,
}

/// A make-good and how far it is.
#[derive(ToSchema)]
pub struct MakeGoodReply {
    #[schema(example = "outage-2026-11-30")]
    pub id: String,
    /// `dry_run`, `running`, `done`, `undoing` or `undone`. The counts are those of the
    /// last end.
    #[schema(pattern = "^(dry_run|running|done|undoing|undone)$")]
    pub state: String,
    pub users: ChosenUsers,
    pub grant: Option<GrantChoice>,
    pub reset: Option<ResetChoice>,
    pub reason: String,
    /// Users who were meant.
    pub matched: u64,
    pub given: u64,
    /// Those without such a limit, without use to be given back, or with too many grants.
    pub skipped: u64,
    /// All that was given, in the limit's units.
    pub amount: u64,
    /// From how many it was taken back.
    pub undone: u64,
    /// Not on a dry run.
    pub by: Option<String>,
    #[schema(format = DateTime)]
    pub began_at: Option<String>,
}

#[derive(ToSchema)]
pub struct MakeGoodList {
    pub data: Vec<MakeGoodReply>,
    pub next_cursor: Option<String>,
}

/// Why.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReasonRequest {
    #[schema(example = "given by mistake")]
    pub reason: String,
}
