//! Webhooks and what is sent to them.

use utoipa::ToSchema;

/// Where to tell of what.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookPostRequest {
    /// `https` or `http`, without credentials.
    #[schema(example = "https://hooks.example.com/apportion", max_length = 2048)]
    pub url: String,
    /// `quota.warned`, `quota.exhausted`, `hold.in_doubt`, `plan.changed`,
    /// `pool.paused`, `pool.closed`.
    #[schema(example = json!(["quota.warned", "quota.exhausted"]), min_items = 1)]
    pub events: Vec<String>,
    #[schema(max_length = 256)]
    pub description: Option<String>,
    pub reason: Option<String>,
}

/// What changes; missing fields stay.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookPutRequest {
    #[schema(max_length = 2048)]
    pub url: Option<String>,
    #[schema(min_items = 1)]
    pub events: Option<Vec<String>>,
    #[schema(max_length = 256)]
    pub description: Option<String>,
    pub enabled: Option<bool>,
    pub reason: Option<String>,
}

/// How long the secret before signs as well.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookSecretRequest {
    /// 0 to 2592000; a day unless said.
    #[schema(example = 86400)]
    pub overlap_seconds: Option<u32>,
    pub reason: Option<String>,
}

#[derive(ToSchema)]
pub struct WebhookReply {
    #[schema(example = "wh_k3v9q2m8x4t7r6n5b2cd")]
    pub id: String,
    pub url: String,
    pub events: Vec<String>,
    pub description: Option<String>,
    pub enabled: bool,
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Until when messages are signed with the secret before as well.
    #[schema(format = DateTime)]
    pub overlap_until: Option<String>,
    pub version: u32,
}

#[derive(ToSchema)]
pub struct WebhookSecretReply {
    #[serde(flatten)]
    pub webhook: WebhookReply,
    /// Shown this once.
    #[schema(example = "whsec_bm90IGEgc2VjcmV0LCBidXQgdGhpcnR5LXR3byBieXQ=")]
    pub secret: String,
}

#[derive(ToSchema)]
pub struct WebhookList {
    pub data: Vec<WebhookReply>,
    pub next_cursor: Option<String>,
}

/// A message and what became of it. Times are those of the clock on the wall.
#[derive(ToSchema)]
pub struct DeliveryReply {
    /// The header `webhook-id`, the same at every try.
    #[schema(example = "msg_5f1d3c0a9b8e7f6a5d4c3b2a19080706")]
    pub id: String,
    #[serde(rename = "type")]
    #[schema(example = "quota.warned")]
    pub kind: String,
    /// `dead`: put aside after 12 tries, or since the receiver is gone.
    #[schema(example = "delivered", pattern = "^(pending|delivered|dead)$")]
    pub state: String,
    pub tries: u32,
    pub last_status: Option<u32>,
    pub last_error: Option<String>,
    #[schema(format = DateTime)]
    pub last_try_at: Option<String>,
    #[schema(format = DateTime)]
    pub next_try_at: Option<String>,
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The body as it is sent.
    #[schema(value_type = Object)]
    pub payload: (),
}

#[derive(ToSchema)]
pub struct DeliveryList {
    pub data: Vec<DeliveryReply>,
    pub next_cursor: Option<String>,
}
