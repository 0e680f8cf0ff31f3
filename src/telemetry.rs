//! Logs: human or JSON, to standard error.
//!
//! Request ids, tenants and holds are fields of spans and so stand on every
//! line written within them. Tokens, keys and what users say to models are
//! never given to a log call at all; the source-reading test looks for it.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::config::{LogConfig, LogFormat};

/// Installs the subscriber of this process; a second call changes nothing.
pub fn init(config: &LogConfig) {
    // The filter was parsed with the settings, so a failure cannot come here;
    // logging a little too much beats not starting.
    let filter = EnvFilter::try_new(&config.filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_span_events(FmtSpan::NONE)
        .with_target(true)
        // A line that cannot be written is dropped: a full disk or a reader that
        // went away must not end the server.
        .log_internal_errors(false);
    let installed = match config.format {
        LogFormat::Human => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => {
            builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init()
        }
    };
    if installed.is_ok() {
        log_panics();
    }
}

/// A panic is a bug: it goes to the log with its place, like everything else
/// that an operator must see.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("no message");
        tracing::error!(panic.place = place, panic.message = text, "a thread panicked: this is a bug");
    }));
}
