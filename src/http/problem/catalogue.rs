//! Every code a caller may meet: status, title, whether a retry helps, and
//! the text of its page. A code never changes its meaning.

/// The codes, in the order of the pages' index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    Unauthenticated,
    Forbidden,
    TenantSuspended,
    InvalidRequest,
    UnknownModel,
    BodyTooLarge,
    UnsupportedMediaType,
    MethodNotAllowed,
    NotFound,
    RequestTimeout,
    HeadersTooLarge,
    RequestIdReused,
    AlreadyFinished,
    HasProgress,
    LeaseEnded,
    NotInDoubt,
    UsageImplausible,
    UnknownUser,
    UnknownPlan,
    UserSuspended,
    UserUnverified,
    InputTooLarge,
    OutputTooLarge,
    ExceedsCapacity,
    DailyQuotaExhausted,
    WeeklyQuotaExhausted,
    MonthlyQuotaExhausted,
    QuotaExhausted,
    RequestRateExceeded,
    InputRateExceeded,
    OutputRateExceeded,
    TokenRateExceeded,
    CreditRateExceeded,
    ConcurrencyExceeded,
    UpstreamCapacityExceeded,
    QueueFull,
    QueueTimeout,
    UpstreamPaused,
    IngressRateExceeded,
    ChangedMeanwhile,
    CursorExpired,
    AlreadyExists,
    SequenceRequired,
    ClockBackwards,
    StoreUnavailable,
    Overloaded,
    StreamLimit,
    Internal,
}

/// What is always the same about a code.
#[derive(Debug)]
pub struct Entry {
    pub kind: Kind,
    pub code: &'static str,
    /// `/problems/<code>`: the `type` of the problem and the path of its page.
    pub uri: &'static str,
    pub status: u16,
    pub title: &'static str,
    pub retryable: bool,
    /// What to do about it, for the page.
    pub help: &'static str,
}

macro_rules! catalogue {
    ($($kind:ident $code:literal $status:literal $retryable:literal $title:literal $help:literal;)*) => {
        pub static CATALOGUE: &[Entry] = &[$(Entry {
            kind: Kind::$kind,
            code: $code,
            uri: concat!("/problems/", $code),
            status: $status,
            title: $title,
            retryable: $retryable,
            help: $help,
        }),*];
    };
}

catalogue! {
    Unauthenticated "unauthenticated" 401 false "Unauthenticated"
        "Send a token or an API key of your product as `Authorization: Bearer ...`. Tokens need `exp` and the audience `apportion`; there is no leeway after `exp`.";
    Forbidden "forbidden" 403 false "Forbidden"
        "The token is good, but its scopes do not cover this route. Mint one with the scope that the API description names. User tokens reach `/v1/me/` only.";
    TenantSuspended "tenant_suspended" 403 false "Tenant suspended"
        "The operator of this service has suspended your product. Nothing is decided or changed until it is lifted.";
    InvalidRequest "invalid_request" 400 false "Invalid request"
        "`errors` lists every fault: a JSON pointer into the body and what is wrong there. Unknown and repeated fields are faults too; amounts are whole numbers from 0 to 9007199254740991.";
    UnknownModel "unknown_model" 400 false "Unknown model"
        "No pool serves this model, and the setting `default_pool_only` is off. Check the spelling, or add the model or an alias.";
    BodyTooLarge "body_too_large" 413 false "Body too large"
        "A body may have 64 KiB, a batch 1 MiB. `max` says how many bytes are allowed here.";
    UnsupportedMediaType "unsupported_media_type" 415 false "Unsupported media type"
        "Bodies are JSON: send `Content-Type: application/json` and no content coding.";
    MethodNotAllowed "method_not_allowed" 405 false "Method not allowed"
        "The path exists, but not with this method. `Allow` lists those that do.";
    NotFound "not_found" 404 false "Not found"
        "There is nothing of that name here, or it belongs to another product.";
    RequestTimeout "request_timeout" 408 true "Request timeout"
        "The body did not arrive in time. Nothing was decided; the call may be repeated.";
    HeadersTooLarge "headers_too_large" 431 false "Request header fields too large"
        "The header fields together may have 32 KiB.";
    RequestIdReused "request_id_reused" 422 false "Request id reused"
        "This user's `request_id` was used before with another body. A request id names one logical call: choose a new one for a new call, and repeat the same body for a retry.";
    AlreadyFinished "already_finished" 409 false "Already finished"
        "The hold was settled or released before, in another way than now asked. `hold` shows what is on record.";
    HasProgress "has_progress" 409 false "Has progress"
        "Output was reported for this hold, so the vendor did work: settle it with what was used, or with `{\"usage\":\"unknown\"}`.";
    LeaseEnded "lease_ended" 409 false "Lease ended"
        "The hold's lease is over, or it reached `max_hold_seconds`. It can no longer be extended, but it can still be settled or released.";
    NotInDoubt "not_in_doubt" 409 false "Not in doubt"
        "Only a hold in doubt can be resolved, and this one's lease runs: its call may still be under way. Wait until the lease ends, or let the backend settle or release it.";
    UsageImplausible "usage_implausible" 422 false "Usage implausible"
        "A reported figure is above the setting `max_tokens_per_call`. Nothing was changed and the hold is still open: send the real figures, or `{\"usage\":\"unknown\"}`.";
    UnknownUser "unknown_user" 404 false "Unknown user"
        "The user is not on record and the product has no `default_plan`. Put the user on a plan first.";
    UnknownPlan "unknown_plan" 404 false "Unknown plan"
        "There is no plan of that id.";
    UserSuspended "user_suspended" 403 false "User suspended"
        "The product has suspended this user.";
    UserUnverified "user_unverified" 403 false "User unverified"
        "The user's plan has `requires_verified`, and the user is not marked as verified.";
    InputTooLarge "input_too_large" 413 false "Input too large"
        "`input_tokens` is above the plan's cap of one call (`max`). Shorten the prompt or choose a larger plan.";
    OutputTooLarge "output_too_large" 413 false "Output too large"
        "`max_output_tokens` is above the plan's cap of one call (`max`). Ask for less.";
    ExceedsCapacity "exceeds_capacity" 413 false "Exceeds capacity"
        "The call asks for more than a limit can ever give, so waiting does not help. `max` is the largest amount that could pass.";
    DailyQuotaExhausted "daily_quota_exhausted" 429 false "Daily quota exhausted"
        "The allowance of the day is used up. It comes back at `resets_at`; until then a retry is refused.";
    WeeklyQuotaExhausted "weekly_quota_exhausted" 429 false "Weekly quota exhausted"
        "The allowance of the week is used up. It comes back at `resets_at`; until then a retry is refused.";
    MonthlyQuotaExhausted "monthly_quota_exhausted" 429 false "Monthly quota exhausted"
        "The allowance of the month is used up. It comes back at `resets_at`; until then a retry is refused.";
    QuotaExhausted "quota_exhausted" 429 false "Quota exhausted"
        "An allowance is used up. It comes back at `resets_at`, or never when that is null.";
    RequestRateExceeded "request_rate_exceeded" 429 true "Request rate exceeded"
        "Calls come faster than the plan lets them. Wait as `Retry-After` says.";
    InputRateExceeded "input_rate_exceeded" 429 true "Input rate exceeded"
        "Input tokens are asked for faster than they refill. Wait as `Retry-After` says.";
    OutputRateExceeded "output_rate_exceeded" 429 true "Output rate exceeded"
        "Output tokens are asked for faster than they refill. Wait as `Retry-After` says, or ask for at most `would_fit`.";
    TokenRateExceeded "token_rate_exceeded" 429 true "Token rate exceeded"
        "Tokens are asked for faster than they refill. Wait as `Retry-After` says.";
    CreditRateExceeded "credit_rate_exceeded" 429 true "Credit rate exceeded"
        "Credits are spent faster than they refill. Wait as `Retry-After` says.";
    ConcurrencyExceeded "concurrency_exceeded" 429 true "Concurrency exceeded"
        "As many calls as the plan allows are running. Settle or release one, or wait until a lease ends.";
    UpstreamCapacityExceeded "upstream_capacity_exceeded" 429 true "Upstream capacity exceeded"
        "The capacity shared by all users of this model is taken for the moment. Wait as `Retry-After` says.";
    QueueFull "queue_full" 429 true "Queue full"
        "As many calls wait for the capacity of this model as its pool lets wait (`max_queue`). Wait as `Retry-After` says.";
    QueueTimeout "queue_timeout" 429 true "Queue timeout"
        "The call waited as long as its `wait_ms` says, and there was no room. Nothing was taken; wait as `Retry-After` says, or give it more time.";
    UpstreamPaused "upstream_paused" 429 true "Upstream paused"
        "The vendor behind this model told the product to wait, so nobody's call is let through before: `violations` says whether it is a `pause` of the vendor's own length, a `closure` (its spend limit is reached: an admin opens the pool, or the month turns) or a `brake` (bulk calls make room for interactive ones). Wait as `Retry-After` says.";
    IngressRateExceeded "ingress_rate_exceeded" 429 true "Ingress rate exceeded"
        "Your product calls this service more often than its own setting `requests_per_second` allows on one node. Nothing was decided; wait as `Retry-After` says.";
    ChangedMeanwhile "changed_meanwhile" 412 false "Changed meanwhile"
        "The record is no longer the version that `If-Match` names, or somebody changed it at the same moment. Read it again and decide anew.";
    CursorExpired "cursor_expired" 410 false "Cursor expired"
        "What comes next is not kept any more. The order of a ranking is kept for ten minutes after its first page: ask for that again. Events of usage are kept as long as their holds: ask without a cursor for the oldest that are left; what went before is in the sums by day.";
    AlreadyExists "already_exists" 409 false "Already exists"
        "Something of that id is there already.";
    SequenceRequired "sequence_required" 409 false "Sequence required"
        "The user's plan was changed with a `sequence` before; later changes need a higher one, so that late events cannot undo newer ones.";
    ClockBackwards "clock_backwards" 409 false "Clock backwards"
        "A test clock moves forward only, once anything was taken.";
    StoreUnavailable "store_unavailable" 503 true "Store unavailable"
        "The store cannot be reached, so nothing can be decided safely. Nothing was taken; repeat the call.";
    Overloaded "overloaded" 503 true "Overloaded"
        "The service has more work than it can take. Repeat the call after `Retry-After`.";
    StreamLimit "stream_limit" 503 true "Stream limit"
        "The user has four streams open, or the service has as many as it can take. Close one, or try again after `Retry-After`; `GET /v1/me/quota` works all the same.";
    Internal "internal_error" 500 false "Internal error"
        "A fault in the service. It was logged under the `x-request-id` of the answer.";
}

impl Kind {
    pub fn entry(self) -> &'static Entry {
        &CATALOGUE[self as usize]
    }

    /// The number of codes.
    pub const COUNT: usize = Self::Internal as usize + 1;
}

/// The entry of `code`, for its page.
pub fn find(code: &str) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| entry.code == code)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_kind_has_its_entry_in_place() {
        assert_eq!(CATALOGUE.len(), Kind::COUNT);
        for (index, entry) in CATALOGUE.iter().enumerate() {
            assert_eq!(entry.kind as usize, index, "{}", entry.code);
            assert_eq!(entry.uri, format!("/problems/{}", entry.code));
        }
        let codes: HashSet<_> = CATALOGUE.iter().map(|entry| entry.code).collect();
        assert_eq!(codes.len(), CATALOGUE.len());
    }

    #[test]
    fn only_rate_store_and_timeout_codes_are_retryable() {
        for entry in CATALOGUE {
            let waits = entry.code.ends_with("_rate_exceeded")
                || [
                    "concurrency_exceeded",
                    "upstream_capacity_exceeded",
                    "queue_full",
                    "queue_timeout",
                    "upstream_paused",
                    "request_timeout",
                ]
                .contains(&entry.code)
                || entry.status == 503;
            assert_eq!(entry.retryable, waits, "{}", entry.code);
        }
    }
}
