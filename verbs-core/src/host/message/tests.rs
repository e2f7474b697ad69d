//! Every message, and what is no message.

use super::*;
use crate::Qpn;
use crate::host::fuzz;
use crate::host::list::ListedConnection;
use crate::host::quota::Quota;

fn port() -> PortNews {
    PortNews {
        addresses: vec![
            "127.0.0.1".parse().expect("one"),
            "fd00::2".parse().expect("one"),
        ],
        mtu: Mtu::B4096,
        is_up: true,
    }
}

fn all() -> Vec<Message<'static>> {
    let [v4, v6] = ["192.0.2.7", "ff0e::5"].map(|text| text.parse::<IpAddr>().expect("one"));
    let service = Service {
        id: 0x0106_1c06,
        addr: Some(v4),
    };
    let quota = Quota::Blocks.exceeded();
    vec![
        Message::Hello(Hello {
            lowest: 1,
            highest: 3,
            features: 5,
            addresses: vec![v4],
            name: "prögram".into(),
            token: [7; 16],
            blocks: vec![0x123, 4],
        }),
        Message::Welcome(Welcome {
            version: 1,
            features: 0,
            client: 7,
            block: 0x123,
            port: port(),
            token: [9; 16],
        }),
        Message::No(No::Version {
            lowest: 1,
            highest: 3,
        }),
        Message::No(No::Quota(quota)),
        Message::No(No::Numbers),
        Message::No(No::Addresses),
        Message::No(No::Claim),
        Message::Command(9, b"verb"),
        Message::Done(9, b""),
        Message::Lease(3),
        Message::Return(0xffe),
        Message::Leased(3, Ok(4)),
        Message::Leased(3, Err(No::Numbers)),
        Message::Listen(8, service),
        Message::Unlisten(Service {
            addr: None,
            ..service
        }),
        Message::Listening(8, Ok(())),
        Message::Listening(8, Err(NotListening::InUse)),
        Message::Listening(8, Err(NotListening::Quota(quota))),
        Message::Listening(8, Err(NotListening::HostLost)),
        Message::Join(v6),
        Message::Leave(v6),
        Message::Packets(Packets {
            src: v4,
            dst: v4,
            tclass: 2,
            hop_limit: 64,
            sport: 4791,
            ident: None,
            segment: 4,
            bytes: b"onetwoth",
        }),
        Message::Port(port()),
        Message::Event(AsyncEvent {
            event: EventType::SrqLimitReached,
            subject: Subject::Port(1),
        }),
        Message::Gone(vec![1, 2]),
        Message::Broken(2),
    ]
}

fn of_sockets() -> [Message<'static>; 2] {
    let away = "fd00::2".parse().expect("one");
    [
        Message::Socket("192.0.2.7".parse().expect("one")),
        Message::Arrived(Packets {
            src: away,
            dst: away,
            tclass: 0,
            hop_limit: 0,
            sport: 0xc001,
            ident: None,
            segment: 9,
            bytes: b"misled",
        }),
    ]
}

fn of_channels() -> [Message<'static>; 4] {
    [
        Message::OpenChannel(3),
        Message::NoChannel(3),
        Message::Channel(Channel {
            number: 4,
            end: 1,
            ring_len: 1 << 18,
            is_new: true,
            blocks: vec![5, 6],
        }),
        Message::ChangedOver(4),
    ]
}

fn of_lists() -> [Message<'static>; 3] {
    let here = "192.0.2.7".parse().expect("one");
    let connection = ListedConnection {
        local: here,
        remote: "fd00::2".parse().expect("one"),
        service: Some(0x0106_1c06),
        is_active: true,
        qpn: Some(Qpn::new(0x5010)),
        remote_qpn: None,
    };
    let next = Cursor {
        client: 7,
        connections: 1,
    };
    let listed = Listed {
        client: 7,
        uid: 1000,
        pid: 0,
        name: "prögram".into(),
        blocks: vec![5, 6],
        services: vec![Service {
            id: 0x0106_1c06,
            addr: None,
        }],
        groups: vec!["ff0e::5".parse().expect("one")],
        shares: vec![8],
        connections: vec![connection],
        next: Some(next),
    };
    [
        Message::List(5, next),
        Message::Listing(5, Some(Box::new(listed))),
        Message::Listing(5, None),
    ]
}

/// Goal: every message comes back as it was; one that is cut, longer or of another length is refused.
#[test]
fn messages_come_back_as_they_were() {
    let others = of_channels().into_iter().chain(of_sockets());
    for message in all().into_iter().chain(others).chain(of_lists()) {
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes), Ok(message.clone()));
        assert!(fuzz::message(&bytes));
        let mut behind = b"another".to_vec();
        message.encode_into(&mut behind);
        assert_eq!(behind, [b"another", &bytes[..]].concat());
        for len in 0..bytes.len() {
            assert!(Message::decode(&bytes[..len]).is_err(), "{message:?}");
        }
        let mut flagged = bytes.clone();
        flagged[2] = 1;
        assert_eq!(Message::decode(&flagged), Err(Malformed::Newer));
    }
    let unknown = [&[99, 0, 0, 0, 0, 0, 0, 0][..], &[0; 8]].concat();
    assert!(matches!(
        Message::decode(&unknown),
        Err(Malformed::Unknown { got: 99, .. })
    ));
    assert!(Message::decode(&vec![0; MESSAGE_MAX + 1]).is_err());
}

/// The bytes of a message are those that other versions read.
#[test]
fn packets_have_their_bytes() {
    let message = Message::Packets(Packets {
        src: "1.2.3.4".parse().expect("one"),
        dst: "::5".parse().expect("one"),
        tclass: 6,
        hop_limit: 7,
        sport: 0x0809,
        ident: Some(0x0a0b),
        segment: 2,
        bytes: &[0xcc, 0xdd, 0xee],
    });
    let mut expected = vec![14, 0, 0, 0, 51, 0, 0, 0];
    expected.extend([0; 8]);
    expected.extend([0; 10]);
    expected.extend([0xff, 0xff, 1, 2, 3, 4]);
    expected.extend([0; 15]);
    expected.extend([5, 6, 7, 0x09, 0x08, 0, 0, 0x0b, 0x0a, 2, 0]);
    expected.extend([0; 6]);
    expected.extend([0xcc, 0xdd, 0xee]);
    assert_eq!(message.encode(), expected);
}
