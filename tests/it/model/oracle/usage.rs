//! Use that had no hold: it charges the windows of its time and, as debt, the buckets of now.

use serde_json::{Value, json};

use super::Oracle;
use super::calendar::instant;
use super::cells::Cell;
use super::expect::Expected;

impl Oracle {
    /// Predicts the reply to well-formed items and books them.
    pub fn usage(&mut self, items: &[Value]) -> Expected {
        let results: Vec<Value> = items.iter().map(|item| self.usage_item(item)).collect();
        Expected::new(200, json!({"results": results}))
    }

    fn usage_item(&mut self, item: &Value) -> Value {
        let text = |name: &str| item.get(name).and_then(Value::as_str).map(str::to_owned);
        let number = |name: &str| item.get(name).and_then(Value::as_i64).map_or(0, i128::from);
        let id = text("id").expect("an item has an id");
        // The first body of an id wins.
        if self.usage.contains_key(&id) {
            return json!({"id": id});
        }
        self.usage.insert(id.clone(), item.clone());
        let user = text("user").expect("an item has a user");
        self.know(&user);
        let (model, feature) = (text("model"), text("feature"));
        let at = text("at").map_or(self.now, |at| instant(&at));
        let weight_ppm = self.plan(&user).0.weight_ppm;
        let usage = [
            number("input_tokens"),
            number("output_tokens"),
            number("cache_read_tokens"),
            number("cache_write_tokens"),
        ];
        let counted = self.counted(weight_ppm, model.as_deref(), usage);
        for asked in self.asked(&user, model.as_deref(), feature.as_deref(), false) {
            let amount = asked.limit.demand(&counted);
            let (capacity, now) = (asked.limit.number(), self.now);
            match self.cell_mut(&asked) {
                Cell::Bucket(bucket) => bucket.take(amount, None, capacity),
                Cell::Window(window) if amount > 0 => {
                    // A take in a window that has ended does not make the running one keep its end.
                    let before = window.ever_taken;
                    let span = window.open(at);
                    window.ever_taken = before || window.running(now) == Some(span);
                    window.book_mut(span).used += amount;
                    self.booked.push((asked.key, span, amount));
                }
                _ => {}
            }
        }
        json!({"id": id})
    }
}
