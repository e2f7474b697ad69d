//! `verbs demo`.

use std::collections::BTreeSet;

use serde_json::Value;
use verbs_wire::Frame;
use verbs_wire::pcap::reader::Capture;

use crate::run::Place;

/// Goal: what a newcomer runs first works with nothing but the program. Method: a file that is sent, one that
/// is not there, one that is empty.
#[test]
fn a_newcomer_sees_a_subnet_come_up_and_a_file_arrive() {
    let place = Place::new();
    place.write("file", &[7; 300_000]);
    let text = place.verbs(&["demo", "--file", "file"]).succeeded();
    for part in [
        "3 nodes, 4 of 4 ports in service",
        "both interfaces are up",
        "100 echoes, none lost",
        "the file by TCP",
        "the same by RDMA",
        "arrived both times",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = place
        .verbs(&["demo", "--file", "file", "--json"])
        .succeeded();
    let shown: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(shown["bytes"], 300_000);
    let steps = shown["steps"].as_array().expect("a list");
    assert!(
        steps.len() == 6
            && steps
                .iter()
                .all(|step| step["seconds"].as_f64() > Some(0.0)),
        "{shown}"
    );
    let ends = ["A:1", "B:1", "switch:1", "switch:2"];
    let pcap = ["demo", "--file", "file", "--pcap", "demo.pcapng"];
    assert!(
        place
            .verbs(&pcap)
            .succeeded()
            .contains("arrived both times")
    );
    let capture = Capture::parse("demo", &place.read("demo.pcapng"));
    let (mut from, mut services) = (BTreeSet::new(), BTreeSet::new());
    for packet in &capture.packets {
        let (frame, transport) = Frame::parse(&packet.bytes).expect("a packet");
        let icrc = frame.icrc(transport.len()).expect("a length");
        assert_eq!(icrc.verify(transport), Ok(()));
        from.insert(packet.interface.as_str());
        services.insert(transport[0] >> 5);
    }
    assert_eq!(from, BTreeSet::from(ends));
    assert_eq!(services, BTreeSet::from([0, 3]), "RC and UD");
    let unwritable = place.verbs(&["demo", "--file", "file", "--pcap", "no/where"]);
    unwritable.failed(1, &["cannot write the capture no/where"]);
    let missing = place.verbs(&["demo", "--file", "nowhere"]);
    missing.failed(1, &["cannot read nowhere"]);
    place.write("empty", b"");
    let empty = place.verbs(&["demo", "--file", "empty"]);
    empty.failed(1, &["nothing to send"]);
}
