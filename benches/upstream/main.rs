//! `cargo bench --bench upstream`: what others measured of a shared upstream, and a day and an hour
//! of traffic, through the real service in front of a model vendor on moved time. One row each,
//! beside what was published. The scenarios are the tests' own.
#![allow(clippy::unwrap_used, reason = "as in tests")]
#![allow(dead_code, unused_imports, reason = "tests and this each use a part of what they share")]

#[path = "../../tests/it/model/oracle/calendar.rs"]
pub mod calendar;
#[path = "../../tests/it/harness/mod.rs"]
mod harness;
#[path = "../../tests/it/upstream/mod.rs"]
mod upstream;

mod model {
    pub mod oracle {
        pub use crate::calendar;
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for name in upstream::SCENARIOS {
        if asked.is_empty() || asked.iter().any(|word| word == name) {
            upstream::table(name).await.iter().for_each(|row| println!("{row}"));
            println!();
        }
    }
}
