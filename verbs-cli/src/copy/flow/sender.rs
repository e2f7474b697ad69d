//! The sending end: reads the source, WRITEs chunks, announces them, and closes with the digest.

use blake3::Hasher;
use verbs_core::{PostError, Remote, Wc, Write};

use super::window::{Chunk, Plan, SendWindow, low};
use crate::copy::endpoint::{Endpoint, Purpose};
use crate::copy::error::CopyError;
use crate::copy::message::{NUMBER_LEN, Totals};
use crate::copy::source::Source;

/// Bytes that pass through the processor's caches at once on their way from a file to registered
/// memory or back: read, digested and copied while they are warm.
pub(crate) const PIECE_BYTES: usize = 128 << 10;

/// The sending end of a copy.
pub(crate) struct Sender<'a> {
    endpoint: Endpoint,
    source: &'a mut Source,
    plan: Plan,
    window: SendWindow,
    hasher: Hasher,
    piece: Vec<u8>,
    /// The receiver's slots.
    slots: Remote,
    /// A chunk that lies in its slot, and how many of its work requests are posted: its WRITE comes
    /// first, then its announcement.
    filled: Option<(Chunk, usize)>,
    /// Posts of a WRITE or its announcement that found no room in the queue and were repeated.
    retries: u64,
    /// Whether it has closed, with the digest of what it read.
    closing: bool,
    /// Whether the receiver has closed, too.
    closed: bool,
}

impl<'a> Sender<'a> {
    /// `slots` is the start of the receiver's.
    pub(crate) fn new(
        endpoint: Endpoint,
        source: &'a mut Source,
        plan: Plan,
        slots: Remote,
    ) -> Self {
        let piece = vec![0; PIECE_BYTES];
        let window = SendWindow::new(plan);
        Self {
            endpoint,
            source,
            plan,
            window,
            hasher: Hasher::new(),
            piece,
            slots,
            filled: None,
            retries: 0,
            closing: false,
            closed: false,
        }
    }

    /// Does what can be done now: at most one chunk, so that the receiver has its turn while the chunk
    /// is warm in the caches. Reading the file may block. Says whether there was anything to do.
    pub(crate) fn step(&mut self) -> Result<bool, CopyError> {
        let mut worked = false;
        if self.filled.is_none()
            && let Some(chunk) = self.window.poll_chunk()
        {
            self.fill(chunk)?;
            self.filled = Some((chunk, 0));
        }
        if let Some((chunk, posted)) = self.filled {
            worked = self.post(chunk, posted)?;
        } else if self.window.is_done() && !self.closing {
            self.close()?;
            worked = true;
        }
        // When the receiver has closed it may end the connection, which flushes receives.
        while !self.closed
            && let Some((purpose, wc)) = self.endpoint.poll()?
        {
            self.handle(purpose, &wc)?;
            worked = true;
        }
        Ok(worked)
    }

    /// Whether both ends have closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// WRITEs that have completed.
    pub(crate) fn writes(&self) -> u64 {
        self.window.completed()
    }

    /// Posts of a WRITE or its announcement that found no room in the queue and were repeated.
    pub(crate) fn retries(&self) -> u64 {
        self.retries
    }

    pub(crate) fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    pub(crate) fn into_endpoint(self) -> Endpoint {
        self.endpoint
    }

    /// From the file into the chunk's slot.
    fn fill(&mut self, chunk: Chunk) -> Result<(), CopyError> {
        let mut done = 0;
        while done < chunk.len {
            let piece = &mut self.piece[..PIECE_BYTES.min(chunk.len - done)];
            self.source.read(piece)?;
            self.hasher.update(piece);
            let written = self.endpoint.data.write(chunk.at + done, piece);
            written.map_err(|error| self.endpoint.failed("write into the chunk buffers", error))?;
            done += piece.len();
        }
        Ok(())
    }

    /// Posts the WRITE of a chunk and its announcement, with one doorbell, from the first of the two
    /// that is not yet posted. Says whether all were accepted; the others have to wait for room.
    fn post(&mut self, chunk: Chunk, posted: usize) -> Result<bool, CopyError> {
        let place = Remote {
            addr: self.slots.addr + chunk.at as u64,
            rkey: self.slots.rkey,
        };
        let bytes = self.endpoint.data.slice(chunk.at..chunk.at + chunk.len);
        let write = Write::new(Purpose::Write(chunk.number).wr_id(), place).from(bytes);
        // A connection delivers in order: what is announced has been placed.
        let (purpose, mut bytes) = (Purpose::Announce(chunk.number), [0; NUMBER_LEN]);
        let announce = self.endpoint.say(purpose, low(chunk.number), &mut bytes);
        let wrs = [write.signaled().into(), announce.into()];
        let (now_posted, error) = match self.endpoint.post_batch(&wrs[posted..]) {
            Ok(()) => (wrs.len(), None),
            Err(batch) => (posted + batch.posted, Some(batch.error)),
        };
        if posted == 0 && now_posted > 0 {
            self.window.posted();
        }
        match error {
            None => {
                self.filled = None;
                Ok(true)
            }
            Some(PostError::Full { .. }) => {
                self.retries += 1;
                self.filled = Some((chunk, now_posted));
                Ok(false)
            }
            Some(error) => Err(CopyError::Post {
                end: self.endpoint.end,
                doing: ["a WRITE", "an announcement"][now_posted.min(1)],
                error,
            }),
        }
    }

    /// Everything was sent and has left the receiver's memory: says what it was.
    fn close(&mut self) -> Result<(), CopyError> {
        self.source.check_unchanged()?;
        let totals = Totals {
            bytes: self.plan.size(),
            chunks: self.plan.chunks(),
            digest: self.hasher.finalize(),
        };
        self.endpoint.close_with(&totals)?;
        self.closing = true;
        Ok(())
    }

    fn handle(&mut self, purpose: Purpose, wc: &Wc) -> Result<(), CopyError> {
        let end = self.endpoint.end;
        let wrong = |breach| CopyError::Protocol { end, breach };
        match purpose {
            Purpose::Write(number) => self.window.handle_completed(number).map_err(wrong),
            Purpose::Recv(piece) => {
                match self.endpoint.said(piece, wc)? {
                    Some(drained) => self.window.handle_credit(drained).map_err(wrong)?,
                    None => {
                        // What arrived is for the receiver to judge; this is only the end.
                        self.endpoint.totals(piece, wc)?;
                        self.closed = true;
                    }
                }
                self.endpoint.post_recv(piece)
            }
            Purpose::Announce(_) | Purpose::Credit(_) | Purpose::Totals | Purpose::Probe => Ok(()),
        }
    }
}
