//! `VERBS_LOG`: what the library does, on stderr, a line for each event; the same filters and targets as `verbs --log`.

use std::io::{self, IsTerminal};
use std::sync::Once;

use tracing_subscriber::EnvFilter;
use verbs_core::process::variable;

use super::{explains, log};

/// The filter: a level, or targets with levels.
const VARIABLE: &str = "VERBS_LOG";

/// The filter for who wants explanations alone: work requests that fail, and requests of peers that are refused here.
const FAILURES: &str = "verbs::rc=info";

/// Begins to tell, if the user wants to know. A text that is no filter is said to be none, and tells nothing.
pub(crate) fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(text) = variable(VARIABLE).filter(|text| !text.is_empty()) else {
            if explains() {
                tell(EnvFilter::new(FAILURES));
            }
            return;
        };
        let text = text.to_string_lossy();
        match EnvFilter::builder().parse(&text) {
            Ok(filter) => tell(filter),
            Err(error) => log(&format!(
                "{VARIABLE}={text:?} is no filter ({error}); debug, verbs::rc=debug or verbs=debug,verbs::cm=trace would be right"
            )),
        }
    });
}

fn tell(filter: EnvFilter) {
    // Nobody else in this library tells of anything, so this is the first.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        // To say that nobody reads is a panic where nobody reads.
        .log_internal_errors(false)
        .try_init();
}

/// Whether each verb is to be told of: only then devices are opened with what tells it.
pub(crate) fn wants_verbs() -> bool {
    tracing::enabled!(target: "verbs", tracing::Level::DEBUG)
}
