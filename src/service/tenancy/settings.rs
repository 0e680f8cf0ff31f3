//! A tenant's settings: read field by field, kept as JSON, every version.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::domain::document::{Fault, Node, Reader};
use crate::domain::ids::Name;
use crate::domain::quantity::MAX_TOKENS_PER_CALL;
use crate::domain::time::Zone;

/// What a tenant may set. Defaults are the contract's.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub zone: Arc<Zone>,
    /// The plan of users who are not on record; `None`: they are refused.
    pub default_plan: Option<Name>,
    /// Models that no pool names use the pool `default`; else they are refused.
    pub default_pool_only: bool,
    pub max_hold_seconds: u32,
    pub max_tokens_per_call: u64,
    pub in_doubt_after: InDoubtAfter,
    /// The status of refusals that waiting does not help: 429, 402 or 403.
    pub denial_status: u16,
    pub max_auto_retry_seconds: u32,
    /// The vendor whose form refusals take when the caller does not say.
    pub shape: Option<Shape>,
    pub on_outage: OnOutage,
    /// Calls per user, minute and node while the store is away.
    pub outage_share: u32,
    pub enforcement: Enforcement,
    /// Users of a hundred who are decided but never refused (also while
    /// `enforcement` is `enforce`).
    pub shadow_percent: u8,
    pub cors_origins: Vec<String>,
    /// `None`: as the server listens (private targets only on loopback).
    pub allow_private_targets: Option<bool>,
    /// 0: no limit of the tenant's own.
    pub requests_per_second: u32,
}

/// When and how amounts in doubt are resolved by rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InDoubtAfter {
    pub hours: u32,
    pub then: Resolution,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    Charge,
    Release,
    /// Charges input and reported output.
    Progress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    OpenAi,
    Anthropic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnOutage {
    Closed,
    Bounded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    Enforce,
    Shadow,
}

const RESOLUTIONS: [(&str, Resolution); 3] =
    [("charge", Resolution::Charge), ("release", Resolution::Release), ("progress", Resolution::Progress)];
const SHAPES: [(&str, Option<Shape>); 3] =
    [("none", None), ("openai", Some(Shape::OpenAi)), ("anthropic", Some(Shape::Anthropic))];
const OUTAGES: [(&str, OnOutage); 2] = [("closed", OnOutage::Closed), ("bounded", OnOutage::Bounded)];
const ENFORCEMENTS: [(&str, Enforcement); 2] =
    [("enforce", Enforcement::Enforce), ("shadow", Enforcement::Shadow)];

impl Shape {
    /// `none` is the form of our own.
    pub fn parse(text: &str) -> Result<Option<Self>, &'static str> {
        let known = SHAPES.iter().find(|(word, _)| *word == text);
        known.map(|(_, shape)| *shape).ok_or("must be one of: none, openai, anthropic")
    }
}

/// A week: longer leases would keep slots of calls that are long gone.
const MAX_HOLD_SECONDS: u32 = 604_800;
const MAX_IN_DOUBT_HOURS: u32 = 8_760;
const MAX_ORIGINS: usize = 64;

impl Settings {
    /// The settings of a tenant that has set nothing.
    pub fn new(zone: Arc<Zone>, default_plan: Option<Name>) -> Self {
        Self {
            zone,
            default_plan,
            default_pool_only: true,
            max_hold_seconds: 3_600,
            max_tokens_per_call: 10_000_000,
            in_doubt_after: InDoubtAfter { hours: 72, then: Resolution::Charge },
            denial_status: 429,
            max_auto_retry_seconds: 60,
            shape: None,
            on_outage: OnOutage::Closed,
            outage_share: 3,
            enforcement: Enforcement::Enforce,
            shadow_percent: 0,
            cors_origins: Vec::new(),
            allow_private_targets: None,
            requests_per_second: 0,
        }
    }

    /// Reads a stored document.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        let blank = Self::new(Zone::utc(), None);
        node.read(|fields| Some(blank.changed_by(fields)))
    }

    /// These settings with the fields given in a body: the others stay, and
    /// `null` takes away where there may be nothing. Faults are noted.
    pub fn changed_by(&self, fields: &mut Reader<'_, '_>) -> Self {
        let mut new = self.clone();
        set(&mut new.zone, fields.optional("zone").parsed(Zone::parse));
        if fields.is_null("default_plan") {
            new.default_plan = None;
        }
        if let Some(plan) = fields.optional("default_plan").parsed(Name::parse) {
            new.default_plan = Some(plan);
        }
        set(&mut new.default_pool_only, fields.optional("default_pool_only").flag());
        set(&mut new.max_hold_seconds, fields.optional("max_hold_seconds").number(1..=MAX_HOLD_SECONDS));
        let max_tokens = fields.optional("max_tokens_per_call").number(1..=MAX_TOKENS_PER_CALL);
        set(&mut new.max_tokens_per_call, max_tokens);
        set(&mut new.in_doubt_after, fields.optional("in_doubt_after").table(read_in_doubt));
        self.change_replies(&mut new, fields);
        self.change_traffic(&mut new, fields);
        new
    }

    fn change_replies(&self, new: &mut Self, fields: &mut Reader<'_, '_>) {
        if let Some(status) = fields.optional("denial_status").number(402..=429u16) {
            match status {
                402 | 403 | 429 => new.denial_status = status,
                _ => fields.fault("denial_status", "must be one of: 429, 402, 403"),
            }
        }
        let retry = fields.optional("max_auto_retry_seconds").number(0..=86_400);
        set(&mut new.max_auto_retry_seconds, retry);
        if fields.is_null("shape") {
            new.shape = None;
        }
        set(&mut new.shape, fields.optional("shape").choice(&SHAPES));
        let origins = fields.optional("cors_origins");
        set(&mut new.cors_origins, origins.list(MAX_ORIGINS, |origin| origin.parsed(parse_origin)));
    }

    fn change_traffic(&self, new: &mut Self, fields: &mut Reader<'_, '_>) {
        set(&mut new.on_outage, fields.optional("on_outage").choice(&OUTAGES));
        set(&mut new.outage_share, fields.optional("outage_share").number(0..=10_000));
        set(&mut new.enforcement, fields.optional("enforcement").choice(&ENFORCEMENTS));
        set(&mut new.shadow_percent, fields.optional("shadow_percent").number(0..=100));
        if fields.is_null("allow_private_targets") {
            new.allow_private_targets = None;
        }
        if let Some(allow) = fields.optional("allow_private_targets").flag() {
            new.allow_private_targets = Some(allow);
        }
        set(&mut new.requests_per_second, fields.optional("requests_per_second").number(0..=1_000_000));
    }

    /// All settings as the API shows and [`read`](Self::read) takes them.
    pub fn to_json(&self) -> Value {
        json!({
            "zone": self.zone.name(),
            "default_plan": self.default_plan.as_ref().map(Name::as_str),
            "default_pool_only": self.default_pool_only,
            "max_hold_seconds": self.max_hold_seconds,
            "max_tokens_per_call": self.max_tokens_per_call,
            "in_doubt_after": {
                "hours": self.in_doubt_after.hours,
                "then": word(&RESOLUTIONS, self.in_doubt_after.then),
            },
            "denial_status": self.denial_status,
            "max_auto_retry_seconds": self.max_auto_retry_seconds,
            "shape": self.shape.map(|shape| word(&SHAPES, Some(shape))),
            "on_outage": word(&OUTAGES, self.on_outage),
            "outage_share": self.outage_share,
            "enforcement": word(&ENFORCEMENTS, self.enforcement),
            "shadow_percent": self.shadow_percent,
            "cors_origins": self.cors_origins,
            "allow_private_targets": self.allow_private_targets,
            "requests_per_second": self.requests_per_second,
        })
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

pub(in crate::service) fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word)
}

fn read_in_doubt(fields: &mut Reader<'_, '_>) -> Option<InDoubtAfter> {
    let hours = fields.required("hours").number(0..=MAX_IN_DOUBT_HOURS);
    let then = fields.required("then").choice(&RESOLUTIONS);
    Some(InDoubtAfter { hours: hours?, then: then? })
}

/// An origin as browsers send it: scheme, host, and a port if it is unusual.
fn parse_origin(text: &str) -> Result<String, &'static str> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let host_and_port = |rest: &str| {
        !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b))
    };
    if text == "*" || (text.len() <= 255 && rest.is_some_and(host_and_port)) {
        return Ok(text.to_ascii_lowercase());
    }
    Err("must be '*' or an origin such as https://app.example.com, without a path")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(body: &str) -> Result<Settings, Vec<Fault>> {
        let node = Node::from_json(body.as_bytes()).expect("JSON");
        let plan = Name::parse("free").expect("a name");
        let before = Settings::new(Zone::utc(), Some(plan));
        node.read(|fields| Some(before.changed_by(fields)))
    }

    #[test]
    fn what_is_not_given_stays_and_null_takes_away() {
        let settings = change(r#"{"zone":"Asia/Tokyo","max_hold_seconds":60,"shape":"openai"}"#).unwrap();
        assert_eq!(settings.zone.name(), "Asia/Tokyo");
        assert_eq!(settings.max_hold_seconds, 60);
        assert_eq!(settings.default_plan.as_ref().map(Name::as_str), Some("free"));
        assert_eq!(settings.max_tokens_per_call, 10_000_000);
        assert_eq!(change(r#"{"default_plan":null}"#).unwrap().default_plan, None);
        assert_eq!(change("{}").unwrap().in_doubt_after.hours, 72);
    }

    #[test]
    fn every_faulty_field_is_named() {
        let body = r#"{"zone":"+09:00","default_plan":7,"default_pool_only":1,"max_hold_seconds":0,
            "max_tokens_per_call":1000000001,"in_doubt_after":{"hours":-1,"then":"burn"},"denial_status":418,
            "max_auto_retry_seconds":1.5,"shape":"gemini","on_outage":"open","outage_share":-1,
            "enforcement":"off","shadow_percent":101,"cors_origins":["https://a.b/c"],
            "allow_private_targets":"yes","requests_per_second":"1","colour":"red"}"#;
        let faults = change(body).unwrap_err();
        let mut pointers: Vec<&str> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        pointers.sort_unstable();
        let mut expected = vec![
            "/zone",
            "/default_plan",
            "/default_pool_only",
            "/max_hold_seconds",
            "/max_tokens_per_call",
            "/in_doubt_after/hours",
            "/in_doubt_after/then",
            "/denial_status",
            "/max_auto_retry_seconds",
            "/shape",
            "/on_outage",
            "/outage_share",
            "/enforcement",
            "/shadow_percent",
            "/cors_origins/0",
            "/allow_private_targets",
            "/requests_per_second",
            "/colour",
        ];
        expected.sort_unstable();
        assert_eq!(pointers, expected);
    }

    #[test]
    fn what_is_written_reads_back() {
        let body = r#"{"zone":"Cuba","in_doubt_after":{"hours":1,"then":"progress"},"denial_status":402,
            "shape":"anthropic","on_outage":"bounded","enforcement":"shadow","shadow_percent":10,
            "cors_origins":["https://App.example.com:8443","*"],"allow_private_targets":false,
            "requests_per_second":5}"#;
        let settings = change(body).unwrap();
        let text = settings.to_json().to_string();
        let again = Settings::read(&Node::from_json(text.as_bytes()).unwrap()).unwrap();
        assert_eq!(again, settings);
    }
}
