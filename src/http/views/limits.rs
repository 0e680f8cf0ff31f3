//! Limits: where each one stands, what is granted, what is warned of.

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{is_false, is_zero};
use crate::domain::cell::Standing;
use crate::domain::decision::{LimitRow, Warning};
use crate::domain::hold::Granted;
use crate::domain::ids::{Label, Name};
use crate::domain::plan::{Enforce, Meter, Scope, Visibility};
use crate::domain::time::{Millis, Zone};
use crate::service::WouldRefuse;

/// A plan in force.
#[derive(Serialize, ToSchema)]
#[schema(as = PlanRef)]
pub struct PlanRef<'a> {
    #[schema(example = "free")]
    pub id: &'a str,
    #[schema(example = 1)]
    pub version: u32,
}

impl<'a> From<&'a (Name, u32)> for PlanRef<'a> {
    fn from((id, version): &'a (Name, u32)) -> Self {
        Self { id: id.as_str(), version: *version }
    }
}

/// What the caller may use.
#[derive(Serialize, ToSchema)]
#[schema(as = Granted)]
pub struct GrantedView {
    input_tokens: u64,
    max_output_tokens: u64,
    /// Nothing will be left of a window after this call.
    #[serde(rename = "final")]
    is_final: bool,
}

impl From<Granted> for GrantedView {
    fn from(granted: Granted) -> Self {
        Self {
            input_tokens: granted.input_tokens,
            max_output_tokens: granted.max_output_tokens,
            is_final: granted.is_final,
        }
    }
}

/// A threshold of a limit that was reached: of its `warn_at`, or one from which
/// on the plan advises something.
#[derive(Serialize, ToSchema)]
#[schema(as = Warning)]
pub struct WarningView<'a> {
    limit: &'a str,
    ratio: f64,
    used_ratio: f64,
    /// Absent if the plan advises nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<AdviceView<'a>>,
}

/// What the plan advises for the calls to come, so that the limit lasts longer.
#[derive(Serialize, ToSchema)]
#[schema(as = Advice)]
struct AdviceView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "haiku")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 256)]
    max_output_tokens: Option<u64>,
}

impl<'a> From<&'a Warning> for WarningView<'a> {
    fn from(warning: &'a Warning) -> Self {
        Self {
            limit: warning.limit.as_str(),
            ratio: warning.ratio.as_f64(),
            used_ratio: warning.used_ratio as f64 / 1e5,
            advice: warning.advice.as_ref().map(|advice| AdviceView {
                model: advice.model.as_ref().map(Name::as_str),
                max_output_tokens: advice.max_output_tokens,
            }),
        }
    }
}

/// A refusal that was not enforced.
#[derive(Serialize, ToSchema)]
#[schema(as = WouldRefuse)]
pub struct WouldRefuseView<'a> {
    #[schema(example = "monthly_quota_exhausted")]
    code: &'static str,
    /// The limit that decides; `null` where none does.
    #[schema(example = "tokens_per_month")]
    limit: Option<&'a str>,
}

impl<'a> From<&'a WouldRefuse> for WouldRefuseView<'a> {
    fn from(refused: &'a WouldRefuse) -> Self {
        Self { code: refused.code.as_str(), limit: refused.limit.as_ref().map(Label::as_str) }
    }
}

/// Limits' rows, written one after another.
pub struct Rows<'a>(pub &'a [LimitRow]);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(LimitView::from))
    }
}

/// Warnings, written one after another.
pub struct Warnings<'a>(pub &'a [Warning]);

impl Serialize for Warnings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(WarningView::from))
    }
}

/// Where a limit stands; which members there are depends on `kind`.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = LimitRow)]
pub enum LimitView<'a> {
    Bucket(BucketView<'a>),
    Window(WindowView<'a>),
    Slots(SlotsView<'a>),
    Rolling(RollingView<'a>),
}

#[derive(Serialize, ToSchema)]
#[schema(as = BucketRow)]
pub struct BucketView<'a> {
    name: &'a str,
    scope: &'static str,
    /// `bucket`
    kind: &'static str,
    meter: &'a str,
    /// The capacity.
    limit: u64,
    remaining: u64,
    held: u64,
    refill_per_minute: u64,
    /// When it is full again if nothing else happens; `null`: not before the
    /// year 10000.
    #[schema(value_type = Option<String>, format = DateTime)]
    full_at: Option<Millis>,
    #[serde(skip_serializing_if = "is_false")]
    #[schema(required = false)]
    over: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = WindowRow)]
pub struct WindowView<'a> {
    name: &'a str,
    scope: &'static str,
    /// `window`
    kind: &'static str,
    meter: &'a str,
    limit: u64,
    /// What grants add.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    granted: u64,
    used: u64,
    held: u64,
    remaining: u64,
    over_by: u64,
    /// `null`: no window runs, or it has no end.
    window: Option<SpanView<'a>>,
    #[schema(value_type = Option<String>, format = DateTime)]
    resets_at: Option<Millis>,
    #[serde(skip_serializing_if = "is_false")]
    #[schema(required = false)]
    over: bool,
}

/// A window's instants, `[start, end)`.
#[derive(Serialize, ToSchema)]
#[schema(as = Span)]
pub struct SpanView<'a> {
    #[schema(value_type = String, format = DateTime)]
    start: Millis,
    #[schema(value_type = String, format = DateTime)]
    end: Millis,
    /// Whose midnights the borders are; `null` for windows of a fixed length.
    zone: Option<&'a str>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = SlotsRow)]
pub struct SlotsView<'a> {
    name: &'a str,
    scope: &'static str,
    /// `slots`
    kind: &'static str,
    limit: u64,
    in_use: u64,
    remaining: u64,
    #[serde(skip_serializing_if = "is_false")]
    #[schema(required = false)]
    over: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = RollingRow)]
pub struct RollingView<'a> {
    name: &'a str,
    scope: &'static str,
    /// `rolling`
    kind: &'static str,
    meter: &'a str,
    limit: u64,
    /// What counts in the window that ends now.
    used: u64,
    remaining: u64,
    window_seconds: u32,
    #[serde(skip_serializing_if = "is_false")]
    #[schema(required = false)]
    over: bool,
}

/// A limit of which users are told percents only.
#[derive(Serialize, ToSchema)]
#[schema(as = PercentRow)]
pub struct PercentView<'a> {
    name: &'a str,
    scope: &'static str,
    /// `bucket`, `window` or `slots`
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    meter: Option<&'a str>,
    /// Rounded down.
    #[schema(minimum = 0, maximum = 100)]
    remaining_percent: u64,
    /// Of calls that run; rounded down.
    #[schema(minimum = 0, maximum = 100)]
    held_percent: u64,
    /// Windows only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SpanView>)]
    window: Option<Option<SpanView<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    resets_at: Option<Option<Millis>>,
}

impl<'a> From<&'a LimitRow> for PercentView<'a> {
    fn from(row: &'a LimitRow) -> Self {
        let (remaining_percent, held_percent) = row.standing.percents();
        let window = match row.standing {
            Standing::Window { window, .. } => Some(window),
            _ => None,
        };
        Self {
            name: row.name.as_str(),
            scope: row.scope.as_str(),
            kind: row.standing.kind(),
            meter: row.meter.as_ref().map(Meter::as_str),
            remaining_percent,
            held_percent,
            window: window.map(|span| span.map(|span| span_view(span, row))),
            resets_at: window.map(|span| span.map(|(_, end)| end)),
        }
    }
}

fn span_view((start, end): (Millis, Millis), row: &LimitRow) -> SpanView<'_> {
    SpanView { start, end, zone: row.zone.as_deref().map(Zone::name) }
}

impl<'a> From<&'a LimitRow> for LimitView<'a> {
    fn from(row: &'a LimitRow) -> Self {
        let (name, scope, kind) = (row.name.as_str(), row.scope.as_str(), row.standing.kind());
        let meter = row.meter.as_ref().map_or("", Meter::as_str);
        let over = row.enforce == Enforce::Soft && row.standing.is_over();
        match row.standing {
            Standing::Bucket { capacity: limit, refill_per_minute, remaining, held, full_at, .. } => {
                Self::Bucket(BucketView {
                    name,
                    scope,
                    kind,
                    meter,
                    limit,
                    remaining,
                    held,
                    refill_per_minute,
                    full_at,
                    over,
                })
            }
            Standing::Window { limit, granted, used, held, remaining, over_by, window } => {
                Self::Window(WindowView {
                    name,
                    scope,
                    kind,
                    meter,
                    limit,
                    granted,
                    used,
                    held,
                    remaining,
                    over_by,
                    window: window.map(|span| span_view(span, row)),
                    resets_at: window.map(|(_, end)| end),
                    over,
                })
            }
            Standing::Slots { limit, in_use, remaining } => {
                Self::Slots(SlotsView { name, scope, kind, limit, in_use, remaining, over })
            }
            Standing::Rolling { limit, used, remaining } => Self::Rolling(RollingView {
                name,
                scope,
                kind,
                meter,
                limit,
                used,
                remaining,
                window_seconds: row.window_seconds.unwrap_or_default(),
                over,
            }),
        }
    }
}

/// Users are not shown what belongs to the tenant or the vendor, nor what their plan hides.
pub fn is_shown_to_users(row: &LimitRow) -> bool {
    matches!(row.scope, Scope::User | Scope::Org) && row.visibility != Visibility::Hidden
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::plan::{Advice, Visibility};
    use crate::domain::quantity::Ppm;

    fn row(meter: Option<Meter>, enforce: Enforce, standing: Standing) -> Value {
        let zone = Zone::parse("Asia/Tokyo").unwrap();
        let name = Label::parse("x").unwrap();
        let row = LimitRow {
            name,
            scope: Scope::User,
            meter,
            enforce,
            standing,
            would_refuse: 0,
            visibility: Visibility::Exact,
            zone: Some(zone),
            window_seconds: None,
        };
        serde_json::to_value(LimitView::from(&row)).unwrap()
    }

    #[test]
    fn rows_have_the_fields_of_their_kind() {
        let bucket = Standing::Bucket {
            capacity: 3,
            refill_per_minute: 3,
            remaining: 2,
            held: 0,
            in_debt: false,
            full_at: Some(Millis(20_000)),
            next_unit_at: None,
        };
        assert_eq!(
            row(Some(Meter::Requests), Enforce::Hard, bucket),
            json!({"name": "x", "scope": "user", "kind": "bucket", "meter": "requests", "limit": 3, "remaining": 2,
                   "held": 0, "refill_per_minute": 3, "full_at": "1970-01-01T00:00:20.000Z"})
        );
        let window = |window| Standing::Window {
            limit: 10,
            granted: 0,
            used: 11,
            held: 1,
            remaining: 0,
            over_by: 2,
            window,
        };
        assert_eq!(
            row(Some(Meter::TotalTokens), Enforce::Soft, window(Some((Millis(0), Millis(1000))))),
            json!({"name": "x", "scope": "user", "kind": "window", "meter": "total_tokens", "limit": 10, "used": 11,
                   "held": 1, "remaining": 0, "over_by": 2, "over": true, "resets_at": "1970-01-01T00:00:01.000Z",
                   "window": {"start": "1970-01-01T00:00:00.000Z", "end": "1970-01-01T00:00:01.000Z",
                              "zone": "Asia/Tokyo"}})
        );
        let lifetime = row(Some(Meter::TotalTokens), Enforce::Hard, window(None));
        assert_eq!((&lifetime["window"], &lifetime["resets_at"]), (&Value::Null, &Value::Null));
        assert!(lifetime.as_object().unwrap().contains_key("window"));
        assert_eq!(
            row(None, Enforce::Hard, Standing::Slots { limit: 1, in_use: 1, remaining: 0 }),
            json!({"name": "x", "scope": "user", "kind": "slots", "limit": 1, "in_use": 1, "remaining": 0})
        );
    }

    #[test]
    fn ratios_have_their_decimals() {
        let limit = Label::parse("x").unwrap();
        let plain = Warning { limit, ratio: Ppm(800_000), used_ratio: 83_356, advice: None };
        let shown = |warning: &Warning| serde_json::to_string(&WarningView::from(warning)).unwrap();
        assert_eq!(shown(&plain), r#"{"limit":"x","ratio":0.8,"used_ratio":0.83356}"#);
        let advice = Some(Advice { model: None, max_output_tokens: Some(256) });
        let advised = shown(&Warning { advice, ..plain });
        assert!(
            advised.ends_with(r#""used_ratio":0.83356,"advice":{"max_output_tokens":256}}"#),
            "{advised}"
        );
    }
}
