//! Whole numbers with bounds. No float takes part in any decision.

/// The largest amount anywhere: exact in JSON, JavaScript and Lua.
pub const MAX_AMOUNT: u64 = (1 << 53) - 1;
/// Largest capacity or refill per minute of a bucket.
pub const MAX_BUCKET: u64 = 100_000_000_000;
/// Largest number of slots.
pub const MAX_SLOTS: u64 = 1_000_000;
/// Largest value of the setting `max_tokens_per_call`.
pub const MAX_TOKENS_PER_CALL: u64 = 1_000_000_000;
/// Largest price in micro-credits per million tokens.
pub const MAX_PRICE: u64 = 1_000_000_000_000;
/// A bucket's debt saturates here, in tokens.
pub const MAX_DEBT: i64 = 50_000_000_000;

/// A share between 0 and 1 in parts per million (`0.7` = 700,000).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Ppm(pub u32);

impl Ppm {
    pub const ONE: Ppm = Ppm(1_000_000);

    /// `amount` x share, rounded up.
    pub fn of_rounded_up(self, amount: u64) -> u64 {
        (u128::from(amount) * u128::from(self.0)).div_ceil(1_000_000) as u64
    }

    /// `amount` x share, rounded down.
    pub fn of_rounded_down(self, amount: u64) -> u64 {
        (u128::from(amount) * u128::from(self.0) / 1_000_000) as u64
    }

    /// For display and JSON only.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

/// Adds within [0, MAX_AMOUNT].
pub fn add_saturating(a: u64, b: u64) -> u64 {
    a.saturating_add(b).min(MAX_AMOUNT)
}
