//! `apportion serve`: runs the server until it is told to stop.

use std::process::ExitCode;

use clap::Args;

use crate::startup::{Application, shutdown_signal};
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
    // Requests are served by threads of their own; this runtime has the
    // journal, the sweeper and the poller, which mostly wait.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let application = Application::build(config).await?;
        application.run_until(shutdown_signal()).await
    })?;
    Ok(ExitCode::SUCCESS)
}
