//! W3C trace context: to which trace a call belongs, and whether it is recorded.

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A list of vendors' own notes is passed on up to this length.
const STATE_MAX: usize = 512;
const SAMPLED: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId(pub(super) [u8; 16]);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpanId(pub [u8; 8]);

impl SpanId {
    pub fn fresh() -> Self {
        Self(fresh().max(1).to_be_bytes())
    }
}

/// Where a call comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    pub(super) trace: TraceId,
    /// `None`: the trace begins here.
    pub(super) parent: Option<SpanId>,
    flags: u8,
    pub(super) state: String,
}

impl Context {
    /// A trace that begins here and is recorded; `None` without random numbers.
    pub(super) fn root() -> Option<Self> {
        let mut trace = [0; 16];
        getrandom::fill(&mut trace).ok()?;
        Some(Self { trace: TraceId(trace), parent: None, flags: SAMPLED, state: String::new() })
    }

    /// What `traceparent` and the fields of `tracestate` say; `None` where the
    /// first is not as it has to be, whatever the others are.
    pub fn read<'a>(parent: &str, states: impl Iterator<Item = &'a str>) -> Option<Self> {
        let (trace, parent, flags) = read_parent(parent)?;
        let state = states.collect::<Vec<_>>().join(",");
        let is_sound = state.len() <= STATE_MAX && state.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let state = if is_sound { state } else { String::new() };
        Some(Self { trace, parent: Some(parent), flags, state })
    }

    pub fn trace_id(&self) -> TraceId {
        self.trace
    }

    pub(super) fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

fn read_parent(text: &str) -> Option<(TraceId, SpanId, u8)> {
    let bytes = text.as_bytes();
    let [version] = hex(bytes.get(..2)?)?;
    let is_whole = match version {
        0 => bytes.len() == 55,
        0xff => false,
        // Later versions may say more.
        _ => bytes.len() == 55 || bytes.get(55) == Some(&b'-'),
    };
    let dashes = [2, 35, 52].iter().all(|&at| bytes.get(at) == Some(&b'-'));
    if !is_whole || !dashes {
        return None;
    }
    let trace = hex(bytes.get(3..35)?).filter(|id| *id != [0; 16])?;
    let parent = hex(bytes.get(36..52)?).filter(|id| *id != [0; 8])?;
    let [flags] = hex(bytes.get(53..55)?)?;
    Some((TraceId(trace), SpanId(parent), flags))
}

/// Lower case only, as the standard has it.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

/// Spread evenly and never twice in a process: good for draws and for ids
/// within a trace. A counter, and each of its values mixed (splitmix64).
pub(super) fn fresh() -> u64 {
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| {
        let mut seed = [0; 8];
        let seeded = getrandom::fill(&mut seed);
        AtomicU64::new(seeded.map_or(std::process::id().into(), |()| u64::from_le_bytes(seed)))
    });
    let mut mixed = NEXT.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(parent: &str) -> Option<Context> {
        Context::read(parent, std::iter::empty())
    }

    #[test]
    fn a_sound_parent_is_read() {
        let context = read(GOOD).unwrap();
        assert_eq!(context.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.parent, Some(SpanId(0x00f0_67aa_0ba9_02b7_u64.to_be_bytes())));
        assert!(context.is_sampled());
        assert!(!read(&GOOD.replace("-01", "-02")).unwrap().is_sampled());
        assert!(read(&format!("cc{}-later", &GOOD[2..])).unwrap().is_sampled());
    }

    #[test]
    fn anything_else_is_no_parent() {
        let zeros = |id: &str| GOOD.replace(id, &"0".repeat(id.len()));
        for bad in [
            String::new(),
            GOOD.to_uppercase(),
            GOOD[..54].to_owned(),
            format!("{GOOD}-more"),
            format!("{GOOD} "),
            format!("ff{}", &GOOD[2..]),
            format!("cc{}x", &GOOD[2..]),
            GOOD.replace('-', "_"),
            GOOD.replace("4bf", "4bg"),
            zeros("4bf92f3577b34da6a3ce929d0e0e4736"),
            zeros("00f067aa0ba902b7"),
            "é".repeat(40),
        ] {
            assert_eq!(read(&bad), None, "{bad}");
        }
    }

    #[test]
    fn notes_of_vendors_are_joined_and_bounded() {
        let read = |states: &[&str]| Context::read(GOOD, states.iter().copied()).unwrap().state;
        assert_eq!(read(&["a=1", "b=2"]), "a=1,b=2");
        assert_eq!(read(&["a=1\n"]), "");
        assert_eq!(read(&[&"a".repeat(STATE_MAX + 1)]), "");
    }
}
