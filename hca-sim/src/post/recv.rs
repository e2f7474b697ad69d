//! Receive queues: the poster's end.

use std::fmt;
use std::hint::cold_path;

use verbs_core::mem::{Pin, Seen, TouchWord, pin, pin_at_once};
use verbs_core::queue::post_recv_shortest;
use verbs_core::slab_alloc::SlabArc;
use verbs_core::sync::Arc;
use verbs_core::sync::atomic::Ordering::Relaxed;
use verbs_core::{
    Access, BatchError, Payload, Piece, PostCode, PostError, QpState, RawRecvQueue, Recv, Sge,
};

use crate::qp::QueuePair;
use crate::queue::base::word::{QpWord, flag};
use crate::queue::cqe_inline::BYTES_MAX;
use crate::queue::recv::{Entries, Pieces, RecvRing};

/// Receives that are posted under one pin, which keeps deregistrations waiting.
const UNDER_ONE_PIN: usize = 32;

/// The producer's end: one line.
#[repr(align(64))]
pub(crate) struct RecvPoster {
    qp: Arc<QueuePair>,
    gate: SlabArc<QpWord>,
    /// `None` until the first post that finds the ring allocated.
    ring: Option<SlabArc<RecvRing>>,
    /// Those of `ring`.
    entries: Option<Entries>,
    tail: u32,
    /// Entries before this position are known to be free.
    end: u32,
    /// The tag of the queue pair's word, when receives were taken last.
    seen: Seen,
}

const _: () = assert!(cfg!(verbs_loom) || size_of::<RecvPoster>() == 64);

impl RecvPoster {
    /// The one producer of a new queue pair.
    pub(crate) fn new(qp: Arc<QueuePair>) -> Self {
        Self {
            gate: qp.gate.clone(),
            qp,
            ring: None,
            entries: None,
            tail: 0,
            end: 0,
            seen: Seen::new(0),
        }
    }

    /// Finds room for such a receive, or says why it cannot be posted.
    #[cold]
    fn look_for_room(&mut self, has_piece: bool) -> Result<(), PostError> {
        let max = self.qp.cap.get().max_recv_sge;
        if max == 0 && has_piece {
            return Err(PostError::TooManySges { got: 1, max });
        }
        if self.ring.is_none() {
            self.qp.check_post_recv()?;
            self.ring = self.qp.recv_ring().cloned();
            self.entries = self.ring.as_ref().map(|ring| ring.entries.clone());
        }
        let Some(ring) = &self.ring else {
            return Err(PostError::State(QpState::Reset));
        };
        let depth = self.qp.cap.get().max_recv_wr;
        ring.post_from(pin().thread());
        let used = self.tail.wrapping_sub(ring.freed());
        let mut room = depth.saturating_sub(used);
        if room == 0 {
            self.qp.check_post_recv()?;
            return Err(PostError::Full { depth });
        }
        if max == 0 {
            // So that every receive comes to this function, where one with a piece is refused.
            room = 1;
        }
        self.end = self.tail.wrapping_add(room);
        Ok(())
    }

    /// Posts a receive of one piece when the short path cannot be taken.
    #[cold]
    #[inline(never)]
    fn post_one_slow(
        &mut self,
        wr_id: u64,
        piece: Piece,
        outer: Option<Pin>,
    ) -> Result<(), PostCode> {
        drop(outer);
        if self.tail == self.end {
            self.look_for_room(true)?;
        }
        Ok(self.post_any(wr_id, Pieces::One(piece))?)
    }

    /// The rest of posting a receive of one piece, at that position, when the sender asks for something.
    #[inline(never)]
    fn answer(&mut self, pin: Pin, at: u32, piece: Piece) -> Result<(), PostCode> {
        self.offer(&pin, at, piece);
        drop(pin);
        self.call_if_asked();
        Ok(())
    }

    /// Posts as many as it can under one pin, from the first on, and returns how many. It has not looked at the others.
    #[inline(never)]
    fn burst(&mut self, wrs: &[Recv<'_>]) -> usize {
        let (Some(entries), Some(pin)) = (&self.entries, pin_at_once()) else {
            return 0;
        };
        let asks = || self.gate.asked.load(Relaxed) != 0;
        if asks() || !self.gate.word.admits_as_seen(&pin, self.seen) {
            return 0;
        }
        let room = (self.end.wrapping_sub(self.tail) as usize).min(UNDER_ONE_PIN);
        let wrs = wrs.get(..room).unwrap_or(wrs);
        let (entries, lap) = entries.rest_of_lap(self.tail);
        let mut count = 0;
        for (wr, entry) in wrs.iter().zip(entries) {
            let Payload::One(sge) = wr.payload else {
                break;
            };
            entry.publish_one(lap, wr.wr_id, sge.into());
            count += 1;
        }
        self.tail = self.tail.wrapping_add(count);
        drop(pin);
        if asks() {
            self.call_if_asked();
        }
        count as usize
    }

    /// Reports that inline CQEs may use the receive that was posted at that position, if the sender wants to know and
    /// they may.
    fn offer(&mut self, pin: &Pin, at: u32, piece: Piece) {
        let Some(ring) = self.ring.as_deref() else {
            return;
        };
        if self.gate.asked.load(Relaxed) & QpWord::INLINE_CREDITS == 0 {
            return;
        }
        let (mrs, pd, room) = (&self.qp.port.mrs, self.qp.pd, piece.len().min(BYTES_MAX));
        let right = Access::LOCAL_WRITE;
        let window = mrs.check(pin, piece.key(), piece.addr, room, pd, right);
        if window.is_none() {
            return;
        }
        ring.post_from(pin.thread());
        ring.offer(at, room);
    }

    fn call_if_asked(&self) {
        let ring = self.ring.as_deref();
        if let (true, Some(ring)) = (self.gate.asked.load(Relaxed) & QpWord::CALL != 0, ring) {
            ring.call_sender();
        }
    }

    /// Posts any receive, if there is room. In ERR it is completed at once.
    #[inline(never)]
    fn post_any(&mut self, wr_id: u64, pieces: Pieces<'_>) -> Result<(), PostError> {
        let Some(ring) = self.ring.as_deref() else {
            return Err(PostError::State(QpState::Reset));
        };
        let (pin, word) = (pin(), &self.gate.word);
        let tag = word.tag();
        let takes = tag & flag::TAKES_RECVS != 0 && word.admits(&pin, TouchWord::TAG, tag);
        if takes {
            self.seen = Seen::new(tag);
        } else {
            self.qp.enter_to_post_recv(&pin)?;
        }
        let at = self.tail;
        ring.publish_pieces(at, wr_id, pieces);
        self.tail = at.wrapping_add(1);
        if let (Pieces::One(piece), true) = (pieces, takes) {
            self.offer(&pin, at, piece);
        }
        drop(pin);
        if takes {
            self.call_if_asked();
        } else {
            self.qp.turn();
        }
        Ok(())
    }
}

impl RawRecvQueue for RecvPoster {
    fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let max = self.qp.cap.get().max_recv_sge;
        if sges.len() > max as usize {
            let got = u32::try_from(sges.len()).unwrap_or(u32::MAX);
            return Err(PostError::TooManySges { got, max });
        }
        if self.tail == self.end {
            self.look_for_room(!sges.is_empty())?;
        }
        self.post_any(wr_id, Pieces::List(sges))
    }

    fn post_one(&mut self, wr_id: u64, piece: Piece) -> Result<(), PostCode> {
        if self.tail == self.end {
            return self.post_one_slow(wr_id, piece, None);
        }
        let Some(entries) = &self.entries else {
            return self.post_one_slow(wr_id, piece, None);
        };
        let Some(pin) = pin_at_once() else {
            cold_path();
            return self.post_one_slow(wr_id, piece, None);
        };
        // The tag as it was seen last: comparing all of it is cheaper than the one bit.
        let word = &self.gate.word;
        if !word.admits_as_seen(&pin, self.seen) {
            cold_path();
            return self.post_one_slow(wr_id, piece, Some(pin));
        }
        let at = self.tail;
        entries.publish_one(at, wr_id, piece);
        self.tail = at.wrapping_add(1);
        if self.gate.asked.load(Relaxed) != 0 {
            cold_path();
            return self.answer(pin, at, piece);
        }
        drop(pin);
        Ok(())
    }

    fn post_batch(&mut self, wrs: &[Recv<'_>]) -> Result<(), BatchError> {
        if self.tail == self.end && self.entries.is_some() {
            // Why there is none is said by the first that finds none.
            let _full = self.look_for_room(true);
        }
        let mut posted = 0;
        while posted < wrs.len() {
            posted += self.burst(&wrs[posted..]);
            // The receive that is first now takes the other paths.
            if let Some(wr) = wrs.get(posted) {
                post_recv_shortest(self, wr).map_err(|error| BatchError { posted, error })?;
                posted += 1;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for RecvPoster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvPoster")
            .field("qpn", &self.qp.qpn)
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}
