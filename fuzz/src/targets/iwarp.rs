//! A live RNIC: streams of bytes that are FPDUs, nearly FPDUs, or anything, cut anywhere, behind MPA startup frames
//! that are right or not.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::engine::Waiter;
use hca_sim::port_space::PortError;
use hca_sim::stream::{Bound, Interest, Stream, StreamLink, Token};
use verbs_core::sync::Mutex;
use verbs_core::{
    Access, Atomic, CmEndpoint, CmEvent, CmParam, CmRequest, CmSink, Cq, Memory, Mr, Pd, Qp,
    QpInit, RKey, Read, Recv, Remote, Seed, Send, Wc, Write,
};
use verbs_wire::iwarp::{
    AtomicOperation, AtomicRequest, Fpdu, Header, RdmapOpcode, ReadRequest, Revision, STag,
    Startup, StartupKind, Tagged, Untagged,
};

use crate::Script;

/// Bytes of each region.
const LEN: usize = 16 << 10;
/// The contents of the regions that no peer may write.
const CANARY: u8 = 0xa5;
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 7174);
const THERE: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 40000);

/// What the attacker has sent and the RNIC has not read, and the known state of its socket.
#[derive(Debug, Default)]
struct Wire {
    connects: usize,
    listening: Option<Token>,
    watched: Option<Token>,
    bytes: VecDeque<u8>,
    ended: bool,
    /// Bytes that the socket takes.
    room: usize,
}

#[derive(Clone, Debug, Default)]
struct Link(Arc<Mutex<Wire>>);

#[derive(Debug)]
struct Socket(Arc<Mutex<Wire>>);

impl StreamLink for Link {
    fn addresses(&self) -> Vec<IpAddr> {
        vec![HERE.ip()]
    }

    fn bind(&self, _local: SocketAddr) -> Result<Box<dyn Bound>, PortError> {
        Ok(Box::new(Socket(Arc::clone(&self.0))))
    }

    fn ready(&self, tokens: &mut Vec<Token>) {
        let wire = self.0.lock();
        if wire.connects != 0 {
            tokens.extend(wire.listening);
        }
        if wire.ended || !wire.bytes.is_empty() {
            tokens.extend(wire.watched);
        }
    }

    fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        None
    }

    fn seed(&self) -> Seed {
        Seed::from(7)
    }
}

impl Bound for Socket {
    fn local(&self) -> SocketAddr {
        HERE
    }

    fn listen(&mut self, _backlog: u32, token: Token) -> Result<(), PortError> {
        self.0.lock().listening = Some(token);
        Ok(())
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let mut wire = self.0.lock();
        if wire.connects == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        wire.connects -= 1;
        Ok(Box::new(Socket(Arc::clone(&self.0))))
    }

    fn connect(self: Box<Self>, _remote: SocketAddr, _token: Token) -> io::Result<Box<dyn Stream>> {
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}

impl Stream for Socket {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut wire = self.0.lock();
        let count = into.len().min(wire.bytes.len());
        if count == 0 && !wire.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for (to, from) in into.iter_mut().zip(wire.bytes.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut wire = self.0.lock();
        let count = bytes.len().min(wire.room);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        wire.room -= count;
        Ok(count)
    }

    fn finish(&mut self) {}

    fn connected(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn watch(&mut self, token: Token, interest: Interest) -> io::Result<()> {
        let receives = matches!(interest, Interest::Receive | Interest::Both);
        self.0.lock().watched = receives.then_some(token);
        Ok(())
    }

    fn segment_max(&self) -> usize {
        1460
    }

    fn local(&self) -> SocketAddr {
        HERE
    }

    fn peer(&self) -> SocketAddr {
        THERE
    }
}

/// Keeps the request that arrives.
#[derive(Default)]
struct Asked(Mutex<Option<CmRequest>>);

impl CmSink for Asked {
    fn event(&self, event: CmEvent) {
        if let CmEvent::ConnectRequest(request) = event {
            *self.0.lock() = Some(request);
        }
    }
}

impl Asked {
    /// Accepts the request that has arrived, if one has.
    fn accept(&self, qp: &Qp) -> Option<CmEndpoint> {
        let request = self.0.lock().take()?;
        let param = CmParam {
            responder_resources: 4,
            initiator_depth: 4,
            ..CmParam::default()
        };
        // The peer may have closed the connection.
        let _ = request.endpoint.accept(qp, param, vec![1; 8]).wait();
        Some(request.endpoint)
    }
}

struct World {
    clock: VirtualClock,
    link: Link,
    hca: Arc<Hca>,
    cq: Cq,
    qp: Qp,
    open: Mr,
    canary: Mr,
    _pd: Pd,
    posted: BTreeSet<u64>,
    next: u64,
    /// Numbers of the next SEND and READ that would be right.
    msn: [u32; 2],
}

/// Streams at a live RNIC. Memory that was given to no peer is untouched, every work request ends once, and when
/// everything was destroyed no object is left.
pub(crate) fn iwarp(bytes: &[u8]) -> u32 {
    let mut script = Script::new(bytes);
    let link = Link::default();
    let clock = VirtualClock::new();
    let hca = Hca::over_streams(link.clone()).clock(clock.clone()).build();
    let before = hca.object_counts();
    {
        let device = hca.open().wait().expect("a device");
        let sink = Arc::new(Asked::default());
        let listener = device
            .bind_cm(HERE, Arc::clone(&sink) as _)
            .wait()
            .expect("an address");
        listener.listen(4).wait().expect("it is bound");
        let mut world = World::new(&hca, &device, link, clock);
        world.startup(&mut script);
        let mut endpoint = sink.accept(&world.qp);
        while let Some(what) = script.step(300) {
            world.step(what, &mut script);
            // The bytes of a step may be the last of the Request. A sink that keeps a request keeps itself.
            endpoint = endpoint.or_else(|| sink.accept(&world.qp));
            world.drain();
        }
        world.end();
        drop(endpoint);
    }
    for _ in 0..4 {
        hca.turn();
    }
    assert_eq!(hca.object_counts(), before, "objects that are left");
    assert_eq!(hca.cm_endpoints(), 0, "endpoints that are left");
    script.steps()
}

/// An atomic request that may be valid.
fn atomic(script: &mut Script<'_>, stag: STag, offset: u64) -> Vec<u8> {
    let request = AtomicRequest {
        request: 0,
        stag,
        offset: if script.once_in(4) {
            offset
        } else {
            offset & !7
        },
        operation: match script.once_in(2) {
            true => AtomicOperation::FetchAdd {
                add: script.u64(),
                mask: u64::from(script.byte()),
            },
            false => AtomicOperation::CmpSwap {
                swap: script.u64(),
                swap_mask: u64::MAX,
                compare: u64::from(script.byte()),
                compare_mask: u64::from(script.byte()),
            },
        },
    };
    request.to_bytes().to_vec()
}

impl World {
    fn new(hca: &Arc<Hca>, device: &verbs_core::Device, link: Link, clock: VirtualClock) -> Self {
        let pd = device.alloc_pd().wait().expect("a domain");
        let cq = device.create_cq(1024).wait().expect("a queue");
        let region = |access| {
            let memory = Memory::alloc(LEN).expect("memory");
            pd.register(memory, access).wait().expect("a region")
        };
        let open = region(Access::LOCAL_WRITE | Access::REMOTE);
        let canary = region(Access::LOCAL_WRITE);
        canary
            .memory()
            .fill(0..LEN, CANARY)
            .expect("it is in range");
        let qp = pd
            .create_qp(QpInit::rc(&cq, &cq).depth(32, 32))
            .wait()
            .expect("a queue pair");
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        qp.init(1, access).wait().expect("it is new");
        Self {
            clock,
            link,
            hca: Arc::clone(hca),
            cq,
            qp,
            open,
            canary,
            _pd: pd,
            posted: BTreeSet::new(),
            next: 1,
            msn: [1, 1],
        }
    }

    /// A connection, and a Request that is right most of the time.
    fn startup(&mut self, script: &mut Script<'_>) {
        self.link.0.lock().connects = 1;
        self.hca.turn();
        let request = Startup {
            kind: StartupKind::Request,
            wants_markers: false,
            wants_crc: true,
            revision: Revision::One,
            private_data: b"fuzz",
        };
        let mut bytes = vec![0; request.wire_len()];
        request.emit(&mut bytes).expect("it fits");
        if script.once_in(8) {
            script.change(&mut bytes);
        }
        self.link.0.lock().room = 1 << 20;
        self.say(&bytes, script);
    }

    /// Sends bytes from the peer, in pieces.
    fn say(&mut self, bytes: &[u8], script: &mut Script<'_>) {
        let piece = [1, 7, 100, 1 << 16][script.below(4)];
        for bytes in bytes.chunks(piece) {
            self.link.0.lock().bytes.extend(bytes);
            self.hca.turn();
        }
    }

    fn step(&mut self, what: u8, script: &mut Script<'_>) {
        match what % 10 {
            0..=3 => {
                let mut fpdu = self.fpdu(script);
                if script.once_in(4) {
                    script.change(&mut fpdu);
                }
                self.say(&fpdu, script);
            }
            4 => {
                let bytes = script.take(40).to_vec();
                self.say(&bytes, script);
            }
            5 | 6 => {
                let recv = Recv::new(self.next).into(self.open.slice(0..1 + script.below(256)));
                let posted = self.qp.post_recv(recv).is_ok();
                self.count(posted);
            }
            7 => self.post(script),
            8 => {
                self.link.0.lock().room = usize::from(script.u16()) * 4;
                self.hca.turn();
            }
            _ => {
                if script.once_in(8) {
                    self.link.0.lock().ended = true;
                }
                self.clock
                    .advance(Duration::from_millis(u64::from(script.byte())));
                self.hca.turn();
            }
        }
    }

    fn post(&mut self, script: &mut Script<'_>) {
        let id = self.next;
        let piece = self.open.slice(0..script.below(256));
        let remote = Remote {
            addr: script.u64(),
            rkey: RKey::new(script.u32()),
        };
        let posted = match script.below(5) {
            0 => self.qp.post_send(Send::new(id).from(piece).signaled()),
            1 => self
                .qp
                .post_send(Write::new(id, remote).from(piece).signaled()),
            2 => self
                .qp
                .post_send(Write::new(id, remote).from(piece).imm(7).signaled()),
            3 => {
                let word = Remote {
                    addr: remote.addr & !7,
                    ..remote
                };
                let add = Atomic::fetch_add(id, word, 1).into(self.open.slice(0..8));
                self.qp.post_send(add.signaled())
            }
            _ => self
                .qp
                .post_send(Read::new(id, remote).into(piece).signaled()),
        };
        self.count(posted.is_ok());
    }

    fn count(&mut self, posted: bool) {
        if posted {
            self.posted.insert(self.next);
        }
        self.next += 1;
    }

    /// A segment that may be right.
    fn fpdu(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        let keys = [
            self.open.rkey().value(),
            self.canary.lkey().value(),
            script.u32(),
        ];
        let stag = STag::new(keys[script.below(3)]);
        let bases = [
            self.open.remote(0).addr,
            self.canary.remote(0).addr,
            script.u64(),
        ];
        let offset =
            bases[script.below(3)].wrapping_add(u64::from(script.u16()) % (LEN as u64 + 8));
        let (header, body) = self.segment(script, stag, offset);
        let mut ulpdu = vec![0; header.wire_len()];
        header.emit(&mut ulpdu).expect("it fits");
        ulpdu.extend(body);
        let mut fpdu = vec![0; Fpdu::wire_len(ulpdu.len())];
        Fpdu { ulpdu: &ulpdu }
            .emit(true, &mut fpdu)
            .expect("it fits");
        fpdu
    }

    /// The header and the payload of a segment.
    fn segment(&mut self, script: &mut Script<'_>, stag: STag, offset: u64) -> (Header, Vec<u8>) {
        let is_last = !script.once_in(3);
        let payload = vec![script.byte(); script.below(256)];
        match script.below(6) {
            0 => (
                Header::Tagged(Tagged {
                    opcode: RdmapOpcode::Write,
                    is_last,
                    stag,
                    offset,
                }),
                payload,
            ),
            1 => (
                Header::Tagged(Tagged {
                    opcode: RdmapOpcode::ReadResponse,
                    is_last,
                    stag,
                    offset,
                }),
                payload,
            ),
            2 => {
                let msn = self.msn[1];
                self.msn[1] += 1;
                let request = ReadRequest {
                    sink: stag,
                    sink_offset: offset,
                    len: u32::from(script.u16()),
                    source: stag,
                    source_offset: offset,
                };
                (
                    Header::Untagged(Untagged::first(RdmapOpcode::ReadRequest, msn)),
                    request.to_bytes().to_vec(),
                )
            }
            3 => (
                Header::Untagged(Untagged::first(RdmapOpcode::Terminate, 1)),
                payload,
            ),
            4 => self.extension(script, stag, offset),
            _ => {
                let opcode = script.pick(&[
                    RdmapOpcode::Send,
                    RdmapOpcode::SendSolicited,
                    RdmapOpcode::SendInvalidate,
                ]);
                let msn = self.msn[0];
                self.msn[0] += u32::from(is_last);
                let header = Untagged {
                    is_last,
                    invalidate: stag,
                    ..Untagged::first(opcode, msn)
                };
                (Header::Untagged(header), payload)
            }
        }
    }

    /// A message of RFC 7306.
    fn extension(&mut self, script: &mut Script<'_>, stag: STag, offset: u64) -> (Header, Vec<u8>) {
        let (opcode, queue, body) = match script.below(4) {
            0 | 1 => (RdmapOpcode::AtomicRequest, 1, atomic(script, stag, offset)),
            2 => (RdmapOpcode::Immediate, 0, vec![1; 8]),
            _ => {
                let header = Untagged::first(RdmapOpcode::AtomicResponse, 1);
                return (Header::Untagged(header), vec![0; 12]);
            }
        };
        let msn = self.msn[queue];
        self.msn[queue] += 1;
        (Header::Untagged(Untagged::first(opcode, msn)), body)
    }

    fn drain(&mut self) {
        let mut wcs = [Wc::default(); 16];
        loop {
            let polled = self.cq.poll(&mut wcs);
            for wc in polled.iter() {
                assert!(
                    self.posted.remove(&wc.wr_id),
                    "{} completed twice",
                    wc.wr_id
                );
            }
            if polled.is_empty() {
                return;
            }
        }
    }

    fn end(&mut self) {
        // A message that waits for a receive does not wait for ever.
        self.clock.advance(Duration::from_secs(11));
        self.hca.turn();
        self.qp.to_error().wait().expect("any state goes to ERR");
        self.drain();
        assert!(
            self.posted.is_empty(),
            "work requests that never end: {:?}",
            self.posted
        );
        let mut bytes = vec![0; LEN];
        self.canary.read(0, &mut bytes).expect("it is in range");
        assert!(
            bytes.iter().all(|&byte| byte == CANARY),
            "memory that was given to nobody"
        );
    }
}
