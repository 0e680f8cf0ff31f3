//! `apportion openapi`: prints the document that `/openapi.json` serves.

use std::io::Write;
use std::process::ExitCode;

pub fn run() -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    out.write_all(crate::http::openapi_json().as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
