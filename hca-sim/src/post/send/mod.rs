//! Send queues: the poster's side.
//!
//! The poster carries a message out itself when it may ([`crate::direct::path`]): the short paths for the simplest
//! messages are in [`short`]. Whatever these do not handle takes [`SendPoster::post_any`], and what cannot be completed
//! there is put into the ring for the machine ([`crate::qp::worker`]), which finds out why and reports it.

use std::fmt;

use verbs_core::mem::{MrTable, Seen, pin};
use verbs_core::slab_alloc::SlabArc;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::Ordering::{AcqRel, Release};
use verbs_core::{
    BatchError, Dest, Payload, PostError, QpType, Qpn, RawSendQueue, Remote, SendFlags, SendOp,
    SendWr,
};

use crate::direct::message::{Done, Message, MessageOutcome};
use crate::direct::path::DirectPath;
use crate::qp::QueuePair;
use crate::qp::pairing::requester;
use crate::queue::base::limits::{MAX_MESSAGE, MAX_SGE};
use crate::queue::cq::CqBuffer;
use crate::queue::recv::inline_credits::InlineCredits;
use crate::queue::send::SendRing;

pub(crate) mod barrier;
mod batch;
mod ends;
mod inline_cqe;
mod memory;
pub(crate) mod moves;
mod poster;
mod short;
mod stream;

pub(crate) use poster::Poster;

use batch::UNDER_ONE_PIN;

/// What a [`Poster`] posts with.
// In this order the first line is all that the short paths need.
#[repr(C, align(128))]
struct SendPoster {
    open: Option<OpenPath>,
    /// The buffer of the sends' completion queue at the last look.
    buffer: Arc<CqBuffer>,
    mrs: Arc<MrTable>,
    /// Number of the next work request.
    posted: u32,
    /// Number of the first work request that may not take the short path: the slow path has to look again first.
    limit: u32,
    pd: u32,
    qpn: Qpn,
    /// Flags that every work request has: SIGNALED, if so created.
    always: SendFlags,
    max_inline: u32,
    qp: Arc<QueuePair>,
    /// Work requests before this number are retired: one of them or after them was polled.
    retired: u32,
    /// The value of [`QueuePair::resets`] when `retired` was counted.
    resets: u32,
    /// Receives of the peer's that inline CQEs may take.
    inline_credits: InlineCredits,
    /// How often the peer's inline CQEs had been recalled when that was looked at last.
    recalls: u32,
    /// How many more times to look for credits before inline CQEs may be sent again.
    inline_backoff: u32,
    /// Its messages are packets: it places none itself.
    by_packets: bool,
}

/// The objects that the short paths need.
struct OpenPath {
    direct: SlabArc<DirectPath>,
    view: Seen,
    sends: SlabArc<SendRing>,
}

impl SendPoster {
    /// For a new queue pair.
    fn new(qp: Arc<QueuePair>) -> Self {
        let always = if qp.sq_sig_all {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let (buffer, mrs) = (qp.send_cq.buffer(), Arc::clone(&qp.port.mrs));
        let (pd, qpn, max_inline) = (qp.pd, qp.qpn, qp.cap.get().max_inline_data);
        Self {
            posted: 0,
            limit: 0,
            open: None,
            by_packets: qp.goes_as_packets(),
            qp,
            buffer,
            mrs,
            pd,
            qpn,
            max_inline,
            always,
            retired: 0,
            resets: 0,
            inline_credits: InlineCredits::default(),
            recalls: 0,
            inline_backoff: 0,
        }
    }

    /// Finds out again how many may take the short path; if none may, the long path reports why.
    #[cold]
    #[inline(never)]
    fn look_for_credits(&mut self) {
        // Where packets carry its messages, none takes the short path.
        if self.by_packets {
            return;
        }
        let _ = self.refill();
    }

    #[cold]
    fn handle_done(&self, done: Done) {
        if let Some(open) = &self.open {
            self.qp.handle_done(&open.direct, done);
        }
    }

    /// Posts any work request, with all its checks.
    #[inline(never)]
    fn post_any(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.by_packets {
            self.hand_over(std::slice::from_ref(wr), &mut 0)?;
            self.qp.turn();
        } else if self.accept(wr)? {
            self.qp.turn();
        }
        Ok(())
    }

    /// Posts any work request, with all its checks. Returns whether the machine has to look: the work request is in the
    /// ring.
    // Apart from its two callers it costs a fast registration 24 instructions more.
    #[inline(always)]
    fn accept(&mut self, wr: &SendWr<'_>) -> Result<bool, PostError> {
        self.check_sizes(wr)?;
        self.invalidate_early(wr);
        let mut wr = *wr;
        wr.flags |= self.always;
        let is_tried = self.posted != self.limit;
        if is_tried && self.attempt(&wr) {
            return Ok(false);
        }
        // What the path did not take, the machine tries once more and waits for.
        let was_open = is_tried && self.open.is_some();
        // There may be a new path, or nothing may be posted any longer.
        let sends = self.refill()?;
        if was_open || self.posted == self.limit || !self.attempt(&wr) {
            self.append(&sends, &wr)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Posts work requests whose machine sends packets: it looks once for all of them, so they share bursts and
    /// acknowledgements.
    fn post_together(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        let mut posted = 0;
        let outcome = wrs
            .chunks(UNDER_ONE_PIN)
            .try_for_each(|some| self.hand_over(some, &mut posted));
        if posted != 0 {
            self.qp.turn();
        }
        outcome.map_err(|error| BatchError { posted, error })
    }

    /// Puts work requests into the ring of a machine that sends packets, with all their checks, and counts those that
    /// are there. The machine alone carries them out.
    fn hand_over(&mut self, wrs: &[SendWr<'_>], posted: &mut usize) -> Result<(), PostError> {
        let mut inside = None;
        for wr in wrs {
            self.check_sizes(wr)?;
            if wr.op.is_local() {
                // What that releases may not be waited for inside.
                drop(inside.take());
                self.invalidate_early(wr);
            }
            if inside.is_none() {
                let pin = pin();
                self.qp.enter_to_post_send(&pin)?;
                inside = Some(pin);
            }
            let Some(sends) = self.qp.send_ring() else {
                return Err(PostError::State(self.qp.state()));
            };
            let (retired, resets) = (&mut self.retired, &mut self.resets);
            if let Err(full) = find_room(&self.qp, sends, self.posted, retired, resets) {
                free_finished(&self.qp, sends, self.posted, retired, full)?;
            }
            if self.always.is_empty() {
                sends.append(self.posted, wr);
            } else {
                let flags = wr.flags | self.always;
                sends.append(self.posted, &SendWr { flags, ..*wr });
            }
            self.posted = self.posted.wrapping_add(1);
            self.limit = self.posted;
            *posted += 1;
        }
        Ok(())
    }

    /// Finds out whether anything can be posted, and how many may take the short path.
    #[cold]
    fn refill(&mut self) -> Result<SlabArc<SendRing>, PostError> {
        let state = self.qp.check_post_send()?;
        let Some(sends) = self.qp.send_ring().cloned() else {
            return Err(PostError::State(state));
        };
        let (retired, resets) = (&mut self.retired, &mut self.resets);
        let found = find_room(&self.qp, &sends, self.posted, retired, resets);
        let depth = self.qp.cap.get().max_send_wr;
        // A queue that was made smaller may hold more than its depth still.
        let is_full = self.posted.wrapping_sub(*retired) >= depth;
        if found.is_err() || is_full {
            let full = PostError::Full { depth };
            free_finished(&self.qp, &sends, self.posted, retired, full)?;
        }
        if self.buffer.is_dead() {
            self.buffer = self.qp.send_cq.buffer();
        }
        let direct = sends.is_drained() && self.look_for_door(&sends);
        self.limit = if direct {
            self.retired.wrapping_add(depth)
        } else {
            self.posted
        };
        Ok(sends)
    }

    /// Checks what the work request and the sizes of the queue show.
    fn check_sizes(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let cap = self.qp.cap.get();
        let got = match wr.payload {
            Payload::One(_) => 1,
            Payload::List(sges) => sges.len(),
            Payload::Inline(_) => 0,
        };
        let max = cap.max_send_sge.min(MAX_SGE as u32);
        if got > max as usize {
            return Err(PostError::TooManySges {
                got: u32::try_from(got).unwrap_or(u32::MAX),
                max,
            });
        }
        let inline = matches!(wr.payload, Payload::Inline(_));
        if inline && wr.payload.len() > u64::from(cap.max_inline_data) {
            let got = u32::try_from(wr.payload.len()).unwrap_or(u32::MAX);
            return Err(PostError::InlineTooLong {
                got,
                max: cap.max_inline_data,
            });
        }
        if wr.payload.len() > u64::from(MAX_MESSAGE) {
            return Err(PostError::TooLong { max: MAX_MESSAGE });
        }
        self.check_service(wr)?;
        if self.qp.port.streams.is_some() {
            self.check_stream(wr)?;
        }
        match wr.op {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::Write(_) | SendOp::WriteWithImm(..) => {
                // A flag without the bytes, or bytes without the flag, is a mistake of the caller.
                let has_both = inline == wr.flags.contains(SendFlags::INLINE);
                if has_both && self.qp.port.features.posts(&wr.op) {
                    Ok(())
                } else {
                    Err(self.qp.port.features.why_not(&wr.op))
                }
            }
            SendOp::Read(_) if !inline => Ok(()),
            SendOp::Read(_) => Err(PostError::Unsupported),
            _ => self.check_memory_op(wr, inline),
        }
    }

    /// Checks what the type of the queue pair requires of a work request.
    fn check_service(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        match (self.qp.qp_type, wr.dest) {
            (QpType::Rc | QpType::Uc | QpType::XrcSend, Dest::Peer) if wr.op.is_local() => Ok(()),
            (QpType::Ud | QpType::Gsi | QpType::Smi, Dest::Datagram(to)) => {
                let max = self.qp.port.mtu().bytes();
                if !matches!(wr.op, SendOp::Send | SendOp::SendWithImm(_)) {
                    Err(PostError::Unsupported)
                } else if wr.payload.len() > u64::from(max) {
                    Err(PostError::TooLong { max })
                } else if self.qp.port.is_roce() && to.av.global.is_none() {
                    // RoCE has no LIDs: the GID is the address (IBTA annex A17.3).
                    Err(PostError::Unreachable)
                } else {
                    Ok(())
                }
            }
            (QpType::Ud | QpType::Gsi | QpType::Smi, _) => Err(PostError::NoDestination),
            (QpType::XrcSend, Dest::Srq(_)) => Ok(()),
            (QpType::XrcSend, _) => Err(PostError::NoSrq),
            (QpType::XrcRecv, _) => Err(PostError::Unsupported),
            (QpType::Uc, Dest::Peer) => match wr.op {
                SendOp::Send
                | SendOp::SendWithImm(_)
                | SendOp::Write(_)
                | SendOp::WriteWithImm(..) => Ok(()),
                _ => Err(PostError::Unsupported),
            },
            (_, Dest::Peer) => Ok(()),
            _ => Err(PostError::Destination),
        }
    }

    /// Whether the poster may place messages now; the ring is empty.
    fn look_for_door(&mut self, sends: &SlabArc<SendRing>) -> bool {
        if !self
            .open
            .as_ref()
            .is_some_and(|open| open.direct.is_alive())
        {
            let direct = self.qp.direct_path();
            self.inline_credits = InlineCredits::default();
            self.recalls = direct.as_ref().map_or(0, |direct| direct.ring.recalls());
            self.open = direct.map(|direct| OpenPath {
                view: direct.view(),
                direct,
                sends: sends.clone(),
            });
        }
        self.choose_path();
        self.open.is_some()
    }

    /// Tries to carry the message out here. Returns `false`, having done nothing, if something prevents it.
    fn attempt(&mut self, wr: &SendWr<'_>) -> bool {
        if wr.op.is_local() {
            return self.attempt_local(wr);
        }
        let Some(open) = &mut self.open else {
            return false;
        };
        open.view = open.direct.view();
        let pin = pin();
        if !open.direct.admits_poster(&pin) {
            drop(pin);
            self.open = None;
            return false;
        }
        let signaled = wr.flags.contains(SendFlags::SIGNALED);
        let direct = &*open.direct;
        let message = Message {
            requester: requester(&self.qp),
            sends: &open.sends,
            direct,
            pin: &pin,
            wr,
            index: self.posted,
            signaled,
        };
        let outcome = message.carry_out();
        let MessageOutcome::Done(done) = outcome else {
            return false;
        };
        // Counted before any foreign code runs, which may panic.
        self.posted = self.posted.wrapping_add(1);
        drop(pin);
        if !done.is_quiet() {
            self.handle_done(done);
        }
        true
    }

    /// Puts it into the ring, for the machine. The door is closed until that has looked.
    fn append(&mut self, sends: &SendRing, wr: &SendWr<'_>) -> Result<(), PostError> {
        let pin = pin();
        self.qp.enter_to_post_send(&pin)?;
        sends.append(self.posted, wr);
        // Counted before any foreign code runs, which may panic.
        self.posted = self.posted.wrapping_add(1);
        self.limit = self.posted;
        Ok(())
    }
}

/// Makes sure that a queue has room for one more than `posted`; those before `retired` were retired when `resets` was what
/// it says.
#[inline]
fn find_room(
    qp: &QueuePair,
    sends: &SendRing,
    posted: u32,
    retired: &mut u32,
    resets: &mut u32,
) -> Result<(), PostError> {
    let depth = qp.cap.get().max_send_wr;
    let now = qp.resets();
    if *resets != now {
        // What was posted before the reset no longer makes a completion.
        (*resets, *retired) = (now, posted);
    }
    let waiting = posted.wrapping_sub(*retired);
    if waiting < depth {
        return Ok(());
    }
    let head = qp.send_cq.head();
    let polled = |index: &u32| {
        sends
            .marked(*index)
            .is_some_and(|at| at.wrapping_sub(head).cast_signed() < 0)
    };
    // Completions come in order, so the newest that was polled retires all before it.
    let newest = (1..=waiting)
        .map(|back| posted.wrapping_sub(back))
        .find(polled);
    let Some(newest) = newest else {
        return Err(PostError::Full { depth });
    };
    *retired = newest.wrapping_add(1);
    Ok(())
}

/// Frees the places of work requests that are finished, although none after them makes a completion, in a queue that is
/// full because it was made smaller: its consumer could not have known of the new depth when it posted them.
///
/// # Errors
/// `full` if there are none.
#[cold]
fn free_finished(
    qp: &QueuePair,
    sends: &SendRing,
    posted: u32,
    retired: &mut u32,
    full: PostError,
) -> Result<(), PostError> {
    if !qp.gate.shrunk.swap(false, AcqRel) {
        return Err(full);
    }
    // None from here on was polled.
    *retired = sends.first_unfinished(*retired, posted).unwrap_or(posted);
    if posted.wrapping_sub(*retired) >= qp.cap.get().max_send_wr {
        // Later, when more are polled.
        qp.gate.shrunk.store(true, Release);
        return Err(full);
    }
    Ok(())
}

fn check_atomic(wr: &SendWr<'_>, remote: Remote) -> Result<(), PostError> {
    if wr.payload.len() != 8 {
        return Err(PostError::AtomicSize {
            got: u32::try_from(wr.payload.len()).unwrap_or(u32::MAX),
        });
    }
    if !remote.addr.is_multiple_of(8) {
        return Err(PostError::AtomicAlignment);
    }
    Ok(())
}

/// Without the short paths, which belong to [`Poster`].
impl RawSendQueue for SendPoster {
    fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_any(wr)
    }
}

impl fmt::Debug for SendPoster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendPoster")
            .field("qpn", &self.qp.qpn)
            .field("posted", &self.posted)
            .field("retired", &self.retired)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use futures::executor::block_on;
    use verbs_core::{Qp, QpInit, Recv, Send};

    use crate::clock::VirtualClock;
    use crate::direct::message::TRIED;
    use crate::{Hca, Loopback, connect};

    async fn queue_pair(link: &Loopback, clock: &VirtualClock) -> Result<Qp, verbs_core::Error> {
        let hca = Hca::on(link).clock(clock.clone()).build();
        let device = hca.open().await?;
        let (pd, cq) = (device.alloc_pd().await?, device.create_cq(8).await?);
        pd.create_qp(QpInit::rc(&cq, &cq)).await
    }

    /// Goal: a SEND that finds no receive is tried by its post and once more by the machine, which then waits. Method: the
    /// tries of this thread are counted, and time stands still: no timer of the machine's makes another.
    #[test]
    fn a_send_without_a_receive_is_tried_once_more() -> Result<(), Box<dyn std::error::Error>> {
        let (link, clock) = (Loopback::default(), VirtualClock::new());
        let mut a = block_on(queue_pair(&link, &clock))?;
        let mut b = block_on(queue_pair(&link, &clock))?;
        block_on(connect(&mut a, &mut b))?;
        let mut tries_of_a_send = |id| {
            let before = TRIED.get();
            a.post_send(Send::new(id).inline(b""))?;
            Ok::<_, verbs_core::PostError>(TRIED.get() - before)
        };
        b.post_recv(Recv::new(1))?;
        // The first of a connection is the machine's.
        tries_of_a_send(1)?;
        b.post_recv(Recv::new(2))?;
        assert_eq!(tries_of_a_send(2)?, 1, "it is placed at once");
        assert_eq!(tries_of_a_send(3)?, 2, "no receive is there");
        Ok(())
    }
}
