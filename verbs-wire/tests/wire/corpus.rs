//! Goal: what fuzzing has found, and what it starts from, keeps its promises on any toolchain.
//! Method: the targets of [`verbs_wire::fuzz`] over every file in `fuzz/corpus`.

use std::path::Path;

use verbs_core::testing::Corpus;
use verbs_wire::fuzz::{self, Outcome};

fn replay(target: &str, run: fn(&[u8]) -> Outcome) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let corpus = Corpus {
        folder: &folder.join(target),
        files_min: 24,
        one_in: 3,
    };
    corpus.replay(|bytes| run(bytes).is_accepted());
}

#[test]
fn packets() {
    replay("packet", fuzz::packet);
}

#[test]
fn datagrams() {
    replay("datagram", fuzz::datagram);
}

#[test]
fn headers() {
    replay("header", fuzz::header);
}

#[test]
fn frames() {
    replay("frame", fuzz::frame);
}
