//! A trace of past calls: CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`.

use std::path::Path;

use crate::domain::quantity::MAX_AMOUNT;
use crate::domain::time::Millis;

/// One call as it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub at: Millis,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot read the trace {path}")]
    Unreadable { path: String, source: std::io::Error },
    #[error("{path}, line {line}: {reason}")]
    Malformed { path: String, line: usize, reason: String },
    #[error("{path}: there is no call in this trace")]
    Empty { path: String },
}

const COLUMNS: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

/// Reads the calls in the order of their times (ties: in the file's order).
/// Times without an offset are UTC; they are cut to milliseconds. Columns of
/// other names are passed over.
pub fn read(path: &Path) -> Result<Vec<Call>, TraceError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|source| TraceError::Unreadable { path: shown.clone(), source })?;
    let mut calls =
        parse(&text).map_err(|(line, reason)| TraceError::Malformed { path: shown.clone(), line, reason })?;
    if calls.is_empty() {
        return Err(TraceError::Empty { path: shown });
    }
    calls.sort_by_key(|call| call.at);
    Ok(calls)
}

/// Fails with the line's number and a reason.
fn parse(text: &str) -> Result<Vec<Call>, (usize, String)> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, header) = lines.next().ok_or((1, "the file is empty".to_owned()))?;
    let names: Vec<_> = header.trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
    let mut places = [0; 3];
    for (place, column) in places.iter_mut().zip(COLUMNS) {
        *place = names
            .iter()
            .position(|name| *name == column)
            .ok_or_else(|| (1, format!("the header has no column {column}")))?;
    }
    lines
        .map(|(index, line)| {
            let fields: Vec<_> = line.split(',').map(str::trim).collect();
            call(&fields, places).map_err(|reason| (index + 1, reason))
        })
        .collect()
}

fn call(fields: &[&str], places: [usize; 3]) -> Result<Call, String> {
    let field = |column: usize| {
        fields.get(places[column]).copied().ok_or_else(|| format!("{} is missing", COLUMNS[column]))
    };
    let amount = |column: usize| {
        let text = field(column)?;
        match text.parse::<u64>() {
            Ok(amount) if amount <= MAX_AMOUNT => Ok(amount),
            _ => Err(format!("{} {text:?} is no whole number up to 2^53-1", COLUMNS[column])),
        }
    };
    Ok(Call { at: instant(field(0)?)?, input_tokens: amount(1)?, output_tokens: amount(2)? })
}

fn instant(text: &str) -> Result<Millis, String> {
    let mut stamp = text.replacen(' ', "T", 1);
    let has_offset = stamp.ends_with('Z') || stamp.get(19..).is_some_and(|rest| rest.contains(['+', '-']));
    if !has_offset {
        stamp.push('Z');
    }
    Millis::parse(&stamp).map_err(|reason| format!("TIMESTAMP {text:?}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_times_of_seven_decimals() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n";
        let calls = parse(text).unwrap();
        assert_eq!(calls[0].at.to_string(), "2023-11-16T18:17:03.979Z");
        assert_eq!((calls[0].input_tokens, calls[0].output_tokens), (4808, 10));
    }

    #[test]
    fn columns_are_found_by_name() {
        let text = "User,GeneratedTokens,ContextTokens,TIMESTAMP\nx,1,2,2024-01-01T00:00:00+09:00\n";
        let call = parse(text).unwrap()[0];
        assert_eq!((call.input_tokens, call.output_tokens), (2, 1));
        assert_eq!(call.at.to_string(), "2023-12-31T15:00:00.000Z");
    }

    #[test]
    fn a_bad_line_is_named() {
        let header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
        for bad in [
            "2024-01-01 00:00:00,-1,2",
            "2024-01-01 00:00:00,1",
            "yesterday,1,2",
            "2024-01-01 00:00:00,1.5,2",
        ] {
            let (line, reason) = parse(&format!("{header}\n{bad}\n")).unwrap_err();
            assert_eq!(line, 3, "{bad}: {reason}");
        }
        assert!(parse("a,b,c\n").is_err());
        assert!(parse("").is_err());
    }
}
