//! Goal: the parsers keep their promises on inputs that fuzzing has found, and on those it starts from, on any
//! toolchain.
//! Method: the targets of [`ulp_ipoib::wire::fuzz`] and [`ulp_ipoib::offload::fuzz`] over every file in `fuzz/corpus`.

use ulp_ipoib::offload;
use ulp_ipoib::wire::fuzz;
use verbs_core::testing::Corpus;

fn replay(target: &str, run: fn(&[u8]) -> bool) {
    Corpus::replay_of(env!("CARGO_MANIFEST_DIR"), target, run);
}

#[test]
fn messages() {
    replay("message", fuzz::message);
}

#[test]
fn address_resolution() {
    replay("arp", fuzz::arp);
}

#[test]
fn neighbour_discovery() {
    replay("nd", fuzz::nd);
}

#[test]
fn membership_reports() {
    replay("membership", fuzz::membership);
}

#[test]
fn joined_packets() {
    replay("join", offload::fuzz::join);
}

#[test]
fn split_packets() {
    replay("split", offload::fuzz::split);
}
