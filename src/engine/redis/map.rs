//! Which primary has which slot.

use std::sync::Arc;

use redis::Value;

use super::address::Endpoint;
use super::connection::Node;
use super::error::RedisError;

pub(super) const SLOTS: usize = 16_384;

/// One of the parts into which a cluster divides all keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HashSlot(u16);

/// The slot of all keys with this hash tag: what stands between the braces.
pub fn slot_of(tag: &[u8]) -> HashSlot {
    let crc = tag.iter().fold(0_u16, |crc, byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]);
    HashSlot(crc % SLOTS as u16)
}

impl HashSlot {
    pub fn number(self) -> u16 {
        self.0
    }
}

/// CRC-16/XMODEM.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The primaries, as last heard.
#[derive(Default)]
pub(super) struct Map {
    pub primaries: Vec<Arc<Node>>,
    /// For each slot the primary that has it; `None`: the first has them all.
    slots: Option<Box<[u16]>>,
}

const NOBODY: u16 = u16::MAX;

impl Map {
    pub fn of_one(primary: Arc<Node>) -> Self {
        Self { primaries: vec![primary], slots: None }
    }

    pub fn of_ranges(
        ranges: &[Range],
        node: impl FnMut(&Endpoint) -> Result<Arc<Node>, RedisError>,
    ) -> Result<Self, RedisError> {
        let mut slots = vec![NOBODY; SLOTS].into_boxed_slice();
        let mut endpoints: Vec<&Endpoint> = ranges.iter().map(|range| &range.primary).collect();
        endpoints.sort();
        endpoints.dedup();
        for range in ranges {
            let index = endpoints.binary_search(&&range.primary).map_or(NOBODY, |index| index as u16);
            slots[usize::from(range.first)..=usize::from(range.last)].fill(index);
        }
        Ok(Self { primaries: endpoints.into_iter().map(node).collect::<Result<_, _>>()?, slots: Some(slots) })
    }

    pub fn primary_of(&self, slot: HashSlot) -> Option<&Arc<Node>> {
        let index = self.slots.as_ref().map_or(0, |slots| usize::from(slots[usize::from(slot.0)]));
        self.primaries.get(index)
    }

    pub fn is_same(&self, other: &Self) -> bool {
        let same = |pair: (&Arc<Node>, &Arc<Node>)| Arc::ptr_eq(pair.0, pair.1);
        self.slots == other.slots
            && self.primaries.len() == other.primaries.len()
            && self.primaries.iter().zip(&other.primaries).all(same)
    }

    /// The addresses, for people.
    pub fn told(&self) -> String {
        let list: Vec<String> = self.primaries.iter().map(|node| node.endpoint.to_string()).collect();
        list.join(", ")
    }
}

/// Slots that follow each other and have one primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    pub first: u16,
    pub last: u16,
    pub primary: Endpoint,
}

/// Reads what `asked` answered to `CLUSTER SLOTS`; `None`: it makes no sense.
pub(super) fn ranges(answer: &Value, asked: &Endpoint) -> Option<Vec<Range>> {
    let Value::Array(rows) = answer else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    rows.iter()
        .map(|row| {
            let Value::Array(row) = row else { return None };
            let [first, last, Value::Array(primary), ..] = &row[..] else { return None };
            let [host, port, ..] = &primary[..] else { return None };
            let host = match host {
                Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
                Value::SimpleString(host) => host.clone(),
                Value::Nil => String::new(),
                _ => return None,
            };
            // A node that does not know its own address means where it was asked.
            let host = if host.is_empty() || host == "?" { asked.host.clone() } else { host };
            let (first, last) = (number(first)?, number(last)?);
            let sensible = first <= last && usize::from(last) < SLOTS;
            sensible.then_some(Range { first, last, primary: Endpoint { host, port: number(port)? } })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // CLUSTER KEYSLOT
        assert_eq!(slot_of(b"123456789").number(), 12739);
        assert_eq!(slot_of(b"a").number(), 15495);
        assert_eq!(slot_of(b"").number(), 0);
    }

    #[test]
    fn what_a_cluster_tells_is_read_with_care() {
        let asked = Endpoint { host: "here".to_owned(), port: 1 };
        let node =
            |host: Value, port| Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
        let row = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let answer = Value::Array(vec![
            row(0, 9, node(Value::BulkString(b"there".to_vec()), 2)),
            row(10, 10, node(Value::Nil, 3)),
        ]);
        let at = |host: &str, port| Endpoint { host: host.to_owned(), port };
        let read = ranges(&answer, &asked).unwrap();
        assert_eq!(read[0], Range { first: 0, last: 9, primary: at("there", 2) });
        assert_eq!(read[1], Range { first: 10, last: 10, primary: at("here", 3) });
        for wrong in [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            Value::Array(vec![row(9, 0, node(Value::Nil, 3))]),
            Value::Array(vec![row(0, 16_384, node(Value::Nil, 3))]),
            Value::Array(vec![row(0, 1, Value::Array(vec![]))]),
        ] {
            assert_eq!(ranges(&wrong, &asked), None);
        }
    }
}
