//! What can go wrong in a use case, in words that know no transport.
//!
//! A refused check is no error: it is a value (`domain::decision::Refusal`).

use crate::domain::document::Fault;
use crate::domain::time::Millis;
use crate::ledger::LedgerError;

use crate::service::access::identity::Rejection;

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The same call may succeed later; nothing was changed.
    #[error("the store is not available")]
    StoreUnavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Nobody knows the hold, but another node may have admitted it during an
    /// outage: the same call will find it once that is booked.
    #[error("the hold may have been admitted during an outage by another node and is not booked yet")]
    MaybeUnbooked,
    /// More is waiting than can be served in time.
    #[error("too much is waiting already")]
    Overloaded,
    /// A user's account goes by another name by now; whoever meets it looks
    /// again. No caller is ever told.
    #[error("the account goes by another name")]
    Moved,
    /// This node's clock was not the engine's; by now it is, and whoever
    /// decided by it decides anew. Callers are told to come again.
    #[error("the clock of this node was off")]
    ClockOff,
    /// Too many watch already.
    #[error("too many streams are open already")]
    StreamLimit,
    /// A stored value or a key file cannot be read: for the operator's log.
    #[error("what is stored cannot be used: {0}")]
    Corrupt(String),

    #[error("the credentials are not accepted: {0}")]
    Unauthenticated(Rejection),
    #[error("the tenant is suspended")]
    TenantSuspended,

    /// Not there, or another tenant's: the two are never told apart.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// Not on record, and the tenant has no default plan.
    #[error("the user is not on record and there is no default plan")]
    UnknownUser,
    /// A plan was named that the tenant does not have.
    #[error("there is no such plan")]
    UnknownPlan,
    /// A model was named that the tenant does not know, and its settings refuse those.
    #[error("the model is not known")]
    UnknownModel,
    /// What was sent is wrong, with every fault.
    #[error("the request is not valid")]
    Invalid(Vec<Fault>),
    /// The version that the caller expects is not the present one.
    #[error("it was changed meanwhile")]
    ChangedMeanwhile,
    /// What a cursor leads to is not kept any more.
    #[error("the list that the cursor belongs to is not kept any more")]
    CursorExpired,
    /// Something of that id is there already.
    #[error("the {0} is there already")]
    AlreadyExists(&'static str),
    /// A plan change without a sequence after one with it.
    #[error("the last change of this user's plan was numbered: this one needs a sequence too")]
    SequenceRequired,
    /// An idempotency key that stood for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// A test clock goes forward only, once anything was taken.
    #[error("the clock stands at {now} and goes forward only")]
    ClockBackwards { now: Millis },
    /// Only test tenants have a clock that can be set.
    #[error("the tenant is no test tenant: its clock cannot be set")]
    NoTestTenant,
}

impl ServiceError {
    /// One fault at a field of the request's body (`pointer` is RFC 6901).
    pub fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid(vec![Fault { pointer: pointer.into(), message: message.into() }])
    }
}

impl From<Rejection> for ServiceError {
    fn from(rejection: Rejection) -> Self {
        Self::Unauthenticated(rejection)
    }
}

impl From<LedgerError> for ServiceError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Conflict => Self::ChangedMeanwhile,
            LedgerError::Corrupt(what) => Self::Corrupt(what),
            away => Self::StoreUnavailable(Box::new(away)),
        }
    }
}
