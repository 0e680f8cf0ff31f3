//! Plans to come, overrides and grants, as users and orgs show them.

use serde_json::{Map, Value, json};

use crate::domain::ids::Name;
use crate::domain::time::Millis;
use crate::ledger::{Granting, Rights};
use crate::service::Upcoming;

pub fn plan_view((id, version): &(Name, u32)) -> Value {
    json!({"id": id.as_str(), "version": version})
}

pub fn upcoming_view(next: &Upcoming) -> Value {
    json!({"plan": plan_view(&next.plan), "effective_at": next.effective_at})
}

/// Those that stand at `now`, by limit.
pub fn overrides_view(rights: Option<&Rights>, now: Millis) -> Value {
    let every = rights.into_iter().flat_map(|rights| &rights.overrides);
    let standing = every.filter(|(_, entry)| entry.holds_at(now, now));
    let view = standing.map(|(limit, entry)| {
        let mut view = json!(entry.numbers);
        view["expires_at"] = json!(entry.expires_at);
        view["set_at"] = json!(entry.set_at);
        view["by"] = entry.by.as_str().into();
        view["reason"] = entry.reason.as_str().into();
        (limit.as_str().to_owned(), view)
    });
    Value::Object(view.collect::<Map<_, _>>())
}

/// Those that are not over at `now`.
pub fn grants_view(rights: Option<&Rights>, now: Millis) -> Vec<Value> {
    let every = rights.into_iter().flat_map(|rights| &rights.grants);
    every.filter(|entry| entry.grant.expires_at.is_none_or(|end| now < end)).map(grant_view).collect()
}

pub fn grant_view(granting: &Granting) -> Value {
    let grant = granting.grant;
    json!({
        "id": grant.id.to_string(),
        "limit": granting.limit.as_str(),
        "amount": grant.amount,
        "given_at": grant.given,
        "expires_at": grant.expires_at,
        "by": granting.by,
        "reason": granting.reason,
    })
}
