//! Goal: inputs that fuzzing has found, and those that it starts from, keep the promises on any toolchain, and no
//! corpus is useless. Method: every target over every file of its corpus; live targets also over the beginnings of
//! each, and over what the mutator makes of them.

use std::collections::BTreeSet;

use verbs_fuzz::{Kind, Mutator, TARGETS, Target, corpus, find};

/// Inputs that the mutator makes of each live target's corpus.
const MADE: u64 = 24;

fn replay(name: &str) {
    let target = find(name).unwrap_or_else(|| panic!("no target {name}"));
    let stored = corpus(target).expect("a folder that can be read");
    assert!(stored.len() >= 4, "{name}: only {} inputs", stored.len());
    let mut steps = 0;
    for (file, input) in &stored {
        println!("{name}: {file}");
        steps += (target.run)(input);
    }
    // A script without steps tests nothing.
    assert!(steps >= stored.len() as u32, "{name}: {steps} steps");
    if target.kind == Kind::Live {
        made(target, stored.into_iter().map(|(_, input)| input).collect());
    }
}

fn made(target: &Target, stored: Vec<Vec<u8>>) {
    let mut mutator = Mutator::new(stored, target.longest);
    let mut input = Vec::new();
    for number in 0..MADE {
        mutator.input(1, number, &mut input);
        println!("{}: input {number} of seed 1", target.name);
        (target.run)(&input);
    }
}

/// One test for each target, so that the harness runs them in parallel and names the one that fails.
macro_rules! targets {
    ($($test:ident = $name:literal,)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                replay($name);
            }
        )*
    };
}

targets! {
    packet = "packet",
    datagram = "datagram",
    frame = "frame",
    header = "header",
    target_message = "target-message",
    mpa_startup = "mpa-startup",
    fpdu = "fpdu",
    port_mapper = "port-mapper",
    rds_packet = "rds-packet",
    rds_handshake = "rds-handshake",
    rds_congestion = "rds-congestion",
    mad_records = "mad-records",
    mad_transfer = "mad-transfer",
    mad_service = "mad-service",
    cm_message = "cm-message",
    cm_ip_header = "cm-ip-header",
    ipoib_message = "ipoib-message",
    ipoib_arp = "ipoib-arp",
    ipoib_nd = "ipoib-nd",
    ipoib_membership = "ipoib-membership",
    ipoib_join = "ipoib-join",
    ipoib_split = "ipoib-split",
    srp_to_target = "srp-to-target",
    srp_to_initiator = "srp-to-initiator",
    srp_login = "srp-login",
    scsi_cdb = "scsi-cdb",
    scsi_sense = "scsi-sense",
    topology = "topology",
    capture = "capture",
    subnet_message = "subnet-message",
    host_message = "host-message",
    host_command = "host-command",
    host_daemon = "host-daemon",
    srp_names = "srp-names",
    shared_ring = "shared-ring",
    host_channel = "host-channel",
    iwarp = "iwarp",
    hca = "hca",
    cm = "cm",
    subnet_host = "subnet-host",
    sm = "sm",
    sm_seat = "sm-seat",
    ipoib = "ipoib",
    srp_target = "srp-target",
    srp_initiator = "srp-initiator",
    ibumad = "ibumad",
}

#[test]
fn every_target_is_replayed() {
    let tested: BTreeSet<_> = TESTED.iter().copied().collect();
    let listed: BTreeSet<_> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(tested, listed);
    assert_eq!(listed.len(), TARGETS.len(), "two targets of one name");
}
