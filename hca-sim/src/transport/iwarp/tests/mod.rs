//! Two machines with a stream between them. Queues, completion queues and memory are the real ones; only the device
//! around them is not there. The stream splits and merges bytes, as a seed decides.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

use verbs_core::mem::{Memory, MrTable, Region, pin};
use verbs_core::slab_alloc::SlabAlloc;
use verbs_core::sync::Arc;
use verbs_core::{
    Access, EventType, LKey, Mtu, PKey, QKey, QpCap, Qpn, RKey, RawCq, Remote, SendWr, Sge, Wc,
    WcStatus,
};
use verbs_wire::iwarp::{Fpdu, Header, Rtr};

use super::hold::PATIENCE;
use super::{Extensions, FIRST_FPDU, Iwarp, Start};
use crate::clock::Instant;
use crate::port::streams::buffers::{FpduBuffer, STAGE};
use crate::queue::base::counters::Counters;
use crate::queue::cq::{CqPoller, CqRing};
use crate::queue::recv::RecvRing;
use crate::queue::send::SendRing;
use crate::transport::{Ends, Events, Path};
use crate::wire::Service;

mod extensions;
mod faults;
mod golden;
mod hold;
mod pairs;
mod terminates;

const PD: u32 = 3;
const MEMORY: usize = 1 << 20;
/// Where all regions begin.
const BASE: u64 = 0x7fff_1230_0000;

/// One queue pair with everything that it works on.
struct Machine {
    iwarp: Iwarp,
    path: Path,
    sends: SendRing,
    recvs: RecvRing,
    send_cq: Arc<CqRing>,
    recv_cq: Arc<CqRing>,
    send_poller: CqPoller,
    recv_poller: CqPoller,
    mrs: Arc<MrTable>,
    counters: Counters,
    memory: Arc<Memory>,
    lkey: LKey,
    rkey: RKey,
    posted_sends: u32,
    posted_recvs: u32,
    failed: bool,
    event: Option<EventType>,
    now: Instant,
    /// What was received behind a message without a receive.
    rest: Vec<u8>,
}

fn start(is_initiator: bool, has_crc: bool) -> Start {
    Start {
        has_crc,
        is_initiator,
        rtr: Rtr::empty(),
        extensions: Extensions {
            immediate: true,
            atomics: true,
            masked: true,
        },
        ulpdu_max: 1460 - 8,
        now: Instant::ZERO,
    }
}

impl Machine {
    fn new(start: Start) -> Self {
        let cap = QpCap {
            max_send_wr: 32,
            max_recv_wr: 32,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let memory = Arc::new(Memory::alloc(MEMORY).unwrap());
        let mrs = Arc::new(MrTable::new(16, 5));
        let region = Region {
            iova: BASE,
            ..Region::new(
                Arc::clone(&memory),
                Access::LOCAL_WRITE | Access::REMOTE,
                PD,
            )
        };
        let (lkey, rkey) = mrs.register(region).unwrap();
        let ring = || Arc::new(CqRing::new(256, Arc::default(), None, true).unwrap());
        let (send_cq, recv_cq) = (ring(), ring());
        let mut iwarp = Iwarp::new().unwrap();
        iwarp.start(start);
        Self {
            iwarp,
            path: Path {
                service: Service::Rc,
                qkey: QKey(0),
                dest_qpn: Qpn::new(0),
                pkey: PKey::DEFAULT,
                is_special: false,
                lmc: 0,
                mtu: Mtu::B1024,
                access: Access::REMOTE,
                timeout: 0,
                retry_cnt: 0,
                rnr_retry: 0,
                min_rnr_timer: 0,
                fences: true,
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                sq_psn: 0,
                rq_psn: 0,
                flags: crate::wire::BthFlags::empty(),
                migration: None,
                may_migrate: false,
            },
            sends: SendRing::new(&SlabAlloc::default(), &cap, Service::Rc).unwrap(),
            recvs: RecvRing::new(&SlabAlloc::default(), 32, 4).unwrap(),
            send_poller: CqPoller::new(Arc::clone(&send_cq), None),
            recv_poller: CqPoller::new(Arc::clone(&recv_cq), None),
            send_cq,
            recv_cq,
            mrs,
            counters: Counters::default(),
            memory,
            lkey,
            rkey,
            posted_sends: 0,
            posted_recvs: 0,
            failed: false,
            event: None,
            now: Instant::ZERO,
            rest: Vec::new(),
        }
    }

    /// Runs the machine on its ends; afterwards acts on its events as a device does.
    fn with<T>(&mut self, run: impl FnOnce(&mut Iwarp, &Ends<'_>, &mut Events) -> T) -> T {
        let mut events = Events::default();
        let pin = pin();
        let ends = Ends {
            pin: &pin,
            now: self.now,
            qpn: Qpn::new(17),
            pd: PD,
            path: &self.path,
            may_begin: true,
            sends: &self.sends,
            recvs: &self.recvs,
            srq: None,
            send_cq: &self.send_cq,
            recv_cq: &self.recv_cq,
            mrs: &self.mrs,
            counters: &self.counters,
            core: None,
        };
        let result = run(&mut self.iwarp, &ends, &mut events);
        drop(pin);
        for index in events.settle.into_iter().flatten() {
            self.mrs.settle(index);
        }
        self.event = self.event.or(events.event);
        if events.fail {
            self.failed = true;
            if let Some(at) = events.failed {
                assert_eq!(self.sends.next(), Some(at), "the oldest one failed");
                self.sends.executed(at);
            }
        }
        result
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.rest);
        self.rest = self.with(|iwarp, ends, events| iwarp.receive(ends, &bytes, events).to_vec());
    }

    /// Waits as long as a message without a receive does, if there is one.
    fn wait(&mut self) {
        if self.iwarp.is_held() {
            assert!(!self.resume(), "it waits");
            self.now += PATIENCE;
            assert!(self.resume(), "it has waited for too long");
        }
    }

    /// Looks for a receive for the message that waits: whether the stream goes on.
    fn resume(&mut self) -> bool {
        let goes_on = self.with(|iwarp, ends, events| iwarp.resume(ends, events));
        if goes_on {
            self.receive(&[]);
        }
        goes_on
    }

    /// What it puts out, into a buffer of that size, and whether there is more.
    fn transmit_into(&mut self, room: usize) -> (Vec<u8>, bool) {
        let mut buffer = vec![0; room];
        let has_crc = self.iwarp.start.unwrap().has_crc;
        let (len, more) = self.with(|iwarp, ends, events| {
            let mut out = FpduBuffer::new(&mut buffer, has_crc, iwarp.ulpdu_max());
            let more = iwarp.transmit(ends, &mut out, events);
            (out.len(), more)
        });
        buffer.truncate(len);
        (buffer, more)
    }

    fn transmit(&mut self) -> Vec<u8> {
        let (bytes, more) = self.transmit_into(STAGE);
        assert!(!more, "it fits");
        bytes
    }

    fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge {
            addr: BASE + offset as u64,
            len,
            lkey: self.lkey,
        }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: BASE + offset as u64,
            rkey: self.rkey,
        }
    }

    fn post<'w>(&mut self, wr: impl Into<SendWr<'w>>) {
        self.sends.append(self.posted_sends, &wr.into());
        self.posted_sends += 1;
    }

    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        self.recvs.publish(self.posted_recvs, wr_id, sges);
        self.posted_recvs += 1;
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }

    /// Errors that were counted: of this side, and of the peer.
    fn errors(&self) -> (u64, u64) {
        let counters = &self.counters;
        (counters.local_errors.get(), counters.remote_errors.get())
    }

    fn poll_sends(&mut self) -> Vec<Wc> {
        poll(&mut self.send_poller)
    }

    fn poll_recvs(&mut self) -> Vec<Wc> {
        poll(&mut self.recv_poller)
    }
}

fn poll(poller: &mut CqPoller) -> Vec<Wc> {
    let mut all = vec![Wc::default(); 256];
    let n = poller.poll(&mut all);
    all.truncate(n);
    all
}

fn statuses(wcs: &[Wc]) -> Vec<(u64, WcStatus)> {
    wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// An FPDU.
fn fpdu(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut ulpdu = vec![0; header.wire_len()];
    header.emit(&mut ulpdu).unwrap();
    ulpdu.extend_from_slice(payload);
    sealed(&ulpdu)
}

/// An FPDU around any ULPDU.
fn sealed(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = vec![0; Fpdu::wire_len(ulpdu.len())];
    Fpdu { ulpdu }.emit(true, &mut out).unwrap();
    out
}

/// The FPDUs of a stream, as their headers and payloads.
fn parsed(stream: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let (mut rest, mut all) = (stream, Vec::new());
    while let Some((fpdu, len)) = Fpdu::parse(rest, true).unwrap() {
        let (header, payload) = Header::parse(fpdu.ulpdu).unwrap();
        all.push((header, payload.to_vec()));
        rest = &rest[len..];
    }
    assert!(rest.is_empty());
    all
}

/// A responder that has waited its time.
fn patient(machine: &mut Machine) {
    machine.iwarp.expire(Instant::ZERO + FIRST_FPDU);
}
