//! What a region allows is not enough: the queue pair has to allow it too, the address that the peer names has to be
//! aligned regardless of the memory behind it, and all packets of an extended message name one queue.

use verbs_core::{Dest, FlushRange, Placement, Remote, Srqn};

use super::*;

/// Runs one work request of the first machine. Returns how it ends, and the only syndrome of the other one.
fn end_of(pair: &mut Pair, op: SendOp, len: u32) -> (WcStatus, u8) {
    let ours = &mut pair.ends[0];
    let sges = [ours.sge(0x2000, len)];
    ours.post(wr(1, op, &sges[..usize::from(len != 0)]));
    pair.run();
    let (syndromes, sends) = (pair.syndromes_of(1), pair.ends[0].send_statuses());
    match (&syndromes[..], &sends[..]) {
        (&[syndrome], &[(1, status)]) => (status, syndrome),
        other => panic!("{op:?}: {other:?}"),
    }
}

const REFUSED: (WcStatus, u8) = (WcStatus::RemInvReqErr, 0x61);

/// Goal: an atomic's address is a multiple of 8, even where a region puts its first byte at an address that is not, so
/// that the memory behind an odd address is aligned (IBTA vol. 1, 9.4.5).
#[test]
fn an_atomic_at_an_odd_address_of_aligned_memory() {
    let ops: [fn(Remote) -> SendOp; 5] = [
        |remote| SendOp::FetchAdd { remote, add: 1 },
        |remote| SendOp::CompareSwap {
            remote,
            compare: 5,
            swap: 6,
        },
        |remote| SendOp::MaskedFetchAdd {
            remote,
            add: 1,
            boundary: 0,
        },
        |remote| SendOp::MaskedCompareSwap {
            remote,
            compare: 5,
            compare_mask: u64::MAX,
            swap: 6,
            swap_mask: u64::MAX,
        },
        SendOp::AtomicWrite,
    ];
    for op in ops {
        // The region's first byte is at BASE + 4: an odd address of aligned memory, and the opposite.
        for at in [68, 64] {
            let mut pair = Pair::new();
            let peer = &pair.ends[1];
            peer.memory.store_u64(64, 5).unwrap();
            let region = Region {
                iova: BASE + 4,
                ..region_of(&peer.memory, Access::REMOTE | Access::LOCAL_WRITE, PD)
            };
            let remote = Remote {
                addr: BASE + at,
                rkey: peer.mrs.register(region).unwrap().1,
            };
            let op = op(remote);
            assert_eq!(end_of(&mut pair, op, 8), REFUSED, "{op:?}");
            assert_eq!(pair.ends[1].memory.load_u64(64).unwrap(), 5);
        }
    }
}

/// Goal: FLUSH needs the right of its placement from the queue pair as well as from the region, for a range and for a
/// region. Method: each placement with all rights, without the queue pair's and without the region's.
#[test]
fn flush_needs_the_right_of_both() {
    for placement in [Placement::GLOBAL, Placement::PERSISTENT, Placement::all()] {
        for len in [Some(100), None] {
            let all = Access::REMOTE | Access::LOCAL_WRITE | placement.right();
            let none = all - Access::FLUSH_GLOBAL - Access::FLUSH_PERSISTENT;
            let try_with = |of_qp, of_region| {
                let mut pair = Pair::new();
                pair.ends[1].path.access = of_qp;
                let peer = &pair.ends[1];
                let region = region_of(&peer.memory, of_region, PD);
                let remote = Remote {
                    rkey: peer.mrs.register(region).unwrap().1,
                    ..peer.remote(0)
                };
                let range = FlushRange {
                    remote,
                    len,
                    placement,
                };
                end_of(&mut pair, SendOp::Flush(range), 0)
            };
            let what = format!("{placement:?} {len:?}");
            assert_eq!(try_with(all, all), (WcStatus::Success, 0x1f), "{what}");
            assert_eq!(try_with(none, all), REFUSED, "{what}");
            let denied = (WcStatus::RemAccessErr, 0x62);
            assert_eq!(try_with(all, none), denied, "{what}");
        }
    }
}

/// Goal: a FLUSH of a range that leaves its region is denied, and one with placements or a selectivity that do not exist
/// is invalid. Method: ranges about the end of the region; then single bits of the FETH are set on the way.
#[test]
fn flush_names_what_exists() {
    let try_with = |addr: u64, len: u32, bit: Option<(usize, u8)>| {
        let mut pair = Pair::new();
        pair.paths(|path| path.access |= Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
        let peer = &pair.ends[1];
        let access = Access::REMOTE | Access::LOCAL_WRITE | Access::FLUSH_GLOBAL;
        let region = region_of(&peer.memory, access, PD);
        let remote = Remote {
            addr,
            rkey: peer.mrs.register(region).unwrap().1,
        };
        pair.filter = Some(Box::new(move |from, bytes| {
            if let (0, Some((at, bit))) = (from, bit) {
                bytes[12 + at] |= bit;
            }
            true
        }));
        let range = FlushRange {
            remote,
            len: Some(len),
            placement: Placement::GLOBAL,
        };
        end_of(&mut pair, SendOp::Flush(range), 0)
    };
    let end = BASE + MEMORY as u64;
    let (fine, denied) = ((WcStatus::Success, 0x1f), (WcStatus::RemAccessErr, 0x62));
    assert_eq!(try_with(end - 100, 100, None), fine);
    assert_eq!(try_with(end - 100, 101, None), denied);
    assert_eq!(try_with(BASE - 1, 8, None), denied);
    // The last byte of the FETH has the placement in its lower half and the selectivity in the upper.
    for bit in [0x04, 0x08, 0x20, 0x30] {
        assert_eq!(try_with(BASE, 8, Some((3, bit))), REFUSED, "{bit:#x}");
    }
}

/// Goal: the packets of an extended message are for one shared receive queue. Method: a SEND and a WRITE of three packets
/// of which the second or the third names another queue.
#[test]
fn a_later_packet_does_not_name_another_queue() {
    for (nth, is_send) in [(1, true), (2, true), (1, false), (2, false)] {
        let mut pair = Pair::with(true, 0);
        pair.paths(|path| path.service = Service::Xrc);
        let [ours, theirs] = &mut pair.ends;
        let cap = QpCap {
            max_send_wr: 32,
            max_recv_wr: 32,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        ours.sends = SendRing::new(&SlabAlloc::default(), &cap, Service::Xrc).unwrap();
        theirs.post_recv(50, &[theirs.sge(0x1000, 4096)]);
        let op = match is_send {
            true => SendOp::Send,
            false => SendOp::Write(theirs.remote(0)),
        };
        let sges = [ours.sge(0x2000, 3000)];
        ours.post(SendWr {
            dest: Dest::Srq(Srqn::new(7)),
            ..wr(1, op, &sges)
        });
        let mut number = 0;
        pair.filter = Some(Box::new(move |from, bytes| {
            if from == 0 {
                assert_eq!(bytes[12..16], [0, 0, 0, 7], "every packet names it");
                bytes[15] += u8::from(number == nth);
                number += 1;
            }
            true
        }));
        pair.run();
        let what = format!("packet {nth}, a SEND: {is_send}");
        assert_eq!(pair.syndromes_of(1), [0x61], "{what}");
        let [ours, theirs] = &mut pair.ends;
        assert_eq!(
            ours.send_statuses(),
            [(1, WcStatus::RemInvReqErr)],
            "{what}"
        );
        let taken = theirs.recv_statuses();
        let told = [(50, WcStatus::RemInvReqErr)];
        assert_eq!(taken, told[..usize::from(is_send)], "{what}");
        let event = Some(EventType::QpReqErr).filter(|_| !is_send);
        assert_eq!(theirs.events, Vec::from_iter(event), "{what}");
    }
}

/// Goal: an ATOMIC WRITE has 8 bytes, both in its payload and in its header (IBTA vol. 1, annex A19). Method: a header
/// with another length, although 8 bytes arrive.
#[test]
fn an_atomic_write_says_the_length_that_it_has() {
    for (said, expected) in [(8, (WcStatus::Success, 0x1f)), (16, REFUSED), (0, REFUSED)] {
        let mut pair = Pair::new();
        pair.ends[0].memory.write(0x2000, &[5; 8]).unwrap();
        pair.filter = Some(Box::new(move |from, bytes| {
            if from == 0 {
                bytes[27] = said;
            }
            true
        }));
        let remote = pair.ends[1].remote(64);
        let end = end_of(&mut pair, SendOp::AtomicWrite(remote), 8);
        assert_eq!(end, expected, "{said}");
        let there = if said == 8 { [5; 8] } else { [0; 8] };
        assert_eq!(pair.ends[1].bytes(64, 8), there);
    }
}
