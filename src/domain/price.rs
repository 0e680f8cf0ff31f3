//! What calls cost: prices are micro-credits per million tokens, costs are
//! whole micro-credits, summed exactly and rounded up once per call.

use super::charge::Demand;
use super::plan::{Model, Models};
use super::quantity::MAX_AMOUNT;

/// Tokens that a price is for.
const PRICED_TOKENS: u64 = 1_000_000;

/// What one model costs, in micro-credits per million tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prices {
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
}

impl From<&Model> for Prices {
    fn from(model: &Model) -> Self {
        Self {
            input: model.input,
            output: model.output,
            cache_read: model.cache_read,
            cache_write: model.cache_write,
        }
    }
}

impl Models {
    /// The prices of the model of that name; nothing for an unknown one.
    pub fn prices(&self, model: Option<&str>) -> Prices {
        model.and_then(|model| self.resolve(model)).map(Prices::from).unwrap_or_default()
    }
}

impl Prices {
    /// The credits that a check reserves, as a function of the output granted.
    /// It assumes no cache reads or writes.
    pub fn reserve(&self, input_tokens: u64) -> Demand {
        Demand {
            fixed: u128::from(input_tokens) * u128::from(self.input),
            per_output: self.output,
            unit: PRICED_TOKENS,
        }
    }

    /// The credits of a call, at most [`MAX_AMOUNT`]. Cache reads and writes
    /// are part of the input and together at most all of it.
    pub fn credits(
        &self,
        input_tokens: u64,
        output_tokens: u64,
        cache_read_tokens: u64,
        cache_write_tokens: u64,
    ) -> u64 {
        let fresh = input_tokens.saturating_sub(cache_read_tokens).saturating_sub(cache_write_tokens);
        let parts = [
            (fresh, self.input),
            (output_tokens, self.output),
            (cache_read_tokens, self.cache_read),
            (cache_write_tokens, self.cache_write),
        ];
        let sum = parts
            .iter()
            .fold(0u128, |sum, (tokens, price)| sum.saturating_add(u128::from(*tokens) * u128::from(*price)));
        let credits = sum.div_ceil(u128::from(PRICED_TOKENS));
        credits.min(u128::from(MAX_AMOUNT)) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::quantity::MAX_PRICE;

    const SONNET: Prices =
        Prices { input: 3_000_000, output: 15_000_000, cache_read: 300_000, cache_write: 3_750_000 };

    #[test]
    fn every_kind_of_token_has_its_own_price() {
        // 200 fresh x 3 + 500 read x 0.3 + 300 written x 3.75 + 100 out x 15
        assert_eq!(SONNET.credits(1000, 100, 500, 300), 600 + 150 + 1125 + 1500);
    }

    #[test]
    fn a_call_is_rounded_up_once_not_per_part() {
        let third = Prices { input: 333_333, output: 333_333, cache_read: 0, cache_write: 0 };
        assert_eq!(third.credits(1, 1, 0, 0), 1, "0.67 is one credit, not two");
        assert_eq!(third.credits(0, 0, 0, 0), 0);
        assert_eq!(third.credits(3, 1, 0, 0), 2, "1.33 is two");
    }

    #[test]
    fn a_model_without_prices_costs_nothing() {
        assert_eq!(Models::default().prices(Some("x")).credits(1000, 1000, 0, 0), 0);
        assert_eq!(Models::default().prices(None), Prices::default());
    }

    #[test]
    fn the_dearest_call_saturates() {
        let most = Prices { input: MAX_PRICE, output: MAX_PRICE, cache_read: 0, cache_write: 0 };
        assert_eq!(most.credits(MAX_AMOUNT, MAX_AMOUNT, 0, 0), MAX_AMOUNT);
    }

    proptest! {
        #[test]
        fn a_reservation_covers_the_same_call_exactly(
            input in 0..=1_000_000_000u64,
            output in 0..=1_000_000_000u64,
        ) {
            prop_assert_eq!(SONNET.reserve(input).amount(output), SONNET.credits(input, output, 0, 0));
        }
    }
}
