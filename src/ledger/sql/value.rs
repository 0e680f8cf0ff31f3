//! Values on their way into statements, and out of rows.

use std::sync::Arc;

use super::Failure;
use crate::ledger::LedgerError;

/// A statement's parameter. Numbers without a sign are the same 64 bits,
/// signed; flags are 0 or 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Int(Option<i64>),
    Text(Option<Arc<str>>),
    Bytes(Option<Arc<[u8]>>),
}

/// Values of any kinds, in the order of a statement's parameters.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::ledger::sql::value::Bind::bind($value)),*]
    };
}
pub(in crate::ledger) use values;

/// What can be a parameter.
pub trait Bind {
    const NULL: Value;
    fn bind(self) -> Value;
}

macro_rules! bind {
    ($variant:ident: $($from:ty),*; |$value:ident| $into:expr) => {
        $(impl Bind for $from {
            const NULL: Value = Value::$variant(None);
            fn bind(self) -> Value {
                let $value = self;
                Value::$variant(Some($into))
            }
        })*
    };
}

bind!(Int: i64; |value| value);
bind!(Int: i32, u32, u8, bool; |value| value.into());
bind!(Text: Arc<str>; |value| value);
bind!(Text: &str, String; |value| value.into());
bind!(Bytes: Arc<[u8]>; |value| value);
bind!(Bytes: Vec<u8>; |value| value.into());
bind!(Bytes: [u8; 16]; |value| value.as_slice().into());

impl<T: Bind> Bind for Option<T> {
    const NULL: Value = T::NULL;

    fn bind(self) -> Value {
        self.map_or(T::NULL, T::bind)
    }
}

/// A row, by the place of its columns.
pub trait Columns: Send + Sync {
    fn int(&self, at: usize) -> sqlx::Result<Option<i64>>;
    fn text(&self, at: usize) -> sqlx::Result<Option<&str>>;
    fn bytes(&self, at: usize) -> sqlx::Result<Option<&[u8]>>;
}

/// A column's value, or what is wrong with it.
pub fn get<'r, T: Column<'r>>(row: &'r impl Columns, at: usize) -> Result<T, LedgerError> {
    let read = T::read(row, at).map_err(|error| LedgerError::Corrupt(error.to_string()))?;
    read.ok_or_else(|| LedgerError::Corrupt(format!("column {at} has no value that fits")))
}

/// All rows, read one by one.
pub fn each<R, T>(rows: &[R], read: impl Fn(&R) -> Result<T, LedgerError>) -> Result<Vec<T>, Failure> {
    Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
}

/// What a column can be read as.
pub trait Column<'r>: Sized {
    /// `None`: NULL, or out of its range.
    fn read(row: &'r impl Columns, at: usize) -> sqlx::Result<Option<Self>>;
}

macro_rules! int_columns {
    ($($int:ty),*) => {
        $(impl Column<'_> for $int {
            fn read(row: &impl Columns, at: usize) -> sqlx::Result<Option<Self>> {
                Ok(row.int(at)?.and_then(|value| Self::try_from(value).ok()))
            }
        })*
    };
}

int_columns!(i64, i32, u32, u8);

impl Column<'_> for bool {
    fn read(row: &impl Columns, at: usize) -> sqlx::Result<Option<Self>> {
        Ok(row.int(at)?.map(|value| value != 0))
    }
}

impl<'r> Column<'r> for &'r str {
    fn read(row: &'r impl Columns, at: usize) -> sqlx::Result<Option<Self>> {
        row.text(at)
    }
}

impl Column<'_> for String {
    fn read(row: &impl Columns, at: usize) -> sqlx::Result<Option<Self>> {
        Ok(row.text(at)?.map(str::to_owned))
    }
}

impl<'r> Column<'r> for &'r [u8] {
    fn read(row: &'r impl Columns, at: usize) -> sqlx::Result<Option<Self>> {
        row.bytes(at)
    }
}

impl Column<'_> for Vec<u8> {
    fn read(row: &impl Columns, at: usize) -> sqlx::Result<Option<Self>> {
        Ok(row.bytes(at)?.map(<[u8]>::to_vec))
    }
}

impl<'r, T: Column<'r>> Column<'r> for Option<T> {
    fn read(row: &'r impl Columns, at: usize) -> sqlx::Result<Option<Self>> {
        Ok(Some(T::read(row, at)?))
    }
}
