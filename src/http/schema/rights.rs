//! Moves of plan, overrides, grants and orgs.

use std::collections::HashMap;

use utoipa::ToSchema;

use crate::http::quota::UpcomingView;
use crate::http::views::PlanRef;

/// Moves a user to a plan.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanChangeRequest {
    #[schema(example = "pro")]
    pub plan: String,
    /// `now`, `next_window` (when the running month ends) or a time. By default
    /// an upgrade acts now, a downgrade when the running month ends.
    #[schema(example = "now")]
    pub effective: Option<String>,
    /// Of numbered changes the highest number wins, in whatever order they come.
    #[schema(example = 7)]
    pub sequence: Option<u64>,
    /// For a trial: when it ends.
    #[schema(format = DateTime)]
    pub until: Option<String>,
    /// For a trial: the plan that follows; by default the one of before.
    pub then: Option<String>,
    #[schema(example = "invoice paid")]
    pub reason: String,
}

/// A move of plan to come.
#[derive(ToSchema)]
#[schema(as = Pending)]
pub struct PendingReply {
    #[schema(value_type = PlanRef)]
    pub plan: (),
    #[schema(format = DateTime)]
    pub effective_at: String,
    /// What follows a trial.
    #[schema(value_type = Option<UpcomingView>)]
    pub then: Option<()>,
}

/// Numbers of one limit: `limit` of a window or slots, the others of a bucket.
#[derive(ToSchema)]
#[schema(as = Numbers)]
#[serde(deny_unknown_fields)]
pub struct NumbersRequest {
    #[schema(example = 500)]
    pub limit: Option<u64>,
    pub capacity: Option<u64>,
    pub refill_per_minute: Option<u64>,
}

/// Overrides by limit; `null` takes one away, those not named stay.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OverridesRequest {
    #[schema(example = json!({"tokens_per_month": {"limit": 500000}}))]
    #[schema(value_type = HashMap<String, NumbersRequest>)]
    pub overrides: HashMap<String, Option<NumbersRequest>>,
    /// When those given here end.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    #[schema(example = "agreed with sales")]
    pub reason: String,
}

/// An override as it stands.
#[derive(ToSchema)]
#[schema(as = Override)]
pub struct OverrideReply {
    pub limit: Option<u64>,
    pub capacity: Option<u64>,
    pub refill_per_minute: Option<u64>,
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    #[schema(format = DateTime)]
    pub set_at: String,
    pub by: String,
    pub reason: String,
}

/// An extra amount on a window limit.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    #[schema(example = "tokens_per_month")]
    pub limit: String,
    #[schema(example = 100000, minimum = 1)]
    pub amount: u64,
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    #[schema(example = "made good for the outage")]
    pub reason: String,
}

/// A grant. What windows used beyond the plan's own is taken from the grant
/// that expires first, for good, when they end.
#[derive(ToSchema)]
#[schema(as = Grant)]
pub struct GrantReply {
    pub id: String,
    pub limit: String,
    pub amount: u64,
    #[schema(format = DateTime)]
    pub given_at: String,
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    pub by: String,
    pub reason: String,
}

/// What `PUT orgs/{org}` changes: missing fields stay, `null` takes away.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OrgPutRequest {
    /// The org's own sheet; without one, limits of scope org come from each
    /// caller's.
    #[schema(example = "pro")]
    pub plan: Option<String>,
    #[schema(example = "Asia/Tokyo")]
    pub zone: Option<String>,
    pub reason: String,
}

/// An org on record.
#[derive(ToSchema)]
#[schema(as = Org)]
pub struct OrgReply {
    #[schema(example = "acme")]
    pub org: String,
    #[schema(value_type = Option<PlanRef>)]
    pub plan: Option<()>,
    pub zone: Option<String>,
    pub overrides: HashMap<String, OverrideReply>,
    pub grants: Vec<GrantReply>,
    #[schema(format = DateTime)]
    pub created_at: String,
    pub version: u32,
}
