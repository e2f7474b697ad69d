//! Goal: the parsers keep their promises on inputs that fuzzing has found, and on those it starts from, on any
//! toolchain.
//! Method: the targets of [`ulp_srp::iu::fuzz`] and [`ulp_srp::scsi::fuzz`] over every file in `fuzz/corpus`.

use ulp_srp::iu::fuzz;
use ulp_srp::scsi;
use verbs_core::testing::Corpus;

fn replay(target: &str, run: fn(&[u8]) -> bool) {
    Corpus::replay_of(env!("CARGO_MANIFEST_DIR"), target, run);
}

#[test]
fn units_of_initiators() {
    replay("to-target", fuzz::to_target);
}

#[test]
fn units_of_targets() {
    replay("to-initiator", fuzz::to_initiator);
}

#[test]
fn logins() {
    replay("login", fuzz::login);
}

#[test]
fn commands() {
    replay("cdb", scsi::fuzz::cdb);
}

#[test]
fn sense_data() {
    replay("sense", scsi::fuzz::sense);
}
