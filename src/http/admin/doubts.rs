//! `/v1/admin/holds`: what is in doubt, and how it ends.

use serde_json::json;

use crate::domain::document::Reader;
use crate::domain::hold::{Amounts, Reported};
use crate::domain::ids::{HoldId, Label, Name, UserId};
use crate::domain::quantity::MAX_AMOUNT;
use crate::domain::time::{Millis, Zone};
use crate::http::body;
use crate::http::call::Call;
use crate::http::holds;
use crate::http::page::{Key, Page, list};
use crate::http::query::Parameters;
use crate::http::reply::{Answer, Reply};
use crate::http::schema::{DoubtList, ResolveAllReply, ResolveAllRequest, ResolveRequest};
use crate::http::span::{Span, border_at};
use crate::http::views::{FinishedView, HoldView};
use crate::ledger::{DoubtFilter, DoubtKey};
use crate::service::calls::doubt::{Resolve, ResolveAll, Resolved, ResolvedBy};
use crate::service::tenancy::reason::{optional_reason, required_reason};

const PAGE: u32 = 50;
const IN_DOUBT: &str = "in_doubt";

/// Lists the holds in doubt, those first that are in doubt the longest.
///
/// A page may have fewer holds than asked for, or none, and still a
/// `next_cursor`: one call looks at a bounded number of holds.
#[utoipa::path(
    get, path = "/v1/admin/holds", operation_id = "list_doubts", tag = "admin",
    params(
        ("state" = Option<String>, Query, description = "`in_doubt`, which is also the default"),
        ("user" = Option<String>, Query, description = "Of this user"),
        ("model" = Option<String>, Query, description = "Asked for at the check, or an alias of it"),
        ("feature" = Option<String>, Query, description = "Of this feature"),
        ("from" = Option<String>, Query, description = "Made then or later: a time, or a date in the product's zone"),
        ("to" = Option<String>, Query, description = "Made before then"),
        ("limit" = Option<u32>, Query, description = "Most holds of a page, 1-500, default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of holds in doubt", body = DoubtList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn all(call: Call) -> Answer {
    let tenant = call.tenant()?;
    let catalog = tenant.catalog();
    let (filter, page) = call.query(|parameters| {
        let filter = filter_of_query(parameters, &catalog.settings.zone);
        Some((filter, Page::<DoubtKey>::read(parameters, PAGE)))
    })?;
    let (found, now) = call.service().doubts(tenant, filter, page.after, page.limit).await?;
    let rows = found.holds.iter().map(|hold| json!(HoldView::new(hold, now)));
    Ok(list(rows.collect(), found.next))
}

/// Ends a hold in doubt, or corrects what the product's rule made of it.
#[utoipa::path(
    post, path = "/v1/admin/holds/{id}/resolve", operation_id = "resolve_hold", tag = "admin",
    params(("id" = String, Path, description = "The hold")),
    request_body = ResolveRequest,
    responses(
        (status = 200, description = "Resolved, now or before in the same way", body = FinishedView),
        (status = 404, description = "No such hold"),
        (status = 409, description = "`not_in_doubt` (the lease runs) or `already_finished`, with the hold"),
        (status = 422, description = "`usage_implausible`: nothing was changed"),
    ),
    security(("bearer" = ["admin:write"])),
)]
pub async fn resolve(mut call: Call) -> Answer {
    let body = call.body().await?;
    let (resolve, reason) = body::document(&body, |fields| {
        let resolve = read_resolve(fields);
        let reason = required_reason(fields);
        Some((resolve?, reason?))
    })?;
    let id = holds::hold_id(&call)?;
    let by = ResolvedBy { by: call.author(), reason: Some(reason) };
    let resolved = call.state.service.resolve(call.tenant()?, id, resolve, by).await?;
    holds::finish(&call, resolved)
}

fn read_resolve(fields: &mut Reader<'_, '_>) -> Option<Resolve> {
    #[derive(Clone, Copy, PartialEq)]
    enum Action {
        Charge,
        Release,
        Settle,
    }
    let words = [("charge", Action::Charge), ("release", Action::Release), ("settle", Action::Settle)];
    let action = fields.required("action").choice(&words);
    if action == Some(Action::Settle) {
        return read_figures(fields).map(Resolve::Settle);
    }
    for figure in ["input_tokens", "output_tokens", "cache_read_tokens"] {
        if fields.has(figure) {
            fields.fault(figure, "goes with the action settle alone");
        }
    }
    Some(if action? == Action::Charge { Resolve::Charge } else { Resolve::Release })
}

fn read_figures(fields: &mut Reader<'_, '_>) -> Option<Reported> {
    let input_tokens = fields.required("input_tokens").amount(MAX_AMOUNT);
    let output_tokens = fields.required("output_tokens").amount(MAX_AMOUNT);
    let cache_read_tokens = fields.optional("cache_read_tokens").amount(MAX_AMOUNT).unwrap_or(0);
    if input_tokens.is_some_and(|input| cache_read_tokens > input) {
        fields.fault("cache_read_tokens", "must be part of input_tokens");
    }
    Some(Reported {
        input_tokens: input_tokens?,
        output_tokens: output_tokens?,
        cache_read_tokens,
        ..Reported::default()
    })
}

/// Ends all holds in doubt that a filter names; without a filter, all.
///
/// The filter stands in the query or in the body. Each hold ends on its own:
/// one that somebody settles meanwhile is not counted.
#[utoipa::path(
    post, path = "/v1/admin/holds/resolve", operation_id = "resolve_holds", tag = "admin",
    params(
        ("state" = Option<String>, Query, description = "`in_doubt`, which is also the default"),
        ("user" = Option<String>, Query, description = "Of this user"),
        ("model" = Option<String>, Query, description = "Asked for at the check, or an alias of it"),
        ("feature" = Option<String>, Query, description = "Of this feature"),
        ("from" = Option<String>, Query, description = "Made then or later: a time, or a date in the product's zone"),
        ("to" = Option<String>, Query, description = "Made before then"),
    ),
    request_body = ResolveAllRequest,
    responses((status = 200, description = "How many, and what they had reserved", body = ResolveAllReply)),
    security(("bearer" = ["admin:write"])),
)]
pub async fn resolve_all(mut call: Call) -> Answer {
    let body = call.body().await?;
    let tenant = call.tenant()?;
    let zone = tenant.catalog().settings.zone.clone();
    let query = call.query(|parameters| Some(filter_of_query(parameters, &zone)))?;
    let (filter, how, dry_run, reason) = body::document(&body, |fields| {
        let words = [("charge", ResolveAll::Charge), ("release", ResolveAll::Release)];
        let how = fields.required("action").choice(&words);
        let dry_run = fields.optional("dry_run").flag().unwrap_or(false);
        let reason = if dry_run { optional_reason(fields) } else { required_reason(fields) };
        let filter = filter_of_body(fields, query, &zone);
        Some((filter, how?, dry_run, reason))
    })?;
    let resolved = match dry_run {
        true => call.service().would_resolve(tenant, filter).await?,
        false => {
            let by = ResolvedBy { by: call.author(), reason };
            call.state.service.resolve_all(tenant, filter, how, by).await?
        }
    };
    Ok(resolved_reply(&resolved))
}

fn resolved_reply(resolved: &Resolved) -> Reply {
    let Amounts { requests, input_tokens, output_tokens, total_tokens, credits } = resolved.amounts;
    Reply::json(&json!({
        "matched": resolved.matched,
        "amounts": {
            "requests": requests,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "total_tokens": total_tokens,
            "credits": credits,
        },
    }))
}

fn filter_of_query(parameters: &mut Parameters<'_>, zone: &Zone) -> DoubtFilter {
    parameters.optional("state", in_doubt);
    let span = Span::read(parameters, zone);
    DoubtFilter {
        user: parameters.optional("user", UserId::parse),
        model: parameters.optional("model", Name::parse),
        feature: parameters.optional("feature", Label::parse),
        from: span.from.map(|from| from.at),
        to: span.to.map(|to| to.at),
    }
}

/// The filter of the body, where the query may have named the same.
fn filter_of_body(fields: &mut Reader<'_, '_>, query: DoubtFilter, zone: &Zone) -> DoubtFilter {
    fields.optional("state").parsed(in_doubt);
    let instant = |text: &str| border_at(text, zone);
    let user = fields.optional("user").parsed(UserId::parse);
    let model = fields.optional("model").parsed(Name::parse);
    let feature = fields.optional("feature").parsed(Label::parse);
    let from = fields.optional("from").parsed(instant);
    let to = fields.optional("to").parsed(instant);
    let filter = DoubtFilter {
        user: either(fields, "user", user, query.user),
        model: either(fields, "model", model, query.model),
        feature: either(fields, "feature", feature, query.feature),
        from: either(fields, "from", from, query.from),
        to: either(fields, "to", to, query.to),
    };
    if let (Some(from), Some(to)) = (filter.from, filter.to)
        && from > to
    {
        fields.fault("to", "must not be before from");
    }
    filter
}

fn either<T: PartialEq>(
    fields: &mut Reader<'_, '_>,
    name: &str,
    body: Option<T>,
    query: Option<T>,
) -> Option<T> {
    if body.is_some() && query.is_some() && body != query {
        fields.fault(name, "is not what the query says");
    }
    body.or(query)
}

fn in_doubt(state: &str) -> Result<(), &'static str> {
    if state == IN_DOUBT { Ok(()) } else { Err("must be in_doubt: other holds are found by their ids") }
}

/// When the hold came into doubt, and its id.
impl Key for DoubtKey {
    const LIST: &'static str = "doubts";

    fn read(text: &str) -> Option<Self> {
        let (since, hold) = text.split_once(' ')?;
        let since = since.parse().ok().map(Millis).filter(|at| (Millis(0)..=Millis::MAX).contains(at))?;
        Some(Self { since, hold: HoldId::parse(hold)? })
    }

    fn write(&self) -> String {
        format!("{} {}", self.since.0, self.hold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_among_the_doubts_reads_back_as_it_was_written() {
        let key = DoubtKey { since: Millis(1_796_000_000_123), hold: HoldId::from_parts(7, [9; 16]) };
        assert_eq!(DoubtKey::read(&key.write()), Some(key));
        let hold = key.hold;
        for bad in
            [format!("-1 {hold}"), format!("{hold}"), "5 hold_1".into(), format!("{} {hold}", i64::MAX)]
        {
            assert_eq!(DoubtKey::read(&bad), None, "{bad}");
        }
    }
}
