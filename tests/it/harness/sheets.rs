//! Plan sheets in a few words: `Sheet::new().rb(10, 6).mt(10_000)`.

use serde_json::{Value, json};

/// A plan sheet in the making; `json()` is the body of `PUT /v1/admin/plans/{id}`.
#[derive(Clone, Debug)]
pub struct Sheet {
    body: Value,
}

impl Default for Sheet {
    fn default() -> Self {
        Self::new()
    }
}

impl Sheet {
    pub fn new() -> Self {
        Self::named("p")
    }

    pub fn named(id: &str) -> Self {
        Self { body: json!({"id": id, "name": id, "limits": []}) }
    }

    /// Any further limit, or one with unusual fields.
    pub fn limit(mut self, limit: Value) -> Self {
        self.body["limits"].as_array_mut().unwrap().push(limit);
        self
    }

    pub fn field(mut self, name: &str, value: Value) -> Self {
        self.body[name] = value;
        self
    }

    /// Changes a field of the limit that was added last.
    pub fn but(mut self, name: &str, value: Value) -> Self {
        self.body["limits"].as_array_mut().unwrap().last_mut().expect("a limit")[name] = value;
        self
    }

    fn bucket(self, name: &str, meter: &str, capacity: u64, refill: u64) -> Self {
        self.limit(json!({"name": name, "kind": "bucket", "meter": meter, "capacity": capacity, "refill_per_minute": refill}))
    }

    fn window(self, name: &str, meter: &str, period: Value, limit: u64) -> Self {
        self.limit(json!({"name": name, "kind": "window", "meter": meter, "period": period, "limit": limit}))
    }

    /// Requests: capacity, refill a minute.
    pub fn rb(self, capacity: u64, refill: u64) -> Self {
        self.bucket("requests_per_minute", "requests", capacity, refill)
    }

    /// Output tokens: capacity, refill a minute.
    pub fn ob(self, capacity: u64, refill: u64) -> Self {
        self.bucket("output_tokens_per_minute", "output_tokens", capacity, refill)
    }

    /// Calls in flight.
    pub fn cc(self, places: u64) -> Self {
        self.limit(json!({"name": "concurrency", "kind": "slots", "limit": places}))
    }

    /// Requests a day.
    pub fn dr(self, limit: u64) -> Self {
        self.window("requests_per_day", "requests", json!("day"), limit)
    }

    /// Total tokens a month.
    pub fn mt(self, limit: u64) -> Self {
        self.window("tokens_per_month", "total_tokens", json!("month"), limit)
    }

    /// A window on total tokens over some other period.
    pub fn per(self, name: &str, period: Value, limit: u64) -> Self {
        self.window(name, "total_tokens", period, limit)
    }

    /// Most input tokens a call.
    pub fn input(mut self, most: u64) -> Self {
        self.body["per_call"]["max_input_tokens"] = json!(most);
        self
    }

    /// Most output tokens a call.
    pub fn output(mut self, most: u64) -> Self {
        self.body["per_call"]["max_output_tokens"] = json!(most);
        self
    }

    pub fn id(&self) -> &str {
        self.body["id"].as_str().expect("a sheet has an id")
    }

    pub fn json(&self) -> Value {
        self.body.clone()
    }
}

/// An upstream pool in the making.
#[derive(Clone, Debug)]
pub struct PoolSheet {
    body: Value,
}

impl PoolSheet {
    pub fn new(id: &str, models: &[&str]) -> Self {
        Self { body: json!({"id": id, "models": models, "enforced": true, "limits": []}) }
    }

    pub fn limit(mut self, limit: Value) -> Self {
        self.body["limits"].as_array_mut().unwrap().push(limit);
        self
    }

    pub fn field(mut self, name: &str, value: Value) -> Self {
        self.body[name] = value;
        self
    }

    pub fn requests(self, capacity: u64, refill: u64) -> Self {
        self.limit(json!({"name": "pool_requests", "kind": "bucket", "meter": "requests", "capacity": capacity, "refill_per_minute": refill}))
    }

    pub fn output_tokens(self, capacity: u64, refill: u64) -> Self {
        self.limit(json!({"name": "pool_output", "kind": "bucket", "meter": "output_tokens", "capacity": capacity, "refill_per_minute": refill}))
    }

    pub fn places(self, places: u64) -> Self {
        self.limit(json!({"name": "pool_places", "kind": "slots", "limit": places}))
    }

    pub fn json(&self) -> Value {
        self.body.clone()
    }
}
