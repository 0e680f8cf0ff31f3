//! Users, keys, clocks, capacity and tenants.

use std::collections::HashMap;

use utoipa::ToSchema;

use super::catalog::Sheet;
use super::rights::{GrantReply, OverrideReply, PendingReply};

/// What `PUT users/{user}` changes: missing fields stay, `null` takes away.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserPutRequest {
    #[schema(example = "standard")]
    pub plan: Option<String>,
    pub org: Option<String>,
    pub verified: Option<bool>,
    pub suspended: Option<bool>,
    #[schema(example = "Asia/Tokyo")]
    pub zone: Option<String>,
    #[schema(minimum = 1, maximum = 31)]
    pub anchor_day: Option<u8>,
    pub signals: Option<Signals>,
    /// Required when the plan, the org or a flag changes.
    pub reason: Option<String>,
}

/// What `DELETE users/{user}` may say.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EraseRequest {
    pub reason: Option<String>,
}

/// What may tell that two accounts are one person's.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Signals {
    pub device: Option<String>,
    pub address: Option<String>,
}

/// A user on record.
#[derive(ToSchema)]
pub struct UserReply {
    #[schema(example = "u_42")]
    pub user: String,
    #[schema(value_type = crate::http::views::PlanRef)]
    pub plan: (),
    pub org: Option<String>,
    pub verified: bool,
    pub suspended: bool,
    pub zone: Option<String>,
    pub anchor_day: Option<u8>,
    pub signals: Option<Signals>,
    pub overrides: HashMap<String, OverrideReply>,
    pub grants: Vec<GrantReply>,
    pub pending: Option<PendingReply>,
    #[schema(format = DateTime)]
    pub created_at: String,
    pub version: u32,
    /// After a change of plan with which users may draw more than a pool allows.
    pub warnings: Option<Vec<PlanWarning>>,
}

/// What can never bite, or (with `pool`) what users may draw together at the
/// measured peak and a pool does not allow.
#[derive(ToSchema)]
pub struct PlanWarning {
    pub pointer: String,
    pub message: String,
    pub pool: Option<String>,
    pub meter: Option<String>,
    pub limit: Option<String>,
    /// `null`: without bound.
    pub demand: Option<u64>,
    pub allowed: Option<u64>,
}

#[derive(ToSchema)]
pub struct UserList {
    pub data: Vec<UserReply>,
    pub next_cursor: Option<String>,
}

#[derive(ToSchema)]
pub struct PlanChangedReply {
    #[serde(flatten)]
    pub user: UserReply,
    /// A change with a higher sequence was on record: nothing was done.
    pub stale: bool,
}

/// A key that signs tokens (`jwt`), or an API key (`api`).
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKeyRequest {
    #[schema(example = "api", pattern = "^(jwt|api)$")]
    pub kind: String,
    /// What the key may grant.
    #[schema(example = json!(["check", "quota"]))]
    pub scopes: Vec<String>,
    /// `jwt`: the one algorithm its tokens may have.
    #[schema(pattern = "^(HS256|RS256|ES256|EdDSA)$")]
    pub algorithm: Option<String>,
    /// `jwt`: PEM or JWK. For HS256 the shared secret; without it one is made.
    pub public_key: Option<String>,
    /// `api`: what you call it.
    pub name: Option<String>,
    pub reason: Option<String>,
}

#[derive(ToSchema)]
pub struct KeyReply {
    pub kid: String,
    pub kind: String,
    pub algorithm: Option<String>,
    pub public_key: Option<String>,
    pub scopes: Vec<String>,
    pub name: Option<String>,
    /// Made by this program for a start without set-up.
    pub generated: bool,
    #[schema(format = DateTime)]
    pub created_at: String,
}

#[derive(ToSchema)]
pub struct CreatedKeyReply {
    #[serde(flatten)]
    pub key: KeyReply,
    /// Shown this once.
    pub secret: Option<String>,
}

#[derive(ToSchema)]
pub struct KeyList {
    pub data: Vec<KeyReply>,
    pub next_cursor: Option<String>,
}

#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClockPutRequest {
    #[schema(format = DateTime, example = "2026-11-30T14:59:59.999Z")]
    pub now: String,
}

/// Users active at the peak, by plan.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CapacityRequest {
    #[schema(example = json!({"free": 60, "standard": 20, "pro": 5}))]
    /// Users active at the peak, by plan; left out: the measured peak.
    pub active: Option<HashMap<String, u64>>,
    #[schema(default = "default")]
    pub pool: Option<String>,
    /// Sheets to be tried, by the ids of their plans: in place of those in force, or beside them.
    /// Nothing is saved.
    pub plans: Option<HashMap<String, Sheet>>,
}

/// Whether all can be served at once.
#[derive(ToSchema)]
pub struct CapacityReply {
    pub pool: String,
    /// The sustained demand fits on every meter.
    pub fits: bool,
    /// The worst window fits on every meter.
    pub burst_fits: bool,
    pub meters: Vec<CapacityMeter>,
    /// `active` is the peak of the last seven days, as it was measured.
    pub measured: bool,
}

/// One limit of the pool, or a meter on which it has none.
#[derive(ToSchema)]
pub struct CapacityMeter {
    pub meter: String,
    pub limit: Option<String>,
    pub per: Option<String>,
    pub by_plan: Vec<CapacityPlan>,
    pub demand: Option<u64>,
    pub vendor_limit: Option<u64>,
    pub window_seconds: Option<u32>,
    pub margin: Option<f64>,
    pub allowed: Option<u64>,
    pub fits: bool,
    pub burst: Option<u64>,
    pub burst_allowed: Option<u64>,
    pub burst_fits: bool,
    pub reason: Option<String>,
}

/// One plan's part of a meter.
#[derive(ToSchema)]
pub struct CapacityPlan {
    pub plan: String,
    pub active: u64,
    pub rate: Option<u64>,
    pub by: Option<String>,
    pub demand: Option<u64>,
    pub burst: Option<u64>,
    /// The largest rate with which all would fit.
    pub largest_rate: Option<u64>,
}

#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTenantRequest {
    #[schema(example = "shop", pattern = "^[a-z0-9][a-z0-9-]{0,62}$")]
    pub id: String,
    #[schema(example = "UTC")]
    pub zone: Option<String>,
    /// Has a clock of its own.
    #[schema(default = false)]
    pub test: Option<bool>,
    /// Suspended from the start.
    #[schema(default = false)]
    pub suspended: Option<bool>,
}

/// What is missing stays.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantPutRequest {
    /// As it is.
    pub id: Option<String>,
    #[schema(example = "UTC")]
    pub zone: Option<String>,
    /// As it is.
    pub test: Option<bool>,
    pub suspended: Option<bool>,
    /// Required with `suspended`.
    pub reason: Option<String>,
}

#[derive(ToSchema)]
pub struct TenantReply {
    pub id: String,
    pub zone: String,
    pub test: bool,
    pub suspended: bool,
}

#[derive(ToSchema)]
pub struct TenantList {
    pub data: Vec<TenantReply>,
    pub next_cursor: Option<String>,
}
