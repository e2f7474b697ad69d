//! The library as a C program calls it: through its functions and the pointers in its objects. The device is on a free
//! address of 127.0.0.0/8.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use verbs_abi::{self as abi, AhAttr, QpAttr, QpInitAttr, RecvWr, SendWr, Sge, Wc, opcode};

use crate::device::open;
use crate::qp::ah;
use crate::{cq, device, memory, qp, srq};

const LOCAL_WRITE: c_int = 1;
const REMOTE: c_int = 0b1110;
const PATIENCE: Duration = Duration::from_secs(60);

/// An open device with a domain, a region and a completion queue on a channel.
pub(crate) struct Bed {
    pub(crate) context: *mut abi::Context,
    pub(crate) pd: *mut abi::Pd,
    pub(crate) channel: *mut abi::CompChannel,
    pub(crate) cq: *mut abi::Cq,
    pub(crate) mr: *mut abi::Mr,
    memory: Box<[u8; 8192]>,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let mut memory = Box::new([0_u8; 8192]);
        // SAFETY: as a C program would; the memory lives longer than the region.
        unsafe {
            let mut count = 0;
            let list = device::get_device_list(&raw mut count);
            assert_eq!(count, 1);
            let context = open::open_device(*list);
            device::free_device_list(list);
            assert!(!context.is_null());
            let pd = memory::alloc_pd(context);
            let channel = cq::create_comp_channel(context);
            let queue = cq::create_cq(context, 64, null_mut(), channel, 0);
            let at = memory.as_mut_ptr().cast::<c_void>();
            let mr = memory::reg_mr(pd, at, 8192, LOCAL_WRITE | REMOTE);
            assert!(!pd.is_null() && !channel.is_null() && !queue.is_null() && !mr.is_null());
            Self {
                context,
                pd,
                channel,
                cq: queue,
                mr,
                memory,
            }
        }
    }

    pub(crate) fn piece(&self, range: std::ops::Range<usize>) -> Sge {
        Sge {
            addr: self.memory[range.clone()].as_ptr().addr() as u64,
            length: range.len() as u32,
            // SAFETY: it is registered.
            lkey: unsafe { (*self.mr).lkey },
        }
    }

    fn init(&self) -> QpInitAttr {
        QpInitAttr {
            qp_context: null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: null_mut(),
            cap: abi::QpCap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 32,
            },
            qp_type: 2,
            sq_sig_all: 0,
        }
    }

    /// A queue pair that is connected to itself or another one of this device.
    pub(crate) fn qp(&self) -> *mut abi::Qp {
        let mut init = self.init();
        // SAFETY: the domain and the queue exist.
        let qp = unsafe { qp::create_qp(self.pd, &raw mut init) };
        assert!(!qp.is_null() && init.cap.max_inline_data >= 32);
        qp
    }

    /// The inline bytes of a queue pair with lists of that many elements, if none are requested.
    fn inline_of(&self, max_send_sge: u32) -> u32 {
        let mut init = self.init();
        (init.cap.max_send_sge, init.cap.max_inline_data) = (max_send_sge, 0);
        // SAFETY: as above; it is no longer used.
        unsafe {
            let qp = qp::create_qp(self.pd, &raw mut init);
            assert!(!qp.is_null(), "{max_send_sge} elements");
            assert_eq!(qp::destroy_qp(qp), 0);
        }
        init.cap.max_inline_data
    }

    pub(crate) fn connect(&self, from: *mut abi::Qp, to: *mut abi::Qp) {
        // SAFETY: both exist; attributes of zeros are valid.
        unsafe {
            let mut gid = [0; 2];
            assert_eq!(device::query_gid(self.context, 1, 0, &raw mut gid), 0);
            let mut attr: QpAttr = zeroed();
            attr.qp_state = 1;
            attr.port_num = 1;
            attr.qp_access_flags = REMOTE as u32;
            assert_eq!(qp::modify_qp(from, &attr, 1 | 1 << 3 | 1 << 4 | 1 << 5), 0);
            attr.qp_state = 2;
            attr.path_mtu = 3;
            attr.dest_qp_num = (*to).qp_num;
            attr.ah_attr = AhAttr {
                is_global: 1,
                port_num: 1,
                ..AhAttr::default()
            };
            attr.ah_attr.grh.dgid = gid;
            attr.ah_attr.grh.hop_limit = 64;
            (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (4, 12);
            let rtr = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
            assert_eq!(qp::modify_qp(from, &attr, rtr), 0);
            attr.qp_state = 3;
            // 8.6 s in all: packets go over sockets, and a thread may wait for its processor.
            (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (18, 7, 7);
            attr.max_rd_atomic = 4;
            let rts = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
            assert_eq!(qp::modify_qp(from, &attr, rts), 0);
            assert_eq!((*from).state, 3);
        }
    }

    pub(crate) fn poll(&self) -> Wc {
        poll_one(self.cq)
    }

    /// Destroys all in order.
    pub(crate) fn close(self) {
        // SAFETY: none of it is used any longer.
        unsafe {
            assert_eq!(memory::dereg_mr(self.mr), 0);
            assert_eq!(cq::destroy_cq(self.cq), 0);
            assert_eq!(cq::destroy_comp_channel(self.channel), 0);
            assert_eq!(memory::dealloc_pd(self.pd), 0);
            assert_eq!(open::close_device(self.context), 0);
        }
    }
}

pub(crate) fn send(wr_id: u64, list: &[Sge], opcode: u32, flags: u32) -> SendWr {
    // SAFETY: a work request of zeros is valid.
    let mut wr: SendWr = unsafe { zeroed() };
    (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, flags);
    (wr.sg_list, wr.num_sge) = (list.as_ptr(), list.len() as c_int);
    wr
}

pub(crate) fn post(qp: *mut abi::Qp, wr: &SendWr) -> c_int {
    let mut bad = null();
    // SAFETY: the queue pair exists, and the lists live for the call.
    let posted = unsafe { qp::post_send(qp, wr, &raw mut bad) };
    assert_eq!(posted != 0, std::ptr::eq(bad, wr));
    posted
}

pub(crate) fn post_recv(qp: *mut abi::Qp, wr_id: u64, list: &[Sge]) -> c_int {
    let (next, sg_list, num_sge) = (null(), list.as_ptr(), list.len() as c_int);
    let wr = RecvWr {
        wr_id,
        next,
        sg_list,
        num_sge,
    };
    let mut bad = null();
    // SAFETY: as above.
    unsafe { qp::post_recv(qp, &wr, &raw mut bad) }
}

/// Goal: bytes, immediate data, events and their acknowledgement, from one queue pair to another.
#[test]
fn a_message_goes_from_one_queue_pair_to_another() {
    let mut bed = Bed::new();
    let (a, b) = (bed.qp(), bed.qp());
    bed.connect(a, b);
    bed.connect(b, a);
    bed.memory[..5].copy_from_slice(b"hello");
    // SAFETY: the queue exists.
    assert_eq!(unsafe { cq::req_notify_cq(bed.cq, 0) }, 0);
    assert_eq!(post_recv(b, 7, &[bed.piece(4096..8192)]), 0);
    let pieces = [bed.piece(0..3), bed.piece(3..5)];
    let mut wr = send(9, &pieces, opcode::SEND_WITH_IMM, 2);
    wr.imm_or_key = 0x0102_0304_u32.to_be();
    assert_eq!(post(a, &wr), 0);
    // SAFETY: the channel exists; the event is acknowledged.
    unsafe {
        let (mut fired, mut about) = (null_mut(), null_mut());
        assert_eq!(
            cq::get_cq_event(bed.channel, &raw mut fired, &raw mut about),
            0
        );
        assert_eq!(fired, bed.cq);
        cq::ack_cq_events(fired, 1);
    }
    let mut both = [bed.poll(), bed.poll()];
    both.sort_by_key(|wc| wc.wr_id);
    let [received, sent] = both;
    assert_eq!(
        (received.status, received.opcode, received.byte_len),
        (0, 128, 5)
    );
    assert_eq!(
        (received.wc_flags & 2, received.imm_or_key),
        (2, wr.imm_or_key)
    );
    assert_eq!((sent.wr_id, sent.status), (9, 0));
    assert_eq!(&bed.memory[4096..4101], b"hello");
    // SAFETY: none of them is used any longer.
    unsafe {
        assert_eq!(cq::destroy_cq(bed.cq), libc::EBUSY);
        assert_eq!(memory::dealloc_pd(bed.pd), libc::EBUSY);
        assert_eq!(cq::destroy_comp_channel(bed.channel), libc::EBUSY);
        assert_eq!((qp::destroy_qp(a), qp::destroy_qp(b)), (0, 0));
    }
    bed.close();
}

/// Work requests and pieces where a program's packed structure has them: at odd addresses.
#[repr(C, packed)]
struct Packed<W> {
    _header: u8,
    wrs: [W; 2],
    pieces: [Sge; 2],
}

impl<W> Packed<W> {
    /// In place, as the work requests name each other and their pieces.
    fn new(wrs: [W; 2], pieces: [Sge; 2], link: fn(&mut W, *const W, *const Sge)) -> Box<Self> {
        let _header = 0;
        let mut this = Box::new(Self {
            _header,
            wrs,
            pieces,
        });
        let at = this.at();
        let pieces = (&raw const this.pieces).cast::<Sge>();
        for (n, next) in [at[1], null()].into_iter().enumerate() {
            let place = at[n].cast_mut();
            // SAFETY: within the structure, wherever that is; each has one piece.
            unsafe {
                let mut wr = place.read_unaligned();
                link(&mut wr, next, pieces.add(n));
                place.write_unaligned(wr);
            }
        }
        this
    }

    fn at(&mut self) -> [*const W; 2] {
        let first = (&raw mut self.wrs).cast::<W>().cast_const();
        // SAFETY: there are two.
        [first, unsafe { first.add(1) }]
    }
}

/// Goal: a program may keep work requests and their pieces in packed structures, as libiscsi does; one that is not
/// accepted is identified where the program has it.
#[test]
fn work_requests_of_packed_structures_are_posted() {
    let mut bed = Bed::new();
    let (a, b) = (bed.qp(), bed.qp());
    bed.connect(a, b);
    bed.connect(b, a);
    bed.memory[..10].copy_from_slice(b"helloworld");
    let recv = |wr_id| RecvWr {
        wr_id,
        next: null(),
        sg_list: null(),
        num_sge: 1,
    };
    let into = [bed.piece(4096..4101), bed.piece(4101..4106)];
    let mut receives = Packed::new([recv(1), recv(2)], into, |wr, next, list| {
        (wr.next, wr.sg_list) = (next, list);
    });
    let from = [bed.piece(0..5), bed.piece(5..10)];
    let link = |wr: &mut SendWr, next: *const SendWr, list: *const Sge| {
        (wr.next, wr.sg_list, wr.num_sge) = (next, list, 1);
    };
    let one = |wr_id, opcode| send(wr_id, &[], opcode, 2);
    let mut sends = Packed::new([one(3, opcode::SEND), one(4, opcode::SEND)], from, link);
    let mut wrong = Packed::new([one(5, opcode::SEND), one(6, 99)], from, link);
    assert!(!sends.at()[0].is_aligned() && !receives.at()[0].is_aligned());
    let (mut bad, mut bad_recv) = (null(), null());
    // SAFETY: the queue pairs exist, and the lists live for the calls.
    unsafe {
        assert_eq!(qp::post_recv(b, receives.at()[0], &raw mut bad_recv), 0);
        assert_eq!(qp::post_send(a, sends.at()[0], &raw mut bad), 0);
    }
    let mut done = [(); 4].map(|()| bed.poll());
    done.sort_by_key(|wc| wc.wr_id);
    assert_eq!(
        done.map(|wc| (wc.wr_id, wc.status)),
        [(1, 0), (2, 0), (3, 0), (4, 0)]
    );
    assert_eq!(&bed.memory[4096..4106], b"helloworld");
    assert_eq!(post_recv(b, 7, &[into[0]]), 0);
    // SAFETY: as above.
    let code = unsafe { qp::post_send(a, wrong.at()[0], &raw mut bad) };
    assert_eq!((code, bad), (libc::EINVAL, wrong.at()[1]));
    // SAFETY: none of them is used any longer.
    unsafe { assert_eq!((qp::destroy_qp(a), qp::destroy_qp(b)), (0, 0)) };
    bed.close();
}

/// Goal: a work request that cannot be posted is refused with the number that libibverbs returns, and is identified.
#[test]
fn what_cannot_be_posted_is_refused() {
    let bed = Bed::new();
    let (a, b) = (bed.qp(), bed.qp());
    let one = [bed.piece(0..1)];
    assert_eq!(
        post(a, &send(1, &one, opcode::SEND, 2)),
        libc::EINVAL,
        "RESET"
    );
    bed.connect(a, b);
    assert_eq!(post(a, &send(1, &one, 99, 2)), libc::EINVAL, "no operation");
    let three = [one[0]; 3];
    assert_eq!(
        post(a, &send(1, &three, opcode::SEND, 2)),
        libc::EINVAL,
        "pieces"
    );
    let long = [bed.piece(0..4096)];
    assert_eq!(
        post(a, &send(1, &long, opcode::SEND, 2 | 8)),
        libc::EINVAL,
        "inline"
    );
    let mut posted = 0;
    while post(b, &send(1, &one, opcode::SEND, 2)) == 0 {
        posted += 1;
    }
    assert_eq!(posted, 0, "b is in RESET");
    let mut receives = 0;
    while post_recv(a, receives, &one) == 0 {
        receives += 1;
    }
    assert!((4..64).contains(&receives), "{receives} before it was full");
    // SAFETY: none of them is used any longer.
    unsafe { assert_eq!((qp::destroy_qp(a), qp::destroy_qp(b)), (0, 0)) };
    bed.close();
}

/// Goal: pointers that are not, or no longer, objects, and sizes and flags that make no sense, each return an error
/// number, and nothing is lost.
#[test]
fn arguments_that_make_no_sense_are_refused() {
    let bed = Bed::new();
    // SAFETY: the functions look their pointers up before they use them.
    unsafe {
        let (no_pd, no_cq) = (bed.cq.cast::<abi::Pd>(), bed.pd.cast::<abi::Cq>());
        assert_eq!(memory::dealloc_pd(no_pd), libc::EINVAL);
        assert_eq!(memory::dealloc_pd(null_mut()), libc::EINVAL);
        assert_eq!(cq::destroy_cq(no_cq), libc::EINVAL);
        assert!(cq::create_cq(bed.context, 0, null_mut(), null_mut(), 0).is_null());
        assert!(cq::create_cq(bed.context, 1, null_mut(), null_mut(), 1).is_null());
        assert!(cq::create_cq(bed.context, c_int::MAX, null_mut(), null_mut(), 0).is_null());
        let mut init = bed.init();
        init.cap.max_send_wr = u32::MAX;
        assert!(qp::create_qp(bed.pd, &raw mut init).is_null());
        let mut init = bed.init();
        init.send_cq = no_cq;
        assert!(qp::create_qp(bed.pd, &raw mut init).is_null());
        let mut init = bed.init();
        init.qp_type = 8;
        assert!(
            qp::create_qp(bed.pd, &raw mut init).is_null(),
            "raw packets"
        );
        let at = std::ptr::without_provenance_mut(4096);
        assert!(
            memory::reg_mr(bed.pd, at, 4096, LOCAL_WRITE).is_null(),
            "not mapped"
        );
        let own = (*bed.mr).addr;
        assert!(
            memory::reg_mr(bed.pd, own, 16, REMOTE).is_null(),
            "no local write"
        );
        assert!(memory::reg_mr(bed.pd, own, usize::MAX, LOCAL_WRITE).is_null());
        assert!(
            ah::create_ah(bed.pd, &AhAttr::default()).is_null(),
            "no route"
        );
        let qp = bed.qp();
        let attr: QpAttr = zeroed();
        assert_eq!(
            qp::modify_qp(qp, &attr, 1 << 14),
            libc::EINVAL,
            "alternate path"
        );
        assert_eq!(
            qp::modify_qp(
                qp,
                &QpAttr {
                    qp_state: 3,
                    ..attr
                },
                1
            ),
            libc::EINVAL
        );
        assert_eq!(qp::destroy_qp(qp), 0);
        assert_eq!(qp::destroy_qp(qp), libc::EINVAL, "destroyed");
    }
    bed.close();
}

/// Goal: programs that post a few bytes inline without having requested them work, as with other drivers.
#[test]
fn a_list_has_room_for_its_size_inline() {
    let bed = Bed::new();
    assert_eq!([1, 4].map(|elements| bed.inline_of(elements)), [16, 64]);
    // The longest list is as long as the most inline bytes.
    assert_eq!(bed.inline_of(16), 256);
    bed.close();
}

/// Goal: a shared queue reports once that it has fallen below its limit, and its destroy waits for the acknowledgement.
#[test]
fn a_limit_is_heard_of_and_acknowledged() {
    let bed = Bed::new();
    // SAFETY: as a C program would.
    unsafe {
        let attr = abi::SrqAttr {
            max_wr: 8,
            max_sge: 1,
            srq_limit: 0,
        };
        let mut init = abi::SrqInitAttr {
            srq_context: null_mut(),
            attr,
        };
        let queue = srq::create_srq(bed.pd, &raw mut init);
        assert!(!queue.is_null());
        let limit = abi::SrqAttr {
            srq_limit: 4,
            ..attr
        };
        // Nothing is posted, so it is below at once.
        assert_eq!(srq::modify_srq(queue, &limit, 1 << 1), 0);
        let list = [bed.piece(0..8)];
        let wr = RecvWr {
            wr_id: 1,
            next: null(),
            sg_list: list.as_ptr(),
            num_sge: 1,
        };
        let mut bad = null();
        assert_eq!(srq::post_srq_recv(queue, &wr, &raw mut bad), 0);
        let (a, mut with_srq) = (bed.qp(), bed.init());
        with_srq.srq = queue;
        let b = qp::create_qp(bed.pd, &raw mut with_srq);
        bed.connect(a, b);
        bed.connect(b, a);
        assert_eq!(post(a, &send(2, &[bed.piece(16..24)], opcode::SEND, 2)), 0);
        let _ = (bed.poll(), bed.poll());
        let mut event = zeroed();
        assert_eq!(device::get_async_event(bed.context, &raw mut event), 0);
        assert_eq!((event.event_type, event.element), (15, queue.addr() as u64));
        assert_eq!(srq::destroy_srq(queue), libc::EBUSY);
        assert_eq!((qp::destroy_qp(a), qp::destroy_qp(b)), (0, 0));
        let event = (event.element, event.event_type);
        let acknowledging = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            let (element, event_type) = event;
            let mut event = abi::AsyncEvent {
                element,
                event_type,
            };
            let before = Instant::now();
            device::ack_async_event(&raw mut event);
            before
        });
        assert_eq!(srq::destroy_srq(queue), 0);
        let destroyed = Instant::now();
        assert!(
            acknowledging.join().expect("no panic") <= destroyed,
            "it waits"
        );
    }
    bed.close();
}

/// Goal: completions of a queue pair that is destroyed are dropped, and no others.
#[test]
fn completions_of_a_destroyed_queue_pair_are_gone() {
    let bed = Bed::new();
    let pairs = [bed.qp(), bed.qp()];
    for (n, &qp) in pairs.iter().enumerate() {
        bed.connect(qp, qp);
        assert_eq!(post_recv(qp, 10 + n as u64, &[bed.piece(64..128)]), 0);
        assert_eq!(
            post(
                qp,
                &send(20 + n as u64, &[bed.piece(0..8)], opcode::SEND, 2)
            ),
            0
        );
    }
    // All four exist: each queue pair completes its own message.
    std::thread::sleep(Duration::from_millis(100));
    // SAFETY: none of it is used any longer.
    unsafe { assert_eq!(qp::destroy_qp(pairs[0]), 0) };
    let mut ids = [bed.poll().wr_id, bed.poll().wr_id];
    ids.sort_unstable();
    assert_eq!(ids, [11, 21]);
    // SAFETY: a queue that exists; room for one.
    unsafe {
        let mut wc: Wc = zeroed();
        assert_eq!(cq::poll_cq(bed.cq, 1, &raw mut wc), 0);
        assert_eq!(qp::destroy_qp(pairs[1]), 0);
    }
    bed.close();
}

/// Goal: a destroy with receives posted raises no event, from any state, and leaves the completion queue armed. Method: what a
/// destroy raises waits at the channel when it returns; a message then fires the queue.
#[test]
fn a_destroy_tells_of_nothing() {
    let bed = Bed::new();
    let is_readable = || {
        // SAFETY: the channel exists.
        let fd = unsafe { (*bed.channel).fd };
        let (events, revents) = (libc::POLLIN, 0);
        let mut poll = libc::pollfd {
            fd,
            events,
            revents,
        };
        // SAFETY: one place.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    };
    // SAFETY: as a C program would; the attributes are plain numbers.
    unsafe {
        assert_eq!(cq::req_notify_cq(bed.cq, 0), 0);
        for is_connected in [false, true] {
            let qp = bed.qp();
            if is_connected {
                bed.connect(qp, qp);
            } else {
                let mut attr: QpAttr = zeroed();
                (attr.qp_state, attr.port_num) = (1, 1);
                let init = 1 | 1 << 3 | 1 << 4 | 1 << 5;
                assert_eq!(qp::modify_qp(qp, &raw const attr, init), 0);
            }
            assert_eq!(post_recv(qp, 1, &[bed.piece(64..128)]), 0);
            assert_eq!(post_recv(qp, 2, &[bed.piece(64..128)]), 0);
            assert_eq!(qp::destroy_qp(qp), 0);
            assert!(!is_readable(), "connected: {is_connected}");
        }
        let qp = bed.qp();
        bed.connect(qp, qp);
        assert_eq!(post_recv(qp, 3, &[bed.piece(64..128)]), 0);
        assert_eq!(post(qp, &send(4, &[bed.piece(0..8)], opcode::SEND, 2)), 0);
        let (mut fired, mut about) = (null_mut(), null_mut());
        assert_eq!(
            cq::get_cq_event(bed.channel, &raw mut fired, &raw mut about),
            0
        );
        assert_eq!(fired, bed.cq);
        cq::ack_cq_events(fired, 1);
        let mut ids = [bed.poll().wr_id, bed.poll().wr_id];
        ids.sort_unstable();
        assert_eq!(ids, [3, 4]);
        assert_eq!(qp::destroy_qp(qp), 0);
    }
    bed.close();
}

/// Goal: rights that concern regions alone, which programs name among a queue pair's as well, are accepted, as the kernel does.
#[test]
fn rights_of_regions_mean_nothing_for_a_queue_pair() {
    let bed = Bed::new();
    let qp = bed.qp();
    // SAFETY: as a C program would; the attributes are plain numbers.
    unsafe {
        let mut attr: QpAttr = zeroed();
        (attr.qp_state, attr.port_num) = (1, 1);
        // Windows, huge pages and relaxed order; and what a peer may do.
        attr.qp_access_flags = 1 << 4 | 1 << 7 | 1 << 20 | REMOTE as u32;
        let init = 1 | 1 << 3 | 1 << 4 | 1 << 5;
        assert_eq!(qp::modify_qp(qp, &raw const attr, init), 0);
        let (mut found, mut caps): (QpAttr, QpInitAttr) = (zeroed(), zeroed());
        assert_eq!(qp::query_qp(qp, &raw mut found, init, &raw mut caps), 0);
        assert_eq!(found.qp_access_flags, REMOTE as u32);
        assert_eq!(qp::destroy_qp(qp), 0);
    }
    bed.close();
}

/// The next completion of a queue that exists.
pub(crate) fn poll_one(queue: *mut abi::Cq) -> Wc {
    let begun = Instant::now();
    loop {
        // SAFETY: room for one.
        let mut wc: Wc = unsafe { zeroed() };
        // SAFETY: the queue exists.
        if unsafe { cq::poll_cq(queue, 1, &raw mut wc) } == 1 {
            return wc;
        }
        assert!(begun.elapsed() < PATIENCE, "no completion");
        std::thread::yield_now();
    }
}

/// Goal: wrong arguments of the calls for extensions are error numbers, and write nothing.
#[test]
fn extensions_are_refused_for_wrong_arguments() {
    let bed = Bed::new();
    let name = c"hca_sim.capability_mask".as_ptr();
    let mut out = [0xee_u8; 4];
    let (mut len, mut nothing) = (4, 0);
    let (no_context, no_list) = (null_mut(), null_mut());
    let at = out.as_mut_ptr().cast::<c_void>();
    // SAFETY: as a C program would; null and what is not an object are refused.
    unsafe {
        let context = bed.context;
        let all = device::query_extensions(context, no_list, 0);
        assert!(all > 0);
        assert_eq!(device::query_extensions(context, no_list, 1), -1);
        assert_eq!(device::query_extensions(context, no_list, -1), -1);
        assert_eq!(device::query_extensions(no_context, no_list, 0), -1);
        let call = |context, name, input_len, len| {
            device::call_extension(context, name, 1, null(), input_len, at, len)
        };
        let invalid = libc::EINVAL;
        assert_eq!(call(no_context, name, 0, &raw mut len), invalid);
        assert_eq!(call(context, null(), 0, &raw mut len), invalid);
        assert_eq!(call(context, name, 1, &raw mut len), invalid);
        assert_eq!(call(context, name, 0, null_mut()), invalid);
        let unknown = c"\xff".as_ptr();
        assert_eq!(call(context, unknown, 0, &raw mut len), libc::EOPNOTSUPP);
        assert_eq!((out, len), ([0xee; 4], 4));
        assert_eq!(call(context, name, 0, &raw mut nothing), libc::ENOSPC);
        assert_eq!((out, nothing), ([0xee; 4], 4));
        assert_eq!(call(context, name, 0, &raw mut len), 0);
        assert_ne!(out, [0xee; 4]);
    }
}
