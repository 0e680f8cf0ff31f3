//! What used a user's quota.

use utoipa::ToSchema;

/// A feature's or a model's part. Amounts are absent where the plan shows its users none.
#[derive(ToSchema)]
pub struct MyUsageRow {
    /// With `by=feature`; `null`: calls that named none.
    #[schema(example = "chat")]
    pub feature: Option<String>,
    /// With `by=model`.
    #[schema(example = "sonnet")]
    pub model: Option<String>,
    /// Of the total tokens; of the requests where there were no tokens.
    #[schema(example = 0.8333)]
    pub share: f64,
    pub requests: Option<u64>,
    pub input_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    pub total_tokens: Option<u64>,
    pub credits: Option<u64>,
}
