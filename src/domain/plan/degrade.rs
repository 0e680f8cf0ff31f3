//! What a sheet advises when a limit is nearly used up: another model, or
//! shorter answers. Advice is told with the grant and enforces nothing.

use serde_json::{Value, json};

use super::{Enforce, Limit, LintWarning, Models, PerCall};
use crate::domain::document::Reader;
use crate::domain::ids::{Label, Name};
use crate::domain::quantity::{MAX_AMOUNT, Ppm};

/// Most pieces of advice of one sheet.
pub const MAX_DEGRADES: usize = 32;

/// Advice that holds from a share of its limit on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degrade {
    pub at: Ppm,
    pub advice: Advice,
}

/// At least one of the two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    pub model: Option<Name>,
    pub max_output_tokens: Option<u64>,
}

/// Reads the sheet's advice into the limits that it is about, by share.
pub(super) fn read(r: &mut Reader<'_, '_>, limits: &mut [Limit]) {
    r.optional("degrade").list(MAX_DEGRADES, |item| item.table(|r| read_one(r, limits)));
    limits.iter_mut().for_each(|limit| limit.degrade.sort_by_key(|degrade| degrade.at));
}

fn read_one(r: &mut Reader<'_, '_>, limits: &mut [Limit]) -> Option<()> {
    let name = r.required("limit").parsed(Label::parse);
    let at = r.required("at").share();
    let model = r.optional("model").parsed(Name::parse);
    let max_output_tokens = r.optional("max_output_tokens").amount(MAX_AMOUNT);
    if !r.has("model") && !r.has("max_output_tokens") {
        r.fault_here("must advise a model, max_output_tokens, or both");
    }
    if at == Some(Ppm(0)) {
        r.fault("at", "must be above 0: a share of 0 is always reached");
    }
    let (name, at) = (name?, at?);
    let Some(limit) = limits.iter_mut().find(|limit| limit.name == name) else {
        r.fault("limit", format!("is no limit of this sheet: {name}"));
        return None;
    };
    if limit.degrade.iter().any(|known| known.at == at) {
        r.fault("at", format!("is given for {name} before"));
    }
    limit.degrade.push(Degrade { at, advice: Advice { model, max_output_tokens } });
    Some(())
}

/// As the sheet's document has it: by limit, then by share.
pub(super) fn to_json(limits: &[Limit]) -> Vec<Value> {
    let all = limits.iter().flat_map(|limit| limit.degrade.iter().map(move |degrade| (limit, degrade)));
    let json = all.map(|(limit, Degrade { at, advice })| {
        let mut json = json!({ "limit": limit.name.as_str(), "at": at.as_f64() });
        if let Some(model) = &advice.model {
            json["model"] = model.as_str().into();
        }
        if let Some(tokens) = advice.max_output_tokens {
            json["max_output_tokens"] = tokens.into();
        }
        json
    });
    json.collect()
}

/// Advice that is never told, or says nothing new.
pub(super) fn lint(limits: &[Limit], caps: &PerCall) -> Vec<LintWarning> {
    let mut warnings = Vec::new();
    let all = limits.iter().flat_map(|limit| limit.degrade.iter().map(move |degrade| (limit, degrade)));
    for (index, (limit, degrade)) in all.enumerate() {
        let mut warn = |field: &str, message: &str| {
            let pointer = format!("/degrade/{index}/{field}");
            warnings.push(LintWarning { pointer, message: message.into() });
        };
        if limit.enforce == Enforce::Shadow {
            warn("limit", "has no effect: the limit is a shadow, of which callers hear nothing");
        }
        if limit.rule.most_at_once() == 0 {
            warn("limit", "has no effect unless something is granted: the limit is 0");
        }
        let cap = caps.max_output_tokens;
        if degrade.advice.max_output_tokens.zip(cap).is_some_and(|(advised, cap)| advised >= cap) {
            warn("max_output_tokens", "is no less than per_call.max_output_tokens");
        }
    }
    warnings
}

/// Models that nobody knows.
pub(super) fn lint_models(limits: &[Limit], models: &Models) -> Vec<LintWarning> {
    let all = limits.iter().flat_map(|limit| &limit.degrade).enumerate();
    let unknown = all.filter_map(|(index, degrade)| {
        let model = degrade.advice.model.as_ref().filter(|model| models.resolve(model.as_str()).is_none())?;
        let message = format!("is no known model: {model}");
        Some(LintWarning { pointer: format!("/degrade/{index}/model"), message })
    });
    unknown.collect()
}
