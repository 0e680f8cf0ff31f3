//! Who uses far more than they are used to.

use utoipa::ToSchema;

#[derive(ToSchema)]
pub struct MoverList {
    /// By `ratio`, the largest first; then users without a past, by what they used.
    pub data: Vec<MoverRow>,
    /// Always null: there is one page.
    pub next_cursor: Option<String>,
    /// When the last ten minutes began (five to ten minutes ago: time is cut at every
    /// fifth minute).
    #[schema(example = "2026-11-30T14:50:00.000Z")]
    pub since: String,
}

/// What a user used of late, and what they are used to.
#[derive(ToSchema)]
pub struct MoverRow {
    #[schema(example = "u_42")]
    pub user: String,
    /// The present plan; null where the user is not on record.
    #[schema(example = "pro")]
    pub plan: Option<String>,
    /// Of calls that were admitted since and have been settled.
    #[schema(example = 12)]
    pub requests: u64,
    #[schema(example = 48000)]
    pub total_tokens: u64,
    /// Total tokens of ten minutes on average over the seven days before, of the five
    /// minutes that had any; null: none had.
    #[schema(example = 4100)]
    pub baseline: Option<u64>,
    /// `total_tokens` over `baseline`.
    #[schema(example = 11.71)]
    pub ratio: Option<f64>,
}
