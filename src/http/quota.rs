//! What a user has left: for the product's backend and for users themselves.
//! Reading changes nothing and creates nothing.

use actix_web::http::Method;
use actix_web::web::Bytes;
use futures_util::stream;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::call::Call;
use super::problem::Problem;
use super::reply::{Answer, Reply, json_bytes};
use super::views::{LimitView, PercentView, PlanRef, is_shown_to_users};
use crate::domain::decision::LimitRow;
use crate::domain::ids::UserId;
use crate::domain::plan::{Enforce, PerCall, Visibility};
use crate::domain::time::Millis;
use crate::service::{Heard, QuotaState, QuotaView};

/// Shows where a user stands.
#[utoipa::path(
    get, path = "/v1/users/{user}/quota", operation_id = "get_user_quota", tag = "quota",
    params(("user" = String, Path, description = "The user, percent-encoded")),
    responses((status = 200, description = "Every limit but those of pools", body = QuotaReply)),
    security(("bearer" = ["quota"])),
)]
pub async fn of_user(call: Call) -> Answer {
    let quota = read(&call, call.user()?).await?;
    Ok(Reply::json(&QuotaReply::new(&quota, Shown::All)))
}

/// Shows a user where they stand.
#[utoipa::path(
    get, path = "/v1/me/quota", operation_id = "get_my_quota", tag = "quota",
    responses((status = 200, description = "The limits of the user and of their org", body = QuotaReply)),
    security(("bearer" = ["me"])),
)]
pub async fn of_me(call: Call) -> Answer {
    let quota = read(&call, call.own_user()?.clone()).await?;
    Ok(Reply::json(&QuotaReply::new(&quota, Shown::ToUsers)))
}

/// Tells a user where they stand, and again whenever that changes.
///
/// Server-sent events named `quota` with the body of `GET /v1/me/quota` in one
/// line: at once, and then after every change but refill, at most two a second.
/// A comment comes after 15 s of silence. The stream ends with the token, with
/// its key, with the suspension of the product, and when the service stops.
#[utoipa::path(
    get, path = "/v1/me/quota/stream", operation_id = "stream_my_quota", tag = "quota",
    responses(
        (status = 200, description = "`event: quota`, `data:` a quota", body = String,
            content_type = "text/event-stream"),
        (status = 503, description = "`stream_limit`: four streams of this user are open, or as many as \
            the node takes; `store_unavailable`, `overloaded`"),
    ),
    security(("bearer" = ["me"])),
)]
pub async fn stream(call: Call) -> Answer {
    if *call.head.method() == Method::HEAD {
        return Ok(Reply::events(stream::empty()));
    }
    let caller = call.caller.as_deref().ok_or_else(|| Problem::not_found("caller"))?;
    let watch = call.state.service.watch(call.tenant()?, call.own_user()?, caller).await?;
    let open = call.state.metrics.stream_opened();
    Ok(Reply::events(stream::unfold((watch, open), |(mut watch, open)| async move {
        let piece = match watch.next().await? {
            Heard::Quota(quota) => {
                open.told();
                event(&quota)
            }
            Heard::StillThere => Bytes::from_static(b":\n\n"),
        };
        Some((piece, (watch, open)))
    })))
}

fn event(quota: &QuotaView) -> Bytes {
    let data = json_bytes(&QuotaReply::new(quota, Shown::ToUsers));
    [b"event: quota\ndata: ", data.as_slice(), b"\n\n"].concat().into()
}

async fn read(call: &Call, user: UserId) -> Result<QuotaView, Problem> {
    Ok(call.service().quota(call.tenant()?, user).await?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    All,
    ToUsers,
}

/// A user's plan and where every limit stands.
#[derive(Serialize, ToSchema)]
#[schema(as = Quota)]
pub struct QuotaReply<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    /// In place of `user`, where an org is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    org: Option<&'a str>,
    /// `null`: an org without a sheet of its own.
    plan: Option<PlanRef<'a>>,
    per_call: PerCallView,
    /// How much of a cache-read token counts toward input and total.
    cache_read_weight: f64,
    /// When it stood so, by the clock that decides.
    #[schema(value_type = String, format = DateTime)]
    as_of: Millis,
    /// Of a call of 1 request and 1 token: `ok`, `waiting` or `exhausted`.
    state: &'static str,
    /// `null` when `ok`, and when no time helps.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_call_at: Option<Millis>,
    #[serde(serialize_with = "rows")]
    #[schema(value_type = Vec<QuotaRowView>)]
    limits: (&'a [(LimitRow, QuotaState)], Shown),
    /// A change of plan, or of its sheet, to come.
    upcoming: Option<UpcomingView<'a>>,
}

/// A plan that holds from an instant on.
#[derive(Serialize, ToSchema)]
#[schema(as = Upcoming)]
pub struct UpcomingView<'a> {
    plan: PlanRef<'a>,
    #[schema(value_type = String, format = DateTime)]
    effective_at: Millis,
}

/// Caps of one call; `null` is none.
#[derive(Serialize, ToSchema)]
#[schema(as = PerCall)]
pub struct PerCallView {
    max_input_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
}

impl From<PerCall> for PerCallView {
    fn from(caps: PerCall) -> Self {
        Self { max_input_tokens: caps.max_input_tokens, max_output_tokens: caps.max_output_tokens }
    }
}

/// A limit's row as in a check, and what it means for the next call.
#[derive(Serialize, ToSchema)]
#[schema(as = QuotaRow)]
pub struct QuotaRowView<'a> {
    #[serde(flatten)]
    row: ShownRow<'a>,
    /// What the plan shows its users of this limit, `percent` or `hidden`; absent: all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^(percent|hidden)$")]
    visibility: Option<&'static str>,
    state: &'static str,
    #[schema(value_type = Option<String>, format = DateTime)]
    next_call_at: Option<Millis>,
    /// Windows only: when it is used up at the pace so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    forecast_exhausted_at: Option<Option<Millis>>,
    /// Of a limit under `enforce = "shadow"`: how often it would have refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_refuse: Option<u32>,
}

/// Where a limit stands: exactly, or in percents where a user may see no more.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ShownRow)]
pub enum ShownRow<'a> {
    Exact(LimitView<'a>),
    Percent(PercentView<'a>),
}

impl<'a> QuotaReply<'a> {
    fn new(quota: &'a QuotaView, shown: Shown) -> Self {
        Self {
            user: Some(&quota.owner),
            org: None,
            plan: quota.plan.as_ref().map(PlanRef::from),
            per_call: quota.per_call.into(),
            cache_read_weight: quota.cache_read_weight.as_f64(),
            as_of: quota.now,
            state: quota.state.as_str(),
            next_call_at: quota.next_call_at,
            limits: (&quota.limits, shown),
            upcoming: quota.upcoming.as_ref().map(|next| UpcomingView {
                plan: PlanRef::from(&next.plan),
                effective_at: next.effective_at,
            }),
        }
    }

    pub fn of_org(quota: &'a QuotaView) -> Self {
        Self { user: None, org: Some(&quota.owner), ..Self::new(quota, Shown::All) }
    }
}

impl<'a> QuotaRowView<'a> {
    fn new((row, quota): &'a (LimitRow, QuotaState), shown: Shown) -> Self {
        let is_window = row.standing.kind() == "window";
        let is_percent = matches!((shown, row.visibility), (Shown::ToUsers, Visibility::Percent));
        // The instant and what was used would tell the limit.
        let forecast_exhausted_at = quota.forecast_exhausted_at.filter(|_| !is_percent);
        Self {
            row: match is_percent {
                true => ShownRow::Percent(PercentView::from(row)),
                false => ShownRow::Exact(LimitView::from(row)),
            },
            visibility: (row.visibility != Visibility::Exact).then(|| row.visibility.as_str()),
            state: quota.state.as_str(),
            next_call_at: quota.next_call_at,
            forecast_exhausted_at: is_window.then_some(forecast_exhausted_at),
            would_refuse: (row.enforce == Enforce::Shadow).then_some(row.would_refuse),
        }
    }
}

/// Rows of limits that admins see, as they are.
pub fn quota_rows(rows: &[(LimitRow, QuotaState)]) -> Vec<QuotaRowView<'_>> {
    rows.iter().map(|row| QuotaRowView::new(row, Shown::All)).collect()
}

fn rows<S: Serializer>(
    (rows, shown): &(&[(LimitRow, QuotaState)], Shown),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let is_shown = |(row, _): &&(LimitRow, QuotaState)| *shown == Shown::All || is_shown_to_users(row);
    serializer.collect_seq(rows.iter().filter(is_shown).map(|row| QuotaRowView::new(row, *shown)))
}
