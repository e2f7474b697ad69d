//! Messages decode to what was encoded, and malformed ones are refused.

use proptest::prelude::*;
use verbs_core::mad::sm::PortInfo;

use super::*;

fn samples() -> Vec<Message> {
    [requests(), answers()].into_iter().flatten().collect()
}

/// Messages of clients.
fn requests() -> Vec<Message> {
    let mad = MadMessage {
        agent: 3,
        status: 110,
        qpn: Qpn::new(1),
        lid: Lid(9),
        gid: Some(Gid([5; 16])),
        bytes: vec![1; 256],
        ..MadMessage::default()
    };
    let registration = Registration {
        class: 0x81,
        version: 1,
        methods: 0xa6,
        has_transfers: true,
        ..Registration::default()
    };
    let host = String::from("HcaA,HcaB");
    let (session, node) = (4, String::from("Sw1"));
    vec![
        Message::Look { host: host.clone() },
        Message::Open {
            host: host.clone(),
            adapter: 1,
            port: 2,
        },
        Message::Register {
            session,
            registration,
        },
        Message::Unregister { session, agent: 5 },
        Message::Mad(mad),
        Message::ManagerFile {
            host,
            adapter: 0,
            port: 1,
        },
        Message::Plug {
            node,
            port: 3,
            is_in: true,
        },
        Message::Count,
        Message::Attach {
            host: "HcaB".into(),
            adapter: 0,
            port: 1,
        },
        Message::Offer { set: 2, clear: 4 },
        Message::Report(BadKey {
            is_qkey: true,
            key: 7,
            from: Lid(3),
            gids: [[1; 16], [2; 16]],
            ..BadKey::default()
        }),
        Message::PlugOwn { is_in: false },
        Message::Leave,
    ]
}

/// Messages of the host.
fn answers() -> Vec<Message> {
    let port = AdapterPort {
        number: 1,
        guid: Guid(7),
        lid: Lid(0xbfff),
        rate_mbps: 40_000,
        pkeys: vec![PKey::DEFAULT, PKey(0)],
        ..AdapterPort::default()
    };
    let adapter = Adapter {
        name: "HcaA".into(),
        guid: Guid(6),
        ports: vec![port.clone(), port],
        ..Adapter::default()
    };
    let tables = PortTables {
        node_guid: Guid(5),
        system_guid: Guid(6),
        info: PortInfo {
            lid: Lid(9),
            guid_cap: 2,
            ..PortInfo::default()
        },
        gids: vec![Gid([7; 16]), Gid::default()],
        pkeys: vec![PKey::DEFAULT; 3],
    };
    vec![
        Message::Attached(tables.clone()),
        Message::Changed {
            change: Change::State(PortState::Armed),
            tables,
        },
        Message::Adapters(vec![adapter]),
        Message::Opened { session: 4 },
        Message::Registered { agent: 6 },
        Message::Done,
        Message::Path("a file".into()),
        Message::Counts {
            nodes: 3,
            linked: 4,
            active: 2,
        },
        Message::Refused(Refusal::Taken),
    ]
}

/// Goal: a message is understood, and a part of it is not. Method: a sample of each kind, whole, cut at every
/// byte, and with a byte too many. A datagram ends with its message, so a cut in it only makes it shorter.
#[test]
fn messages_are_understood_as_they_were_said() {
    for message in samples() {
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes), Ok(message.clone()));
        let open_end = matches!(message, Message::Mad(_));
        let fixed = if open_end { 48 } else { bytes.len() };
        for cut in 0..fixed {
            assert!(
                Message::decode(&bytes[..cut]).is_err(),
                "{cut} of {message:?}"
            );
        }
        if !open_end {
            let longer = [bytes, vec![0]].concat();
            assert_eq!(Message::decode(&longer), Err(MessageError::Long));
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_panic_and_what_is_understood_is_said_again(
        kind in prop_oneof![0..15_u8, 0x81..0x8b_u8, Just(0xff)],
        rest in proptest::collection::vec(any::<u8>(), 0..160),
    ) {
        let bytes = [vec![kind], rest].concat();
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }
}
