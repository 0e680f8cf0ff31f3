//! `/v1/admin/*` and `/v1/operator/*`: what a product and its operator set up.
//!
//! Documents are read by the floors that own them; these handlers find the
//! record, mind `If-Match`, and show what is in force afterwards.

pub mod capacity;
pub mod clock;
pub mod consumers;
pub mod doubts;
pub mod events;
pub mod export;
pub mod keys;
pub mod make_goods;
pub mod models;
pub mod movers;
pub mod orgs;
pub mod outputs;
pub mod plans;
pub mod pools;
pub mod preview;
pub mod records;
pub mod refusals;
pub mod settings;
pub mod tenants;
pub mod tuning;
pub mod users;
pub mod webhooks;

pub(super) use events::view as event_view;
pub(super) use records::audit_view;

use super::call::Call;
use super::page::MAX_PAGE;
use super::problem::Problem;
use super::reply::Reply;
use crate::domain::document::{Fault, Node};
use crate::domain::ids::Name;
use crate::domain::time::Millis;
use crate::service::tenancy::catalog_writes::Versioned;

/// Rows of a page where callers do not say: of what there is little of, all.
const USUAL_PAGE: u32 = MAX_PAGE;

fn versioned(record: &Versioned) -> Reply {
    Reply::json(&record.body).with_version(record.version)
}

/// Parses the body and hands it to who knows what it means.
fn document<T>(body: &[u8], read: impl FnOnce(&Node<'_>) -> Result<T, Vec<Fault>>) -> Result<T, Problem> {
    let node = Node::from_json(body).map_err(|fault| Problem::invalid(vec![fault]))?;
    read(&node).map_err(Problem::invalid)
}

/// The path segment of `{id}` as the name of a plan or a pool. What cannot be
/// a name names nothing.
fn name_in_path(call: &Call, what: &'static str) -> Result<Name, Problem> {
    Name::parse(&call.segment("id")?).map_err(|_| Problem::not_found(what))
}

/// A local day as `2026-11-30`.
pub(super) fn date(day: i32) -> String {
    let text = Millis(i64::from(day) * 86_400_000).to_string();
    text.get(..10).unwrap_or(&text).to_owned()
}
