//! `apportion openapi`: prints the document that `/openapi.json` serves.

use std::process::ExitCode;

use super::say;

pub fn run() -> anyhow::Result<ExitCode> {
    say(crate::http::openapi_json().trim_end())?;
    Ok(ExitCode::SUCCESS)
}
