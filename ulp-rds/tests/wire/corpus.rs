//! Goal: what fuzzing has found, and what it starts from, keeps its promises on any toolchain.
//! Method: the targets of [`ulp_rds::wire::fuzz`] over every file in `fuzz/corpus`.

use std::path::Path;

use ulp_rds::wire::fuzz;
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
