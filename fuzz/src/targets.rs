//! The list of all targets.

use std::path::{Path, PathBuf};

mod cm;
mod daemon;
mod hca;
mod host;
mod ipoib;
mod iwarp;
mod ring;
mod seat;
mod srp;
mod text;

/// A target: a function over bytes, and the folder of inputs that it starts from.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, in this list and in `ci/fuzz`.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// The folder of its corpus, from the root of the workspace.
    pub folder: &'static str,
    /// The most bytes of an input.
    pub longest: usize,
    /// Panics if a promise is broken. Returns how many inputs the object got: packets, units, messages, calls.
    pub run: fn(&[u8]) -> u32,
}

/// The kind of a target.
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

/// A parser counts as one input. The replaying tests check whether it accepts it.
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
        "target-message",
        "verbs-wire/fuzz/corpus/target-message",
        once!(verbs_wire::fuzz::target_message),
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
        "ipoib-join",
        "ulp-ipoib/fuzz/corpus/join",
        once!(ulp_ipoib::offload::fuzz::join),
    ),
    parser(
        "ipoib-split",
        "ulp-ipoib/fuzz/corpus/split",
        once!(ulp_ipoib::offload::fuzz::split),
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
    parser("topology", "fuzz/corpus/topology", text::topology),
    parser("capture", "fuzz/corpus/capture", text::capture),
    parser(
        "subnet-message",
        "fuzz/corpus/subnet-message",
        text::message,
    ),
    parser(
        "host-message",
        "verbs-core/fuzz/corpus/host-message",
        once!(verbs_core::host::fuzz::message),
    ),
    parser(
        "host-command",
        "verbs-core/fuzz/corpus/host-command",
        once!(verbs_core::host::fuzz::command),
    ),
    live("host-daemon", "fuzz/corpus/host-daemon", daemon::daemon),
    parser("srp-names", "fuzz/corpus/srp-names", text::names),
    live("shared-ring", "fuzz/corpus/shared-ring", ring::ring),
    live("host-channel", "fuzz/corpus/host-channel", ring::channel),
    live("hca", "fuzz/corpus/hca", hca::hca),
    live("iwarp", "fuzz/corpus/iwarp", iwarp::iwarp),
    live("cm", "fuzz/corpus/cm", cm::table),
    live("subnet-host", "fuzz/corpus/subnet-host", host::host),
    live(
        "sm",
        "verbs-sm/fuzz/corpus/subnet",
        once!(verbs_sm::fuzz::subnet),
    ),
    live("sm-seat", "fuzz/corpus/sm-seat", seat::seat),
    live("ipoib", "fuzz/corpus/ipoib", ipoib::interface),
    live("srp-target", "fuzz/corpus/srp-target", srp::target),
    live("srp-initiator", "fuzz/corpus/srp-initiator", srp::initiator),
    live("ibumad", "fuzz/corpus/ibumad", ibumad::fuzz::calls),
];
