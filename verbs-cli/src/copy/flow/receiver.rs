//! The receiving end: drains announced chunks into the sink, returns credits, and closes with the
//! digest of what arrived.

use blake3::Hasher;
use verbs_core::Wc;

use super::sender::PIECE_BYTES;
use super::window::{Chunk, Plan, RecvWindow};
use crate::copy::endpoint::{Endpoint, Purpose};
use crate::copy::error::CopyError;
use crate::copy::message::{NUMBER_LEN, Totals};
use crate::copy::sink::Sink;

/// The receiving end of a copy.
pub(crate) struct Receiver<'a> {
    endpoint: Endpoint,
    sink: &'a mut Sink,
    plan: Plan,
    window: RecvWindow,
    hasher: Hasher,
    piece: Vec<u8>,
    /// Credits that have not completed.
    credits: u32,
    verdict: Option<Verdict>,
    /// Whether the sender has acknowledged that this end has closed.
    closed: bool,
}

/// What the sender says it sent, and what arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    pub(crate) sent: Totals,
    pub(crate) arrived: Totals,
}

/// What a step of the receiver did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing was there to do.
    Idle,
    /// Something small.
    Worked,
    /// A chunk of so many bytes has left the memory.
    Drained(usize),
}

impl<'a> Receiver<'a> {
    pub(crate) fn new(endpoint: Endpoint, sink: &'a mut Sink, plan: Plan) -> Self {
        let (window, piece) = (RecvWindow::new(plan), vec![0; PIECE_BYTES]);
        Self {
            endpoint,
            sink,
            plan,
            window,
            hasher: Hasher::new(),
            piece,
            credits: 0,
            verdict: None,
            closed: false,
        }
    }

    /// Handles one completion, if there is one. Writing the file may block.
    pub(crate) fn step(&mut self) -> Result<Step, CopyError> {
        let mut step = Step::Idle;
        if let Some((purpose, wc)) = self.endpoint.poll()? {
            step = Step::Worked;
            match purpose {
                Purpose::Credit(_) => self.credits -= 1,
                Purpose::Recv(piece) => match self.endpoint.said(piece, &wc)? {
                    Some(number) => {
                        // Before the credit: what it allows the sender to send finds a receive.
                        self.endpoint.post_recv(piece)?;
                        step = self.drain(number)?;
                    }
                    None => self.close(piece, &wc)?,
                },
                Purpose::Totals => self.closed = true,
                Purpose::Write(_) | Purpose::Announce(_) | Purpose::Probe => {}
            }
        }
        self.credit()?;
        Ok(step)
    }

    /// What there is to compare, when the sender has closed.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// Whether the sender has acknowledged that this end has closed, too.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Chunks that have left the memory.
    pub(crate) fn chunks(&self) -> u64 {
        self.window.chunks_drained()
    }

    pub(crate) fn endpoint(&mut self) -> &mut Endpoint {
        &mut self.endpoint
    }

    pub(crate) fn into_endpoint(self) -> Endpoint {
        self.endpoint
    }

    /// From the announced chunk's slot into the file; the digest is of what lies in the slot.
    fn drain(&mut self, number: u32) -> Result<Step, CopyError> {
        let end = self.endpoint.end;
        let announced = self.window.handle_announced(number);
        let Chunk { at, len, .. } =
            announced.map_err(|breach| CopyError::Protocol { end, breach })?;
        let mut done = 0;
        while done < len {
            let piece = &mut self.piece[..PIECE_BYTES.min(len - done)];
            let read = self.endpoint.data.read(at + done, piece);
            read.map_err(|error| self.endpoint.failed("read from the chunk buffers", error))?;
            self.hasher.update(piece);
            self.sink.write(piece)?;
            done += piece.len();
        }
        self.window.drained();
        Ok(Step::Drained(len))
    }

    /// Tells the sender what was drained, as long as the queue has room for that. A credit counts all
    /// chunks, so one that has to wait is made up for by the next.
    fn credit(&mut self) -> Result<(), CopyError> {
        if let Some(drained) = self.window.poll_credit()
            && self.credits < self.endpoint.credits_max()
        {
            let purpose = Purpose::Credit(self.window.chunks_drained());
            let mut bytes = [0; NUMBER_LEN];
            let credit = self.endpoint.say(purpose, drained, &mut bytes);
            self.endpoint.post("a credit", credit.signaled())?;
            self.credits += 1;
            self.window.credited();
        }
        Ok(())
    }

    /// The sender has closed: this end does, too.
    fn close(&mut self, piece: u32, wc: &Wc) -> Result<(), CopyError> {
        let sent = self.endpoint.totals(piece, wc)?;
        let arrived = Totals {
            bytes: self.plan.size(),
            chunks: self.window.chunks_drained(),
            digest: self.hasher.finalize(),
        };
        self.verdict = Some(Verdict { sent, arrived });
        self.endpoint.close_with(&arrived)
    }
}
