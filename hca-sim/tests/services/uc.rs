//! Unreliable connections.

use std::time::Duration;

use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::link::{Cable, Faults, Faulty, PacketLink};
use verbs_core::{
    Access, Memory, PostError, QpAttr, QpState, QpType, Read, Recv, Remote, Send, WcOpcode,
    WcStatus, Write,
};

use crate::bed::{Bed, Way};

#[test]
fn messages_of_every_length_arrive() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let [mut a, mut b] = bed.pair(QpType::Uc);
        let pattern: Vec<u8> = (0..20_000).map(|i| (i % 251) as u8).collect();
        a.mr.write(0, &pattern).unwrap();
        for len in [0, 1, 3, 1023, 1024, 1025, 5000, 20_000] {
            b.qp.post_recv(Recv::new(len as u64).into(b.mr.slice(0..20_000)))
                .unwrap();
            a.qp.post_send(Send::new(1).from(a.mr.slice(0..len)).imm(9).signaled())
                .unwrap();
            let [sent] = bed.poll(&mut a)[..] else {
                panic!("{way:?} {len}: one send");
            };
            assert_eq!(
                (sent.status, sent.opcode),
                (WcStatus::Success, WcOpcode::Send)
            );
            let [wc] = bed.poll(&mut b)[..] else {
                panic!("{way:?} {len}: one receive");
            };
            assert_eq!((wc.wr_id, wc.byte_len), (len as u64, len as u32));
            assert_eq!(wc.immediate(), Some(9));
            assert_eq!(b.bytes(0..len), pattern[..len]);
        }
    }
}

#[test]
fn writes_are_placed_and_told_if_they_ask_for_it() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let [mut a, mut b] = bed.pair(QpType::Uc);
        a.mr.write(0, &[7; 3000]).unwrap();
        let remote = Remote {
            addr: b.mr.iova() + 5,
            rkey: b.mr.rkey(),
        };
        a.qp.post_send(Write::new(1, remote).from(a.mr.slice(0..3000)).signaled())
            .unwrap();
        assert_eq!(bed.poll(&mut a).len(), 1);
        assert_eq!(bed.poll(&mut b), []);
        assert_eq!(b.bytes(4..3006), [vec![0], vec![7; 3000], vec![0]].concat());
        b.qp.post_recv(Recv::new(3)).unwrap();
        a.qp.post_send(Write::new(2, remote).from(a.mr.slice(0..10)).imm(5))
            .unwrap();
        let [wc] = bed.poll(&mut b)[..] else {
            panic!("{way:?}: one receive");
        };
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RecvRdmaWithImm, 10));
    }
}

/// Goal: a message that does not fit, or finds no receive, or may not be written is dropped; the connection continues.
#[test]
fn a_message_that_cannot_be_taken_is_dropped_alone() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let [mut a, mut b] = bed.pair(QpType::Uc);
        let send = |a: &mut crate::bed::End, wr: verbs_core::SendWr<'_>| {
            a.qp.post_send(wr).unwrap();
            let [sent] = bed.poll(a)[..] else {
                panic!("{way:?}: sent");
            };
            assert_eq!(sent.status, WcStatus::Success, "{way:?}");
        };
        let message = |len| Send::new(1).from(a.mr.slice(0..len)).signaled().wr;
        let (short, long) = (message(10), message(3000));
        let stranger = Remote {
            addr: b.mr.iova(),
            rkey: verbs_core::RKey::new(0x1234_5678),
        };
        let write = Write::new(1, stranger)
            .from(a.mr.slice(0..2000))
            .signaled()
            .wr;
        send(&mut a, short);
        send(&mut a, long);
        b.qp.post_recv(Recv::new(4).into(b.mr.slice(0..100)))
            .unwrap();
        send(&mut a, long);
        send(&mut a, write);
        assert_eq!(bed.poll(&mut b), [], "{way:?}");
        send(&mut a, short);
        let [wc] = bed.poll(&mut b)[..] else {
            panic!("{way:?}: one receive");
        };
        assert_eq!(
            (wc.wr_id, wc.byte_len),
            (4, 10),
            "{way:?}: the receive was kept"
        );
        for end in [&a, &b] {
            assert_eq!(end.qp.query().wait().unwrap().state, QpState::Rts);
        }
    }
}

/// Goal: with packets missing, every message that completes is whole, and later ones still arrive.
#[test]
fn a_lost_packet_loses_its_message() {
    for way in [Way::V4, Way::V6] {
        let faults = Faults {
            loss: 50,
            ..Faults::NONE
        };
        let bed = Bed::lossy(way, faults);
        let [mut a, mut b] = bed.pair(QpType::Uc);
        let (mut whole, mut waiting) = (0, 0);
        for number in 0..200_u8 {
            a.mr.write(0, &[number; 5000]).unwrap();
            // The receive was not used and is still there.
            if waiting == 0 {
                b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..5000)))
                    .unwrap();
                waiting = 1;
            }
            a.qp.post_send(Send::new(2).from(a.mr.slice(0..5000)).signaled())
                .unwrap();
            assert_eq!(bed.poll(&mut a).len(), 1);
            for wc in bed.poll(&mut b) {
                assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 5000));
                assert_eq!(b.bytes(0..5000), [number; 5000]);
                whole += 1;
                waiting -= 1;
            }
        }
        assert!((100..200).contains(&whole), "{way:?}: {whole} of 200");
    }
}

/// Goal: a message with a packet missing in its middle does not complete, whatever arrives behind it. Method: a
/// receiver that loses single packets; otherwise the sender's bursts arrive.
#[test]
fn a_packet_lost_in_the_middle_loses_its_message() {
    for way in [Way::V4, Way::V6] {
        let clock = VirtualClock::new();
        let (a, b) = Cable::new().plug(&[way.host(1)], &[way.host(2)]);
        let faults = Faults {
            loss: 50,
            ..Faults::NONE
        };
        let b = Faulty::new(b, 7).receiving(faults);
        let hcas = [
            Hca::over(a).clock(clock.clone()).build(),
            Hca::over(b).clock(clock.clone()).build(),
        ];
        let bed = Bed::of(way, hcas, clock);
        let [mut a, mut b] = bed.pair(QpType::Uc);
        let (mut whole, mut waiting) = (0, 0);
        for number in 0..200_u8 {
            a.mr.write(0, &[number; 8000]).unwrap();
            if waiting == 0 {
                b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..8000)))
                    .unwrap();
                waiting = 1;
            }
            a.qp.post_send(Send::new(2).from(a.mr.slice(0..8000)).signaled())
                .unwrap();
            assert_eq!(bed.poll(&mut a).len(), 1);
            for wc in bed.poll(&mut b) {
                assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 8000));
                assert_eq!(b.bytes(0..8000), [number; 8000]);
                whole += 1;
                waiting -= 1;
            }
        }
        assert!((80..200).contains(&whole), "{way:?}: {whole} of 200");
    }
}

#[test]
fn what_needs_an_answer_is_refused() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let [mut a, b] = bed.pair(QpType::Uc);
        let remote = Remote {
            addr: b.mr.iova(),
            rkey: b.mr.rkey(),
        };
        let read = Read::new(1, remote).into(a.mr.slice(0..8));
        assert_eq!(a.qp.post_send(read), Err(PostError::Unsupported));
    }
}

/// Goal: a message that the link takes in parts arrives whole. Method: twenty packets over a link with room for two.
#[test]
fn a_long_message_passes_a_link_that_is_often_full() {
    for way in [Way::V4, Way::V6] {
        let bed = Bed::narrow(way);
        let [mut a, mut b] = bed.pair(QpType::Uc);
        let data: Vec<u8> = (0..20_000_u32).map(|at| (at * 5 / 3) as u8).collect();
        a.mr.write(0, &data).unwrap();
        for wr_id in 0..2 {
            b.qp.post_recv(Recv::new(wr_id).into(b.mr.slice(0..20_000)))
                .unwrap();
            let from = a.mr.slice(0..20_000);
            a.qp.post_send(Send::new(wr_id).from(from).signaled())
                .unwrap();
            bed.advance(Duration::from_millis(100));
            let [sent] = bed.poll(&mut a)[..] else {
                panic!("{way:?}: it leaves");
            };
            let [got] = bed.poll(&mut b)[..] else {
                panic!("{way:?}: it arrives");
            };
            assert!(sent.is_ok() && got.is_ok(), "{sent:?} {got:?}");
            assert_eq!(got.byte_len, 20_000);
            assert_eq!(b.bytes(0..20_000), data, "{way:?}");
        }
    }
}

/// Goal: a send queue that failed inside a message begins the next one at its beginning. Method: the memory of a long
/// message is deregistered while the link has no room for more of it.
#[test]
fn a_queue_that_failed_inside_a_message_begins_anew() {
    for way in [Way::V4, Way::V6] {
        let bed = Bed::narrow(way);
        let [mut a, mut b] = bed.pair(QpType::Uc);
        let passing = Memory::alloc(20_000).unwrap();
        let passing = a.pd.register(passing, Access::LOCAL_WRITE).wait().unwrap();
        b.qp.post_recv(Recv::new(5).into(b.mr.slice(0..20_000)))
            .unwrap();
        a.qp.post_send(Send::new(1).from(passing.slice(0..20_000)).signaled())
            .unwrap();
        passing.dereg().wait().unwrap();
        bed.advance(Duration::from_millis(100));
        let [failed] = bed.poll(&mut a)[..] else {
            panic!("{way:?}: it fails");
        };
        assert_eq!((failed.wr_id, failed.status), (1, WcStatus::LocProtErr));
        assert_eq!(a.qp.query().wait().unwrap().state, QpState::Sqe);
        assert_eq!(bed.poll(&mut b), []);
        a.qp.modify(QpAttr::to(QpState::Rts)).wait().unwrap();
        a.mr.write(0, b"whole").unwrap();
        a.qp.post_send(Send::new(2).from(a.mr.slice(0..5)).signaled())
            .unwrap();
        bed.advance(Duration::from_millis(100));
        let [sent] = bed.poll(&mut a)[..] else {
            panic!("{way:?}: it leaves");
        };
        assert_eq!((sent.wr_id, sent.status), (2, WcStatus::Success));
        let [wc] = bed.poll(&mut b)[..] else {
            panic!("{way:?}: it arrives");
        };
        assert_eq!((wc.wr_id, wc.byte_len), (5, 5));
        assert_eq!(b.bytes(0..5), b"whole");
    }
}

/// Goal: a receive that may not be written is its own side's fault: it completes in error, the queue pair goes to ERR,
/// and the sender learns nothing of it. Method: a receive into memory that is only for reading.
#[test]
fn a_receive_that_cannot_be_written_ends_its_own_side() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let [mut a, mut b] = bed.pair(QpType::Uc);
        let constant = Memory::alloc(100).unwrap();
        let constant = b.pd.register(constant, Access::empty()).wait().unwrap();
        b.qp.post_recv(Recv::new(3).into(constant.slice(0..100)))
            .unwrap();
        a.qp.post_send(Send::new(1).from(a.mr.slice(0..10)).signaled())
            .unwrap();
        let [sent] = bed.poll(&mut a)[..] else {
            panic!("{way:?}: one send");
        };
        assert_eq!(sent.status, WcStatus::Success, "{way:?}");
        let [wc] = bed.poll(&mut b)[..] else {
            panic!("{way:?}: one receive");
        };
        assert_eq!((wc.wr_id, wc.status), (3, WcStatus::LocProtErr), "{way:?}");
        let state = |end: &crate::bed::End| end.qp.query().wait().unwrap().state;
        assert_eq!((state(&a), state(&b)), (QpState::Rts, QpState::Err));
    }
}

/// Goal: a message asks for a solicited event in its last packet only (IBTA vol. 1, 9.2.3). Method: the packets of one
/// with three, as they come out of the cable.
#[test]
fn the_last_packet_alone_is_solicited() {
    for way in [Way::V4, Way::V6] {
        let clock = VirtualClock::new();
        let (a, mut cable) = Cable::new().plug(&[way.host(1)], &[way.host(2)]);
        let (b, _rest) = Cable::new().plug(&[way.host(2)], &[way.host(1)]);
        let hcas = [a, b].map(|end| Hca::over(end).clock(clock.clone()).build());
        let bed = Bed::of(way, hcas, clock);
        let [mut a, _b] = bed.pair(QpType::Uc);
        for (solicits, expected) in [(true, [0, 0, 1]), (false, [0, 0, 0])] {
            let send = Send::new(1).from(a.mr.slice(0..2500)).signaled();
            let send = if solicits { send.solicited() } else { send };
            a.qp.post_send(send).unwrap();
            assert_eq!(bed.poll(&mut a).len(), 1);
            let mut bits = Vec::new();
            while cable.receive(&mut |arrival| bits.push(arrival.bytes[1] >> 7)) != 0 {}
            assert_eq!(bits, expected, "{way:?}");
        }
    }
}
