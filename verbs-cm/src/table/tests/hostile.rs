//! Goal: no datagram makes a table panic, grow beyond its limits, or lose its order. Method: random
//! messages whose ids are nearly right, against connections in every state.

use oorandom::Rand32;
use verbs_core::addr::{Guid, Qpn};
use verbs_core::mad::{Bits, Blob, TransactionId};

use super::lab::{Lab, SERVICE, accept, connect, other_of, port};
use crate::machine::State;
use crate::wire::{
    Acknowledged, CommId, Drep, Dreq, Message, Mra, Rej, RejectReason, Rejected, Rtu,
};
use crate::{Config, Event};

/// A random message that names connections of the lab.
fn forged(dice: &mut Rand32, ids: &[CommId]) -> [u8; 256] {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = u8::try_from(dice.rand_range(0x10..0x1b)).unwrap();
    for byte in &mut mad[24..] {
        // Mostly zeros, as in real ones.
        *byte = if dice.rand_range(0..4) == 0 {
            dice.rand_u32().to_le_bytes()[0]
        } else {
            0
        };
    }
    for at in [24, 28] {
        let pick = dice.rand_range(0..u32::try_from(ids.len()).unwrap() + 1);
        let id = ids
            .get(usize::try_from(pick).unwrap())
            .map_or(dice.rand_range(0..3), |id| id.0);
        mad[at..at + 4].copy_from_slice(&id.to_be_bytes());
    }
    // What a REQ, a REP and a DREQ must have right to get far.
    if mad[17] == 0x10 {
        mad[32..40].copy_from_slice(&SERVICE.0.to_be_bytes());
        let guid = port(0).ca_guid.0 + u64::from(dice.rand_range(0..2));
        mad[40..48].copy_from_slice(&guid.to_be_bytes());
        mad[56..59].copy_from_slice(&[0, 0, u8::try_from(dice.rand_range(0x50..0x60)).unwrap()]);
        mad[67] &= 0xf9;
        mad[74] = 0x30;
        mad[96..112].copy_from_slice(&super::lab::gid(1).0);
    }
    if mad[17] == 0x13 {
        mad[52..60].copy_from_slice(&Guid(port(1).ca_guid.0).0.to_be_bytes());
    }
    if mad[17] == 0x15 {
        mad[32..35].copy_from_slice(&[0, 0, [0x55, 0x99][usize::from(dice.rand_range(0..2) == 0)]]);
    }
    mad
}

#[test]
fn forged_messages_do_no_harm() {
    let config = Config {
        connections_max: 20,
        timewait_max: 8,
        resolutions_max: 5,
        transmits_max: 16,
        ..Config::default()
    };
    for seed in 0..40 {
        let mut dice = Rand32::new(seed);
        let mut lab = Lab::with(config);
        lab.established();
        for qpn in 0x56..0x5c {
            lab.cms[0].connect(lab.now, connect(qpn)).unwrap();
        }
        lab.exchange();
        for round in 0..3_000_u32 {
            let ids: Vec<_> = lab.cms[1]
                .conns
                .iter()
                .map(|(_, conn)| conn.local_id())
                .collect();
            let remotes = lab.cms[1]
                .conns
                .iter()
                .filter_map(|(_, conn)| conn.remote_id());
            let all: Vec<_> = ids.into_iter().chain(remotes).collect();
            let mad = forged(&mut dice, &all);
            assert!(Message::parse(&mad).is_ok());
            lab.cms[1].handle(lab.now, other_of(1), &mad);
            let conns = &lab.cms[1].conns;
            assert!(conns.len() <= 20 + 8 && lab.cms[1].out.transmits.len() <= 16);
            if round % 8 == 0 {
                work(&mut lab, &mut dice);
            }
        }
        empty(&mut lab);
    }
}

/// What a user does now and then: fetches, answers, connects.
fn work(lab: &mut Lab, dice: &mut Rand32) {
    lab.sent(1);
    while let Some(event) = lab.event(1) {
        if let Event::ConnectRequest { conn, .. } = event
            && dice.rand_range(0..2) == 0
        {
            let mut answer = accept();
            answer.qpn = Qpn::new(dice.rand_range(0x99..0xa9));
            // The request may have been taken back.
            let _late = lab.cms[1].accept(lab.now, conn, &answer);
        }
    }
    if dice.rand_range(0..8) == 0 {
        // There may be no room.
        let _full = lab.cms[1].connect(lab.now, connect(0x77));
    }
    if dice.rand_range(0..16) == 0 && lab.cms[1].poll_timeout().is_some() {
        lab.fire(1);
    }
}

/// Destroys everything, and lets time pass: the table has to be as new.
fn empty(lab: &mut Lab) {
    let all: Vec<_> = lab.cms[1].conns.iter().map(|(_, conn)| conn.id()).collect();
    for conn in all {
        // It may have been cut from timewait, which is short here.
        let _gone = lab.cms[1].destroy(lab.now, conn);
    }
    lab.sent(1);
    lab.fire_all(1);
    assert!(lab.cms[1].conns.is_empty() && lab.cms[1].index.is_empty());
}

#[test]
fn garbage_is_counted() {
    let mut lab = Lab::new();
    let mut dice = Rand32::new(1);
    for _ in 0..1_000 {
        let mad = std::array::from_fn(|_| dice.rand_u32().to_le_bytes()[0]);
        lab.cms[1].handle(lab.now, other_of(1), &mad);
    }
    let rtu = Message::from(Rtu::default()).emit(TransactionId(1));
    lab.cms[1].handle(lab.now, other_of(1), &rtu);
    let counters = lab.cms[1].counters();
    assert_eq!((counters.malformed, counters.unknown_conn), (1_000, 1));
    assert!(lab.cms[1].poll_transmit().is_none());
}

/// Goal: a peer that does not know both ids of a connection cannot touch it. Method: every message that names them,
/// with the right one of this end and a wrong one of the other.
#[test]
fn messages_with_a_wrong_id_of_the_peer_are_ignored() {
    let mut lab = Lab::new();
    let [_, passive] = lab.established();
    let (half, rep) = {
        lab.cms[0].connect(lab.now, connect(0x66)).unwrap();
        lab.carry(0);
        let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
            panic!()
        };
        let mut answer = accept();
        answer.qpn = Qpn::new(0x9a);
        lab.cms[1].accept(lab.now, conn, &answer).unwrap();
        (conn, lab.sent(1))
    };
    let [Message::Rep(rep)] = rep[..] else {
        panic!("{rep:?}")
    };
    let established = lab.cms[1].conns[passive.index].local_id();
    for (local, state, conn) in [
        (established, State::Established, passive),
        (rep.local_id, State::RepSent, half),
    ] {
        let deadline = lab.cms[1].poll_timeout();
        let wrong = CommId(0x0bad);
        let remote_qpn = [Qpn::new(0x99), Qpn::new(0x9a)][usize::from(conn == half)];
        let messages: [Message; 5] = [
            Rtu {
                local_id: wrong,
                remote_id: local,
                ..Rtu::default()
            }
            .into(),
            Message::Rej(Rej {
                local_id: wrong,
                remote_id: local,
                ..Rej::default()
            }),
            Mra {
                local_id: wrong,
                remote_id: local,
                message: Acknowledged::Rep,
                ..Mra::default()
            }
            .into(),
            Message::Drep(Drep {
                local_id: wrong,
                remote_id: local,
                ..Drep::default()
            }),
            Message::Dreq(Dreq {
                local_id: wrong,
                remote_id: local,
                remote_qpn,
                ..Dreq::default()
            }),
        ];
        for message in messages {
            let unknown = lab.cms[1].counters().unknown_conn;
            lab.give(1, &message);
            assert_eq!(lab.state(1, conn), Some(state), "{}", message.name());
            assert_eq!(lab.cms[1].counters().unknown_conn, unknown + 1);
        }
        // A DREQ for nothing is answered, with the ids that it names.
        assert_eq!(lab.lose(1), ["DREP"]);
        assert_eq!((lab.event(1), lab.cms[1].poll_timeout()), (None, deadline));
    }
}

/// Goal: a REQ is a repetition only if it is about the same queue pair. Method: the id of a connection, with
/// another number.
#[test]
fn a_known_id_with_another_queue_pair_is_refused() {
    let mut lab = Lab::new();
    lab.cms[0].connect(lab.now, connect(0x55)).unwrap();
    let Message::Req(mut req) = lab.sent(0)[0] else {
        panic!()
    };
    lab.give(1, &req.into());
    let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
        panic!()
    };
    lab.cms[1].accept(lab.now, conn, &accept()).unwrap();
    assert_eq!(lab.lose(1), ["REP"]);
    req.qpn = Qpn::new(0x56);
    lab.give(1, &req.into());
    let said = lab.sent(1);
    let [Message::Rej(rej)] = said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(rej.reason, RejectReason::DuplicateLocalCommId);
    assert_eq!(rej.remote_id, req.local_id);
    assert_eq!(lab.state(1, conn), Some(State::RepSent));
    assert_eq!(lab.event(1), None);
}

/// Goal: a REJ that does not name our id counts with the GUID that is said to be there only. Method: the
/// GUID's bytes, without their length.
#[test]
fn a_rejection_without_a_guid_finds_nothing() {
    let mut lab = Lab::new();
    let [_, passive] = lab.requested();
    let remote = lab.cms[1].conns[passive.index].remote_id().unwrap();
    let guid = port(0).ca_guid.0.to_be_bytes();
    let rej = |len| {
        Message::Rej(Rej {
            local_id: remote,
            remote_id: CommId(0),
            message: Rejected::Req,
            info_len: Bits::truncated(len),
            reason: RejectReason::Timeout,
            info: Blob::new(&guid).unwrap(),
            ..Rej::default()
        })
    };
    for len in [0, 7] {
        lab.give(1, &rej(len));
        assert_eq!(lab.state(1, passive), Some(State::ReqRcvd), "{len} bytes");
    }
    lab.give(1, &rej(8));
    assert_eq!(lab.state(1, passive), Some(State::Timewait));
}
