//! Work requests that calls build up before they are posted.

use std::cell::UnsafeCell;
use std::ops::Range;

use arrayvec::ArrayVec;
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use verbs_abi as abi;
use verbs_core::{
    Datagram, Dest, Payload, SendFlags, SendOp, SendQueue, SendWr, Sge, Shared, Srqn,
};

use crate::call::Errno;
use crate::call::live::look;
use crate::memory::Mw;

/// Work requests that are posted together.
const AT_A_TIME: usize = 16;

/// The work requests that a program builds, under a lock from start to end. The lists are kept, so that no message
/// allocates.
pub(super) struct Building {
    pub(super) lock: RawMutex,
    pub(super) built: UnsafeCell<Built>,
    pub(super) inline_max: usize,
}

#[derive(Default)]
pub(super) struct Built {
    pub(super) wrs: Vec<One>,
    pub(super) sges: Vec<Sge>,
    pub(super) inline: Vec<u8>,
    /// The first error, if any; then nothing is posted.
    pub(super) wrong: Option<Errno>,
}

/// One work request.
pub(super) struct One {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) flags: SendFlags,
    pub(super) data: Data,
    pub(super) to: To,
    /// The window that it binds.
    pub(super) mw: *mut abi::Mw,
}

pub(super) enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

pub(super) enum To {
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

impl Built {
    pub(super) fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
        self.wrong = None;
    }

    pub(super) fn post(&mut self, queue: &Shared<SendQueue>) -> Result<(), Errno> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        if let [one] = &*self.wrs {
            queue.post(self.work_request(one))?;
            one.remember_bind();
            return Ok(());
        }
        for some in self.wrs.chunks(AT_A_TIME) {
            let wrs: ArrayVec<_, AT_A_TIME> =
                some.iter().map(|one| self.work_request(one)).collect();
            let posted = queue.post_batch(&wrs);
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

    /// The one that is being built. A program that sets data before it has begun one makes an error.
    pub(super) fn last(&mut self) -> Option<&mut One> {
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

impl Built {
    pub(super) fn gather(&mut self, list: &[Sge]) {
        let begin = self.sges.len();
        self.sges.extend_from_slice(list);
        let end = self.sges.len();
        if let Some(one) = self.last() {
            one.data = Data::Sges(begin..end);
        }
    }

    pub(super) fn inline<'b>(&mut self, pieces: impl IntoIterator<Item = &'b [u8]>, max: usize) {
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
