//! Goal: what fuzzing has found, and what it starts from, keeps its promises on any toolchain.
//! Method: the targets of [`verbs_cm::wire::fuzz`] over every file in `fuzz/corpus`.

use verbs_cm::wire::fuzz;
use verbs_core::testing::Corpus;

fn replay(target: &str, run: fn(&[u8]) -> bool) {
    Corpus::replay_of(env!("CARGO_MANIFEST_DIR"), target, run);
}

#[test]
fn messages() {
    replay("message", fuzz::message);
}

#[test]
fn ip_headers() {
    replay("ip-header", fuzz::ip_header);
}
