//! Messages that go through the memory as long packets, each of which stands for several.

use hca_sim::clock::VirtualClock;
use hca_sim::extension::PacketCounters;
use verbs_core::{QpInit, Read, Recv, Send, WcOpcode, WcStatus, Write};

use crate::ends::{End, bytes, pair, poll, statuses, two_on};
use crate::way;

fn data(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 / 3 + salt) as u8).collect()
}

/// What an end has sent and received as packets, of any length.
fn packets(end: &End) -> (u64, u64) {
    way::settle();
    let counted = end.device.call::<PacketCounters>(()).wait().unwrap();
    (counted.sent, counted.received)
}

/// Sizes around everything at which something changes: a long packet, a packet of 4 KiB, several.
const SIZES: [usize; 10] = [
    1023, 1024, 1025, 4095, 4096, 4097, 12_288, 32_767, 32_769, 60_000,
];

/// Goal: SENDs, WRITEs and READs of any size bring all bytes, in few packets.
#[test]
fn messages_of_every_size_are_whole() {
    let (mut a, mut b) = pair();
    for (salt, len) in SIZES.into_iter().enumerate() {
        let sent = data(len, salt);
        a.mr.write(0, &sent).unwrap();
        b.mr.write(0, &vec![0xee; len + 1]).unwrap();
        let (before, _) = packets(&a);
        b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..len)))
            .unwrap();
        let send = Send::new(2).from(a.mr.slice(0..len)).signaled();
        a.qp.post_send(send).unwrap();
        assert_eq!(statuses(&mut a.send_cq), [(2, WcStatus::Success)], "{len}");
        let came = poll(&mut b.recv_cq);
        assert_eq!(came[0].byte_len as usize, len);
        assert_eq!(bytes(&b, 0, len), sent, "SEND of {len}");
        assert_eq!(bytes(&b, len, 1), [0xee]);

        b.mr.write(0, &vec![0xee; len + 1]).unwrap();
        let write = Write::new(3, b.mr.remote(0)).from(a.mr.slice(0..len));
        a.qp.post_send(write.signaled()).unwrap();
        assert_eq!(statuses(&mut a.send_cq), [(3, WcStatus::Success)], "{len}");
        assert_eq!(bytes(&b, 0, len), sent, "WRITE of {len}");
        assert_eq!(bytes(&b, len, 1), [0xee]);

        a.mr.write(0, &vec![0xdd; len + 1]).unwrap();
        let read = Read::new(4, b.mr.remote(0)).into(a.mr.slice(0..len));
        a.qp.post_send(read.signaled()).unwrap();
        assert_eq!(statuses(&mut a.send_cq), [(4, WcStatus::Success)], "{len}");
        assert_eq!(bytes(&a, 0, len), sent, "READ of {len}");
        assert_eq!(bytes(&a, len, 1), [0xdd]);
        // Two of 32 KiB for each message at most, a short one behind them, and acknowledgements.
        let (after, _) = packets(&a);
        assert!(after - before <= 3 + 3 + 1 + 3, "{len}: {}", after - before);
    }
}

/// Goal: an unreliable connection loses nothing between programs of one host, although nobody takes its messages while they
/// are sent: the sender waits for room. Method: a megabyte and a half, through a ring of a quarter.
#[test]
fn an_unreliable_connection_loses_nothing() {
    const LEN: usize = 24 << 10;
    let clock = VirtualClock::new();
    let (mut a, mut b) = two_on(&clock);
    for end in [&mut a, &mut b] {
        let init = QpInit::uc(&end.send_cq, &end.recv_cq).depth(64, 64);
        end.qp = end.pd.create_qp(init).wait().unwrap();
    }
    way::connect(&mut a.qp, &mut b.qp);
    a.mr.write(0, &data(LEN, 0)).unwrap();
    let (mut sent, mut came) = (0, 0);
    for number in 0..64_u64 {
        b.qp.post_recv(Recv::new(number).into(b.mr.slice(0..LEN)))
            .unwrap();
        let write = Write::new(number, b.mr.remote(LEN)).from(a.mr.slice(0..LEN));
        let write = write.imm(number as u32).signaled();
        a.qp.post_send(write).unwrap();
    }
    while came < 64 {
        sent += poll(&mut a.send_cq).len();
        for wc in poll(&mut b.recv_cq) {
            assert_eq!(wc.status, WcStatus::Success);
            assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm);
            assert_eq!(wc.immediate(), Some(came as u32), "one is missing");
            came += 1;
        }
        way::advance(&clock, std::time::Duration::from_micros(100));
    }
    assert_eq!(sent + poll(&mut a.send_cq).len(), 64);
    assert_eq!(bytes(&b, LEN, LEN), data(LEN, 0));
}
