//! `--log`: what happens, on stderr.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// A filter as the option takes it, if it is one.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn filter(text: &str) -> Result<String, String> {
    match EnvFilter::builder().parse(text) {
        Ok(_) if !text.is_empty() => Ok(text.into()),
        Ok(_) => Err("debug, verbs::rc=debug or verbs=debug,verbs::cm=trace would be right".into()),
        Err(error) => Err(format!(
            "{error}; debug, verbs::rc=debug or verbs=debug,verbs::cm=trace would be right"
        )),
    }
}

/// Begins to say what the filter lets through, a line for each event. Once in a process.
pub(crate) fn start(filter: &str) {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::ERROR.into())
        .parse_lossy(filter);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        // To say that nobody reads is a panic where nobody reads.
        .log_internal_errors(false)
        .init();
}

/// Whether the filter lets verbs through: only then devices are opened with what traces them.
pub(crate) fn wants_verbs() -> bool {
    tracing::enabled!(target: "verbs", tracing::Level::DEBUG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked() {
        for right in [
            "debug",
            "verbs::rc=debug",
            "verbs=debug,verbs::cm=trace",
            "warn,hca_sim=trace",
        ] {
            assert_eq!(filter(right).as_deref(), Ok(right));
        }
        for wrong in ["", "verbs=loud", "verbs::rc=debug,=,"] {
            let error = filter(wrong).expect_err(wrong);
            assert!(error.contains("would be right"), "{error}");
        }
    }
}
