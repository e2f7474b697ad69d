//! The list of all targets.

use std::path::{Path, PathBuf};

/// A target: a function over bytes, and the folder of inputs that it starts from.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it is called, in this list and in `ci/fuzz`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The folder of its corpus, from the root of the workspace.
    pub folder: &'static str,
    /// Bytes of an input at most.
    pub longest: usize,
    /// Panics if a promise is broken. Returns how many things were said: packets, units, messages, calls.
    pub run: fn(&[u8]) -> u32,
}

/// What a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads bytes, and keeps nothing.
    Parser,
    /// An object that lives for the length of a script.
    Live,
}

impl Target {
    /// Its corpus.
    pub fn corpus(&self) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
        root.expect("a member of the workspace").join(self.folder)
    }
}

/// The target of that name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

const fn parser(name: &'static str, folder: &'static str, run: fn(&[u8]) -> u32) -> Target {
    Target {
        name,
        kind: Kind::Parser,
        folder,
        longest: 4200,
        run,
    }
}

const fn live(name: &'static str, folder: &'static str, run: fn(&[u8]) -> u32) -> Target {
    Target {
        name,
        kind: Kind::Live,
        folder,
        longest: 4200,
        run,
    }
}

/// A parser counts as one thing that is said. Whether it accepts it is the replaying tests' business.
macro_rules! once {
    ($run:expr) => {
        |bytes| {
            let _ = $run(bytes);
            1
        }
    };
}

/// All targets. `tests/tidy` compares the list with the folders.
pub const TARGETS: &[Target] = &[
    parser(
        "packet",
        "verbs-wire/fuzz/corpus/packet",
        once!(verbs_wire::fuzz::packet),
    ),
    parser(
        "datagram",
        "verbs-wire/fuzz/corpus/datagram",
        once!(verbs_wire::fuzz::datagram),
    ),
    parser(
        "frame",
        "verbs-wire/fuzz/corpus/frame",
        once!(verbs_wire::fuzz::frame),
    ),
    parser(
        "header",
        "verbs-wire/fuzz/corpus/header",
        once!(verbs_wire::fuzz::header),
    ),
    parser(
        "mpa-startup",
        "verbs-wire/fuzz/corpus/mpa-startup",
        once!(verbs_wire::iwarp::fuzz::mpa_startup),
    ),
    parser(
        "fpdu",
        "verbs-wire/fuzz/corpus/fpdu",
        once!(verbs_wire::iwarp::fuzz::fpdu),
    ),
    parser(
        "port-mapper",
        "verbs-wire/fuzz/corpus/port-mapper",
        once!(verbs_wire::iwarp::fuzz::port_mapper),
    ),
    parser(
        "mad-records",
        "verbs-core/fuzz/corpus/records",
        once!(verbs_core::mad::fuzz::records),
    ),
    parser(
        "mad-transfer",
        "verbs-core/fuzz/corpus/transfer",
        once!(verbs_core::mad::fuzz::transfer),
    ),
    parser(
        "mad-service",
        "verbs-core/fuzz/corpus/service",
        once!(verbs_core::mad::fuzz::service),
    ),
    parser(
        "cm-message",
        "verbs-cm/fuzz/corpus/message",
        once!(verbs_cm::wire::fuzz::message),
    ),
    parser(
        "cm-ip-header",
        "verbs-cm/fuzz/corpus/ip-header",
        once!(verbs_cm::wire::fuzz::ip_header),
    ),
    parser(
        "rds-packet",
        "ulp-rds/fuzz/corpus/packet",
        once!(ulp_rds::wire::fuzz::packet),
    ),
    parser(
        "rds-handshake",
        "ulp-rds/fuzz/corpus/handshake",
        once!(ulp_rds::wire::fuzz::handshake),
    ),
    parser(
        "rds-congestion",
        "ulp-rds/fuzz/corpus/congestion",
        once!(ulp_rds::wire::fuzz::congestion),
    ),
    parser(
        "ipoib-message",
        "ulp-ipoib/fuzz/corpus/message",
        once!(ulp_ipoib::wire::fuzz::message),
    ),
    parser(
        "ipoib-arp",
        "ulp-ipoib/fuzz/corpus/arp",
        once!(ulp_ipoib::wire::fuzz::arp),
    ),
    parser(
        "ipoib-nd",
        "ulp-ipoib/fuzz/corpus/nd",
        once!(ulp_ipoib::wire::fuzz::nd),
    ),
    parser(
        "ipoib-membership",
        "ulp-ipoib/fuzz/corpus/membership",
        once!(ulp_ipoib::wire::fuzz::membership),
    ),
    parser(
        "srp-to-target",
        "ulp-srp/fuzz/corpus/to-target",
        once!(ulp_srp::iu::fuzz::to_target),
    ),
    parser(
        "srp-to-initiator",
        "ulp-srp/fuzz/corpus/to-initiator",
        once!(ulp_srp::iu::fuzz::to_initiator),
    ),
    parser(
        "srp-login",
        "ulp-srp/fuzz/corpus/login",
        once!(ulp_srp::iu::fuzz::login),
    ),
    parser(
        "scsi-cdb",
        "ulp-srp/fuzz/corpus/cdb",
        once!(ulp_srp::scsi::fuzz::cdb),
    ),
    parser(
        "scsi-sense",
        "ulp-srp/fuzz/corpus/sense",
        once!(ulp_srp::scsi::fuzz::sense),
    ),
    parser("topology", "fuzz/corpus/topology", crate::text::topology),
    parser("capture", "fuzz/corpus/capture", crate::text::capture),
    parser(
        "subnet-message",
        "fuzz/corpus/subnet-message",
        crate::text::message,
    ),
    parser("srp-names", "fuzz/corpus/srp-names", crate::text::names),
    live("subnet-ring", "fuzz/corpus/subnet-ring", crate::text::ring),
    live("hca", "fuzz/corpus/hca", crate::hca::hca),
    live("cm", "fuzz/corpus/cm", crate::cm::table),
    live("subnet-host", "fuzz/corpus/subnet-host", crate::host::host),
    live(
        "sm",
        "verbs-sm/fuzz/corpus/subnet",
        once!(verbs_sm::fuzz::subnet),
    ),
    live("sm-seat", "fuzz/corpus/sm-seat", crate::seat::seat),
    live("ipoib", "fuzz/corpus/ipoib", crate::ipoib::interface),
    live("srp-target", "fuzz/corpus/srp-target", crate::srp::target),
    live(
        "srp-initiator",
        "fuzz/corpus/srp-initiator",
        crate::srp::initiator,
    ),
    live("ibumad", "fuzz/corpus/ibumad", ibumad::fuzz::calls),
];
