//! `apportion serve`: runs the server until it is told to stop.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use crate::startup::{self, Application, shutdown_signal};
use crate::telemetry;

use super::Common;

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address and port [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
}

pub fn run(common: &Common, args: ServeArgs) -> anyhow::Result<ExitCode> {
    let config = common.load(args.listen)?;
    telemetry::init(&config.log);
    startup::runtime()?.block_on(async {
        let application = Application::build(config).await?;
        if let Some(welcome) = application.welcome() {
            // To standard output, not to the log: it has a token in it. A
            // closed output is no reason not to serve.
            let _ = writeln!(std::io::stdout(), "{welcome}");
        }
        application.run_until(shutdown_signal()).await
    })?;
    Ok(ExitCode::SUCCESS)
}
