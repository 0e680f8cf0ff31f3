//! What a make-good asks for: whom, what, why.

use serde::{Deserialize, Serialize};

use crate::domain::document::{Fault, Node, Reader};
use crate::domain::ids::{Label, Name, UserId};
use crate::domain::plan::{Rule, Scope};
use crate::domain::quantity::MAX_AMOUNT;
use crate::domain::time::{Millis, parse_date};
use crate::service::ServiceError;
use crate::service::tenancy::catalog::Tenant;
use crate::service::tenancy::reason::required_reason;

/// Users that can be named one by one.
const IDS_MAX: usize = 1_000;

/// What `PUT make-goods/{id}` asks for.
#[derive(Debug)]
pub struct MakeGoodPut {
    pub asked: Asked,
    /// Count, but give nothing.
    pub dry_run: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    pub users: Chosen,
    pub give: Give,
    pub reason: String,
}

/// Whom: everybody to whom all of it applies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    /// Whose plan on record this is.
    pub plan: Option<Name>,
    pub org: Option<Name>,
    pub ids: Option<Vec<UserId>>,
    pub refused: Option<Refused>,
}

/// Who was refused on some days.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// Days since 1970-01-01 in the tenant's zone, the last one not included.
    pub from: i32,
    pub to: i32,
    /// By one code; `None`: by any.
    pub code: Option<String>,
}

/// What each of them gets, on a window limit of scope user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Give {
    Grant {
        limit: Label,
        amount: u64,
        expires_at: Option<Millis>,
    },
    /// As much as the running window has used, until it ends.
    Reset {
        limit: Label,
    },
}

impl Give {
    pub fn limit(&self) -> &Label {
        match self {
            Self::Grant { limit, .. } | Self::Reset { limit } => limit,
        }
    }
}

impl MakeGoodPut {
    /// Reads `{"users":{"plan","org","ids","refused":{"from","to","code"}},
    /// "grant":{"limit","amount","expires_at"} | "reset":{"limit"},"dry_run","reason"}`.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        node.read(|fields| {
            let users = fields.required("users").table(read_chosen);
            let grant = fields.optional("grant").table(read_grant);
            let reset = fields.optional("reset").table(read_reset);
            let dry_run = fields.optional("dry_run").flag().unwrap_or(false);
            let reason = required_reason(fields);
            let give = match (grant, reset) {
                (Some(give), None) | (None, Some(give)) => Some(give),
                _ => {
                    if fields.is_clean() {
                        fields.fault("grant", "must be given, or else reset: one of the two");
                    }
                    None
                }
            };
            let asked = Asked { users: users?, give: give?, reason: reason? };
            Some(Self { asked, dry_run })
        })
    }
}

fn read_chosen(fields: &mut Reader<'_, '_>) -> Option<Chosen> {
    let plan = fields.optional("plan").parsed(Name::parse);
    let org = fields.optional("org").parsed(Name::parse);
    let ids = fields.optional("ids").list(IDS_MAX, |item| item.parsed(UserId::parse));
    let refused = fields.optional("refused").table(read_refused);
    let ids = ids.map(|mut ids| {
        ids.sort();
        ids.dedup();
        ids
    });
    Some(Chosen { plan, org, ids, refused })
}

fn read_refused(fields: &mut Reader<'_, '_>) -> Option<Refused> {
    let from = fields.required("from").parsed(parse_date);
    let to = fields.required("to").parsed(parse_date);
    let code = fields.optional("code").parsed(Label::parse);
    if from? > to? {
        fields.fault("to", "must not be before from");
    }
    Some(Refused { from: from?, to: to?, code: code.map(|code| code.to_string()) })
}

fn read_grant(fields: &mut Reader<'_, '_>) -> Option<Give> {
    let limit = fields.required("limit").parsed(Label::parse);
    let amount = fields.required("amount").number(1..=MAX_AMOUNT);
    let expires_at = fields.optional("expires_at").parsed(Millis::parse);
    Some(Give::Grant { limit: limit?, amount: amount?, expires_at })
}

fn read_reset(fields: &mut Reader<'_, '_>) -> Option<Give> {
    Some(Give::Reset { limit: fields.required("limit").parsed(Label::parse)? })
}

impl Asked {
    /// # Errors
    /// `UnknownPlan`; `Invalid`: no plan has such a window, or its end is no later than
    /// now.
    pub(super) fn check(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        let (catalog, now) = (tenant.catalog(), tenant.now());
        if self.users.plan.as_ref().is_some_and(|plan| catalog.plan(plan).is_none()) {
            return Err(ServiceError::UnknownPlan);
        }
        let what = match self.give {
            Give::Grant { .. } => "grant",
            Give::Reset { .. } => "reset",
        };
        let mut limits = catalog
            .plans
            .values()
            .flat_map(|plan| plan.live_at(now))
            .flat_map(|version| version.sheet.limits.iter());
        let is_window = limits.any(|limit| {
            limit.name == *self.give.limit()
                && limit.scope == Scope::User
                && matches!(limit.rule, Rule::Window { .. })
        });
        if !is_window {
            let message = "is the name of no window limit of users in any plan";
            return Err(ServiceError::invalid(format!("/{what}/limit"), message));
        }
        match self.give {
            Give::Grant { expires_at: Some(end), .. } if end <= now => {
                Err(ServiceError::invalid("/grant/expires_at", format!("must be later than now, {now}")))
            }
            _ => Ok(()),
        }
    }
}
