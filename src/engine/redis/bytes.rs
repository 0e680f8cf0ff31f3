//! Plain figures as bytes, as Lua's `struct` reads and writes them: little
//! endian, every amount and instant as a double. All are whole and below 2^53
//! (or a mark far beyond), so nothing is rounded.

use crate::domain::time::Millis;

/// No instant, or an amount without bound.
pub(super) const NONE: f64 = f64::INFINITY;

/// What a script wrote cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unreadable state")]
pub(super) struct Unreadable;

#[derive(Default)]
pub(super) struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn flag(&mut self, value: bool) -> &mut Self {
        self.u8(u8::from(value))
    }

    pub fn u16(&mut self, value: usize) -> &mut Self {
        self.raw(&(value as u16).to_le_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub fn number(&mut self, value: f64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// An amount; what is beyond every limit stays so.
    pub fn amount(&mut self, value: u64) -> &mut Self {
        self.number(value.min(1 << 53) as f64)
    }

    pub fn at(&mut self, value: Millis) -> &mut Self {
        self.number(value.0 as f64)
    }

    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn raw(&mut self, count: usize) -> Result<&'a [u8], Unreadable> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(Unreadable)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        self.raw(N)?.try_into().map_err(|_| Unreadable)
    }

    pub fn u8(&mut self) -> Result<u8, Unreadable> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<usize, Unreadable> {
        self.array().map(|bytes| u16::from_le_bytes(bytes).into())
    }

    pub fn u32(&mut self) -> Result<u32, Unreadable> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Unreadable> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn u128_be(&mut self) -> Result<u128, Unreadable> {
        self.array().map(u128::from_be_bytes)
    }

    pub fn number(&mut self) -> Result<f64, Unreadable> {
        self.array().map(f64::from_le_bytes)
    }

    /// A whole number of 0 or more.
    pub fn amount(&mut self) -> Result<u64, Unreadable> {
        let number = self.number()?;
        let fits = (0.0..=9_007_199_254_740_992.0).contains(&number) && number.fract() == 0.0;
        if fits { Ok(number as u64) } else { Err(Unreadable) }
    }

    /// A whole number, which may be below 0.
    pub fn signed(&mut self) -> Result<i64, Unreadable> {
        let number = self.number()?;
        if number.fract() == 0.0 { Ok(number as i64) } else { Err(Unreadable) }
    }

    pub fn at(&mut self) -> Result<Millis, Unreadable> {
        self.signed().map(Millis)
    }
}
