//! Goal: what Linux sends is read right and written to the same bytes. Method: every message of
//! every capture in `tests/captures`, and the fields of some whose values are known.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use verbs_cm::wire::{
    IpHeader, IpPair, Message, PortSpace, RejectReason, Rejected, Req, ServiceId, SidrStatus,
    Transport,
};
use verbs_core::addr::{Gid, Guid, Lid, Mtu, PKey, Psn, QKey, Qpn};
use verbs_core::mad::{MadBytes, TransactionId};

/// Messages in the stored captures, by an independent count (see their README).
const STORED: usize = 68;

/// The management datagrams of a capture of Ethernet frames, in order.
fn mads(path: &PathBuf) -> Vec<MadBytes> {
    let file = std::fs::read(path).unwrap();
    assert_eq!(
        file[..4],
        [0xd4, 0xc3, 0xb2, 0xa1],
        "a little-endian pcap file"
    );
    let mut rest = &file[24..];
    let mut mads = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(*rest[8..].first_chunk().unwrap());
        let (frame, behind) = rest[16..].split_at(usize::try_from(len).unwrap());
        let ip = match frame[12..14] {
            [0x08, 0x00] => 20,
            [0x86, 0xdd] => 40,
            _ => panic!("{path:?}: neither IPv4 nor IPv6"),
        };
        // Ethernet, IP, UDP, BTH and DETH come before the datagram.
        mads.push(*frame[14 + ip + 8 + 12 + 8..].first_chunk().unwrap());
        rest = behind;
    }
    mads
}

/// The stored captures, and those of the directories that a run by hand adds.
fn captures() -> BTreeMap<String, Vec<MadBytes>> {
    let stored = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let entries = std::fs::read_dir(stored)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|ext| ext == "pcap"));
    files
        .map(|path| {
            (
                path.file_stem().unwrap().to_str().unwrap().to_owned(),
                mads(&path),
            )
        })
        .collect()
}

fn messages(name: &str) -> Vec<Message> {
    let mads = &captures()[name];
    mads.iter()
        .map(|mad| Message::parse(mad).unwrap().1)
        .collect()
}

fn req(name: &str) -> Req {
    match messages(name)[0] {
        Message::Req(req) => req,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_message_of_linux_is_read_and_written_to_the_same_bytes() {
    let mut count = BTreeMap::new();
    let mut total = 0;
    for (name, mads) in captures() {
        for (number, mad) in (1..).zip(&mads) {
            let (tid, message) =
                Message::parse(mad).unwrap_or_else(|error| panic!("{name} {number}: {error}"));
            assert_eq!(message.emit(tid), *mad, "{name} {number}: {message:?}");
            *count.entry(message.name()).or_insert(0) += 1;
            total += 1;
        }
    }
    assert_eq!(total, STORED);
    let kinds: Vec<_> = count.into_keys().collect();
    assert_eq!(
        kinds,
        [
            "DREP", "DREQ", "REJ", "REP", "REQ", "RTU", "SIDR_REP", "SIDR_REQ"
        ]
    );
}

#[test]
fn a_request_of_rping_says_what_it_is_known_to_say() {
    let mads = &captures()["rxe-rping"];
    let (tid, _) = Message::parse(&mads[0]).unwrap();
    assert_eq!(tid, TransactionId::new(2, 0xf989_b60f));
    let req = req("rxe-rping");
    assert_eq!(req.service_id, ServiceId::rdma_cm(PortSpace::Tcp, 7174));
    assert_eq!(req.ca_guid, Guid(0x5054_00ff_fe77_0003));
    assert_eq!((req.qpn, req.psn), (Qpn::new(0x1a), Psn::new(0x4e_6576)));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!((req.transport, req.pkey), (Transport::Rc, PKey::DEFAULT));
    assert_eq!(
        (
            req.remote_response_timeout.code(),
            req.local_response_timeout.code()
        ),
        (20, 20)
    );
    assert_eq!(
        (req.retry_count.value(), req.rnr_retry_count.value()),
        (7, 7)
    );
    assert_eq!(
        (req.path_mtu.mtu(), req.max_cm_retries.value()),
        (Some(Mtu::B1024), 15)
    );
    assert_eq!(
        req.primary.local_gid,
        Gid::from(Ipv4Addr::new(10, 77, 0, 3))
    );
    assert_eq!(
        req.primary.remote_gid,
        Gid::from(Ipv4Addr::new(10, 77, 0, 2))
    );
    assert_eq!(
        (req.primary.local_lid, req.primary.hop_limit),
        (Lid(0xffff), 64)
    );
    assert_eq!(
        (req.primary.ack_timeout.code(), req.alternate.local_lid),
        (19, Lid(0))
    );
    let header = IpHeader::parse(&req.private_data.0).unwrap();
    assert_eq!(
        header.addresses,
        IpPair::V4 {
            source: Ipv4Addr::new(10, 77, 0, 3),
            destination: Ipv4Addr::new(10, 77, 0, 2),
        }
    );
}

#[test]
fn ipv6_addresses_ride_in_the_private_data() {
    let header = IpHeader::parse(&req("rxe-rping-ipv6").private_data.0).unwrap();
    let host = |n| Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, n);
    let addresses = IpPair::V6 {
        source: host(3),
        destination: host(2),
    };
    assert_eq!(header.addresses, addresses);
}

#[test]
fn rejects_say_why() {
    let reject = |name| match messages(name)[1] {
        Message::Rej(rej) => rej,
        other => panic!("{other:?}"),
    };
    let nobody = reject("rxe-cm-no-listener");
    assert_eq!(
        (nobody.message, nobody.reason),
        (Rejected::Req, RejectReason::InvalidServiceId)
    );
    assert_eq!(nobody.remote_id, req("rxe-cm-no-listener").local_id);
    let consumer = reject("rxe-cm-reject");
    assert_eq!(consumer.reason, RejectReason::Consumer);
    assert!(consumer.private_data.0.starts_with(b"go away"));
}

#[test]
fn a_resolution_gives_queue_pair_and_key() {
    let messages = messages("rxe-udaddy");
    let reply = messages.iter().find_map(|message| match message {
        Message::SidrRep(reply) => Some(reply),
        _ => None,
    });
    let reply = reply.unwrap();
    assert_eq!(
        (reply.status, reply.qkey),
        (SidrStatus::Valid, QKey(0x0123_4567))
    );
    assert_eq!(reply.service_id.port(), Some((PortSpace::Udp, 7174)));
}

#[test]
fn the_login_of_srp_rides_in_request_and_reply() {
    let messages = messages("srp-rxe-login-logout");
    let Message::Rep(reply) = messages[1] else {
        panic!("{:?}", messages[1]);
    };
    // 0xc0 is SRP_LOGIN_RSP.
    assert_eq!(reply.private_data.0[0], 0xc0);
    assert_eq!((reply.responder_resources, reply.initiator_depth), (4, 4));
    assert_eq!(reply.rnr_retry_count.value(), 7);
}
