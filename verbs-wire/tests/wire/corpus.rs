//! Goal: the parsers keep their promises on inputs that fuzzing has found, and on those it starts from, on any
//! toolchain.
//! Method: the targets of [`verbs_wire::fuzz`] over every file in `fuzz/corpus`.

use std::path::Path;

use verbs_core::testing::Corpus;
use verbs_wire::fuzz::{self, Outcome};
use verbs_wire::iwarp::fuzz as iwarp;

fn replay(target: &str, run: impl Fn(&[u8]) -> bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let corpus = Corpus {
        folder: &folder.join(target),
        files_min: 24,
        one_in: 3,
    };
    corpus.replay(run);
}

fn replay_ib(target: &str, run: fn(&[u8]) -> Outcome) {
    replay(target, |bytes| run(bytes).is_accepted());
}

#[test]
fn packets() {
    replay_ib("packet", fuzz::packet);
}

#[test]
fn datagrams() {
    replay_ib("datagram", fuzz::datagram);
}

#[test]
fn headers() {
    replay_ib("header", fuzz::header);
}

#[test]
fn frames() {
    replay_ib("frame", fuzz::frame);
}

#[test]
fn messages_about_shared_targets() {
    replay_ib("target-message", fuzz::target_message);
}

/// The same for the formats of iWARP, which have other errors.
fn replay_iwarp(target: &str, run: fn(&[u8]) -> iwarp::Outcome) {
    replay(target, |bytes| run(bytes).is_accepted());
}

#[test]
fn mpa_startup_frames() {
    replay_iwarp("mpa-startup", iwarp::mpa_startup);
}

#[test]
fn fpdus() {
    replay_iwarp("fpdu", iwarp::fpdu);
}

#[test]
fn port_mapper_messages() {
    replay_iwarp("port-mapper", iwarp::port_mapper);
}
