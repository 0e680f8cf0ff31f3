//! Random bytes from the system, fetched in blocks: a system call for every
//! hold would cost as much as its decision.

use std::cell::RefCell;

const BLOCK: usize = 1024;

struct Block {
    bytes: [u8; BLOCK],
    used: usize,
}

thread_local! {
    static BLOCKS: RefCell<Block> = const { RefCell::new(Block { bytes: [0; BLOCK], used: BLOCK }) };
}

/// Sixteen bytes that nobody can foresee.
///
/// # Panics
/// When the system has no randomness to give: nothing safe can be done then.
pub(super) fn bytes() -> [u8; 16] {
    BLOCKS.with_borrow_mut(|block| {
        if block.used == BLOCK {
            getrandom::fill(&mut block.bytes).expect("the system gives random bytes");
            block.used = 0;
        }
        let taken = &mut block.bytes[block.used..block.used + 16];
        let bytes = std::array::from_fn(|index| taken[index]);
        taken.fill(0);
        block.used += 16;
        bytes
    })
}
