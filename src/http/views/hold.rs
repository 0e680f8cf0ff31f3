//! Holds: what was reserved, what was used, what came back.

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::is_zero;
use super::limits::{LimitView, Rows, WouldRefuseView};
use crate::domain::hold::{Amounts, FinishedBy, Hold, ReleaseReason, Reported, Settlement, Stage, Upstream};
use crate::domain::ids::{HoldId, Label};
use crate::domain::time::Millis;

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

struct Custom<'a>(Cow<'a, [(Label, u64)]>);

impl Serialize for Custom<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (meter, amount) in self.0.iter() {
            map.serialize_entry(meter.as_str(), amount)?;
        }
        map.end()
    }
}

impl<'a> AmountsView<'a> {
    pub fn new(amounts: Amounts, custom: impl Into<Cow<'a, [(Label, u64)]>>) -> Self {
        Self {
            requests: amounts.requests,
            input_tokens: amounts.input_tokens,
            output_tokens: amounts.output_tokens,
            total_tokens: amounts.total_tokens,
            credits: amounts.credits,
            custom: Custom(custom.into()),
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
            custom: Custom(settlement.amounts.as_slice().into()),
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
    /// As reported. Absent after a release.
    #[serde(skip_serializing_if = "Option::is_none")]
    actual: Option<ActualView<'a>>,
    /// What the limits took.
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<AmountsView<'a>>,
    /// What was reserved and not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    returned: Option<AmountsView<'a>>,
    /// What was counted beyond the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    overage: Option<AmountsView<'a>>,
    /// Whether the hold was in doubt when it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Millis>,
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
        let open = Self {
            id: hold.id,
            state: hold.state(now).as_str(),
            request_id: hold.request.as_ref().map(|mark| mark.id.as_str()),
            user: hold.user.as_str(),
            model: hold.model.as_ref().map(|model| model.as_str()),
            feature: hold.feature.as_ref().map(|feature| feature.as_str()),
            created_at: hold.created_at,
            expires_at: hold.expires_at,
            reserved: AmountsView::new(hold.reserved, hold.amounts.as_slice()),
            output_tokens_so_far: hold.progress,
            actual: None,
            counted: None,
            returned: None,
            overage: None,
            late: None,
            finished_at: None,
            reason: None,
            resolved_by: None,
        };
        match &hold.stage {
            Stage::Held | Stage::InDoubt { .. } => open,
            Stage::Settled(end) => {
                let actual = Some(ActualView::new(end));
                let ended = open.ended(hold, end.counted, end.amounts.clone());
                Self { actual, late: Some(end.late), resolved_by: resolved_by(end.by), ..ended }.at(end.at)
            }
            Stage::Released { at, late, reason, by } => {
                let reason = Some(match reason {
                    ReleaseReason::NotSent => "not_sent",
                    ReleaseReason::UpstreamRefused => "upstream_refused",
                });
                let nothing = hold.amounts.iter().map(|(meter, _)| (meter.clone(), 0)).collect();
                let ended = open.ended(hold, Amounts::default(), nothing);
                Self { reason, late: Some(*late), resolved_by: resolved_by(*by), ..ended }.at(*at)
            }
        }
    }

    /// `custom`: what was counted on the tenant's own meters.
    fn ended(self, hold: &Hold, counted: Amounts, custom: Vec<(Label, u64)>) -> Self {
        let returned = custom_beyond(&hold.amounts, &custom);
        let overage = custom_beyond(&custom, &hold.amounts);
        Self {
            returned: Some(AmountsView::new(beyond(hold.reserved, counted), returned)),
            overage: Some(AmountsView::new(beyond(counted, hold.reserved), overage)),
            counted: Some(AmountsView::new(counted, custom)),
            ..self
        }
    }

    fn at(self, finished_at: Millis) -> Self {
        Self { finished_at: Some(finished_at), ..self }
    }
}

fn resolved_by(by: FinishedBy) -> Option<&'static str> {
    match by {
        FinishedBy::Caller => None,
        FinishedBy::Rule => Some("rule"),
        FinishedBy::Admin => Some("admin"),
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

/// The same for the tenant's own meters: every meter that either side names,
/// as the built-in ones are all there too.
fn custom_beyond(a: &[(Label, u64)], b: &[(Label, u64)]) -> Vec<(Label, u64)> {
    let of = |side: &[(Label, u64)], meter: &Label| {
        side.iter().find(|(known, _)| known == meter).map_or(0, |(_, amount)| *amount)
    };
    let only_b = b.iter().filter(|(meter, _)| a.iter().all(|(known, _)| known != meter));
    let meters = a.iter().chain(only_b).map(|(meter, _)| meter);
    meters.map(|meter| (meter.clone(), of(a, meter).saturating_sub(of(b, meter)))).collect()
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
    /// Of an extend in shadow: the refusal that enforcement would have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_refuse: Option<WouldRefuseView<'a>>,
}

fn hold_id<S: Serializer>(id: &HoldId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::hold::{Caps, Granted, RequestMark};
    use crate::domain::ids::{Name, RequestId, UserId};
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
            bulk: false,
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
            amounts: vec![(Label::parse("images").unwrap(), 5), (Label::parse("pages").unwrap(), 1)],
        };
        let view = shown(&hold(Stage::Settled(Box::new(settlement))), 10);
        assert_eq!(view["state"], "settled");
        assert_eq!(view["actual"]["total_tokens"], 1780);
        assert_eq!(view["actual"]["cache_read_tokens"], 7);
        assert_eq!(view["counted"]["credits"], 5);
        assert_eq!((&view["actual"]["images"], &view["counted"]["images"]), (&json!(5), &json!(5)));
        assert_eq!(
            view["returned"],
            json!({"requests": 0, "input_tokens": 20, "output_tokens": 0, "total_tokens": 0, "credits": 0,
                   "images": 0, "pages": 0})
        );
        assert_eq!(
            view["overage"],
            json!({"requests": 0, "input_tokens": 0, "output_tokens": 88, "total_tokens": 68, "credits": 5,
                   "images": 3, "pages": 1})
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
        let images = |part: &str| view[part]["images"].as_u64();
        assert_eq!((images("counted"), images("returned"), images("overage")), (Some(0), Some(2), Some(0)));
        assert_eq!(
            (view["reason"].as_str(), view["resolved_by"].as_str()),
            (Some("upstream_refused"), Some("rule"))
        );
        assert_eq!(view.get("actual"), None);
    }
}
