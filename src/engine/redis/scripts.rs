//! The scripts: what they share, and the small part of each.

use super::script::Script;

/// A text put together at compile time.
macro_rules! text {
    ($name:ident, $flags:literal, [$($part:literal),+]) => {
        pub(super) const $name: &str =
            concat!("#!lua", $flags, "\n", $(include_str!(concat!("lua/", $part, ".lua"))),+);
    };
}

text!(TAKE, "", ["head", "begin", "cells", "commit", "lines", "take"]);
text!(FINISH, " flags=allow-oom", ["head", "begin", "cells", "commit", "receipts", "finish"]);
text!(EXTEND, "", ["head", "begin", "cells", "commit", "receipts", "extend"]);
text!(TOUCH, " flags=allow-oom", ["head", "begin", "cells", "commit", "touch"]);
text!(LOAD, " flags=allow-oom", ["load"]);
text!(SLOTS, " flags=allow-oom", ["slots"]);
text!(DRAINED, " flags=allow-oom", ["drained"]);
text!(MOVE, " flags=allow-oom", ["head", "move"]);
text!(REOPEN, " flags=allow-oom", ["reopen"]);
text!(LINE, "", ["lines", "line"]);

/// All of them, ready to be called.
pub(super) struct Scripts {
    pub take: Script,
    pub finish: Script,
    pub extend: Script,
    pub touch: Script,
    pub load: Script,
    pub slots: Script,
    pub drained: Script,
    pub moves: Script,
    pub reopen: Script,
    pub line: Script,
}

impl Scripts {
    pub fn new() -> Self {
        Self {
            take: Script::new(TAKE),
            finish: Script::new(FINISH),
            extend: Script::new(EXTEND),
            touch: Script::new(TOUCH),
            load: Script::new(LOAD),
            slots: Script::new(SLOTS),
            drained: Script::new(DRAINED),
            moves: Script::new(MOVE),
            reopen: Script::new(REOPEN),
            line: Script::new(LINE),
        }
    }
}
