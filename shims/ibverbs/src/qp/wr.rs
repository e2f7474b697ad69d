//! Work requests that are built by calls: `ibv_wr_start`, one call for the operation, others for its address and its
//! data, and `ibv_wr_complete`, which posts all that were built.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;

use arrayvec::ArrayVec;
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use verbs_core::{
    Access, Datagram, Dest, LKey, Payload, QpType, RKey, Remote, SendFlags, SendOp, SendWr, Sge,
    Srqn,
};

use super::Qp;
use super::post::{binding, datagram};
use crate::abi::{self, Ah, DataBuf, MwBindInfo, QpEx, QpExOps};
use crate::call::{Errno, caught, set_errno};
use crate::live::look;
use crate::memory::Mw;

/// Work requests that go to the device together.
const AT_A_TIME: usize = 16;

/// What a program builds, under a lock from start to end. The lists stay, so that no message allocates.
pub(super) struct Building {
    lock: RawMutex,
    built: UnsafeCell<Built>,
    inline_max: usize,
}

#[derive(Default)]
struct Built {
    wrs: Vec<One>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// The first thing that was wrong; nothing is posted then.
    wrong: Option<Errno>,
}

/// One work request.
struct One {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: Data,
    to: To,
    /// The window that it binds.
    mw: *mut abi::Mw,
}

enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

enum To {
    Peer,
    Datagram(Datagram),
    Srq(Srqn),
}

impl Building {
    pub(super) fn new(inline_max: u32) -> Self {
        Self {
            lock: RawMutex::INIT,
            built: UnsafeCell::default(),
            inline_max: inline_max as usize,
        }
    }
}

/// `ibv_qp_create_send_ops_flags`, and which types of queue pair have the operation (IBTA vol. 1, table 48).
pub(super) mod send_ops {
    use verbs_core::QpType;

    pub(super) const RDMA_WRITE: u64 = 1;
    pub(super) const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub(super) const SEND: u64 = 1 << 2;
    pub(super) const SEND_WITH_IMM: u64 = 1 << 3;
    pub(super) const RDMA_READ: u64 = 1 << 4;
    pub(super) const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub(super) const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub(super) const LOCAL_INV: u64 = 1 << 7;
    pub(super) const BIND_MW: u64 = 1 << 8;
    pub(super) const SEND_WITH_INV: u64 = 1 << 9;
    pub(in crate::qp) const ATOMIC_WRITE: u64 = 1 << 12;

    const DATAGRAM: u64 = SEND | SEND_WITH_IMM;
    const UNRELIABLE: u64 =
        DATAGRAM | RDMA_WRITE | RDMA_WRITE_WITH_IMM | BIND_MW | LOCAL_INV | SEND_WITH_INV;
    const RELIABLE: u64 =
        UNRELIABLE | RDMA_READ | ATOMIC_CMP_AND_SWP | ATOMIC_FETCH_AND_ADD | ATOMIC_WRITE;

    pub(super) const fn of(qp_type: QpType) -> u64 {
        match qp_type {
            QpType::Rc | QpType::XrcSend => RELIABLE,
            QpType::Uc => UNRELIABLE,
            QpType::Ud => DATAGRAM,
            _ => 0,
        }
    }
}

/// The functions for a queue pair of that type that is to have these operations.
pub(super) fn ops(qp_type: QpType, wanted: u64) -> Result<QpExOps, Errno> {
    if wanted & !send_ops::of(qp_type) != 0 {
        return Err(Errno::NOTSUP);
    }
    macro_rules! if_wanted {
        ($($field:ident : $bit:ident,)*) => {
            QpExOps {
                $($field: (wanted & send_ops::$bit != 0).then_some($field),)*
                wr_set_ud_addr: (qp_type == QpType::Ud).then_some(wr_set_ud_addr),
                wr_set_xrc_srqn: (qp_type == QpType::XrcSend).then_some(wr_set_xrc_srqn),
                wr_set_inline_data: Some(wr_set_inline_data),
                wr_set_inline_data_list: Some(wr_set_inline_data_list),
                wr_set_sge: Some(wr_set_sge),
                wr_set_sge_list: Some(wr_set_sge_list),
                wr_start: Some(wr_start),
                wr_complete: Some(wr_complete),
                wr_abort: Some(wr_abort),
                ..QpExOps::default()
            }
        };
    }
    Ok(if_wanted! {
        wr_rdma_write: RDMA_WRITE,
        wr_rdma_write_imm: RDMA_WRITE_WITH_IMM,
        wr_send: SEND,
        wr_send_imm: SEND_WITH_IMM,
        wr_rdma_read: RDMA_READ,
        wr_atomic_cmp_swp: ATOMIC_CMP_AND_SWP,
        wr_atomic_fetch_add: ATOMIC_FETCH_AND_ADD,
        wr_local_inv: LOCAL_INV,
        wr_bind_mw: BIND_MW,
        wr_send_inv: SEND_WITH_INV,
        wr_atomic_write: ATOMIC_WRITE,
    })
}

/// `ibv_qp_to_qp_ex`: NULL for a queue pair that was not created with operations.
pub(crate) unsafe extern "C" fn qp_to_qp_ex(qp: *mut abi::Qp) -> *mut QpEx {
    // SAFETY: the program does not destroy it now.
    match unsafe { look::<Qp, _>(qp) } {
        Ok(Qp {
            building: Some(_), ..
        }) => qp.cast(),
        _ => {
            set_errno(Errno::NOTSUP);
            null_mut()
        }
    }
}

/// The queue pair and what is being built on it.
///
/// # Safety
/// A queue pair that has these functions, between start and end, on the thread that has started.
unsafe fn building<'a>(qp: *mut QpEx) -> (&'a Qp, &'a Building, &'a mut Built) {
    // SAFETY: the caller's; these functions are only there where something is built.
    unsafe {
        let owner = &*qp.cast::<Qp>();
        let Some(building) = &owner.building else {
            unreachable!("a queue pair with these functions builds work requests")
        };
        (owner, building, &mut *building.built.get())
    }
}

unsafe extern "C" fn wr_start(qp: *mut QpEx) {
    // SAFETY: of a queue pair that the program does not destroy now.
    unsafe {
        let owner = &*qp.cast::<Qp>();
        if let Some(building) = &owner.building {
            building.lock.lock();
        }
        building(qp).2.clear();
    }
}

unsafe extern "C" fn wr_abort(qp: *mut QpEx) {
    // SAFETY: after wr_start on this thread.
    unsafe { building(qp).1.lock.unlock() }
}

unsafe extern "C" fn wr_complete(qp: *mut QpEx) -> c_int {
    // SAFETY: after wr_start on this thread.
    let (owner, building, built) = unsafe { building(qp) };
    let posted = caught(|| built.post(owner));
    // SAFETY: as above.
    unsafe { building.lock.unlock() }
    posted.map_or_else(|errno| errno.0, |()| 0)
}

impl Built {
    fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
        self.wrong = None;
    }

    fn post(&mut self, qp: &Qp) -> Result<(), Errno> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        if let [one] = &*self.wrs {
            qp.send.post(self.work_request(one))?;
            one.remember_bind();
            return Ok(());
        }
        for some in self.wrs.chunks(AT_A_TIME) {
            let wrs: ArrayVec<_, AT_A_TIME> =
                some.iter().map(|one| self.work_request(one)).collect();
            let posted = qp.send.post_batch(&wrs);
            let count = posted.map_or_else(|error| error.posted, |()| some.len());
            some[..count].iter().for_each(One::remember_bind);
            posted.map_err(|error| Errno::from(error.error))?;
        }
        Ok(())
    }

    fn work_request<'a>(&'a self, one: &'a One) -> SendWr<'a> {
        let (payload, inline) = match &one.data {
            Data::Inline(range) => (
                Payload::Inline(&self.inline[range.clone()]),
                SendFlags::INLINE,
            ),
            Data::Sges(range) => match &self.sges[range.clone()] {
                [one] => (Payload::One(*one), SendFlags::empty()),
                list => (Payload::List(list), SendFlags::empty()),
            },
        };
        SendWr {
            wr_id: one.wr_id,
            op: one.op,
            flags: one.flags.difference(SendFlags::INLINE) | inline,
            payload,
            dest: match &one.to {
                To::Peer => Dest::Peer,
                To::Datagram(datagram) => Dest::Datagram(datagram),
                To::Srq(srqn) => Dest::Srq(*srqn),
            },
        }
    }

    /// The one that is being built. A program that sets data before it has begun one has done wrong.
    fn last(&mut self) -> Option<&mut One> {
        if self.wrs.is_empty() {
            self.wrong.get_or_insert(Errno::INVAL);
        }
        self.wrs.last_mut()
    }
}

impl One {
    fn remember_bind(&self) {
        if let SendOp::BindMw(what) = self.op {
            // SAFETY: the program keeps it until the bind has completed.
            if let Ok(mw) = unsafe { look::<Mw, _>(self.mw) } {
                mw.bound(what.rkey);
            }
        }
    }
}

/// Begins the next work request.
///
/// # Safety
/// As [`building`].
unsafe fn begin<'a>(qp: *mut QpEx, op: SendOp) -> (&'a Building, &'a mut Built) {
    // SAFETY: the caller's; the program has set the fields before.
    let ((_, building, built), wr_id, flags) =
        unsafe { (building(qp), (*qp).wr_id, (*qp).wr_flags) };
    let end = built.sges.len();
    built.wrs.push(One {
        wr_id,
        op,
        flags: SendFlags::from_bits_truncate(flags),
        data: Data::Sges(end..end),
        to: To::Peer,
        mw: null_mut(),
    });
    (building, built)
}

fn remote(rkey: u32, addr: u64) -> Remote {
    let rkey = RKey::new(rkey);
    Remote { addr, rkey }
}

macro_rules! begins {
    ($($name:ident($($arg:ident : $Type:ty),*) => $op:expr;)*) => { $(
        unsafe extern "C" fn $name(qp: *mut QpEx, $($arg: $Type),*) {
            // SAFETY: after wr_start on this thread.
            unsafe { begin(qp, $op) };
        }
    )* };
}

begins! {
    wr_send() => SendOp::Send;
    wr_send_imm(imm: u32) => SendOp::SendWithImm(u32::from_be(imm));
    wr_send_inv(key: u32) => SendOp::SendWithInv(RKey::new(key));
    wr_local_inv(key: u32) => SendOp::LocalInv(RKey::new(key));
    wr_rdma_read(rkey: u32, addr: u64) => SendOp::Read(remote(rkey, addr));
    wr_rdma_write(rkey: u32, addr: u64) => SendOp::Write(remote(rkey, addr));
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) => SendOp::WriteWithImm(remote(rkey, addr), u32::from_be(imm));
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) => SendOp::CompareSwap {
        remote: remote(rkey, addr),
        compare,
        swap,
    };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) => SendOp::FetchAdd { remote: remote(rkey, addr), add };
}

/// The 8 bytes are copied now.
unsafe extern "C" fn wr_atomic_write(qp: *mut QpEx, rkey: u32, addr: u64, value: *const c_void) {
    // SAFETY: after wr_start on this thread; 8 bytes are the program's.
    unsafe {
        let (_, built) = begin(qp, SendOp::AtomicWrite(remote(rkey, addr)));
        built.inline(&[std::slice::from_raw_parts(value.cast(), 8)], 8);
    }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut QpEx,
    mw: *mut abi::Mw,
    rkey: u32,
    info: *const MwBindInfo,
) {
    let rkey = RKey::new(rkey);
    // SAFETY: after wr_start on this thread; the program destroys neither now.
    unsafe {
        let what = info.as_ref().ok_or(Errno::INVAL);
        let what = what.and_then(|info| binding(mw, rkey, info));
        let op = SendOp::BindMw(what.unwrap_or(verbs_core::Binding {
            mw: rkey,
            rkey,
            lkey: LKey::default(),
            access: Access::empty(),
            addr: 0,
            len: 0,
        }));
        let (_, built) = begin(qp, op);
        if let Err(errno) = what {
            built.wrong.get_or_insert(errno);
        }
        if let Some(one) = built.wrs.last_mut() {
            one.mw = mw;
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut QpEx, ah: *mut Ah, qpn: u32, qkey: u32) {
    // SAFETY: after wr_start on this thread; a handle that is not destroyed now.
    let (built, to) = unsafe { (building(qp).2, datagram(ah, qpn, qkey)) };
    match to {
        Ok(to) => {
            if let Some(one) = built.last() {
                one.to = To::Datagram(to);
            }
        }
        Err(errno) => {
            built.wrong.get_or_insert(errno);
        }
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut QpEx, srqn: u32) {
    // SAFETY: after wr_start on this thread.
    if let Some(one) = unsafe { building(qp) }.2.last() {
        one.to = To::Srq(Srqn::new(srqn));
    }
}

impl Built {
    fn gather(&mut self, list: &[Sge]) {
        let begin = self.sges.len();
        self.sges.extend_from_slice(list);
        let end = self.sges.len();
        if let Some(one) = self.last() {
            one.data = Data::Sges(begin..end);
        }
    }

    fn inline(&mut self, pieces: &[&[u8]], max: usize) {
        let begin = self.inline.len();
        for piece in pieces {
            self.inline.extend_from_slice(piece);
        }
        let end = self.inline.len();
        if end - begin > max {
            self.wrong.get_or_insert(Errno::INVAL);
        }
        if let Some(one) = self.last() {
            one.data = Data::Inline(begin..end);
        }
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut QpEx, lkey: u32, addr: u64, len: u32) {
    let lkey = LKey::new(lkey);
    // SAFETY: after wr_start on this thread.
    unsafe { building(qp) }.2.gather(&[Sge { addr, len, lkey }]);
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut QpEx, count: usize, list: *const abi::Sge) {
    // SAFETY: after wr_start on this thread; that many entries are the program's, laid out as ours are.
    unsafe {
        let list = match count {
            0 => &[],
            count => std::slice::from_raw_parts(list.cast::<Sge>(), count),
        };
        building(qp).2.gather(list);
    }
}

/// The bytes of a buffer of the program's.
///
/// # Safety
/// They are the program's, and no other thread of it writes them now.
unsafe fn bytes<'a>(addr: *const c_void, length: usize) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: the caller's.
        length => unsafe { std::slice::from_raw_parts(addr.cast(), length) },
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut QpEx, addr: *const c_void, length: usize) {
    // SAFETY: after wr_start on this thread; the bytes are the program's.
    unsafe {
        let (_, building, built) = building(qp);
        built.inline(&[bytes(addr, length)], building.inline_max);
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut QpEx, count: usize, list: *const DataBuf) {
    // SAFETY: after wr_start on this thread; that many buffers are the program's.
    unsafe {
        let (_, building, built) = building(qp);
        let begin = built.inline.len();
        built.inline(&[], building.inline_max);
        for n in 0..count {
            let buffer = &*list.add(n);
            built
                .inline
                .extend_from_slice(bytes(buffer.addr, buffer.length));
        }
        let end = built.inline.len();
        if end - begin > building.inline_max {
            built.wrong.get_or_insert(Errno::INVAL);
        }
        if let Some(one) = built.last() {
            one.data = Data::Inline(begin..end);
        }
    }
}
