//! Goal: Terminates of every layer, type and code, in both directions: each is sent for something or never, each that comes
//! ends the stream, and each is counted at the side that it blames. Method: the list of all that are assigned.

use verbs_core::{EventType, LKey, Read, Send, WcStatus};
use verbs_wire::iwarp::{Cause, RdmapOpcode, Terminate, Untagged};

use super::faults;
use super::*;

/// Causes that other tests have sent: those of RFC 7306's messages, of this side's own work requests, and of MPA's start,
/// which is before FPDUs.
const ELSEWHERE: [Cause; 5] = [
    Cause::RDMAP_OPERATION,
    Cause::RDMAP_CATASTROPHIC,
    Cause::LLP_STARTUP,
    Cause::LLP_IRD,
    Cause::LLP_RTR,
];

/// Causes that are never sent: a more exact one is known, nothing can be sent any longer, or the process has ended.
const NEVER: [Cause; 5] = [
    Cause::RDMAP_PROTECTION_INVALIDATE,
    Cause::RDMAP_PROTECTION,
    Cause::RDMAP_GLOBAL_CATASTROPHIC,
    Cause::LLP_LOST,
    Cause::LLP_CATASTROPHIC,
];

#[test]
fn every_cause_is_sent_or_has_no_use() {
    for (cause, meaning) in Cause::ASSIGNED {
        let is_sent = ELSEWHERE.contains(cause) || faults::causes().any(|sent| sent == *cause);
        assert_ne!(is_sent, NEVER.contains(cause), "{meaning}");
    }
}

/// A READ that waits, when the peer sends a Terminate with that body.
fn told(body: &[u8]) -> Machine {
    let mut machine = Machine::new(start(true, true));
    let sink = machine.sge(0, 8);
    machine.post(Read::new(1, machine.remote(0)).into(sink));
    machine.transmit();
    let terminate = Header::Untagged(Untagged::first(RdmapOpcode::Terminate, 1));
    machine.receive(&fpdu(&terminate, body));
    machine
}

/// What the READ completes with; `None` if it is flushed.
fn meant(cause: Cause) -> Option<WcStatus> {
    match (cause.layer(), cause.etype()) {
        (0 | 1, 1) => Some(WcStatus::RemAccessErr),
        (0 | 1, 2) => Some(WcStatus::RemOpErr),
        _ => None,
    }
}

#[test]
fn every_cause_that_comes_ends_the_stream() {
    let unassigned = [
        Cause::new(1, 2, 0x77),
        Cause::new(3, 0, 0),
        Cause::new(15, 15, 255),
    ];
    let assigned = Cause::ASSIGNED.iter().map(|&(cause, _)| cause);
    for cause in assigned.chain(unassigned) {
        let mut rfc = [0; Terminate::LEN_MAX];
        let refused = None;
        let len = Terminate { cause, refused }.emit(&mut rfc).unwrap();
        // siw's nibbles are the other way round, which its control bits show; the segment that it quotes is cut off.
        let siw = [cause.etype() << 4 | cause.layer(), cause.code(), 0x01, 0];
        for body in [&rfc[..len], &siw] {
            let mut machine = told(body);
            assert!(machine.failed && !machine.iwarp.is_closed(), "{cause}");
            assert_eq!(
                machine.errors(),
                (0, 1),
                "{cause}: the peer blames this side, and is counted once"
            );
            let got = statuses(&machine.poll_sends());
            match meant(cause) {
                Some(status) => assert_eq!(got, [(1, status)], "{cause}"),
                None => {
                    assert!(got.is_empty(), "{cause}: it is flushed");
                    assert_eq!(machine.event, Some(EventType::QpFatal), "{cause}");
                }
            }
            assert!(
                machine.transmit().is_empty(),
                "{cause}: a Terminate is not answered"
            );
        }
    }
}

/// Goal: a Terminate that ends too soon ends the stream as well.
#[test]
fn a_terminate_in_part_ends_the_stream() {
    for body in [&[][..], &[0x01], &[0x01, 0x02, 0xc0, 0, 0, 20]] {
        let mut machine = told(body);
        assert!(machine.failed, "{body:?}");
        assert_eq!(machine.errors(), (0, 1), "{body:?}");
        assert!(machine.poll_sends().is_empty(), "{body:?}");
        assert!(machine.transmit().is_empty(), "{body:?}");
    }
}

/// Goal: a work request of this side that cannot be carried out is told to the peer, and counted as this side's error.
#[test]
fn an_error_of_this_side_is_told() {
    let mut machine = Machine::new(start(true, true));
    let nowhere = Sge {
        lkey: LKey::new(0xdead_be00),
        ..machine.sge(0, 8)
    };
    machine.post(Send::new(1).from(nowhere));
    let put = parsed(&machine.transmit());
    let [(header, body)] = &put[..] else {
        panic!("{put:?}")
    };
    assert_eq!(header.opcode(), RdmapOpcode::Terminate);
    let terminate = Terminate::parse(body).unwrap();
    assert_eq!(terminate.cause, Cause::RDMAP_CATASTROPHIC);
    assert_eq!(
        terminate.refused, None,
        "no segment of the peer is at fault"
    );
    assert_eq!(machine.errors(), (1, 0));
    assert_eq!(statuses(&machine.poll_sends()), [(1, WcStatus::LocProtErr)]);
}
