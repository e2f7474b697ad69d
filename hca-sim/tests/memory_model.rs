//! Goal: whatever is sent, written and read, the bytes are where a simple model has them, and every completion arrives
//! once, in order, with its length. Method: random operations of every size and shape in both directions of a
//! connection, posted in batches; the model is two arrays on which the same operations are done one after the other.
//! Completion queues change their size in between. Half of the time another thread posts the receives, so that short
//! messages are carried in their completions.
#![allow(clippy::unwrap_used, reason = "tests")]

use futures::executor::block_on;
use hca_sim::{Hca, connect};
use proptest::collection::vec;
use proptest::prelude::*;
use verbs_core::{
    Access, Cq, Dest, Memory, Mr, Payload, Qp, QpInit, Read, Recv, Send, SendFlags, SendOp, SendWr,
    Sge, Wc, WcOpcode, Write,
};

/// Bytes of memory at each end. Local pieces are in the first half, the peer's in the second, so that no piece overlaps
/// another of the same operation.
const SIZE: usize = 8192;
const HALF: usize = SIZE / 2;
const INLINE: usize = 64;
const DEPTH: u32 = 16;

/// A range of memory.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: usize,
    len: usize,
}

impl Place {
    fn range(self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Pieces that are gathered, and pieces that they are scattered into.
    Send(Vec<Place>, Vec<Place>),
    SendInline(Vec<u8>, Place),
    Write(Vec<Place>, usize, Option<u32>),
    WriteInline(Vec<u8>, usize),
    Read(Place, usize),
    FetchAdd(Place, usize, u64),
    CompareSwap(Place, usize, u64, u64),
}

/// Where a piece of at most that many bytes may lie in the half that begins there.
fn place(begin: usize, max: usize) -> impl Strategy<Value = Place> {
    let len = prop_oneof![4 => 0..=max.min(70), 1 => 0..=max];
    len.prop_flat_map(move |len| {
        let offset = begin..=begin + HALF - len;
        offset.prop_map(move |offset| Place { offset, len })
    })
}

/// Pieces one behind the other, so that none overlaps another, of that many bytes in all.
fn pieces(lens: Vec<usize>, begin: usize) -> Vec<Place> {
    let mut offset = begin;
    lens.into_iter()
        .map(|len| {
            offset += len;
            let offset = offset - len;
            Place { offset, len }
        })
        .collect()
}

fn word() -> impl Strategy<Value = Place> {
    (0..HALF / 8).prop_map(|n| Place {
        offset: 8 * n,
        len: 8,
    })
}

fn far_word() -> impl Strategy<Value = usize> {
    (0..HALF / 8).prop_map(|n| HALF + 8 * n)
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = || vec(any::<u8>(), 0..=INLINE);
    let lens = |max: usize| vec(0..=max, 1..=3);
    prop_oneof![
        4 => (place(0, HALF), 0..100_usize).prop_map(|(from, more)| {
            let len = (from.len + more).min(HALF);
            Op::Send(vec![from], vec![Place { offset: SIZE - len, len }])
        }),
        2 => (lens(100), lens(200)).prop_filter_map("fits", |(from, to)| {
            let fits = from.iter().sum::<usize>() <= to.iter().sum();
            fits.then(|| Op::Send(pieces(from, 0), pieces(to, HALF)))
        }),
        2 => (bytes(), HALF..SIZE - INLINE).prop_map(|(bytes, offset)| {
            Op::SendInline(bytes, Place { offset, len: INLINE })
        }),
        3 => (place(0, 3000), 0..1000_usize, any::<Option<u32>>())
            .prop_map(|(from, to, imm)| Op::Write(vec![from], HALF + to, imm)),
        1 => (lens(150), 0..HALF - 450).prop_map(|(from, to)| {
            Op::Write(pieces(from, 7), HALF + to, None)
        }),
        1 => (bytes(), HALF..SIZE - INLINE).prop_map(|(bytes, to)| Op::WriteInline(bytes, to)),
        3 => (place(0, 3000), 0..1000_usize).prop_map(|(to, from)| Op::Read(to, HALF + from)),
        1 => (word(), far_word(), any::<u64>()).prop_map(|(to, at, add)| Op::FetchAdd(to, at, add)),
        1 => (word(), far_word(), 0..3_u64, 0..3_u64)
            .prop_map(|(to, at, compare, swap)| Op::CompareSwap(to, at, compare, swap)),
    ]
}

struct End {
    qp: Qp,
    sent: Cq,
    received: Cq,
    mr: Mr,
    model: Vec<u8>,
    /// Another thread posts the receives.
    apart: bool,
}

fn ends(apart: bool) -> [End; 2] {
    let device = Hca::loopback().open().wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let mut ends = [1_u8, 2].map(|seed| {
        let [sent, received] = [(); 2].map(|()| device.create_cq(DEPTH).wait().unwrap());
        let init = QpInit::rc(&sent, &received).depth(DEPTH, DEPTH);
        let qp = pd.create_qp(init.sges(3, 3).inline(INLINE as u32)).wait();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let memory = Memory::alloc(SIZE).unwrap();
        let mr = pd.register(memory, access).wait().unwrap();
        let model: Vec<u8> = (0..SIZE).map(|n| (n * 7) as u8 ^ seed).collect();
        mr.write(0, &model).unwrap();
        End {
            qp: qp.unwrap(),
            sent,
            received,
            mr,
            model,
            apart,
        }
    });
    let [a, b] = &mut ends;
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    ends
}

/// The expected content of a completion: number, operation, bytes, immediate data.
type Expected = (u64, WcOpcode, u32, Option<u32>);

impl End {
    fn sges(&self, places: &[Place]) -> Vec<Sge> {
        places
            .iter()
            .map(|place| self.mr.slice(place.range()))
            .collect()
    }

    fn gathered(&self, places: &[Place]) -> Vec<u8> {
        let pieces = places.iter().map(|place| &self.model[place.range()]);
        pieces.flatten().copied().collect()
    }

    /// Puts the bytes into the pieces, one after the other, as far as they fit.
    fn scatter(&mut self, mut bytes: &[u8], places: &[Place]) {
        for place in places {
            let (now, rest) = bytes.split_at(bytes.len().min(place.len));
            self.model[place.offset..place.offset + now.len()].copy_from_slice(now);
            bytes = rest;
        }
    }

    fn post<'w>(&mut self, wr: impl Into<SendWr<'w>>) {
        self.qp.post_send(wr).unwrap();
    }

    fn post_recv(&mut self, id: u64, places: &[Place]) {
        let sges = self.sges(places);
        let recv = match &sges[..] {
            [one] => Recv::new(id).into(*one),
            sges => Recv::new(id).scatter(sges),
        };
        if !self.apart {
            return self.qp.post_recv(recv).unwrap();
        }
        // After this, the thread has a number of its own.
        drop(verbs_core::mem::pin());
        std::thread::scope(|scope| {
            let posted = scope.spawn(|| self.qp.post_recv(recv));
            posted.join().unwrap().unwrap();
        });
    }
}

/// Applies it to the queue pairs and to the model. Returns what completes at the sender, and at the receiver.
fn perform(id: u64, op: &Op, from: &mut End, to: &mut End) -> (Expected, Option<Expected>) {
    let sent = |opcode, len: usize| (id, opcode, len as u32, None);
    let received = |opcode, len: usize, imm| Some((id, opcode, len as u32, imm));
    match op {
        Op::Send(source, sink) => {
            to.post_recv(id, sink);
            let sges = from.sges(source);
            match sges[..] {
                [one] => from.post(Send::new(id).from(one).signaled()),
                _ => from.post(Send::new(id).gather(&sges).signaled()),
            }
            let bytes = from.gathered(source);
            to.scatter(&bytes, sink);
            let at_peer = received(WcOpcode::Recv, bytes.len(), None);
            (sent(WcOpcode::Send, bytes.len()), at_peer)
        }
        Op::SendInline(bytes, sink) => {
            to.post_recv(id, std::slice::from_ref(sink));
            from.post(Send::new(id).inline(bytes).signaled());
            to.scatter(bytes, &[*sink]);
            let at_peer = received(WcOpcode::Recv, bytes.len(), None);
            (sent(WcOpcode::Send, bytes.len()), at_peer)
        }
        Op::Write(source, offset, imm) => {
            let len = write(id, from, to, (source, *offset), *imm);
            let at_peer = imm.and_then(|imm| received(WcOpcode::RecvRdmaWithImm, len, Some(imm)));
            (sent(WcOpcode::RdmaWrite, len), at_peer)
        }
        Op::WriteInline(bytes, offset) => {
            let write = Write::new(id, to.mr.remote(*offset)).inline(bytes);
            from.post(write.signaled());
            let (offset, len) = (*offset, bytes.len());
            to.scatter(bytes, &[Place { offset, len }]);
            (sent(WcOpcode::RdmaWrite, len), None)
        }
        Op::Read(sink, offset) => {
            let read = Read::new(id, to.mr.remote(*offset));
            from.post(read.into(from.mr.slice(sink.range())).signaled());
            let bytes = to.model[*offset..offset + sink.len].to_vec();
            from.scatter(&bytes, &[*sink]);
            (sent(WcOpcode::RdmaRead, sink.len), None)
        }
        Op::FetchAdd(sink, offset, add) => {
            let (remote, add) = (to.mr.remote(*offset), *add);
            let op = SendOp::FetchAdd { remote, add };
            atomic(id, op, from, to, (*sink, *offset), |old| {
                old.wrapping_add(add)
            });
            (sent(WcOpcode::FetchAdd, 8), None)
        }
        Op::CompareSwap(sink, offset, compare, swap) => {
            let (remote, compare, swap) = (to.mr.remote(*offset), *compare, *swap);
            let op = SendOp::CompareSwap {
                remote,
                compare,
                swap,
            };
            let new = |old| if old == compare { swap } else { old };
            atomic(id, op, from, to, (*sink, *offset), new);
            (sent(WcOpcode::CompSwap, 8), None)
        }
    }
}

/// Applies a WRITE to the queue pairs and to the model. Returns how many bytes it has.
fn write(
    id: u64,
    from: &mut End,
    to: &mut End,
    (source, offset): (&[Place], usize),
    imm: Option<u32>,
) -> usize {
    if imm.is_some() {
        to.post_recv(id, &[]);
    }
    let (sges, bytes) = (from.sges(source), from.gathered(source));
    let write = Write::new(id, to.mr.remote(offset)).signaled();
    let write = imm.map_or(write, |imm| write.imm(imm));
    match sges[..] {
        [one] => from.post(write.from(one)),
        _ => from.post(write.gather(&sges)),
    }
    let len = bytes.len();
    to.scatter(&bytes, &[Place { offset, len }]);
    len
}

/// Applies an atomic to the queue pairs and to the model.
fn atomic(
    wr_id: u64,
    op: SendOp,
    from: &mut End,
    to: &mut End,
    (sink, at): (Place, usize),
    new: impl Fn(u64) -> u64,
) {
    from.post(SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        payload: Payload::One(from.mr.slice(sink.range())),
        dest: Dest::Peer,
    });
    let old: [u8; 8] = to.model[at..at + 8].try_into().unwrap();
    let new = new(u64::from_ne_bytes(old)).to_ne_bytes();
    to.model[at..at + 8].copy_from_slice(&new);
    from.scatter(&old, &[sink]);
}

fn polled(cq: &mut Cq) -> Vec<Expected> {
    let mut out = [Wc::default(); 2 * DEPTH as usize];
    let some = cq.poll(&mut out);
    some.iter()
        .map(|wc| {
            assert!(wc.is_ok(), "{wc:?}");
            (wc.wr_id, wc.opcode, wc.byte_len, wc.immediate())
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 2_000 }))]

    #[test]
    fn memory_and_completions_are_those_of_the_model(
        apart in any::<bool>(),
        batches in vec((vec((any::<bool>(), op()), 1..=DEPTH as usize), 0..3_u32), 1..12),
    ) {
        let mut ends = ends(apart);
        for (batch, growth) in &batches {
            let mut expected = [(); 2].map(|()| (Vec::new(), Vec::new()));
            for (id, (backwards, op)) in batch.iter().enumerate() {
                let [a, b] = &mut ends;
                let (from, to) = if *backwards { (b, a) } else { (a, b) };
                let (sent, received) = perform(id as u64, op, from, to);
                expected[usize::from(*backwards)].0.push(sent);
                expected[usize::from(!*backwards)].1.extend(received);
            }
            for (end, (sent, received)) in ends.iter_mut().zip(expected) {
                end.sent.resize(DEPTH << growth).wait().unwrap();
                prop_assert_eq!(polled(&mut end.sent), sent);
                prop_assert_eq!(polled(&mut end.received), received);
                let mut bytes = vec![0; SIZE];
                end.mr.read(0, &mut bytes).unwrap();
                prop_assert!(bytes == end.model, "memory differs from the model");
            }
        }
    }
}
