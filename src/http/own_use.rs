//! What used it: a user's own calls by feature or model, and those that run.

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::call::Call;
use super::reply::{Answer, Reply};
use super::schema::MyUsageRow;
use super::span::Span;
use super::views::AmountsView;
use crate::domain::hold::{Amounts, Hold};
use crate::domain::ids::{Label, Name};
use crate::domain::time::{Millis, first_day_of_month, month_of_day};
use crate::service::telling::own_use::{UsedBy, UsedRow};

/// What a user's calls of a span took.
#[derive(Serialize, ToSchema)]
#[schema(as = MyUsage)]
pub struct OwnUseReply<'a> {
    /// `feature` or `model`
    by: &'static str,
    #[schema(value_type = String, format = DateTime)]
    from: Millis,
    /// `null`: up to now.
    #[schema(value_type = Option<String>, format = DateTime)]
    to: Option<Millis>,
    /// `false`: there were more calls than one answer looks at (10,000); the oldest are
    /// not in it.
    complete: bool,
    #[schema(value_type = Vec<MyUsageRow>)]
    data: Vec<Value>,
    total: Option<AmountsView<'a>>,
    /// What one of these calls took on average, rounded up; `null`: there were none.
    usual: Option<AmountsView<'a>>,
    /// Calls that run now, at most 20; those first whose lease ends first.
    running: Vec<RunningView<'a>>,
}

/// A call that has begun and not ended.
#[derive(Serialize, ToSchema)]
#[schema(as = RunningCall)]
pub struct RunningView<'a> {
    #[schema(example = "chat")]
    feature: Option<&'a str>,
    #[schema(example = "sonnet")]
    model: Option<&'a str>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Millis,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Millis,
}

/// Shows a user what used their quota.
///
/// Sums of the calls that the user made since `from` and that are settled, as the limits
/// counted them, and the calls that run now. If users may not see the amounts of a limit
/// of the plan (`visibility`), rows have shares only, and `total` and `usual` are `null`.
#[utoipa::path(
    get, path = "/v1/me/usage", operation_id = "get_my_usage", tag = "quota",
    params(
        ("by" = Option<String>, Query, description = "`feature` (default) or `model`"),
        ("from" = Option<String>, Query, description = "A time, or a date in the product's zone; default: \
            the beginning of the month there"),
        ("to" = Option<String>, Query, description = "The same, not included; default: no end"),
    ),
    responses((status = 200, description = "What took most comes first", body = OwnUseReply)),
    security(("bearer" = ["me"])),
)]
pub async fn of_me(call: Call) -> Answer {
    let (tenant, user) = (call.tenant()?, call.own_user()?);
    let zone = tenant.catalog().settings.zone.clone();
    let (by, span) = call.query(|parameters| {
        let by = parameters.optional("by", |text| match text {
            "feature" => Ok(UsedBy::Feature),
            "model" => Ok(UsedBy::Model),
            _ => Err("must be feature or model"),
        });
        Some((by.unwrap_or(UsedBy::Feature), Span::read(parameters, &zone)))
    })?;
    let mut instants = span.instants();
    if span.from.is_none() {
        let month = month_of_day(zone.local_day(tenant.now()));
        instants.start = zone.start_of_day(first_day_of_month(month));
    }
    let used = call.service().own_use(tenant, user, by, instants.clone()).await?;
    let word = match by {
        UsedBy::Feature => "feature",
        UsedBy::Model => "model",
    };
    let view = |amounts: Amounts| AmountsView::new(amounts, Vec::new());
    let reply = OwnUseReply {
        by: word,
        from: instants.start,
        to: span.to.map(|to| to.at),
        complete: used.complete,
        data: used.rows.iter().map(|row| row_view(word, row, used.exact)).collect(),
        total: used.exact.then(|| view(used.total)),
        usual: used.usual().filter(|_| used.exact).map(view),
        running: used.running.iter().map(RunningView::from).collect(),
    };
    Ok(Reply::json(&reply))
}

fn row_view(word: &str, row: &UsedRow, exact: bool) -> Value {
    let mut view = json!({ word: row.name, "share": row.share });
    if exact {
        view["requests"] = row.amounts.requests.into();
        view["input_tokens"] = row.amounts.input_tokens.into();
        view["output_tokens"] = row.amounts.output_tokens.into();
        view["total_tokens"] = row.amounts.total_tokens.into();
        view["credits"] = row.amounts.credits.into();
    }
    view
}

impl<'a> From<&'a Hold> for RunningView<'a> {
    fn from(hold: &'a Hold) -> Self {
        Self {
            feature: hold.feature.as_ref().map(Label::as_str),
            model: hold.model.as_ref().map(Name::as_str),
            created_at: hold.created_at,
            expires_at: hold.expires_at,
        }
    }
}
