//! Goal: to Linux we look like Linux. Method: what it sent in the captures, against what we send when
//! we are told the same.

use std::net::Ipv4Addr;

use verbs_core::addr::{Psn, Qpn};
use verbs_core::mad::{Blob, MadBytes};

use super::lab::{Lab, SERVICE, gid, other_of, port};
use crate::wire::{IpHeader, IpPair, Message, PortSpace, RejectReason, Req, ServiceId};
use crate::{Accept, Connect, Event, Listen, Route};

/// The datagrams of a capture: frames of Ethernet, IPv4, UDP, BTH and DETH.
fn capture(name: &str) -> Vec<MadBytes> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/captures");
    let file = std::fs::read(format!("{folder}/{name}.pcap")).unwrap();
    let frames = file[24..].chunks_exact(16 + 14 + 20 + 8 + 20 + 256 + 4);
    frames
        .map(|frame| *frame[16 + 14 + 20 + 8 + 20..].first_chunk().unwrap())
        .collect()
}

fn message(mad: &MadBytes) -> Message {
    Message::parse(mad).unwrap().1
}

fn captured_req(name: &str) -> Req {
    match message(&capture(name)[0]) {
        Message::Req(req) => req,
        other => panic!("{other:?}"),
    }
}

#[test]
fn our_request_is_the_one_that_rping_sent() {
    let theirs = captured_req("rxe-rping");
    let header = IpHeader::parse(&theirs.private_data.0).unwrap();
    // In the captures the client is 10.77.0.3, which is the lab's host 1.
    let mut route = Route::roce(&port(1), gid(1), gid(0)).unwrap();
    let global = route.av.global.as_mut().unwrap();
    global.flow_label = theirs.primary.flow_label.value();
    let mut connect = Connect::new(SERVICE, Qpn::new(0x1a), route);
    connect.psn = Psn::new(0x4e_6576);
    connect = connect.ip(&header, Blob::default());
    let mut lab = Lab::new();
    lab.cms[1].connect(lab.now, connect).unwrap();
    let ours = lab.sent(1)[0];
    let Message::Req(req) = ours else {
        panic!("{ours:?}")
    };
    assert_eq!(
        Req {
            local_id: theirs.local_id,
            ..req
        },
        theirs
    );
}

/// The server's side of a captured conversation: what host 0 answers to the client's messages.
#[test]
fn our_server_answers_as_the_one_of_rping() {
    let theirs = capture("rxe-rping");
    let Message::Rep(rep) = message(&theirs[1]) else {
        panic!()
    };
    let mut lab = Lab::new();
    lab.cms[0].listen(Listen::new(SERVICE)).unwrap();
    lab.cms[0].handle(lab.now, other_of(0), &theirs[0]);
    let Some(Event::ConnectRequest { conn, ip, .. }) = lab.event(0) else {
        panic!()
    };
    let destination = Ipv4Addr::new(10, 77, 0, 2);
    let addresses = ip.unwrap().addresses;
    assert_eq!(addresses.destination(), destination);
    assert!(matches!(addresses, IpPair::V4 { .. }));
    let accept = Accept {
        qpn: rep.qpn,
        psn: rep.psn,
        ..Accept::default()
    };
    lab.cms[0].accept(lab.now, conn, &accept).unwrap();
    let sent = lab.sent_mads(0);
    let (tid, answer) = Message::parse(&sent[0]).unwrap();
    let Message::Rep(ours) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(tid, Message::parse(&theirs[1]).unwrap().0);
    assert_eq!(
        crate::wire::Rep {
            local_id: rep.local_id,
            ..ours
        },
        rep,
        "all but the id, which is ours"
    );
    // The client's messages name us by Linux's id; ours is put in its place.
    let rename = |mad: &MadBytes| {
        let mut mad = *mad;
        mad[28..32].copy_from_slice(&ours.local_id.0.to_be_bytes());
        mad
    };
    lab.cms[0].handle(lab.now, other_of(0), &rename(&theirs[2]));
    assert!(lab.sent_mads(0).is_empty());
    assert!(matches!(lab.event(0), Some(Event::Established { .. })));
    lab.cms[0].handle(lab.now, other_of(0), &rename(&theirs[3]));
    let mut drep = lab.sent_mads(0)[0];
    drep[24..28].copy_from_slice(&rep.local_id.0.to_be_bytes());
    assert_eq!(drep, theirs[4], "to the byte");
    assert_eq!(
        lab.event(0),
        Some(Event::Disconnected {
            conn,
            by: crate::Ended::Peer
        })
    );
}

/// The client's side: what host 1 sends when host 0 answers as Linux's server did.
#[test]
fn our_client_confirms_and_disconnects_as_the_one_of_rping() {
    let theirs = capture("rxe-rping");
    let mut lab = Lab::new();
    let route = Route::roce(&port(1), gid(1), gid(0)).unwrap();
    let wish = Connect::new(SERVICE, Qpn::new(0x1a), route);
    let conn = lab.cms[1].connect(lab.now, wish).unwrap();
    let req = lab.sent_mads(1)[0];
    // Our id and transaction id in the place of Linux's, and the reverse.
    let (our_id, our_tid) = (&req[24..28], &req[8..16]);
    let rename = |mad: &MadBytes, at: usize, id: &[u8], tid: &[u8]| {
        let mut mad = *mad;
        mad[at..at + 4].copy_from_slice(id);
        mad[8..16].copy_from_slice(tid);
        mad
    };
    let back = |mad: &MadBytes| rename(mad, 24, &theirs[0][24..28], &theirs[0][8..16]);
    lab.cms[1].handle(
        lab.now,
        other_of(1),
        &rename(&theirs[1], 28, our_id, our_tid),
    );
    assert_eq!(
        back(&lab.sent_mads(1)[0]),
        theirs[2],
        "the RTU, to the byte"
    );
    lab.disconnect(1, conn);
    assert_eq!(
        back(&lab.sent_mads(1)[0]),
        theirs[3],
        "the DREQ, to the byte"
    );
    lab.cms[1].handle(
        lab.now,
        other_of(1),
        &rename(&theirs[4], 28, our_id, our_tid),
    );
    let events: Vec<_> = std::iter::from_fn(|| lab.event(1)).collect();
    assert!(
        matches!(
            events[..],
            [Event::Established { .. }, Event::Disconnected { .. }]
        ),
        "{events:?}"
    );
}

#[test]
fn our_rejects_are_those_of_linux() {
    let nobody = capture("rxe-cm-no-listener");
    let mut lab = Lab::new();
    lab.cms[0].handle(lab.now, other_of(0), &nobody[0]);
    assert_eq!(lab.sent_mads(0), nobody[1..], "to the byte");

    let consumer = capture("rxe-cm-reject");
    let service = ServiceId::rdma_cm(PortSpace::Tcp, 7500);
    lab.cms[0].listen(Listen::new(service)).unwrap();
    lab.cms[0].handle(lab.now, other_of(0), &consumer[0]);
    let Some(Event::ConnectRequest { conn, .. }) = lab.event(0) else {
        panic!()
    };
    let data = Blob::new(b"go away").unwrap();
    lab.cms[0]
        .reject(lab.now, conn, RejectReason::Consumer, b"", data)
        .unwrap();
    let mut ours = lab.sent_mads(0)[0];
    let theirs = consumer[1];
    ours[24..28].copy_from_slice(&theirs[24..28]);
    assert_eq!(ours, theirs, "all but the id, which is ours");
}
