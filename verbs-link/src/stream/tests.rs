//! Goal: two sides agree, and a peer that breaks the rules is refused with the cause that it has to hear. Method:
//! two machines with streams cut at every place between them; one machine against frames written by hand.

use std::time::Duration;

use verbs_wire::iwarp::{Cause, IwarpError, Rtr};

use super::{Agreed, Mpa, MpaConfig, MpaError, MpaEvent};
use crate::time::Instant;

const START: Instant = Instant::from_nanos(0);
const REQUEST: &[u8] = b"MPA ID Req Frame";
const REPLY: &[u8] = b"MPA ID Rep Frame";

fn config() -> MpaConfig {
    MpaConfig {
        wants_crc: false,
        is_enhanced: true,
        ird: 8,
        ord: 4,
        rtr: Rtr::empty(),
        timeout: Duration::from_secs(5),
    }
}

fn agreed(event: Option<MpaEvent>) -> (Agreed, Vec<u8>, Vec<u8>) {
    match event {
        Some(MpaEvent::Connected {
            agreed,
            private_data,
            surplus,
        }) => (agreed, private_data, surplus),
        other => panic!("{other:?}"),
    }
}

/// A connection of two configurations, with every frame in pieces of `piece` bytes.
fn connect(ours: MpaConfig, theirs: MpaConfig, piece: usize) -> (Agreed, Agreed) {
    let mut initiator = Mpa::connect(ours, b"hello", START).expect("short private data");
    let mut responder = Mpa::listen(theirs, START);
    for bytes in initiator.poll_output().chunks(piece) {
        assert_eq!(responder.poll_event(), None);
        responder.handle_bytes(bytes);
    }
    let Some(MpaEvent::Request {
        setup,
        private_data,
    }) = responder.poll_event()
    else {
        panic!("the Request is whole");
    };
    assert_eq!(private_data, b"hello");
    let asked = setup.map(|setup| (setup.ird.value(), setup.ord.value()));
    let sent = (Some(ours.ird), Some(ours.ord));
    assert_eq!(asked, ours.is_enhanced.then_some(sent));
    responder.accept(b"welcome").expect("short private data");
    let (theirs, _, surplus) = agreed(responder.poll_event());
    assert!(surplus.is_empty());
    for bytes in responder.poll_output().chunks(piece) {
        assert_eq!(initiator.poll_event(), None);
        initiator.handle_bytes(bytes);
    }
    let (ours, private_data, surplus) = agreed(initiator.poll_event());
    assert_eq!(private_data, b"welcome");
    assert!(surplus.is_empty());
    assert_eq!((initiator.deadline(), responder.deadline()), (None, None));
    (ours, theirs)
}

#[test]
fn two_sides_agree_in_any_segmentation() {
    for piece in 1..64 {
        for bits in 0..8 {
            let ours = MpaConfig {
                wants_crc: bits & 1 != 0,
                is_enhanced: bits & 4 != 0,
                ..config()
            };
            let theirs = MpaConfig {
                wants_crc: bits & 2 != 0,
                ird: 2,
                ord: 100,
                ..config()
            };
            let (ours, theirs) = connect(ours, theirs, piece);
            assert_eq!(ours.has_crc, bits & 3 != 0);
            assert_eq!(theirs.has_crc, ours.has_crc);
            let ords = if bits & 4 != 0 { (2, 8) } else { (4, 100) };
            assert_eq!((ours.ord, theirs.ord), ords);
        }
    }
}

#[test]
fn one_ready_to_receive_message_is_chosen() {
    let with = |rtr| MpaConfig { rtr, ..config() };
    for (offered, taken, chosen) in [
        (Rtr::all(), Rtr::all(), Rtr::WRITE),
        (Rtr::all(), Rtr::READ | Rtr::SEND, Rtr::READ),
        (Rtr::SEND, Rtr::all(), Rtr::SEND),
    ] {
        let (ours, theirs) = connect(with(offered), with(taken), 7);
        assert_eq!((ours.rtr, theirs.rtr), (chosen, chosen));
    }
}

fn failed(mpa: &mut Mpa) -> MpaError {
    match mpa.poll_event() {
        Some(MpaEvent::Failed(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn reply_to(config: MpaConfig, tail: &[u8]) -> Mpa {
    let mut mpa = Mpa::connect(config, b"", START).expect("no private data");
    mpa.handle_bytes(&[REPLY, tail].concat());
    mpa
}

#[test]
fn replies_that_break_the_rules_end_the_connection() {
    let rtr = MpaConfig {
        rtr: Rtr::READ,
        ..config()
    };
    let causes: [(MpaConfig, &[u8], Option<Cause>); 5] = [
        // ORD 9 against IRD 8.
        (config(), &[0x10, 2, 0, 4, 0, 1, 0, 9], Some(Cause::LLP_IRD)),
        (
            rtr,
            &[0x10, 2, 0, 4, 0x80, 1, 0x80, 1],
            Some(Cause::LLP_RTR),
        ),
        (config(), &[0, 1, 0, 0], Some(Cause::LLP_STARTUP)),
        (config(), &[0, 3, 0, 0], Some(Cause::LLP_STARTUP)),
        (config(), &[0x80, 2, 0, 0], None),
    ];
    for (config, tail, cause) in causes {
        assert_eq!(
            failed(&mut reply_to(config, tail)).cause(),
            cause,
            "{tail:?}"
        );
    }
    let mut rejected = reply_to(config(), b"\x20\x02\x00\x07go away");
    let private_data = b"go away".to_vec();
    assert_eq!(
        rejected.poll_event(),
        Some(MpaEvent::Rejected { private_data })
    );
}

#[test]
fn requests_are_refused_and_rejected() {
    // Markers: the peer is told.
    let mut mpa = Mpa::listen(config(), START);
    mpa.handle_bytes(&[REQUEST, &[0x80, 1, 0, 0]].concat());
    assert_eq!(failed(&mut mpa), MpaError::Markers);
    assert_eq!(mpa.poll_output(), [REPLY, &[0x20, 1, 0, 0]].concat());
    // No Request: dropped without an answer, at its first wrong byte.
    let mut mpa = Mpa::listen(config(), START);
    mpa.handle_bytes(b"G");
    let error = failed(&mut mpa);
    assert!(matches!(
        error,
        MpaError::Frame(IwarpError::Key { at: 0, .. })
    ));
    assert!(mpa.poll_output().is_empty());
    // The ULP rejects.
    let mut mpa = Mpa::listen(config(), START);
    mpa.handle_bytes(&[REQUEST, &[0, 1, 0, 0]].concat());
    assert!(mpa.accept(&[0; 513]).is_err());
    mpa.reject(b"no").expect("short private data");
    assert_eq!(mpa.poll_output(), [REPLY, b"\x20\x01\x00\x02no"].concat());
}

#[test]
fn silence_and_the_end_of_the_stream_are_noticed() {
    let mut mpa = Mpa::listen(config(), START);
    mpa.handle_bytes(REQUEST);
    mpa.handle_timeout(START + Duration::from_millis(4999));
    assert_eq!(mpa.poll_event(), None);
    assert_eq!(mpa.deadline(), Some(START + Duration::from_secs(5)));
    mpa.handle_timeout(START + Duration::from_secs(5));
    assert_eq!(failed(&mut mpa), MpaError::Timeout);
    let mut mpa = Mpa::connect(config(), b"", START).expect("no private data");
    mpa.handle_end();
    assert_eq!(failed(&mut mpa), MpaError::Closed);
}

/// What is read together with the Reply is not lost; what an initiator sends before the Reply is refused.
#[test]
fn bytes_behind_a_frame_are_handed_over_or_refused() {
    let mut mpa = reply_to(config(), b"\x10\x02\x00\x04\x00\x01\x00\x01fpdu");
    assert_eq!(agreed(mpa.poll_event()).2, b"fpdu");
    let request = [REQUEST, &[0, 1, 0, 0]].concat();
    let mut glued = Mpa::listen(config(), START);
    glued.handle_bytes(&[&request[..], b"fpdu"].concat());
    assert_eq!(failed(&mut glued), MpaError::Early(4));
    let mut late = Mpa::listen(config(), START);
    late.handle_bytes(&request);
    late.handle_bytes(b"fpd");
    assert_eq!(failed(&mut late), MpaError::Early(3));
    assert_eq!(late.accept(b""), Ok(()));
    assert!(late.poll_output().is_empty());
}
