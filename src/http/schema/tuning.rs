//! How the users of a plan stand to its limits.

use utoipa::ToSchema;

#[derive(ToSchema)]
pub struct TuningReply {
    #[schema(value_type = crate::http::views::PlanRef)]
    pub plan: (),
    /// In the sheet's order.
    pub limits: Vec<LimitTuning>,
    /// By code.
    pub refusals: Vec<TuningRefusals>,
    /// Users whom any of their own limits refused on three or more of these days.
    pub blocked_users: u64,
    /// The first day of the refusals, in the tenant's zone.
    #[schema(format = Date, example = "2026-11-24")]
    pub from: String,
    /// The day after the last one.
    #[schema(format = Date, example = "2026-12-01")]
    pub to: String,
}

/// Use over limit, of the plan's present users who used it at all; overrides and grants
/// of users left aside, the first three digits of what each used counted.
#[derive(ToSchema)]
pub struct LimitTuning {
    #[schema(example = "tokens_per_month")]
    pub name: String,
    /// What it refuses with; other limits may give the same code.
    #[schema(example = "monthly_quota_exhausted")]
    pub code: String,
    /// Users who were refused with this code on three or more of the days.
    pub blocked_users: u64,
    /// Of which time, in words: a whole day, week or month in the tenant's zone; of
    /// buckets, what five minutes could have given (capacity and refill) is the limit.
    #[schema(example = "last month")]
    pub of: Option<String>,
    pub users: Option<u64>,
    #[schema(example = 0.1231)]
    pub p50: Option<f64>,
    #[schema(example = 0.62)]
    pub p90: Option<f64>,
    #[schema(example = 1.0)]
    pub p99: Option<f64>,
    /// Why use over limit cannot be told.
    pub reason: Option<String>,
}

/// Refusals of the plan's present users.
#[derive(ToSchema)]
pub struct TuningRefusals {
    #[schema(example = "request_rate_exceeded")]
    pub code: String,
    pub refusals: u64,
    pub users: u64,
    /// Of these, refused with it on three or more of the days.
    pub blocked_users: u64,
}
