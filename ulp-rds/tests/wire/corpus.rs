//! Goal: what fuzzing has found, and what it starts from, keeps its promises on any toolchain.
//! Method: the targets of [`ulp_rds::wire::fuzz`] over every file in `fuzz/corpus`.

use ulp_rds::wire::fuzz;
use verbs_core::testing::Corpus;

fn replay(target: &str, run: fn(&[u8]) -> bool) {
    Corpus::replay_of(env!("CARGO_MANIFEST_DIR"), target, run);
}

#[test]
fn packets() {
    replay("packet", fuzz::packet);
}

#[test]
fn private_data() {
    replay("handshake", fuzz::handshake);
}

#[test]
fn congestion_maps() {
    replay("congestion", fuzz::congestion);
}
