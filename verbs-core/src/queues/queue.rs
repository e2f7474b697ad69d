//! The direct calls that a provider implements: post, poll and arm.
//!
//! They never make a request, never take a control lock, never allocate and never block. Each queue has one owner
//! at a time, as `&mut self` says; so an implementation needs no lock against its own caller.
//! [`SendQueue`](crate::SendQueue), [`RecvQueue`](crate::RecvQueue) and [`Cq`](crate::Cq) are the consumer's side
//! of these traits.

use std::fmt;

use crate::addr::LKey;
use crate::caps::Capability;
use crate::extension::Work;
use crate::mem::Access;
use crate::qp_state::QpState;
use crate::wc::Wc;
use crate::wr::{Dest, Payload, Recv, SendFlags, SendOp, SendWr, Sge};

mod register;

pub use register::{How, Piece, PostCode};

/// Why a post call accepted nothing. A refused work request generates no completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue holds as many work requests as it was created for. An entry of a send queue becomes free when
    /// its completion, or a later one, has been polled.
    #[error(
        "the queue is full ({depth} work requests); poll its completion queue first (sends that are not \
         signaled become free only with a later signaled one)"
    )]
    Full {
        /// Depth of the queue.
        depth: u32,
    },
    /// The queue pair's state does not allow this call.
    #[error("the queue pair is in {0}, which does not allow this call")]
    State(QpState),
    /// More scatter/gather elements than the queue was created for.
    #[error("{got} scatter/gather elements; the queue was created for {max}")]
    TooManySges {
        /// Elements in the work request.
        got: u32,
        /// Elements that the queue can take.
        max: u32,
    },
    /// More inline bytes than the queue was created for.
    #[error("{got} bytes inline; the queue was created for {max}")]
    InlineTooLong {
        /// Bytes in the work request.
        got: u32,
        /// Bytes that the queue can take.
        max: u32,
    },
    /// The message is longer than the device can send.
    #[error("the message is longer than the {max} bytes that the port can send")]
    TooLong {
        /// Largest message in bytes.
        max: u32,
    },
    /// This queue pair does not support the operation, or not with these flags.
    #[error("the queue pair does not support this operation or flag")]
    Unsupported,
    /// The device does not have the operation or flag: the capability that it takes is missing.
    #[error("the device does not support this operation or flag: {0}")]
    NoCapability(Capability),
    /// An atomic's local memory is not exactly 8 bytes.
    #[error("an atomic needs exactly 8 bytes of local memory, not {got}")]
    AtomicSize {
        /// Bytes in the work request.
        got: u32,
    },
    /// An atomic's remote address is not a multiple of 8.
    #[error("the remote address of an atomic must be a multiple of 8")]
    AtomicAlignment,
    /// The sink of a READ lacks a right that this transport needs there
    /// ([`TransportType::read_sink`](crate::TransportType::read_sink)). It is reported here if the rights of the
    /// key's region are fixed, or if no waiting earlier work request might change them; otherwise by a completion.
    #[error(
        "on this transport the sink of a READ needs {missing:?} as well, which key {lkey} does not grant; register it \
         with Device::read_sink"
    )]
    ReadSink {
        /// The sink's key.
        lkey: LKey,
        /// The rights that it must grant as well.
        missing: Access,
    },
    /// A datagram has no destination.
    #[error("a queue pair for datagrams needs to be told whom each is for: Send::to")]
    NoDestination,
    /// The work request has a destination, but the queue pair has only one peer.
    #[error("this type of queue pair does not take a destination with the work request")]
    Destination,
    /// A request on an extended reliable connection names no shared receive queue.
    #[error("an extended reliable connection needs the number of a shared receive queue: .srq()")]
    NoSrq,
    /// The datagram's destination does not exist, or is unreachable from the port.
    #[error("the port has no way to the datagram's address")]
    Unreachable,
    /// The receive queue is the shared one; post there.
    #[error("the queue pair takes its receives from a shared receive queue; post to that")]
    UsesSrq,
    /// The bind of a memory window names a key that is none of the device's windows or regions, or that the window
    /// cannot have next. Devices that look at keys later report it by a completion.
    #[error(
        "a window cannot be bound with the key {0:#010x}: no window or region of the device has it, the region was \
         registered without MW_BIND, or it is not the window's next key"
    )]
    Key(u32),
    /// The queues were split off this handle.
    #[error("the queues were split off this handle; post to those")]
    Split,
    /// The queue pair is being destroyed or no longer exists.
    #[error("the queue pair is destroyed")]
    Destroyed,
    /// The device was removed.
    #[error("the device was removed")]
    DeviceRemoved,
}

/// Only a part of a batch was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {posted} of the batch was not accepted: {error}")]
pub struct BatchError {
    /// The number of accepted work requests: the index of the refused one.
    pub posted: usize,
    /// Why that one was refused.
    pub error: PostError,
}

/// When an armed completion queue fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// At the next completion.
    Next,
    /// At the next completion that is solicited, or is an error.
    Solicited,
    /// When at least that many completions wait, or as many as the queue has room for. An event may come sooner:
    /// at the next completion, if the device has no [`N_NOTIFY_CQ`](crate::DeviceCap::N_NOTIFY_CQ), or at the end
    /// of a [moderation](crate::Cq::moderate)'s period.
    Count(u32),
}

/// The result of [`RawCq::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "entries may be waiting already; poll again before sleeping"]
pub enum Armed {
    /// No completion waits; the event will come.
    Empty,
    /// Completions already wait, as many as were asked for. The queue is armed, but poll before relying on the
    /// event.
    Waiting,
}

/// The provider's side of a send queue.
///
/// Errors that can be detected from the work request and the queue alone are returned by the call; errors that
/// depend on memory or on the peer are reported by a completion.
pub trait RawSendQueue: Send + Sync + fmt::Debug {
    /// Posts any work request.
    ///
    /// # Errors
    /// [`PostError`]; the work request was not accepted.
    fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError>;

    /// Posts several with one doorbell. Stops at the first that is refused.
    ///
    /// # Errors
    /// [`BatchError`] gives the number of accepted ones; those are in flight.
    fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        for (posted, wr) in wrs.iter().enumerate() {
            post_shortest(self, wr).map_err(|error| BatchError { posted, error })?;
        }
        Ok(())
    }

    /// Posts a work request of an extension; the default has none.
    ///
    /// # Errors
    /// [`PostError::Unsupported`] for one that the device does not support; otherwise as [`RawSendQueue::post`].
    fn post_extension(
        &mut self,
        _wr_id: u64,
        _work: Work<'_>,
        _flags: SendFlags,
    ) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    /// Posts a SEND of one piece: a fast path of [`RawSendQueue::post`].
    ///
    /// # Errors
    /// As [`RawSendQueue::post`].
    #[inline]
    fn send(&mut self, wr_id: u64, piece: Piece, flags: SendFlags) -> Result<(), PostCode> {
        let payload = Payload::One(piece.into());
        self.post_parts(wr_id, SendOp::Send, flags, payload)
    }

    /// Posts a SEND of inline bytes: a fast path of [`RawSendQueue::post`]. `flags` has [`SendFlags::INLINE`].
    ///
    /// # Errors
    /// As [`RawSendQueue::post`].
    #[inline]
    fn send_inline(&mut self, wr_id: u64, bytes: &[u8], flags: SendFlags) -> Result<(), PostCode> {
        self.post_parts(wr_id, SendOp::Send, flags, Payload::Inline(bytes))
    }

    /// Posts a WRITE of one piece: a fast path of [`RawSendQueue::post`].
    ///
    /// # Errors
    /// As [`RawSendQueue::post`].
    #[inline]
    fn write(&mut self, wr_id: u64, piece: Piece, to: u64, how: How) -> Result<(), PostCode> {
        let (op, payload) = (SendOp::Write(how.remote(to)), Payload::One(piece.into()));
        self.post_parts(wr_id, op, how.flags(), payload)
    }

    /// Posts a WRITE of inline bytes: a fast path of [`RawSendQueue::post`]. The flags have
    /// [`SendFlags::INLINE`].
    ///
    /// # Errors
    /// As [`RawSendQueue::post`].
    #[inline]
    fn write_inline(
        &mut self,
        wr_id: u64,
        bytes: &[u8],
        to: u64,
        how: How,
    ) -> Result<(), PostCode> {
        let (op, payload) = (SendOp::Write(how.remote(to)), Payload::Inline(bytes));
        self.post_parts(wr_id, op, how.flags(), payload)
    }

    /// Posts a READ into one piece: a fast path of [`RawSendQueue::post`].
    ///
    /// # Errors
    /// As [`RawSendQueue::post`].
    #[inline]
    fn read(&mut self, wr_id: u64, piece: Piece, from: u64, how: How) -> Result<(), PostCode> {
        let (op, payload) = (SendOp::Read(how.remote(from)), Payload::One(piece.into()));
        self.post_parts(wr_id, op, how.flags(), payload)
    }

    /// [`RawSendQueue::post`] for the fast paths of queues that have none.
    ///
    /// # Errors
    /// As [`RawSendQueue::post`].
    #[doc(hidden)]
    #[inline(never)]
    fn post_parts(
        &mut self,
        wr_id: u64,
        op: SendOp,
        flags: SendFlags,
        payload: Payload<'_>,
    ) -> Result<(), PostCode> {
        Ok(self.post(&SendWr {
            wr_id,
            op,
            flags,
            payload,
            dest: Dest::Peer,
        })?)
    }
}

/// Posts a work request by the fastest path that a queue has for it. If the work request is built at the call
/// site, this folds to the call of that path.
///
/// # Errors
/// As [`RawSendQueue::post`].
#[inline(always)]
pub fn post_shortest<Q>(queue: &mut Q, wr: &SendWr<'_>) -> Result<(), PostError>
where
    Q: RawSendQueue + ?Sized,
{
    if wr.dest != Dest::Peer {
        return queue.post(wr);
    }
    let plain = SendFlags::SIGNALED.union(SendFlags::SOLICITED);
    let (id, flags) = (wr.wr_id, wr.flags);
    let posted = match (wr.op, wr.payload) {
        (SendOp::Send, Payload::One(sge)) if plain.contains(flags) => {
            queue.send(id, sge.into(), flags)
        }
        (SendOp::Write(to), Payload::One(sge)) if plain.contains(flags) => {
            queue.write(id, sge.into(), to.addr, How::new(to, flags))
        }
        (SendOp::Read(from), Payload::One(sge)) if plain.contains(flags) => {
            queue.read(id, sge.into(), from.addr, How::new(from, flags))
        }
        (SendOp::Send, Payload::Inline(bytes)) if is_plain_inline(flags) => {
            queue.send_inline(id, bytes, flags)
        }
        (SendOp::Write(to), Payload::Inline(bytes)) if is_plain_inline(flags) => {
            queue.write_inline(id, bytes, to.addr, How::new(to, flags))
        }
        _ => return queue.post(wr),
    };
    Ok(posted?)
}

/// Whether no flag is set that the fast paths of inline bytes do not support.
#[inline(always)]
fn is_plain_inline(flags: SendFlags) -> bool {
    flags.contains(SendFlags::INLINE) && !flags.contains(SendFlags::FENCE)
}

/// The provider's side of a receive queue, shared or not.
pub trait RawRecvQueue: Send + Sync + fmt::Debug {
    /// Posts a receive of several pieces, or of none.
    ///
    /// # Errors
    /// [`PostError`]; the receive was not accepted.
    fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError>;

    /// Posts a receive of one piece: a fast path of [`RawRecvQueue::post`].
    ///
    /// # Errors
    /// As [`RawRecvQueue::post`].
    #[inline]
    fn post_one(&mut self, wr_id: u64, piece: Piece) -> Result<(), PostCode> {
        Ok(self.post(wr_id, &[piece.into()])?)
    }

    /// Posts several. Stops at the first that is refused.
    ///
    /// # Errors
    /// [`BatchError`] gives the number of accepted ones; those wait for messages.
    fn post_batch(&mut self, wrs: &[Recv<'_>]) -> Result<(), BatchError> {
        for (posted, wr) in wrs.iter().enumerate() {
            post_recv_shortest(self, wr).map_err(|error| BatchError { posted, error })?;
        }
        Ok(())
    }
}

/// Posts a receive by the fastest path that a queue has for it.
///
/// # Errors
/// As [`RawRecvQueue::post`].
#[inline(always)]
pub fn post_recv_shortest<Q>(queue: &mut Q, wr: &Recv<'_>) -> Result<(), PostError>
where
    Q: RawRecvQueue + ?Sized,
{
    match wr.payload {
        Payload::One(sge) => Ok(queue.post_one(wr.wr_id, sge.into())?),
        Payload::List(sges) => queue.post(wr.wr_id, sges),
        Payload::Inline(_) => Err(PostError::Unsupported),
    }
}

/// The provider's side of a completion queue.
///
/// When an armed queue fires, the provider calls [`CqNotify::fire`](crate::CqNotify::fire) of the notifier from
/// the create command: once per arm, with no lock held.
pub trait RawCq: Send + Sync + fmt::Debug {
    /// Takes up to `out.len()` completions, oldest first, and returns their number.
    fn poll(&mut self, out: &mut [Wc]) -> usize;

    /// Asks for one event. A second call before the event widens the first: `Next` takes precedence over
    /// `Solicited` and over `Count`, and the smaller count over the larger.
    fn arm(&mut self, when: Arm) -> Armed;

    /// The consumer polls no more for a while, and does not arm this queue either: it waits for another one. A provider
    /// whose consumers take in packets while they poll has a thread do it from now on.
    fn pause(&mut self) {}

    /// The number of waiting completions, counted up to `most`; `None` if that cannot be told without taking
    /// them.
    fn peek(&mut self, _most: u32) -> Option<u32> {
        None
    }
}
