//! How long answers are, by feature and model, and the caps that this suggests.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::domain::ids::{Label, Name};
use crate::domain::spread::Spread;
use crate::http::call::Call;
use crate::http::page::{Key, Page, list_with};
use crate::http::reply::Answer;
use crate::http::schema::OutputList;
use crate::ledger::Output;

const PAGE: u32 = 100;

/// Tells how long answers were in the last seven days, by feature and model, and
/// what to cap them with. What `"auto"` reserves is learned from the same.
#[utoipa::path(
    get, path = "/v1/admin/outputs", operation_id = "list_outputs", tag = "admin",
    params(
        ("feature" = Option<String>, Query, description = "Of this feature"),
        ("model" = Option<String>, Query, description = "Of this model or alias"),
        ("limit" = Option<u32>, Query, description = "Most rows of a page, 1-500, default 100"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of rows, by feature and model", body = OutputList)),
    security(("bearer" = ["admin:read"])),
)]
pub async fn all(call: Call) -> Answer {
    let tenant = call.tenant()?;
    let catalog = tenant.catalog();
    let (page, feature, model) = call.query(|parameters| {
        let page = Page::<Place>::read(parameters, PAGE);
        let feature = parameters.optional("feature", Label::parse);
        let model = parameters.optional("model", Name::parse).map(|model| catalog.models.canonical(&model));
        Some((page, feature, model))
    })?;
    let mut outputs = call.service().outputs(tenant).await?;
    outputs.retain(|output| {
        feature.as_ref().is_none_or(|feature| *feature.as_str() == *output.feature)
            && model.as_ref().is_none_or(|model| *model.as_str() == *output.model)
    });
    let mut by_feature: BTreeMap<&str, Spread> = BTreeMap::new();
    for output in &outputs {
        by_feature.entry(&output.feature).or_default().merge(&output.spread);
    }
    let features: Vec<Value> = by_feature
        .iter()
        .map(|(feature, spread)| figures(json!({"feature": named(feature)}), spread))
        .collect();
    let (shown, last) = page.part(&outputs, |output| Place::of(output));
    let rows = shown.into_iter().map(|output| {
        let names = json!({"feature": named(&output.feature), "model": named(&output.model)});
        figures(names, &output.spread)
    });
    Ok(list_with(rows.collect(), last, |body| body["features"] = features.into()))
}

/// The empty name is none.
fn named(name: &str) -> Option<&str> {
    Some(name).filter(|name| !name.is_empty())
}

fn figures(mut row: Value, spread: &Spread) -> Value {
    let total = spread.total();
    // What was cut off counts as longer than it was.
    let quantile = |percent| spread.quantile(percent).map(|tokens| tokens.min(total.most));
    let more = json!({
        "count": total.count,
        "cut": total.cut,
        "p50": quantile(50),
        "p90": quantile(90),
        "p99": quantile(99),
        "max": total.most,
        "mean": total.used / total.count.max(1),
        "reserved_tokens": total.reserved,
        "used_tokens": total.used,
        "suggested_max_output_tokens": spread.suggests(),
    });
    if let (Some(row), Value::Object(more)) = (row.as_object_mut(), more) {
        row.extend(more);
    }
    row
}

/// The place of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    feature: String,
    model: String,
}

impl Place {
    fn of(output: &Output) -> Self {
        Self { feature: output.feature.to_string(), model: output.model.to_string() }
    }
}

impl Key for Place {
    const LIST: &'static str = "outputs";

    fn read(text: &str) -> Option<Self> {
        // No feature has a dot.
        let (feature, model) = text.split_once('.')?;
        Some(Self { feature: feature.to_owned(), model: model.to_owned() })
    }

    fn write(&self) -> String {
        format!("{}.{}", self.feature, self.model)
    }
}
