//! Flow control of a copy: which chunk goes where, and when.
//!
//! Both ends have the same number of slots; chunk *n* uses slot *n* modulo that number. The sender may
//! fill a slot when its own WRITE of the slot has completed, because a device may read the source
//! again until then, and when the receiver has drained the slot, which it tells by a credit.
//!
//! Nothing here does I/O. Commands: [`SendWindow::posted`], [`RecvWindow::drained`],
//! [`RecvWindow::credited`]. Events: the `handle_` methods. Outputs: the `poll_` methods; ask them
//! until they have nothing more, after any event.

/// How a file is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    size: u64,
    chunk: u64,
    chunks: u64,
    slots: u64,
}

/// One chunk of the file and its place in the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Counted from 0.
    pub(crate) number: u64,
    /// Where its slot starts in the buffer of either end.
    pub(crate) at: usize,
    /// Bytes.
    pub(crate) len: usize,
}

/// The peer said something that it cannot mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Breach {
    /// A WRITE completed that was not the oldest one.
    #[error("WRITE {got} completed, but {expected} was next")]
    Completed { expected: u64, got: u64 },
    /// A credit for chunks that were never sent.
    #[error("a credit up to chunk {got} arrived, but only {sent} were sent (modulo 2^32)")]
    Credit { sent: u32, got: u32 },
    /// A chunk out of turn.
    #[error("chunk {got} was announced, but {expected} was next (modulo 2^32)")]
    Announced { expected: u32, got: u32 },
    /// A chunk into a slot that was not free.
    #[error("chunk {0} was announced into a slot that is not free")]
    Overrun(u64),
}

impl Plan {
    /// A file of `size` bytes in chunks of `chunk` (at least 1), `window` of them (at least 1) on
    /// their way at most.
    pub(crate) fn new(size: u64, chunk: u32, window: u32) -> Self {
        let chunk = u64::from(chunk);
        let chunks = size.div_ceil(chunk);
        Self {
            size,
            chunk,
            chunks,
            slots: u64::from(window).min(chunks),
        }
    }

    /// Bytes of the file.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Chunks that the file has.
    pub(crate) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Slots of either end: not more than there are chunks.
    pub(crate) fn slots(&self) -> u32 {
        // The window that bounds it came in as 32 bits.
        u32::try_from(self.slots).unwrap_or(u32::MAX)
    }

    /// Bytes that the slots of one end take; `None` if the machine cannot address so many.
    pub(crate) fn buffer_bytes(&self) -> Option<usize> {
        usize::try_from(self.chunk.min(self.size).checked_mul(self.slots)?).ok()
    }

    fn chunk(&self, number: u64) -> Option<Chunk> {
        if number >= self.chunks {
            return None;
        }
        let len = self.chunk.min(self.size - number * self.chunk);
        let at = number % self.slots * self.chunk.min(self.size);
        Some(Chunk {
            number,
            at: usize::try_from(at).ok()?,
            len: usize::try_from(len).ok()?,
        })
    }
}

/// The sender's side. Invariant: `completed` and `drained` are at most `next`, which is less than
/// the number of slots ahead of either.
#[derive(Debug)]
pub(crate) struct SendWindow {
    plan: Plan,
    /// The next chunk to post; all before it are posted.
    next: u64,
    /// WRITEs before this one have completed.
    completed: u64,
    /// Chunks before this one have left the receiver's memory.
    drained: u64,
}

impl SendWindow {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            next: 0,
            completed: 0,
            drained: 0,
        }
    }

    /// The chunk whose slot is free at both ends, to be filled and posted.
    pub(crate) fn poll_chunk(&self) -> Option<Chunk> {
        let free = self.next < self.completed.min(self.drained) + self.plan.slots;
        self.plan.chunk(self.next).filter(|_| free)
    }

    /// The chunk that [`SendWindow::poll_chunk`] names is on its way.
    pub(crate) fn posted(&mut self) {
        debug_assert!(
            self.poll_chunk().is_some(),
            "only a chunk that may go is posted"
        );
        self.next += 1;
    }

    /// The WRITE of this chunk has completed.
    pub(crate) fn handle_completed(&mut self, number: u64) -> Result<(), Breach> {
        if number != self.completed || number >= self.next {
            return Err(Breach::Completed {
                expected: self.completed,
                got: number,
            });
        }
        self.completed += 1;
        Ok(())
    }

    /// The receiver has drained so many chunks in all, modulo 2^32.
    pub(crate) fn handle_credit(&mut self, drained: u32) -> Result<(), Breach> {
        let more = drained.wrapping_sub(low(self.drained));
        if u64::from(more) > self.next - self.drained {
            return Err(Breach::Credit {
                sent: low(self.next),
                got: drained,
            });
        }
        self.drained += u64::from(more);
        Ok(())
    }

    /// Every chunk was sent, has completed and was drained.
    pub(crate) fn is_done(&self) -> bool {
        self.completed.min(self.drained) == self.plan.chunks
    }

    /// WRITEs that have completed.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }
}

/// The receiver's side.
#[derive(Debug)]
pub(crate) struct RecvWindow {
    plan: Plan,
    /// Chunks before this one were announced.
    arrived: u64,
    /// Chunks before this one have left the memory.
    drained: u64,
    /// As many of them as the sender was told.
    credited: u64,
}

impl RecvWindow {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            arrived: 0,
            drained: 0,
            credited: 0,
        }
    }

    /// The next chunk, whose number modulo 2^32 came with the announcement, lies in memory.
    pub(crate) fn handle_announced(&mut self, number: u32) -> Result<Chunk, Breach> {
        let expected = low(self.arrived);
        let wrong = Breach::Announced {
            expected,
            got: number,
        };
        let chunk = self.plan.chunk(self.arrived).ok_or(wrong)?;
        if number != expected {
            return Err(wrong);
        }
        if self.arrived - self.credited >= self.plan.slots {
            return Err(Breach::Overrun(self.arrived));
        }
        self.arrived += 1;
        Ok(chunk)
    }

    /// The oldest announced chunk has left the memory.
    pub(crate) fn drained(&mut self) {
        debug_assert!(self.drained < self.arrived, "only what arrived is drained");
        self.drained += 1;
    }

    /// The credit that the sender has not been told yet.
    pub(crate) fn poll_credit(&self) -> Option<u32> {
        (self.credited < self.drained).then_some(low(self.drained))
    }

    /// The credit that [`RecvWindow::poll_credit`] names is on its way.
    pub(crate) fn credited(&mut self) {
        self.credited = self.drained;
    }

    /// Chunks that have left the memory.
    pub(crate) fn chunks_drained(&self) -> u64 {
        self.drained
    }
}

/// A chunk number as it travels in immediate data.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the low half is what travels"
)]
pub(crate) fn low(number: u64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_cut_to_the_last_byte() {
        let of = |size| Plan::new(size, 100, 4);
        assert_eq!(
            (of(0).chunks(), of(0).slots(), of(0).buffer_bytes()),
            (0, 0, Some(0))
        );
        assert_eq!(
            (of(1).chunks(), of(1).slots(), of(1).buffer_bytes()),
            (1, 1, Some(1))
        );
        assert_eq!(
            (of(99).chunks(), of(100).chunks(), of(101).chunks()),
            (1, 1, 2)
        );
        assert_eq!((of(1000).slots(), of(1000).buffer_bytes()), (4, Some(400)));
        assert_eq!(
            of(950).chunk(9),
            Some(Chunk {
                number: 9,
                at: 100,
                len: 50
            })
        );
        assert_eq!(of(950).chunk(10), None);
        assert_eq!(of(0).chunk(0), None);
        let largest = Plan::new(u64::MAX, 1, u32::MAX);
        assert_eq!(largest.chunks(), u64::MAX);
        assert_eq!(largest.chunk(u64::MAX - 1).map(|chunk| chunk.len), Some(1));
    }

    /// Goal: a slot is filled again only when both ends are done with it. Method: hold back first the
    /// completion, then the credit.
    #[test]
    fn a_slot_waits_for_both_ends() {
        let mut window = SendWindow::new(Plan::new(500, 100, 2));
        window.posted();
        window.posted();
        assert_eq!(window.poll_chunk(), None, "two are outstanding");
        window.handle_credit(1).expect("one was drained");
        assert_eq!(window.poll_chunk(), None, "its WRITE has not completed");
        window.handle_completed(0).expect("the oldest");
        assert_eq!(
            window.poll_chunk(),
            Some(Chunk {
                number: 2,
                at: 0,
                len: 100
            })
        );
        window.posted();
        window.handle_completed(1).expect("the oldest");
        assert_eq!(window.poll_chunk(), None, "chunk 1 was not drained");
        window.handle_credit(2).expect("another was drained");
        assert_eq!(window.poll_chunk().map(|chunk| chunk.at), Some(100));
    }

    #[test]
    fn what_cannot_be_is_a_breach() {
        let plan = Plan::new(500, 100, 2);
        let mut sender = SendWindow::new(plan);
        assert_eq!(
            sender.handle_completed(0),
            Err(Breach::Completed {
                expected: 0,
                got: 0
            }),
            "not posted"
        );
        sender.posted();
        sender.posted();
        assert_eq!(
            sender.handle_completed(1),
            Err(Breach::Completed {
                expected: 0,
                got: 1
            })
        );
        assert_eq!(
            sender.handle_credit(3),
            Err(Breach::Credit { sent: 2, got: 3 })
        );
        assert_eq!(
            sender.handle_credit(u32::MAX),
            Err(Breach::Credit {
                sent: 2,
                got: u32::MAX
            })
        );

        let mut receiver = RecvWindow::new(plan);
        assert_eq!(
            receiver.handle_announced(1),
            Err(Breach::Announced {
                expected: 0,
                got: 1
            })
        );
        for number in 0..2 {
            receiver.handle_announced(number).expect("in turn");
        }
        assert_eq!(receiver.handle_announced(2), Err(Breach::Overrun(2)));
        receiver.drained();
        assert_eq!(
            receiver.handle_announced(2),
            Err(Breach::Overrun(2)),
            "the sender was not told"
        );
        receiver.credited();
        assert!(receiver.handle_announced(2).is_ok());

        let mut nothing = RecvWindow::new(Plan::new(0, 100, 2));
        assert_eq!(nothing.chunks_drained(), 0);
        assert_eq!(
            nothing.handle_announced(0),
            Err(Breach::Announced {
                expected: 0,
                got: 0
            })
        );
    }

    /// Goal: numbers travel in 32 bits; files with more chunks must not confuse it. Method: start both
    /// ends just below the wrap.
    #[test]
    fn numbers_wrap() {
        let plan = Plan::new(1 << 33, 1, 3);
        let start = (1 << 32) - 2;
        let mut sender = SendWindow {
            plan,
            next: start,
            completed: start,
            drained: start,
        };
        let mut receiver = RecvWindow {
            plan,
            arrived: start,
            drained: start,
            credited: start,
        };
        for number in start..start + 5 {
            let chunk = sender.poll_chunk().expect("free");
            sender.posted();
            assert_eq!(receiver.handle_announced(low(number)), Ok(chunk));
            receiver.drained();
            sender.handle_completed(number).expect("in turn");
            sender
                .handle_credit(receiver.poll_credit().expect("one more"))
                .expect("was sent");
            receiver.credited();
            assert_eq!(receiver.poll_credit(), None);
        }
        assert_eq!(sender.completed(), start + 5);
    }

    /// Goal: with any order of delivery all chunks pass once, in order, and never more than the window
    /// are outstanding. Method: a small generator picks what happens next.
    #[test]
    fn every_order_of_events_ends() {
        for seed in 1..200_u64 {
            let mut state = seed;
            let mut draw = |below: u64| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) % below
            };
            let window = draw(5) as u32 + 1;
            let plan = Plan::new(draw(40), 3, window);
            let (mut sender, mut receiver) = (SendWindow::new(plan), RecvWindow::new(plan));
            let (mut writes, mut announced, mut credits) = (Vec::new(), Vec::new(), Vec::new());
            let mut arrived = Vec::new();
            while !sender.is_done() {
                match draw(5) {
                    0 => {
                        if let Some(chunk) = sender.poll_chunk() {
                            sender.posted();
                            writes.push(chunk.number);
                            announced.push(chunk.number);
                        }
                    }
                    1 if !writes.is_empty() => {
                        sender.handle_completed(writes.remove(0)).expect("oldest");
                    }
                    2 if !announced.is_empty() => {
                        let chunk = receiver
                            .handle_announced(low(announced.remove(0)))
                            .expect("free");
                        arrived.push(chunk.number);
                        receiver.drained();
                    }
                    3 => {
                        if let Some(credit) = receiver.poll_credit() {
                            receiver.credited();
                            credits.push(credit);
                        }
                    }
                    4 if !credits.is_empty() => {
                        sender.handle_credit(credits.remove(0)).expect("sent");
                    }
                    _ => {}
                }
                assert!(writes.len() <= window as usize, "seed {seed}");
            }
            assert_eq!(receiver.chunks_drained(), plan.chunks());
            assert!(arrived.iter().copied().eq(0..plan.chunks()), "seed {seed}");
        }
    }
}
