//! The verbs objects that benchmarks run on.

use std::ops::Range;

use futures::executor::block_on;
use hca_sim::{Builder, Hca, connect};
use verbs_core::{
    Access, Cq, Device, Memory, Mr, Pd, Qp, QpInit, Recv, RecvQueue, Send, SendQueue, Sge, Wc,
};

use super::error::BenchError;
use super::machine::Patience;

/// Completions that one poll takes.
pub(crate) const POLL: usize = 16;

/// Work requests on a queue that is only posted to singly or in batches of 16.
pub(crate) const DEPTH: u32 = 32;

pub(crate) const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// One software HCA, open.
pub(crate) struct Bed {
    pub(crate) pd: Pd,
    pub(crate) device: Device,
}

/// The queues of one queue pair.
pub(crate) struct Line {
    pub(crate) send: SendQueue,
    pub(crate) recv: RecvQueue,
    /// Its handle destroys the queue pair when it is dropped.
    qp: Qp,
}

/// One end of a connection, with completion queues of its own and registered memory.
pub(crate) struct End {
    pub(crate) send: SendQueue,
    pub(crate) recv: RecvQueue,
    pub(crate) sent: Poller,
    pub(crate) received: Poller,
    pub(crate) mr: Mr,
    /// Its handle destroys the queue pair when it is dropped.
    _qp: Qp,
}

impl Bed {
    /// On a loopback link of its own.
    pub(crate) fn new() -> Result<Self, BenchError> {
        Self::on(Hca::loopback())
    }

    /// On the HCA that this makes.
    pub(crate) fn on(hca: Builder) -> Result<Self, BenchError> {
        let device = block_on(async { hca.open().await });
        Self::of(device.map_err(BenchError::verb("open a device"))?)
    }

    /// On a device that is open.
    pub(crate) fn of(device: Device) -> Result<Self, BenchError> {
        let pd = block_on(async { device.alloc_pd().await });
        let pd = pd.map_err(BenchError::verb("allocate a protection domain"))?;
        Ok(Self { pd, device })
    }

    /// A completion queue.
    pub(crate) fn cq(&self, depth: u32) -> Result<Cq, BenchError> {
        block_on(async { self.device.create_cq(depth).await })
            .map_err(BenchError::verb("create a completion queue"))
    }

    /// Registered memory in which every page exists.
    pub(crate) fn memory(&self, bytes: usize) -> Result<Mr, BenchError> {
        let memory =
            touched(bytes).map_err(BenchError::verb("allocate memory for the messages"))?;
        block_on(async { self.pd.register(memory, RIGHTS).await })
            .map_err(BenchError::verb("register memory"))
    }

    /// Two queue pairs that are connected to each other.
    pub(crate) fn lines(&self, inits: [QpInit<'_>; 2]) -> Result<[Line; 2], BenchError> {
        block_on(async {
            let created = BenchError::verb("create a queue pair");
            let mut a = self.pd.create_qp(inits[0]).await.map_err(&created)?;
            let mut b = self.pd.create_qp(inits[1]).await.map_err(&created)?;
            connect(&mut a, &mut b)
                .await
                .map_err(BenchError::verb("connect two queue pairs"))?;
            Ok([Line::of(a)?, Line::of(b)?])
        })
    }

    /// Two ends that are connected to each other, with queues of that depth and each with so many
    /// bytes of memory.
    pub(crate) fn ends(&self, depth: u32, bytes: usize) -> Result<[End; 2], BenchError> {
        let queues = || Ok::<_, BenchError>([self.cq(depth)?, self.cq(depth)?]);
        let cqs: [[Cq; 2]; 2] = [queues()?, queues()?];
        let inits = cqs
            .each_ref()
            .map(|[sent, received]| QpInit::rc(sent, received).depth(depth, depth));
        let [a, b] = self.lines(inits)?;
        let [of_a, of_b] = cqs;
        let end = |line: Line, [sent, received]: [Cq; 2]| {
            Ok::<_, BenchError>(End {
                send: line.send,
                recv: line.recv,
                sent: Poller::new(sent),
                received: Poller::new(received),
                mr: self.memory(bytes)?,
                _qp: line.qp,
            })
        };
        Ok([end(a, of_a)?, end(b, of_b)?])
    }
}

impl Line {
    fn of(qp: Qp) -> Result<Self, BenchError> {
        // A queue pair has its queues until they are split off.
        let (qp, send, recv) = qp.split().map_err(|_| verbs_core::PostError::Split)?;
        Ok(Self { send, recv, qp })
    }

    /// The handle, for callers that control it.
    pub(crate) fn into_qp(self) -> Qp {
        self.qp
    }
}

impl End {
    /// Posts a receive of one piece of the memory.
    #[inline]
    pub(crate) fn expect(&mut self, wr_id: u64, place: Range<usize>) -> Result<(), BenchError> {
        let recv = Recv::new(wr_id).into(self.mr.slice(place));
        Ok(self.recv.post(recv)?)
    }
}

/// A message through both queues, one way and in one thread: posts the receive and the signalled
/// SEND.
#[inline]
pub(crate) fn pass(
    recv: &mut RecvQueue,
    send: &mut SendQueue,
    from: Sge,
    into: Sge,
) -> Result<(), BenchError> {
    recv.post(Recv::new(1).into(into))?;
    send.post(Send::new(2).from(from).signaled())?;
    Ok(())
}

/// Polls a completion queue and looks at every status.
pub(crate) struct Poller {
    cq: Cq,
    entries: [Wc; POLL],
}

impl Poller {
    pub(crate) fn new(cq: Cq) -> Self {
        Self {
            cq,
            entries: [Wc::default(); POLL],
        }
    }

    /// Takes what is there, at most so many.
    ///
    /// # Errors
    /// [`BenchError::Completion`] for the first that failed.
    #[inline]
    pub(crate) fn poll(&mut self, max: usize) -> Result<&[Wc], BenchError> {
        let got = self.cq.poll(&mut self.entries[..max]);
        match got.iter().find(|wc| !wc.is_ok()) {
            Some(wc) => Err(BenchError::Completion {
                wr_id: wc.wr_id,
                status: wc.status,
            }),
            None => Ok(got),
        }
    }

    /// Takes exactly so many, at most [`POLL`], and waits for them by polling.
    ///
    /// # Errors
    /// [`BenchError::Completion`] for one that failed, [`BenchError::Stalled`] if they do not come.
    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Result<(), BenchError> {
        let mut patience = Patience::new("completions");
        let mut missing = count;
        loop {
            missing -= self.poll(missing)?.len();
            if missing == 0 {
                return Ok(());
            }
            patience.lose()?;
        }
    }
}

/// Memory in which every page exists.
pub(crate) fn touched(bytes: usize) -> Result<Memory, verbs_core::Error> {
    let mut memory = Memory::alloc(bytes)?;
    memory.as_mut_slice().fill(0x5a);
    Ok(memory)
}
