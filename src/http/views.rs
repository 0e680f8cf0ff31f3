//! The shapes that several replies share: holds, limits, amounts.
//!
//! They borrow from the domain and are written straight into the body; nothing
//! is built in between.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::domain::cell::Standing;
use crate::domain::decision::{LimitRow, Warning};
use crate::domain::hold::{
    Amounts, FinishedBy, Granted, Hold, ReleaseReason, Reported, Settlement, Stage, Upstream,
};
use crate::domain::ids::{HoldId, Label, Name};
use crate::domain::plan::{Enforce, Meter, Scope};
use crate::domain::time::{Millis, Zone};

/// Amounts by meter.
#[derive(Serialize, ToSchema)]
#[schema(as = Amounts)]
pub struct AmountsView<'a> {
    #[schema(example = 1)]
    requests: u64,
    #[schema(example = 1200)]
    input_tokens: u64,
    #[schema(example = 512)]
    output_tokens: u64,
    #[schema(example = 1712)]
    total_tokens: u64,
    #[schema(example = 0)]
    credits: u64,
    /// Meters of the tenant's own, fed by `amounts`.
    #[serde(flatten)]
    #[schema(value_type = std::collections::HashMap<String, u64>)]
    custom: Custom<'a>,
}

struct Custom<'a>(&'a [(Label, u64)]);

impl Serialize for Custom<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (meter, amount) in self.0 {
            map.serialize_entry(meter.as_str(), amount)?;
        }
        map.end()
    }
}

impl<'a> AmountsView<'a> {
    fn new(amounts: Amounts, custom: &'a [(Label, u64)]) -> Self {
        Self {
            requests: amounts.requests,
            input_tokens: amounts.input_tokens,
            output_tokens: amounts.output_tokens,
            total_tokens: amounts.total_tokens,
            credits: amounts.credits,
            custom: Custom(custom),
        }
    }
}

/// Usage as reported.
#[derive(Serialize, ToSchema)]
#[schema(as = ActualUsage)]
pub struct ActualView<'a> {
    requests: u64,
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
    credits: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    #[serde(flatten)]
    #[schema(value_type = std::collections::HashMap<String, u64>)]
    custom: Custom<'a>,
    /// What really served, aliases resolved.
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<UpstreamView<'a>>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Upstream)]
pub struct UpstreamView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ms: Option<u64>,
}

impl<'a> UpstreamView<'a> {
    fn new(upstream: &'a Upstream) -> Self {
        Self {
            request_id: upstream.request_id.as_deref(),
            status: upstream.status,
            latency_ms: upstream.latency_ms,
        }
    }
}

impl<'a> ActualView<'a> {
    fn new(settlement: &'a Settlement) -> Self {
        let reported: &Reported = &settlement.reported;
        Self {
            requests: settlement.counted.requests,
            input_tokens: reported.input_tokens,
            output_tokens: reported.output_tokens,
            total_tokens: reported.input_tokens.saturating_add(reported.output_tokens),
            credits: settlement.counted.credits,
            cache_read_tokens: reported.cache_read_tokens,
            cache_write_tokens: reported.cache_write_tokens,
            custom: Custom(&settlement.amounts),
            model: reported.model.as_ref().map(|model| model.as_str()),
            outcome: reported.outcome.as_deref(),
            upstream: reported.upstream.as_ref().map(UpstreamView::new),
        }
    }
}

/// A hold. What the later members tell is there once the hold is finished.
#[derive(Serialize, ToSchema)]
#[schema(as = Hold)]
pub struct HoldView<'a> {
    #[serde(serialize_with = "hold_id")]
    #[schema(value_type = String, example = "hold_01932d3e-9f1c-7c4b-b7e5-5a2f0c9d8e71")]
    id: HoldId,
    /// `held`, `in_doubt`, `settled` or `released`.
    state: &'static str,
    request_id: Option<&'a str>,
    user: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    feature: Option<&'a str>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Millis,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Millis,
    reserved: AmountsView<'a>,
    /// Progress reported by `extend`.
    #[serde(skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    output_tokens_so_far: u64,
    #[serde(flatten)]
    end: Option<EndView<'a>>,
}

/// How a hold ended.
#[derive(Serialize, ToSchema)]
#[schema(as = HoldEnd)]
pub struct EndView<'a> {
    /// As reported. Absent after a release.
    #[serde(skip_serializing_if = "Option::is_none")]
    actual: Option<ActualView<'a>>,
    /// What the limits took.
    counted: AmountsView<'a>,
    /// What was reserved and not counted.
    returned: AmountsView<'a>,
    /// What was counted beyond the reservation.
    overage: AmountsView<'a>,
    /// Whether the hold was in doubt when it ended.
    late: bool,
    #[schema(value_type = String, format = DateTime)]
    finished_at: Millis,
    /// Of a release: `not_sent` or `upstream_refused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// `rule` or `admin`, when not the caller ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved_by: Option<&'static str>,
}

impl<'a> HoldView<'a> {
    /// The hold as it stands at `now`.
    pub fn new(hold: &'a Hold, now: Millis) -> Self {
        Self {
            id: hold.id,
            state: hold.state(now).as_str(),
            request_id: hold.request.as_ref().map(|mark| mark.id.as_str()),
            user: hold.user.as_str(),
            model: hold.model.as_ref().map(|model| model.as_str()),
            feature: hold.feature.as_ref().map(|feature| feature.as_str()),
            created_at: hold.created_at,
            expires_at: hold.expires_at,
            reserved: AmountsView::new(hold.reserved, &hold.amounts),
            output_tokens_so_far: hold.progress,
            end: EndView::new(hold),
        }
    }
}

impl<'a> EndView<'a> {
    fn new(hold: &'a Hold) -> Option<Self> {
        let (counted, custom, by, at, late) = match &hold.stage {
            Stage::Held | Stage::InDoubt { .. } => return None,
            Stage::Settled(end) => (end.counted, &end.amounts[..], end.by, end.at, end.late),
            Stage::Released { at, late, by, .. } => (Amounts::default(), &[][..], *by, *at, *late),
        };
        let actual = match &hold.stage {
            Stage::Settled(settlement) => Some(ActualView::new(settlement)),
            _ => None,
        };
        let reason = match &hold.stage {
            Stage::Released { reason: ReleaseReason::NotSent, .. } => Some("not_sent"),
            Stage::Released { reason: ReleaseReason::UpstreamRefused, .. } => Some("upstream_refused"),
            _ => None,
        };
        Some(Self {
            actual,
            counted: AmountsView::new(counted, custom),
            returned: AmountsView::new(beyond(hold.reserved, counted), &[]),
            overage: AmountsView::new(beyond(counted, hold.reserved), &[]),
            late,
            finished_at: at,
            reason,
            resolved_by: match by {
                FinishedBy::Caller => None,
                FinishedBy::Rule => Some("rule"),
                FinishedBy::Admin => Some("admin"),
            },
        })
    }
}

/// By how much `a` is above `b`, meter by meter.
fn beyond(a: Amounts, b: Amounts) -> Amounts {
    Amounts {
        requests: a.requests.saturating_sub(b.requests),
        input_tokens: a.input_tokens.saturating_sub(b.input_tokens),
        output_tokens: a.output_tokens.saturating_sub(b.output_tokens),
        total_tokens: a.total_tokens.saturating_sub(b.total_tokens),
        credits: a.credits.saturating_sub(b.credits),
    }
}

/// `{"hold":{...}}`.
#[derive(Serialize, ToSchema)]
#[schema(as = HoldReply)]
pub struct HoldReply<'a> {
    pub hold: HoldView<'a>,
}

/// `{"hold":{...},"limits":[...]}`.
#[derive(Serialize, ToSchema)]
#[schema(as = FinishedHold)]
pub struct FinishedView<'a> {
    pub hold: HoldView<'a>,
    #[schema(value_type = Vec<LimitView>)]
    pub limits: Rows<'a>,
}

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

/// A threshold of a limit's `warn_at` that was reached.
#[derive(Serialize, ToSchema)]
#[schema(as = Warning)]
pub struct WarningView<'a> {
    limit: &'a str,
    ratio: f64,
    used_ratio: f64,
}

impl<'a> From<&'a Warning> for WarningView<'a> {
    fn from(warning: &'a Warning) -> Self {
        Self {
            limit: warning.limit.as_str(),
            ratio: warning.ratio.as_f64(),
            used_ratio: warning.used_ratio as f64 / 1e5,
        }
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
                let span = |(start, end)| SpanView { start, end, zone: row.zone.as_deref().map(Zone::name) };
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
                    window: window.map(span),
                    resets_at: window.map(|(_, end)| end),
                    over,
                })
            }
            Standing::Slots { limit, in_use, remaining } => {
                Self::Slots(SlotsView { name, scope, kind, limit, in_use, remaining, over })
            }
        }
    }
}

/// Users are not shown what belongs to the tenant or the vendor.
pub fn is_shown_to_users(row: &LimitRow) -> bool {
    matches!(row.scope, Scope::User | Scope::Org)
}

fn hold_id<S: Serializer>(id: &HoldId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(value: &bool) -> bool {
    !*value
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::hold::{Caps, RequestMark};
    use crate::domain::ids::{RequestId, UserId};
    use crate::domain::plan::PerCall;
    use crate::domain::quantity::Ppm;

    fn hold(stage: Stage) -> Hold {
        Hold {
            id: HoldId::from_parts(0, [7; 16]),
            tenant: crate::domain::charge::TenantRef(1),
            user: UserId::parse("u_42").unwrap(),
            org: None,
            pool: None,
            request: Some(RequestMark { id: RequestId::parse("7f13").unwrap(), fingerprint: [0; 16] }),
            plan: Name::parse("free").unwrap(),
            plan_version: 1,
            admits_user: false,
            models_version: 1,
            model: None,
            feature: None,
            created_at: Millis(0),
            expires_at: Millis(600_000),
            lease_seconds: 600,
            lives_until: Millis(3_600_000),
            day: 0,
            caps: Caps { per_call: PerCall::default(), max_tokens_per_call: 1 },
            cache_read_weight: Ppm::ONE,
            granted: Granted { input_tokens: 1200, max_output_tokens: 512, is_final: false },
            reserved: Amounts {
                requests: 1,
                input_tokens: 1200,
                output_tokens: 512,
                total_tokens: 1712,
                credits: 0,
            },
            amounts: vec![(Label::parse("images").unwrap(), 2)],
            receipts: vec![],
            progress: 0,
            extends: vec![],
            stage,
        }
    }

    fn shown(hold: &Hold, now: i64) -> Value {
        serde_json::to_value(HoldView::new(hold, Millis(now))).unwrap()
    }

    #[test]
    fn an_open_hold_shows_what_it_reserved_and_nothing_of_an_end() {
        let open = hold(Stage::Held);
        assert_eq!(
            shown(&open, 1),
            json!({
                "id": open.id.to_string(), "state": "held", "request_id": "7f13", "user": "u_42",
                "created_at": "1970-01-01T00:00:00.000Z", "expires_at": "1970-01-01T00:10:00.000Z",
                "reserved": {"requests": 1, "input_tokens": 1200, "output_tokens": 512, "total_tokens": 1712,
                             "credits": 0, "images": 2},
            })
        );
        assert_eq!(shown(&open, 600_000)["state"], "in_doubt");
    }

    #[test]
    fn a_settled_hold_shows_what_came_back_and_what_was_over() {
        let counted =
            Amounts { requests: 1, input_tokens: 1180, output_tokens: 600, total_tokens: 1780, credits: 5 };
        let reported =
            Reported { input_tokens: 1180, output_tokens: 600, cache_read_tokens: 7, ..Reported::default() };
        let settlement = Settlement {
            at: Millis(5),
            late: true,
            by: FinishedBy::Caller,
            reported,
            counted,
            told_model: None,
            amounts: vec![],
        };
        let view = shown(&hold(Stage::Settled(Box::new(settlement))), 10);
        assert_eq!(view["state"], "settled");
        assert_eq!(view["actual"]["total_tokens"], 1780);
        assert_eq!(view["actual"]["cache_read_tokens"], 7);
        assert_eq!(view["counted"]["credits"], 5);
        assert_eq!(
            view["returned"],
            json!({"requests": 0, "input_tokens": 20, "output_tokens": 0, "total_tokens": 0, "credits": 0})
        );
        assert_eq!(
            view["overage"],
            json!({"requests": 0, "input_tokens": 0, "output_tokens": 88, "total_tokens": 68, "credits": 5})
        );
        assert_eq!((&view["late"], &view["resolved_by"]), (&json!(true), &Value::Null));
    }

    #[test]
    fn a_released_hold_gives_everything_back() {
        let stage = Stage::Released {
            at: Millis(5),
            late: false,
            reason: ReleaseReason::UpstreamRefused,
            by: FinishedBy::Rule,
        };
        let view = shown(&hold(stage), 10);
        assert_eq!(view["returned"]["total_tokens"], 1712);
        assert_eq!(
            (view["reason"].as_str(), view["resolved_by"].as_str()),
            (Some("upstream_refused"), Some("rule"))
        );
        assert_eq!(view.get("actual"), None);
    }

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
        let warning = Warning { limit: Label::parse("x").unwrap(), ratio: Ppm(800_000), used_ratio: 83_356 };
        let text = serde_json::to_string(&WarningView::from(&warning)).unwrap();
        assert_eq!(text, r#"{"limit":"x","ratio":0.8,"used_ratio":0.83356}"#);
    }
}
