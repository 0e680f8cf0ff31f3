//! Reading a plan sheet, as a whole and with every fault, and writing it back.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::degrade;
use super::limit::{self, Given, Head, Kind};
use super::{Enforce, Limit, LintWarning, MAX_LIMITS, PerCall, Scope, Sheet, Visibility};
use crate::domain::document::{Fault, Node, Reader};
use crate::domain::ids::{Label, Name};
use crate::domain::quantity::{MAX_AMOUNT, Ppm};

const MAX_TITLE_BYTES: usize = 200;

impl Sheet {
    /// Reads and checks a whole sheet. Besides the sheet: what in it can never
    /// bite, as far as the sheet alone tells (see [`Sheet::lint`]).
    pub fn read(node: &Node<'_>) -> Result<(Self, Vec<LintWarning>), Vec<Fault>> {
        let sheet = node.read(|r| Self::fields(r, None))?;
        let warnings = sheet.lint_alone();
        Ok((sheet, warnings))
    }

    /// Reads the fields of a sheet from a document that may have others beside
    /// them. With `id` the document may leave out its own, and may not differ.
    pub fn fields(r: &mut Reader<'_, '_>, id: Option<&Name>) -> Option<Self> {
        let id = read_id(r, id);
        let name = r.optional("name").text_up_to(MAX_TITLE_BYTES);
        if name.is_some_and(|name| name.trim().is_empty() || name.chars().any(char::is_control)) {
            r.fault("name", "must be a line of text");
        }
        let requires_verified = r.optional("requires_verified").flag().unwrap_or(false);
        let cache_read_weight = r.optional("cache_read_weight").share().unwrap_or(Ppm::ONE);
        let per_call = r.optional("per_call").table(read_per_call).unwrap_or_default();
        let mut names = HashSet::new();
        let limits = r
            .optional("limits")
            .list(MAX_LIMITS, |item| item.table(|r| read_limit(r, &per_call, &mut names)));
        let mut limits = limits.unwrap_or_default();
        degrade::read(r, &mut limits);
        let id = id?;
        let name = name.unwrap_or(id.as_str()).to_owned();
        Some(Self { id, name, requires_verified, cache_read_weight, per_call, limits })
    }

    /// The sheet as a document would have it: what [`Sheet::read`] accepts.
    pub fn to_json(&self) -> Value {
        let caps = [
            ("max_input_tokens", self.per_call.max_input_tokens),
            ("max_output_tokens", self.per_call.max_output_tokens),
        ];
        let per_call: Map<String, Value> =
            caps.into_iter().filter_map(|(name, cap)| Some((name.into(), cap?.into()))).collect();
        let mut json = json!({
            "id": self.id.as_str(),
            "name": self.name,
            "requires_verified": self.requires_verified,
            "cache_read_weight": self.cache_read_weight.as_f64(),
            "per_call": per_call,
            "limits": self.limits.iter().map(limit::to_json).collect::<Vec<_>>(),
        });
        let advice = degrade::to_json(&self.limits);
        if !advice.is_empty() {
            json["degrade"] = advice.into();
        }
        json
    }
}

/// The id: from the document, from its address, or from both if they agree.
pub(super) fn read_id(r: &mut Reader<'_, '_>, address: Option<&Name>) -> Option<Name> {
    let Some(address) = address else {
        return r.required("id").parsed(Name::parse);
    };
    if r.has("id") && r.optional("id").parsed(Name::parse)? != *address {
        r.fault("id", format!("must be left out or be {address:?}, as in the address"));
        return None;
    }
    Some(address.clone())
}

fn read_per_call(r: &mut Reader<'_, '_>) -> Option<PerCall> {
    Some(PerCall {
        max_input_tokens: r.optional("max_input_tokens").amount(MAX_AMOUNT),
        max_output_tokens: r.optional("max_output_tokens").amount(MAX_AMOUNT),
    })
}

/// Reads a limit; `None` without a fault is one whose number is `null`.
fn read_limit(r: &mut Reader<'_, '_>, per_call: &PerCall, names: &mut HashSet<Label>) -> Option<Limit> {
    let head = Head::read(r);
    let kind = Kind::read(r)?;
    let scopes = [("user", Scope::User), ("org", Scope::Org), ("tenant", Scope::Tenant)];
    let scope = r.optional("scope").choice(&scopes).unwrap_or(Scope::User);
    let visibility = r.optional("visibility").choice(&Visibility::WORDS).unwrap_or_default();
    let warn_at = limit::read_warn_at(r, kind);
    let rule = match limit::read_rule(r, kind, scope)? {
        Given::Is(rule) => rule,
        Given::LeftOut => return None,
    };
    let limit = Limit { visibility, ..head?.into_limit(scope, rule, warn_at?) };
    if !names.insert(limit.name.clone()) {
        r.fault("name", format!("is the name of another limit too: {}", limit.name));
    }
    check_largest_call(r, kind, &limit, per_call);
    Some(limit)
}

/// A hard limit that the sheet's own largest call can never pass is a mistake.
/// A limit of 0 is not: it says that nothing is to pass.
fn check_largest_call(r: &mut Reader<'_, '_>, kind: Kind, limit: &Limit, per_call: &PerCall) {
    let most = limit.rule.most_at_once();
    let needed = per_call.largest(limit.rule.meter());
    if limit.enforce == Enforce::Hard && most > 0 && needed > most {
        let field = kind.numbers().first().copied().unwrap_or("limit");
        r.fault(
            field,
            format!("could never admit the largest call of per_call: it takes {needed}, this is {most}"),
        );
    }
}
