//! What a sheet would do.

use std::collections::HashMap;

use utoipa::ToSchema;

use super::catalog::Sheet;

/// A sheet that is to be tried.
#[derive(ToSchema)]
pub struct PreviewRequest {
    #[serde(flatten)]
    pub sheet: Sheet,
    /// Days whose calls are replayed.
    #[schema(default = 30, minimum = 1, maximum = 31)]
    pub days: Option<u32>,
    /// Users of the plan whose calls are replayed, spread evenly over all.
    #[schema(default = 1000, minimum = 1, maximum = 20000)]
    pub users: Option<u32>,
}

/// Users who would be above a new limit at once.
#[derive(ToSchema)]
pub struct OverEffect {
    pub users: u64,
    #[schema(example = json!({"tokens_per_month": 12}))]
    pub by_limit: HashMap<String, u64>,
}

/// Users and calls that would fare otherwise.
#[derive(ToSchema)]
pub struct CallEffect {
    pub users: u64,
    pub calls: u64,
    #[schema(example = json!({"monthly_quota_exhausted": 340}))]
    pub by_code: HashMap<String, u64>,
}

/// What one user would feel.
#[derive(ToSchema)]
pub struct FeltRow {
    pub user: String,
    /// Limits.
    pub over: Vec<String>,
    /// Calls.
    pub refused: u64,
    pub relieved: u64,
}

/// What a sheet would have done, by calls replayed under it and under the sheet in force.
/// Each user's own limits are looked at, with the overrides and grants of now; those of
/// orgs, the tenant and pools are not, nor is use that was booked without a hold.
#[derive(ToSchema)]
pub struct PreviewReply {
    /// In force, which it is compared with.
    pub version: u32,
    #[schema(format = DateTime)]
    pub from: String,
    #[schema(format = DateTime)]
    pub to: String,
    /// On record with the plan.
    pub users_on_plan: u64,
    /// Of whom calls were replayed.
    pub users: u64,
    /// Admitted and refused ones; at most some 200,000.
    pub calls: u64,
    /// All users and calls of the days were replayed; else they stand for all.
    pub complete: bool,
    pub over: OverEffect,
    /// Went through, and would be refused.
    pub refused: CallEffect,
    /// Were refused (each user's last 100), and would go through; by the code of then.
    pub relieved: CallEffect,
    /// At most 20 users who would feel it most, first.
    pub most: Vec<FeltRow>,
}
