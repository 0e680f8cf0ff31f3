mod compare;
mod degrade;
mod identity;
mod lint;
mod overriding;
mod pool;
mod random;
mod sheet;

use super::*;
use crate::domain::document::{Fault, Node};

fn node(toml: &str) -> Node<'static> {
    Node::from_toml(toml).expect("TOML")
}

fn sheet(toml: &str) -> Sheet {
    Sheet::read(&node(toml)).expect("a valid sheet").0
}

fn sheet_faults(toml: &str) -> Vec<Fault> {
    Sheet::read(&node(toml)).expect_err("a faulty sheet")
}

fn pool(toml: &str) -> Pool {
    Pool::read(&node(toml)).expect("a valid pool")
}

/// A sheet with these limits, a call of at most 100 + 50 tokens.
fn with_limits(limits: &str) -> String {
    let caps = "per_call = { max_input_tokens = 100, max_output_tokens = 50 }";
    format!("id = \"p\"\n{caps}\nlimits = [{limits}]")
}

fn pointers(faults: &[Fault]) -> Vec<&str> {
    faults.iter().map(|fault| fault.pointer.as_str()).collect()
}

fn known_models() -> Models {
    let text = r#"
        [[models]]
        id = "Claude-Opus"
        aliases = ["opus", "big"]
        input = 15_000_000
        output = 75_000_000
        [[models]]
        id = "haiku"
    "#;
    Models::read(&node(text)).expect("valid models")
}
