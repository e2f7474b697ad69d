//! Goal: the administrator answers as OpenSM does. Method: recorded requests of a client to OpenSM, sent again from the
//! same port of the same subnet; statuses, headers and the parts of records that do not depend on how LIDs are assigned
//! are equal.

use hca_sim::link::fabric::Topology;
use verbs_core::Lid;
use verbs_core::mad::header::header_of;
use verbs_core::mad::sa::SaHeader;
use verbs_core::mad::{AttributeId, Delivery, MadBytes, MadHeader, Method};
use verbs_sm::Config;

use crate::lab::Lab;
use crate::sweeps::port;

const SUBNET: &str =
    "Switch 4 \"Sw1\"\n[1] \"HcaA\"[1]\n[2] \"HcaB\"[1]\nHca 1 \"HcaA\"\nHca 1 \"HcaB\"\n";

/// The parts of an attribute that have to be equal, as byte ranges: all but LIDs and the ports' capabilities.
fn parts(attribute: AttributeId, method: Method) -> &'static [(usize, usize)] {
    match attribute {
        AttributeId::NODE_RECORD => &[(6, 7), (16, 32)],
        AttributeId::PORT_INFO_RECORD => &[(2, 4)],
        AttributeId::MC_MEMBER_RECORD if method == Method::DELETE => &[(0, 32)],
        AttributeId::MC_MEMBER_RECORD => &[(0, 52)],
        AttributeId::PATH_RECORD => &[(0, 40), (44, 54), (56, 64)],
        AttributeId::INFORM_INFO => &[(0, 36)],
        _ => &[(0, 2)],
    }
}

/// Questions and answers of the record.
fn record() -> Vec<(MadBytes, MadBytes)> {
    let text = include_str!("golden/sa.txt");
    let mads: Vec<MadBytes> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut mad = [0; 256];
            let digits = line.as_bytes()[2..].chunks(2);
            for (byte, pair) in mad.iter_mut().zip(digits) {
                *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            }
            mad
        })
        .collect();
    mads.chunks(2).map(|pair| (pair[0], pair[1])).collect()
}

/// A response; for a table, its first segment with what all segments have behind the headers.
fn answer(delivery: Delivery) -> MadBytes {
    let Delivery::Response {
        mut mad, payload, ..
    } = delivery
    else {
        panic!("{delivery:?}");
    };
    for (to, from) in mad[56..].iter_mut().zip(payload.unwrap_or_default()) {
        *to = from;
    }
    mad
}

#[test]
fn recorded_requests_are_answered_as_opensm_answers() {
    let topology = Topology::parse(SUBNET).unwrap();
    let mut lab = Lab::new(&topology);
    lab.manager(port(&topology, "HcaA", 1), Config::default());
    lab.settle();
    let client = lab.client(port(&topology, "HcaB", 1));
    let record = record();
    assert_eq!(record.len(), 12);
    for (question, expected) in &record {
        let asked = MadHeader::parse(header_of(question));
        let what = format!("{:?} {:?}", asked.method, asked.attribute);
        let answered = answer(lab.ask(client, Lid(1), question).expect("an answer"));
        let (ours, theirs) = (header_of(&answered), header_of(expected));
        assert_eq!(ours.status(), theirs.status(), "{what}");
        assert_eq!(ours.method(), theirs.method(), "{what}");
        assert_eq!(ours.attribute(), theirs.attribute(), "{what}");
        let (ours, theirs) = (SaHeader::of(&answered), SaHeader::of(expected));
        assert_eq!(ours.component_mask, theirs.component_mask, "{what}");
        if asked.method == Method::GET_TABLE {
            assert_eq!(ours.attribute_offset, theirs.attribute_offset, "{what}");
        }
        for &(start, end) in parts(asked.attribute, asked.method) {
            let of = |mad: &MadBytes| mad[56 + start..56 + end].to_vec();
            assert_eq!(
                of(&answered),
                of(expected),
                "{what}, bytes {start} to {end}"
            );
        }
    }
}
