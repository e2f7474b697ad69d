//! RDMA with a datagram: memory that a peer may reach, and operations on a peer's memory.
//!
//! A program maps memory ([`RdsSocket::get_mr`](crate::RdsSocket::get_mr)) and sends the [`Cookie`] to its peer with a
//! datagram. The peer answers with a datagram that carries an operation: the READ, WRITE or atomic is carried out on the same
//! connection right before the datagram, so that a program that has received the datagram finds the memory as the operation has
//! left it. A datagram is transmitted again when the connection is lost, an operation is not: it ends with
//! [`RdmaStatus::Dropped`], and so does its datagram.

use std::fmt;
use std::ops::Range;

use verbs_core::sync::{Arc, Mutex};
use verbs_core::wr::Atomic;
use verbs_core::{AtomicCap, DeviceAttr, Memory, Mr, PostError, Read, Remote, SendQueue, Write};

use crate::error::{Error, SendError};
use crate::machine::RdmaWork;
use crate::node::maps::Kept;
use crate::wire::Cookie;

/// A piece of this node's memory, as the near end of an operation. [`Node::register`](crate::Node::register) makes the region.
#[derive(Clone, Debug)]
pub struct Local {
    /// The region.
    pub mr: Arc<Mr>,
    /// Which bytes of it.
    pub range: Range<usize>,
}

/// An operation that is carried out before a datagram.
#[derive(Clone, Debug)]
pub struct Rdma {
    pub(crate) op: Op,
    pub(crate) cookie: Cookie,
    /// Bytes from where the cookie points.
    pub(crate) offset: u64,
    pub(crate) local: Local,
    pub(crate) fenced: bool,
    pub(crate) notify: Option<u64>,
    pub(crate) silent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write,
    CompareSwap {
        compare: u64,
        swap: u64,
        masks: Option<(u64, u64)>,
    },
    FetchAdd {
        add: u64,
        boundary: Option<u64>,
    },
}

impl Rdma {
    /// Reads as many bytes as `into` has, from `offset` bytes behind where the cookie points.
    pub fn read(cookie: Cookie, offset: u64, into: Local) -> Self {
        Self::new(Op::Read, cookie, offset, into)
    }

    /// Writes the bytes of `from`.
    pub fn write(cookie: Cookie, offset: u64, from: Local) -> Self {
        Self::new(Op::Write, cookie, offset, from)
    }

    /// Replaces 8 aligned bytes by `swap` if they are `compare`; `old`, of 8 bytes, takes what they were.
    pub fn compare_swap(cookie: Cookie, offset: u64, old: Local, compare: u64, swap: u64) -> Self {
        let masks = None;
        Self::new(
            Op::CompareSwap {
                compare,
                swap,
                masks,
            },
            cookie,
            offset,
            old,
        )
    }

    /// Adds to 8 aligned bytes; `old`, of 8 bytes, takes what they were.
    pub fn fetch_add(cookie: Cookie, offset: u64, old: Local, add: u64) -> Self {
        let boundary = None;
        Self::new(Op::FetchAdd { add, boundary }, cookie, offset, old)
    }

    /// Compares only those bits and replaces only these: makes a compare and swap a masked one.
    pub fn masks(mut self, compare_mask: u64, swap_mask: u64) -> Self {
        if let Op::CompareSwap { masks, .. } = &mut self.op {
            *masks = Some((compare_mask, swap_mask));
        }
        self
    }

    /// Adds several numbers in one word, whose highest bits are set here: makes a fetch and add a masked one.
    pub fn fields(mut self, highest: u64) -> Self {
        if let Op::FetchAdd { boundary, .. } = &mut self.op {
            *boundary = Some(highest);
        }
        self
    }

    /// The datagram leaves only when a READ or an atomic has ended, not right behind its request.
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// The end is told: [`RdsSocket::notified`](crate::RdsSocket::notified) yields `token`, with the status.
    pub fn notify(mut self, token: u64) -> Self {
        self.notify = Some(token);
        self
    }

    /// The peer's program is not woken for the datagram; it finds it when it looks.
    pub fn silent(mut self) -> Self {
        self.silent = true;
        self
    }

    fn new(op: Op, cookie: Cookie, offset: u64, local: Local) -> Self {
        Self {
            op,
            cookie,
            offset,
            local,
            fenced: false,
            notify: None,
            silent: false,
        }
    }

    /// What the connection's machine knows of it.
    pub(crate) fn work(&self, id: u64) -> RdmaWork {
        RdmaWork {
            id,
            fenced: self.fenced,
            silent: self.silent,
        }
    }

    /// Whether the device has it, and its near end is where it says, and as long as it has to be.
    pub(crate) fn check(&self, atomics: Atomics) -> Result<(), SendError> {
        match self.op {
            Op::CompareSwap { masks: None, .. } | Op::FetchAdd { boundary: None, .. }
                if !atomics.plain =>
            {
                return Err(SendError::Unsupported("atomics"));
            }
            Op::CompareSwap { masks: Some(_), .. }
            | Op::FetchAdd {
                boundary: Some(_), ..
            } if !atomics.masked => {
                return Err(SendError::Unsupported("masked atomics"));
            }
            _ => {}
        }
        let (Range { start, end }, len) = (self.local.range.clone(), self.local.mr.len());
        let is_atomic = !matches!(self.op, Op::Read | Op::Write);
        match start <= end && end <= len && (!is_atomic || end - start == 8) {
            true => Ok(()),
            false => Err(SendError::RdmaLocal { start, end, len }),
        }
    }

    /// Posts it.
    pub(crate) fn post(&self, queue: &mut SendQueue, id: u64) -> Result<(), PostError> {
        let remote = Remote {
            addr: u64::from(self.cookie.offset).wrapping_add(self.offset),
            rkey: self.cookie.rkey,
        };
        let local = self.local.mr.slice(self.local.range.clone());
        match self.op {
            Op::Read => queue.post(Read::new(id, remote).into(local).signaled()),
            Op::Write => queue.post(Write::new(id, remote).from(local).signaled()),
            Op::CompareSwap {
                compare,
                swap,
                masks,
            } => {
                let atomic = Atomic::compare_swap(id, remote, compare, swap);
                let atomic = match masks {
                    Some((compared, replaced)) => atomic.masks(compared, replaced),
                    None => atomic,
                };
                queue.post(atomic.into(local).signaled())
            }
            Op::FetchAdd { add, boundary } => {
                let atomic = Atomic::fetch_add(id, remote, add);
                let atomic = match boundary {
                    Some(highest) => atomic.fields(highest),
                    None => atomic,
                };
                queue.post(atomic.into(local).signaled())
            }
        }
    }
}

/// Which atomics a device has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomics {
    plain: bool,
    masked: bool,
}

impl Atomics {
    pub(crate) fn of(attr: &DeviceAttr) -> Self {
        Self {
            plain: attr.atomic_cap != AtomicCap::None,
            masked: attr.masked_atomic_cap != AtomicCap::None,
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaStatus {
    /// It was carried out.
    Success,
    /// The peer refused it: the cookie's mapping is gone, too short, or grants less. The connection is made again.
    RemoteError,
    /// Its datagram was cancelled before it began.
    Cancelled,
    /// The connection was lost; whether it was carried out is not known.
    Dropped,
}

/// The end of an operation with [`Rdma::notify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// What was given to `notify`.
    pub token: u64,
    /// How it ended.
    pub status: RdmaStatus,
}

/// What goes with a datagram beside its payload.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SendOptions {
    /// Memory that the receiver may read or write: [`Mapping::cookie`].
    pub cookie: Option<Cookie>,
    /// An operation on the receiver's memory that is carried out before.
    pub rdma: Option<Rdma>,
}

impl SendOptions {
    /// Lets the receiver reach that memory.
    pub fn with_cookie(cookie: Cookie) -> Self {
        Self {
            cookie: Some(cookie),
            rdma: None,
        }
    }

    /// Carries that out before.
    pub fn with_rdma(rdma: Rdma) -> Self {
        Self {
            cookie: None,
            rdma: Some(rdma),
        }
    }
}

/// Memory that peers with the [`Cookie`] may read and write. Dropping it ends that at once: the key is invalid, and
/// a peer's operation under way fails.
pub struct Mapping {
    pub(crate) shared: Arc<Mapped>,
}

/// A mapping, as the node knows it too when it is for one use.
pub(crate) struct Mapped {
    pub(crate) cookie: Cookie,
    memory: Arc<Memory>,
    is_pooled: bool,
    kept: Mutex<Option<Kept>>,
}

impl Mapped {
    pub(crate) fn new(memory: Arc<Memory>, cookie: Cookie, kept: Kept) -> Self {
        Self {
            cookie,
            memory,
            is_pooled: matches!(kept, Kept::Pooled(_)),
            kept: Mutex::new(Some(kept)),
        }
    }

    pub(crate) fn is_mapped(&self) -> bool {
        self.kept.lock().is_some()
    }

    /// Takes the key away. What is returned is dropped where nothing is locked.
    pub(crate) fn release(&self) -> Option<Kept> {
        self.kept.lock().take()
    }
}

impl Mapping {
    /// What a peer needs to reach it.
    pub fn cookie(&self) -> Cookie {
        self.shared.cookie
    }

    /// The memory, which stays when the mapping has ended.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.shared.memory
    }

    /// Whether peers can still reach it; one for a single use cannot be reached any more when the peer has said so.
    pub fn is_mapped(&self) -> bool {
        self.shared.is_mapped()
    }

    /// Whether its key is one of the node's pool ([`Config::pooled_mappings`](crate::Config::pooled_mappings)).
    pub fn is_pooled(&self) -> bool {
        self.shared.is_pooled
    }

    /// When it ends, a key of the pool may stay valid, and the memory be held, until the next flush: when a tenth of the
    /// pool's keys has ended, when another mapping ends that is not of this kind, or by
    /// [`Node::flush_mappings`](crate::Node::flush_mappings). That is Linux's RDS without `RDS_RDMA_INVALIDATE`. For peers
    /// that are trusted with memory that they know already.
    pub fn lazily(self) -> Self {
        if let Some(Kept::Pooled(pooled)) = &mut *self.shared.kept.lock() {
            pooled.lazily = true;
        }
        self
    }

    /// Ends it, and waits until the key is invalid.
    ///
    /// # Errors
    /// [`Error::Verb`] if the device refuses.
    pub async fn free(self) -> Result<(), Error> {
        match self.shared.release() {
            Some(Kept::Region(mr)) => Ok(mr.dereg().await.map_err(|refused| refused.error)?),
            Some(Kept::Pooled(pooled)) => Ok(pooled.free().await?),
            None => Ok(()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        drop(self.shared.release());
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("cookie", &self.shared.cookie)
            .field("is_mapped", &self.is_mapped())
            .finish_non_exhaustive()
    }
}
