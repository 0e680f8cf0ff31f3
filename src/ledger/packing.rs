//! A hold as it is kept: its fields, with what follows from others left out.
//!
//! Most of what is on record are holds that have ended, and most of what they say is said
//! twice: instants lie close to the one of admission, what was taken is what was asked
//! for, the model that served is the one that was asked for. Here each of these stands as
//! the difference from the other, which is a byte where they agree. Any value comes back
//! as it was: differences wrap.

use serde::{Deserialize, Serialize};

use crate::domain::charge::TenantRef;
use crate::domain::hold::{
    Amounts, Caps, FinishedBy, Granted, Hold, Receipt, ReleaseReason, Reported, RequestMark, Settlement,
    Stage, Upstream,
};
use crate::domain::ids::{HoldId, Label, Name, RequestId, UserId, parse_uuid};
use crate::domain::quantity::Ppm;
use crate::domain::time::{DAY_MS, Millis};

mod receipts;

pub(super) use receipts::PackedReceipt;

/// What a call usually comes to; by their places from 1 on.
const OUTCOMES: [&str; 1] = ["completed"];

/// `R`: how its receipts stand.
#[derive(Serialize, Deserialize)]
pub(super) struct Packed<R = PackedReceipt> {
    head: Head,
    receipts: Vec<R>,
    rest: Rest,
}

#[derive(Serialize, Deserialize)]
struct Head {
    id: [u8; 16],
    tenant: TenantRef,
    user: UserId,
    org: Option<Name>,
    pool: Option<Name>,
    request: Option<Mark>,
    plan: Name,
    plan_version: u32,
    models_version: u32,
    /// 1 admits the user, 2 bulk, 4 final.
    flags: u8,
    model: Option<Name>,
    feature: Option<Label>,
    /// After the instant in the id.
    created: i64,
    /// After admission, as the next two.
    expires: i64,
    lives: i64,
    lease_seconds: u32,
    /// From the day of admission in UTC.
    day: i32,
    caps: Caps,
    cache_read_weight: Ppm,
    input_tokens: u64,
    max_output_tokens: u64,
    /// Beside what was granted.
    reserved: Beside,
    amounts: Vec<(Label, u64)>,
}

#[derive(Serialize, Deserialize)]
struct Rest {
    progress: u64,
    extends: Vec<Mark>,
    stage: PackedStage,
}

/// A request's mark; most ids are UUIDs.
#[derive(Serialize, Deserialize)]
struct Mark {
    id: Id,
    fingerprint: [u8; 16],
}

#[derive(Serialize, Deserialize)]
enum Id {
    Text(RequestId),
    /// As it is usually written: hyphens, and letters in lower case.
    Uuid([u8; 16]),
}

/// Amounts by what they differ from input and output tokens that are known.
#[derive(Serialize, Deserialize)]
struct Beside {
    requests: u64,
    input: i64,
    output: i64,
    /// From the sum of input and output.
    total: i64,
    credits: u64,
}

#[derive(Serialize, Deserialize)]
enum PackedStage {
    Held,
    InDoubt { since: i64 },
    Settled(Box<PackedSettlement>),
    Released { at: i64, late: bool, reason: ReleaseReason, by: FinishedBy },
}

#[derive(Serialize, Deserialize)]
struct PackedSettlement {
    at: i64,
    late: bool,
    by: FinishedBy,
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    model: Model,
    outcome: Outcome,
    upstream: Option<Upstream>,
    /// Beside what was reported.
    counted: Beside,
    amounts: Vec<(Label, u64)>,
}

#[derive(Serialize, Deserialize)]
enum Model {
    None,
    AsAsked,
    Other(Name),
}

#[derive(Serialize, Deserialize)]
enum Outcome {
    None,
    Usual(u8),
    Other(String),
}

impl Packed<PackedReceipt> {
    pub fn of(hold: &Hold) -> Self {
        let created = hold.created_at;
        let Granted { input_tokens, max_output_tokens, is_final } = hold.granted;
        let head = Head {
            id: hold.id.0.to_be_bytes(),
            tenant: hold.tenant,
            user: hold.user.clone(),
            org: hold.org.clone(),
            pool: hold.pool.clone(),
            request: hold.request.as_ref().map(Mark::of),
            plan: hold.plan.clone(),
            plan_version: hold.plan_version,
            models_version: hold.models_version,
            flags: u8::from(hold.admits_user) | u8::from(hold.bulk) << 1 | u8::from(is_final) << 2,
            model: hold.model.clone(),
            feature: hold.feature.clone(),
            created: since(hold.id.made_at(), created),
            expires: since(created, hold.expires_at),
            lives: since(created, hold.lives_until),
            lease_seconds: hold.lease_seconds,
            day: hold.day.wrapping_sub(day_of(created)),
            caps: hold.caps,
            cache_read_weight: hold.cache_read_weight,
            input_tokens,
            max_output_tokens,
            reserved: Beside::of(&hold.reserved, input_tokens, max_output_tokens),
            amounts: hold.amounts.clone(),
        };
        let rest = Rest {
            progress: hold.progress,
            extends: hold.extends.iter().map(Mark::of).collect(),
            stage: PackedStage::of(hold),
        };
        let receipts = hold.receipts.iter().map(|receipt| PackedReceipt::of(receipt, created));
        Self { head, receipts: receipts.collect(), rest }
    }

    pub fn unpack(self) -> Hold {
        self.unpack_with(PackedReceipt::unpack)
    }
}

impl Packed<Receipt> {
    /// Of the form before this one, which had receipts as they are.
    pub fn unpack(self) -> Hold {
        self.unpack_with(|receipt, _| receipt)
    }
}

impl<R> Packed<R> {
    fn unpack_with(self, receipt: impl Fn(R, Millis) -> Receipt) -> Hold {
        let Self { head, receipts, rest } = self;
        let id = HoldId(u128::from_be_bytes(head.id));
        let created_at = after(id.made_at(), head.created);
        let stage = rest.stage.unpack(created_at, head.model.as_ref());
        Hold {
            id,
            tenant: head.tenant,
            user: head.user,
            org: head.org,
            pool: head.pool,
            request: head.request.map(Mark::unpack),
            plan: head.plan,
            plan_version: head.plan_version,
            admits_user: head.flags & 1 != 0,
            models_version: head.models_version,
            model: head.model,
            feature: head.feature,
            bulk: head.flags & 2 != 0,
            created_at,
            expires_at: after(created_at, head.expires),
            lease_seconds: head.lease_seconds,
            lives_until: after(created_at, head.lives),
            day: head.day.wrapping_add(day_of(created_at)),
            caps: head.caps,
            cache_read_weight: head.cache_read_weight,
            granted: Granted {
                input_tokens: head.input_tokens,
                max_output_tokens: head.max_output_tokens,
                is_final: head.flags & 4 != 0,
            },
            reserved: head.reserved.unpack(head.input_tokens, head.max_output_tokens),
            amounts: head.amounts,
            receipts: receipts.into_iter().map(|packed| receipt(packed, created_at)).collect(),
            progress: rest.progress,
            extends: rest.extends.into_iter().map(Mark::unpack).collect(),
            stage,
        }
    }
}

impl Mark {
    fn of(mark: &RequestMark) -> Self {
        let uuid = parse_uuid(mark.id.as_str());
        let id = uuid.map_or_else(|| Id::Text(mark.id.clone()), |uuid| Id::Uuid(uuid.to_be_bytes()));
        Self { id, fingerprint: mark.fingerprint }
    }

    fn unpack(self) -> RequestMark {
        let id = match self.id {
            Id::Text(id) => id,
            Id::Uuid(bytes) => RequestId::of_uuid(u128::from_be_bytes(bytes)),
        };
        RequestMark { id, fingerprint: self.fingerprint }
    }
}

impl Beside {
    fn of(amounts: &Amounts, input: u64, output: u64) -> Self {
        let Amounts { requests, input_tokens, output_tokens, total_tokens, credits } = *amounts;
        Self {
            requests,
            input: difference(input_tokens, input),
            output: difference(output_tokens, output),
            total: difference(total_tokens, input_tokens.wrapping_add(output_tokens)),
            credits,
        }
    }

    fn unpack(&self, input: u64, output: u64) -> Amounts {
        let input_tokens = input.wrapping_add_signed(self.input);
        let output_tokens = output.wrapping_add_signed(self.output);
        Amounts {
            requests: self.requests,
            input_tokens,
            output_tokens,
            total_tokens: input_tokens.wrapping_add(output_tokens).wrapping_add_signed(self.total),
            credits: self.credits,
        }
    }
}

impl PackedStage {
    fn of(hold: &Hold) -> Self {
        let after_admission = |at: Millis| since(hold.created_at, at);
        match &hold.stage {
            Stage::Held => Self::Held,
            Stage::InDoubt { since } => Self::InDoubt { since: after_admission(*since) },
            Stage::Settled(settled) => {
                let told = &settled.reported;
                let model = match &told.model {
                    None => Model::None,
                    model if *model == hold.model => Model::AsAsked,
                    Some(other) => Model::Other(other.clone()),
                };
                Self::Settled(Box::new(PackedSettlement {
                    at: after_admission(settled.at),
                    late: settled.late,
                    by: settled.by,
                    input_tokens: told.input_tokens,
                    output_tokens: told.output_tokens,
                    cache_read_tokens: told.cache_read_tokens,
                    cache_write_tokens: told.cache_write_tokens,
                    model,
                    outcome: Outcome::of(told.outcome.as_deref()),
                    upstream: told.upstream.clone(),
                    counted: Beside::of(&settled.counted, told.input_tokens, told.output_tokens),
                    amounts: settled.amounts.clone(),
                }))
            }
            Stage::Released { at, late, reason, by } => {
                Self::Released { at: after_admission(*at), late: *late, reason: *reason, by: *by }
            }
        }
    }

    fn unpack(self, created_at: Millis, asked: Option<&Name>) -> Stage {
        match self {
            Self::Held => Stage::Held,
            Self::InDoubt { since } => Stage::InDoubt { since: after(created_at, since) },
            Self::Settled(settled) => Stage::Settled(Box::new(settled.unpack(created_at, asked))),
            Self::Released { at, late, reason, by } => {
                Stage::Released { at: after(created_at, at), late, reason, by }
            }
        }
    }
}

impl PackedSettlement {
    fn unpack(self, created_at: Millis, asked: Option<&Name>) -> Settlement {
        Settlement {
            at: after(created_at, self.at),
            late: self.late,
            by: self.by,
            counted: self.counted.unpack(self.input_tokens, self.output_tokens),
            amounts: self.amounts,
            reported: Reported {
                input_tokens: self.input_tokens,
                output_tokens: self.output_tokens,
                cache_read_tokens: self.cache_read_tokens,
                cache_write_tokens: self.cache_write_tokens,
                model: match self.model {
                    Model::None => None,
                    Model::AsAsked => asked.cloned(),
                    Model::Other(other) => Some(other),
                },
                outcome: self.outcome.unpack(),
                upstream: self.upstream,
            },
        }
    }
}

impl Outcome {
    fn of(outcome: Option<&str>) -> Self {
        let Some(outcome) = outcome else { return Self::None };
        match (0_u8..).zip(OUTCOMES).find(|(_, usual)| *usual == outcome) {
            Some((place, _)) => Self::Usual(place),
            None => Self::Other(outcome.to_owned()),
        }
    }

    fn unpack(self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Usual(place) => OUTCOMES.get(usize::from(place)).map(ToString::to_string),
            Self::Other(outcome) => Some(outcome),
        }
    }
}

fn since(from: Millis, to: Millis) -> i64 {
    to.0.wrapping_sub(from.0)
}

fn after(from: Millis, ms: i64) -> Millis {
    Millis(from.0.wrapping_add(ms))
}

fn day_of(at: Millis) -> i32 {
    at.0.div_euclid(DAY_MS) as i32
}

fn difference(of: u64, from: u64) -> i64 {
    of.wrapping_sub(from).cast_signed()
}

#[cfg(test)]
mod tests;
