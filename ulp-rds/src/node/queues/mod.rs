//! A connected queue pair: its queues, and the registered memory that packets are sent from and received into.
//!
//! All of it is used under the node's lock, by the thread that sends, receives or was called for an event.

mod receives;
mod sends;

use std::task::{Context, Poll};

use verbs_core::{
    Arm, Cq, Device, Error, Pd, Qp, QpInit, RecvQueue, SendQueue, SendWr, Wc, WcStatus,
};

use self::receives::Receives;
pub(super) use self::receives::Slot;
pub(super) use self::sends::{CONTROL, RDMA, SEND};
use self::sends::{STRIDE, Sends};
use super::operations::Operations;
use crate::config::Config;
use crate::machine::{Machine, RdmaWork, Short};
use crate::payload::Payload;
use crate::rdma::Rdma;

/// Completions that are polled, and packets that are posted, at a time.
pub(super) const BATCH: usize = 32;

/// What a queue pair needs, made before it is connected.
pub(super) struct Made {
    cq: Cq,
    sends: Sends,
    receives: Receives,
}

/// A post was refused: the queue pair is of no use any more.
pub(super) struct Refused;

/// What a completion says.
pub(super) struct Completion {
    pub(super) id: u64,
    /// Bytes that were received.
    pub(super) len: u32,
    pub(super) status: WcStatus,
}

/// A queue pair's queues and memory.
pub(crate) struct Queues {
    cq: Cq,
    send: SendQueue,
    recv: RecvQueue,
    sends: Sends,
    receives: Receives,
    /// Completions that were polled, how many they are, and how many of them were looked at.
    polled: [Wc; BATCH],
    count: usize,
    at: usize,
    /// What is to be posted; operations with the place of the packet that each goes before. Both are empty between calls.
    ready: Vec<SendWr<'static>>,
    operations: Vec<(usize, RdmaWork, Rdma)>,
}

impl Made {
    /// A queue pair in INIT with all its receives posted, and its memory. Its completion queue is armed.
    pub(super) async fn new(
        device: &Device,
        pd: &Pd,
        config: &Config,
    ) -> Result<(Qp, Self), Error> {
        let (receives, sends) = (config.receives, config.sends);
        let mut cq = device.create_cq(receives + 2 * sends).await?;
        // Nothing is posted yet, so nothing waits.
        let _empty = cq.arm(Arm::Next);
        // Before each packet there may be an operation.
        let init = QpInit::rc(&cq, &cq).depth(2 * sends, receives);
        let mut qp = pd.create_qp(init).await?;
        qp.init(1, verbs_core::Access::REMOTE).await?;
        let receives = Receives::new(pd, receives).await?;
        for recv in receives.all() {
            // It is as deep as that.
            qp.post_recv(recv).map_err(|_| Error::DeviceFailed)?;
        }
        let sends = Sends::new(pd, sends).await?;
        Ok((
            qp,
            Self {
                cq,
                sends,
                receives,
            },
        ))
    }
}

impl Queues {
    /// The queues of a connection that was made.
    pub(super) fn new(made: Made, send: SendQueue, recv: RecvQueue) -> Box<Self> {
        Box::new(Self {
            cq: made.cq,
            send,
            recv,
            sends: made.sends,
            receives: made.receives,
            polled: [Wc::default(); BATCH],
            count: 0,
            at: 0,
            ready: Vec::with_capacity(BATCH),
            operations: Vec::new(),
        })
    }

    /// The next completion; up to so many are polled if none waits.
    #[inline]
    pub(super) fn next(&mut self, width: usize) -> Option<Completion> {
        if self.at == self.count {
            self.at = 0;
            self.count = self.cq.poll(self.polled.get_mut(..width)?).len();
        }
        let wc = self.polled.get(self.at..self.count)?.first()?;
        self.at += 1;
        Some(Completion {
            id: wc.wr_id,
            len: wc.byte_len,
            status: wc.status,
        })
    }

    /// Arms the completion queue: pending until there is something to poll. `None` if there never will be.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        if self.at < self.count {
            return Poll::Ready(Some(()));
        }
        self.cq.poll_ready(cx).map(Result::ok)
    }

    /// The packet that a completion tells of, which is not taken yet.
    #[inline]
    pub(super) fn peek(&self, of: &Completion) -> Slot<'_> {
        self.receives.at(of.id as u32, of.len as usize)
    }

    /// The packet that a completion tells of, until the next is taken; its receive is to be posted again.
    #[inline]
    pub(super) fn packet(&mut self, of: &Completion) -> Slot<'_> {
        self.receives.take(of.id as u32, of.len as usize)
    }

    /// Whether receives are to be posted again.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.receives.is_due()
    }

    /// Posts receives again, if enough of them are due. Peers are granted credits for them.
    #[inline]
    pub(super) fn post_receives(&mut self, machine: &mut Machine) -> Result<(), Refused> {
        if !self.receives.is_due() {
            return Ok(());
        }
        let posted = self.receives.post(&mut self.recv).ok_or(Refused)?;
        machine.receives_posted(posted);
        Ok(())
    }

    /// A packet was sent, and so were all that were posted before it.
    pub(super) fn sent(&mut self, id: u64) {
        self.sends.sent(id);
    }

    /// The peer has the message that was kept in that slot.
    pub(super) fn release(&mut self, slot: u32) {
        self.sends.release(slot);
    }

    /// Copies the message out that is kept in a slot.
    pub(super) fn kept(&self, slot: u32, into: Payload, len: usize) -> Payload {
        self.sends.kept(slot, into, len)
    }

    /// Whether so many slots are taken that it is time to look what was sent and acknowledged.
    #[inline]
    pub(super) fn is_low(&self) -> bool {
        self.sends.is_low()
    }

    /// Transmits a message of one packet from the slot in which it is kept until the peer has acknowledged it. `false` if that
    /// is not possible now.
    #[inline]
    pub(super) fn transmit_now(
        &mut self,
        machine: &mut Machine,
        message: &Short,
        payload: &[u8],
    ) -> Result<bool, Refused> {
        let Some(slot) = self.sends.next() else {
            return Ok(false);
        };
        let Some(header) = machine.transmit_now(message, slot) else {
            return Ok(false);
        };
        let send = self.sends.keep(&header, payload);
        self.send.post(send).map_err(|_| Refused)?;
        Ok(true)
    }

    /// Posts what is to be transmitted, as far as there is room.
    pub(super) fn transmit(
        &mut self,
        machine: &mut Machine,
        operations: &mut Operations,
    ) -> Result<(), Refused> {
        while self.collect(machine, operations) {
            self.post()?;
        }
        Ok(())
    }

    fn collect(&mut self, machine: &mut Machine, operations: &mut Operations) -> bool {
        while self.ready.len() < BATCH
            && self.sends.has_room()
            && let Some(packet) = machine.poll_transmit()
            && let Some(mut send) = self.sends.fill(&packet)
        {
            if let Some(work) = packet.rdma
                && let Some(rdma) = operations.begin(work.id)
            {
                self.operations.push((self.ready.len(), work, rdma));
                if work.fenced {
                    send = send.fenced();
                }
            }
            self.ready.push(send.into());
        }
        !self.ready.is_empty()
    }

    fn post(&mut self) -> Result<(), Refused> {
        let mut begin = 0;
        let mut failed = false;
        for (place, work, rdma) in self.operations.drain(..) {
            let before = self.ready.get(begin..place).unwrap_or_default();
            failed |= self.send.post_batch(before).is_err();
            failed |= rdma.post(&mut self.send, RDMA | work.id).is_err();
            begin = place;
        }
        failed |= match self.ready.get(begin..).unwrap_or_default() {
            [] => false,
            [one] => self.send.post(*one).is_err(),
            rest => self.send.post_batch(rest).is_err(),
        };
        self.ready.clear();
        if failed { Err(Refused) } else { Ok(()) }
    }
}
