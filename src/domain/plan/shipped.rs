//! The sheets, pool and models that a new tenant begins with. They are part
//! of the binary, so that it needs no files beside it.

use super::{Models, Pool, Sheet};
use crate::domain::document::{Fault, Node};

const SHEETS: [&str; 3] = [
    include_str!("../../../plans/free.toml"),
    include_str!("../../../plans/standard.toml"),
    include_str!("../../../plans/pro.toml"),
];
const POOLS: [&str; 1] = [include_str!("../../../plans/pools/default.toml")];
const MODELS: &str = include_str!("../../../plans/models.toml");

/// What a new tenant begins with.
#[derive(Debug, Clone, PartialEq)]
pub struct Shipped {
    /// From the smallest plan to the largest.
    pub sheets: Vec<Sheet>,
    pub pools: Vec<Pool>,
    pub models: Models,
}

/// Reads the shipped documents.
///
/// # Panics
///
/// When one of them is faulty, which a test of this module rules out.
pub fn shipped() -> Shipped {
    match read() {
        Ok(shipped) => shipped,
        Err(faults) => panic!("a shipped plan document is faulty: {faults:?}"),
    }
}

fn read() -> Result<Shipped, Vec<Fault>> {
    let mut sheets = Vec::new();
    for text in SHEETS {
        sheets.push(Sheet::read(&parse(text)?)?.0);
    }
    let mut pools = Vec::new();
    for text in POOLS {
        pools.push(Pool::read(&parse(text)?)?);
    }
    Ok(Shipped { sheets, pools, models: Models::read(&parse(MODELS)?)? })
}

fn parse(text: &str) -> Result<Node<'static>, Vec<Fault>> {
    Node::from_toml(text).map_err(|fault| vec![fault])
}
