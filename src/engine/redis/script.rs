//! A script that Redis knows by its digest.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use redis::Cmd;

/// Repeating it must do no harm: see [`Redis::run`](super::Redis::run).
#[derive(Debug)]
pub struct Script {
    code: String,
    sha1: String,
}

impl Script {
    pub fn new(code: impl Into<String>) -> Self {
        let code = code.into();
        let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, code.as_bytes());
        let sha1 = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { code, sha1 }
    }

    /// The call by digest.
    pub(super) fn known(&self, keys: &[&[u8]], args: &[&[u8]]) -> Cmd {
        call("EVALSHA", &self.sha1, keys, args)
    }

    /// The call with the code, which Redis then knows.
    pub(super) fn whole(&self, keys: &[&[u8]], args: &[&[u8]]) -> Cmd {
        call("EVAL", &self.code, keys, args)
    }
}

fn call(name: &str, script: &str, keys: &[&[u8]], args: &[&[u8]]) -> Cmd {
    let parts = keys.iter().chain(args);
    let size = parts.clone().map(|part| part.len()).sum::<usize>() + script.len() + 16;
    let mut command = Cmd::with_capacity(keys.len() + args.len() + 3, size);
    command.arg(name).arg(script).arg(keys.len());
    for part in parts {
        command.arg(*part);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_one_that_redis_computes() {
        // SCRIPT LOAD "return 1"
        assert_eq!(Script::new("return 1").sha1, "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
