//! Holds in doubt.

use utoipa::ToSchema;

#[derive(ToSchema)]
pub struct DoubtList {
    #[schema(value_type = Vec<crate::http::views::HoldView>)]
    pub data: (),
    pub next_cursor: Option<String>,
}

/// How a hold in doubt ends: `charge` takes what was reserved, `release` gives
/// everything back, `settle` takes the figures beside it.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    #[schema(example = "settle", pattern = "^(charge|release|settle)$")]
    pub action: String,
    #[schema(example = 1180)]
    pub input_tokens: Option<u64>,
    #[schema(example = 380)]
    pub output_tokens: Option<u64>,
    /// Part of `input_tokens`.
    pub cache_read_tokens: Option<u64>,
    #[schema(example = "the vendor's bill shows it")]
    pub reason: String,
}

/// How the holds in doubt end that the filter names.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveAllRequest {
    #[schema(example = "release", pattern = "^(charge|release)$")]
    pub action: String,
    /// Counts and changes nothing.
    pub dry_run: Option<bool>,
    /// Required unless `dry_run`.
    #[schema(example = "the vendor was down")]
    pub reason: Option<String>,
    #[schema(example = "in_doubt", pattern = "^in_doubt$")]
    pub state: Option<String>,
    pub user: Option<String>,
    pub model: Option<String>,
    pub feature: Option<String>,
    /// Made then or later: a time, or a date in the product's zone.
    #[schema(example = "2026-11-30")]
    pub from: Option<String>,
    /// Made before then.
    #[schema(example = "2026-12-01")]
    pub to: Option<String>,
}

#[derive(ToSchema)]
pub struct ResolveAllReply {
    /// Holds that were resolved, or would be.
    #[schema(example = 12)]
    pub matched: u64,
    pub amounts: ResolvedAmounts,
}

/// What those holds had reserved, in sum.
#[derive(ToSchema)]
pub struct ResolvedAmounts {
    pub requests: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub total_tokens: u64,
    pub credits: u64,
}
