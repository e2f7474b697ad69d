//! Two ends of a connection that packets join, each on an HCA of its own, and what they do.

use futures::executor::block_on;
use hca_sim::connect_with;
use verbs_core::{Mr, Qp, QpAttr, QpInit, Recv, Send, Write};

use super::bed::{Bed, Poller};
use super::duel::{Duel, Party, WAYS};
use super::error::BenchError;
use super::machine::Patience;

/// Payload bytes of a full packet.
pub(super) const MTU: usize = 4096;
/// Bytes of the small messages.
pub(super) const SMALL: usize = 64;
/// Work requests on a queue.
const DEPTH: u32 = 64;
/// The local ACK timeout, as `copy` has it: a busy machine keeps an end waiting for longer than the half second after which
/// the usual 14 gives up.
const ACK_TIMEOUT: u8 = 16;
/// Receives posted ahead.
const AHEAD: u64 = 16;

/// One end, with one completion queue.
pub(super) struct End {
    pub(super) qp: Qp,
    pub(super) cq: Poller,
    pub(super) mr: Mr,
    sent: u64,
}

impl End {
    pub(super) fn on(bed: &Bed, bytes: usize) -> Result<Self, BenchError> {
        let cq = bed.cq(2 * DEPTH)?;
        let init = QpInit::rc(&cq, &cq).depth(DEPTH, DEPTH);
        let qp = block_on(async { bed.pd.create_qp(init).await })
            .map_err(BenchError::verb("create a queue pair"))?;
        Ok(Self {
            qp,
            cq: Poller::new(cq),
            mr: bed.memory(bytes)?,
            sent: 0,
        })
    }

    fn expect(&mut self) -> Result<(), BenchError> {
        let recv = Recv::new(0).into(self.mr.slice(MTU..MTU + SMALL));
        Ok(self.qp.post_recv(recv)?)
    }

    fn send(&mut self) -> Result<(), BenchError> {
        self.sent += 1;
        let send = Send::new(1).from(self.mr.slice(0..SMALL));
        // One in so many is signalled, so that the queue gets its entries back.
        let signaled = self.sent.is_multiple_of(16);
        Ok(self
            .qp
            .post_send(if signaled { send.signaled() } else { send })?)
    }

    fn receive(&mut self) -> Result<(), BenchError> {
        let mut patience = Patience::new("a message");
        loop {
            if let [wc] = self.cq.poll(1)?
                && wc.wr_id == 0
            {
                return self.expect();
            }
            patience.lose()?;
        }
    }
}

/// Two ends that are connected to each other, each with so many bytes of memory.
pub(super) fn ends([a, b]: [Bed; 2], bytes: usize) -> Result<[End; 2], BenchError> {
    let [mut a, mut b] = [End::on(&a, bytes)?, End::on(&b, bytes)?];
    let patient = |rts: &mut QpAttr| rts.timeout = Some(ACK_TIMEOUT);
    block_on(connect_with(&mut a.qp, &mut b.qp, patient))
        .map_err(BenchError::verb("connect two queue pairs"))?;
    Ok([a, b])
}

/// WRITEs of so many bytes, each to its completion, by one thread at both ends.
pub(super) fn write(mut ends: [End; 2], bytes: usize) -> impl FnMut(u64) -> Result<(), BenchError> {
    move |times| {
        // All of both: an end whose queue pair is not used here has to keep it.
        let [a, b] = &mut ends;
        let (ours, theirs) = (a.mr.slice(0..bytes), b.mr.remote(0));
        for _ in 0..times {
            a.qp.post_send(Write::new(1, theirs).from(ours).signaled())?;
            let mut patience = Patience::new("a WRITE");
            while a.cq.poll(1)?.is_empty() {
                // The responder is in this thread too; nothing completes there.
                b.cq.poll(1)?;
                patience.lose()?;
            }
        }
        Ok(())
    }
}

/// A small SEND there and one back, by a thread at each end.
pub(super) fn sends<'a>([a, b]: [End; 2]) -> Result<Duel<'a>, BenchError> {
    let party = |mut end: End, begins: bool| -> Result<Party<'a>, BenchError> {
        for _ in 0..AHEAD {
            end.expect()?;
        }
        Ok(Box::new(move |times| {
            for _ in 0..times {
                if begins {
                    end.send()?;
                }
                end.receive()?;
                if !begins {
                    end.send()?;
                }
            }
            // Sends what the last message is owed: this end does not poll while others have their turns.
            end.cq.poll(1).map(drop)
        }))
    };
    Ok(Duel {
        units: WAYS,
        here: party(a, true)?,
        there: party(b, false)?,
    })
}
