mod instants;
mod vectors;
mod windows;

use std::sync::Arc;

use super::{Millis, Zone};

/// An instant from `2026-11-30T14:59Z`, with or without seconds.
fn at(text: &str) -> Millis {
    let full = if text.len() == 17 { text.replace('Z', ":00Z") } else { text.to_owned() };
    Millis::parse(&full).unwrap()
}

fn zone(name: &str) -> Arc<Zone> {
    Zone::parse(name).unwrap()
}
