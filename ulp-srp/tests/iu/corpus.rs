//! Goal: what fuzzing has found, and what it starts from, keeps its promises on any toolchain.
//! Method: the targets of [`ulp_srp::iu::fuzz`] and [`ulp_srp::scsi::fuzz`] over every file in `fuzz/corpus`.

use std::path::Path;

use ulp_srp::iu::fuzz;
use ulp_srp::scsi;
use verbs_core::testing::Corpus;

fn replay(target: &str, run: fn(&[u8]) -> bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let corpus = Corpus {
        folder: &folder.join(target),
        files_min: 8,
        one_in: 4,
    };
    corpus.replay(run);
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
