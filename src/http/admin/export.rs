//! `/v1/admin/users/{user}/export`: all that is kept about a user.

use serde_json::Value;

use crate::domain::ids::HoldId;
use crate::http::call::Call;
use crate::http::export;
use crate::http::page::{Key, list};
use crate::http::reply::Answer;
use crate::http::schema::UserExport;
use crate::ledger::User;

const PAGE: u32 = 500;

/// Hands out everything that is kept about a user.
///
/// Each row says its `kind`. The first page has the record, what changed about it (the newest 500
/// rows of the audit), counted and single refusals, then holds begin; they go on in the pages
/// behind it. Secrets are in none.
#[utoipa::path(
    get, path = "/v1/admin/users/{user}/export", operation_id = "export_user", tag = "admin",
    params(
        ("user" = String, Path, description = "The user, percent-encoded"),
        ("limit" = Option<u32>, Query, description = "Most holds of a page, 1-500, default 500"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page of what is kept", body = UserExport),
        (status = 404, description = "Nothing is kept about this user"),
    ),
    security(("bearer" = ["admin:read"])),
)]
pub async fn user(call: Call) -> Answer {
    let user = call.user()?;
    let tenant = call.tenant()?;
    let page = call.page::<AfterHold>(PAGE)?;
    let after = page.after.map(|AfterHold(hold)| hold);
    let kept = call.service().kept_of(tenant, &user, after, page.limit).await?;
    let mut rows: Vec<Value> = kept.record.iter().map(|record: &User| export::user(record)).collect();
    rows.extend(kept.changed.iter().map(export::audit));
    rows.extend(kept.refusals.iter().map(export::refusals));
    rows.extend(kept.refused.iter().map(export::refused));
    rows.extend(kept.holds.iter().map(|hold| export::hold(hold, kept.now)));
    let is_full = kept.holds.len() >= page.limit as usize;
    let last = kept.holds.last().filter(|_| is_full).map(|hold| AfterHold(hold.id));
    Ok(list(rows, last))
}

/// The last hold of a page.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct AfterHold(HoldId);

impl Key for AfterHold {
    const LIST: &'static str = "export";

    fn read(text: &str) -> Option<Self> {
        HoldId::parse(text).map(Self)
    }

    fn write(&self) -> String {
        self.0.to_string()
    }
}
