//! The feed of usage.

use utoipa::ToSchema;

/// What a finished hold used, or what a later correction changes about that.
#[derive(ToSchema)]
pub struct UsageEvent {
    /// Unique and always the same: the hold and a number. 1 is the hold's end, later ones
    /// correct it.
    #[schema(example = "hold_01932d3e-9f1c-7c4b-b7e5-5a2f0c9d8e71:1")]
    pub id: String,
    #[schema(example = "hold_01932d3e-9f1c-7c4b-b7e5-5a2f0c9d8e71")]
    pub hold: String,
    /// Whose call it was. If their identity was erased since, a pseudonym.
    #[schema(example = "u_42")]
    pub user: String,
    pub org: Option<String>,
    /// The plan of the admission.
    #[schema(example = "pro")]
    pub plan: String,
    /// What served the call.
    #[schema(example = "sonnet")]
    pub model: Option<String>,
    #[schema(example = "chat")]
    pub feature: Option<String>,
    /// When the call was admitted, or for use that was booked its `at`: the period it
    /// belongs to, whenever it finished.
    #[schema(format = DateTime)]
    pub at: String,
    /// That day in the product's zone, as it was then.
    #[schema(example = "2026-11-30")]
    pub day: String,
    pub counted: CountedDifferences,
    /// Whole micro-credits, as in `counted`.
    #[schema(example = 540)]
    pub credits: i64,
}

/// What limits counted. In a correction these are differences and may be negative.
#[derive(ToSchema)]
pub struct CountedDifferences {
    #[schema(example = 1)]
    pub requests: i64,
    #[schema(example = 1180)]
    pub input_tokens: i64,
    #[schema(example = 380)]
    pub output_tokens: i64,
    #[schema(example = 1560)]
    pub total_tokens: i64,
    #[schema(example = 540)]
    pub credits: i64,
    /// Meters of the product's own.
    #[serde(flatten)]
    pub custom: std::collections::HashMap<String, i64>,
}

#[derive(ToSchema)]
pub struct UsageEventList {
    pub data: Vec<UsageEvent>,
    /// Never null: ask with it again for what comes next.
    pub next_cursor: String,
    /// Whether there is more already.
    pub more: bool,
}

/// Rows of every `kind`: `user` (the record), `audit`, `refusals`, `refused`, `hold`.
#[derive(ToSchema)]
pub struct UserExport {
    #[schema(value_type = Vec<Object>)]
    pub data: (),
    pub next_cursor: Option<String>,
}
