//! Two connected queue pairs on devices of their own, over any carrier; one thread posts and polls for both.

use std::hint::black_box;
use std::net::IpAddr;

use hca_sim::connect;
use verbs::sim::{Carrier, Network};
use verbs_core::{
    Access, Atomic, Cq, Device, Error, Memory, Mr, Pd, Qp, QpInit, Read, Recv, RecvQueue, Send,
    SendQueue, Sge, Shared, Wc, Write,
};

/// Bytes of the longest message.
pub const LONGEST: usize = 1 << 20;
/// The distance between the bytes that are sent and where they arrive: not a multiple of a page, because processors
/// confuse addresses with the same low bits.
const APART: usize = LONGEST + 4096 + 192;

/// One end. Dropped in this order.
#[derive(Debug)]
pub struct End {
    /// Its queue pair.
    pub qp: Qp,
    /// The completion queue of its sends and receives.
    pub cq: Cq,
    /// Its memory.
    pub mr: Mr,
    _pd: Pd,
    _device: Device,
}

/// Two of them, connected.
#[derive(Debug)]
pub struct Ends {
    /// The end that sends, writes and reads.
    pub here: End,
    /// The other one.
    pub there: End,
}

impl End {
    async fn on(network: &Network, host: IpAddr, depth: u32) -> Result<Self, Error> {
        let device = network.hca(host)?.open().await?;
        let pd = device.alloc_pd().await?;
        let cq = device.create_cq(4 * depth).await?;
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = pd.register(Memory::alloc(2 * APART)?, access).await?;
        let init = QpInit::rc(&cq, &cq).depth(depth, depth);
        let qp = pd.create_qp(init).await?;
        Ok(Self {
            qp,
            cq,
            mr,
            _pd: pd,
            _device: device,
        })
    }

    fn source(&self, bytes: usize) -> Sge {
        self.mr.slice(0..bytes)
    }

    fn target(&self, bytes: usize) -> Sge {
        self.mr.slice(APART..APART + bytes)
    }
}

impl Ends {
    /// Over that carrier, with room for so many work requests in each queue.
    ///
    /// # Errors
    /// Those of the verbs.
    pub async fn over(carrier: Carrier, depth: u32) -> Result<Self, Error> {
        let (network, [here, there]) = (Network::over(carrier), crate::hosts());
        let mut here = End::on(&network, here, depth).await?;
        let mut there = End::on(&network, there, depth).await?;
        connect(&mut here.qp, &mut there.qp).await?;
        Ok(Self { here, there })
    }

    /// That many SENDs of so many bytes, each with its receive and both completions.
    pub fn send(&mut self, bytes: usize, times: u64) {
        let (from, to) = (self.here.source(bytes), self.there.target(bytes));
        for i in 0..times {
            let recv = Recv::new(i).into(*black_box(&to));
            self.there.qp.post_recv(recv).expect("there is room");
            let send = Send::new(i).from(*black_box(&from)).signaled();
            self.here.qp.post_send(send).expect("there is room");
            self.complete(1);
        }
    }

    /// That many WRITEs of so many bytes with their completions.
    pub fn write(&mut self, bytes: usize, times: u64) {
        let (from, to) = (self.here.source(bytes), self.there.mr.remote(APART));
        for i in 0..times {
            let write = Write::new(i, *black_box(&to)).from(*black_box(&from));
            self.here
                .qp
                .post_send(write.signaled())
                .expect("there is room");
            self.complete(0);
        }
    }

    /// That many READs of so many bytes with their completions.
    pub fn read(&mut self, bytes: usize, times: u64) {
        let (to, from) = (self.here.target(bytes), self.there.mr.remote(0));
        for i in 0..times {
            let read = Read::new(i, *black_box(&from)).into(*black_box(&to));
            self.here
                .qp
                .post_send(read.signaled())
                .expect("there is room");
            self.complete(0);
        }
    }

    /// That many fetch-and-adds with their completions.
    pub fn fetch_add(&mut self, times: u64) {
        let (to, word) = (self.here.target(8), self.there.mr.remote(0));
        for i in 0..times {
            let add = Atomic::fetch_add(i, *black_box(&word), 1).into(to);
            self.here
                .qp
                .post_send(add.signaled())
                .expect("there is room");
            self.complete(0);
        }
    }

    /// That many compare-and-swaps, each of which succeeds, with their completions. The word was 0 before.
    pub fn compare_swap(&mut self, times: u64) {
        let (to, word) = (self.here.target(8), self.there.mr.remote(64));
        self.there
            .mr
            .memory()
            .store_u64(64, 0)
            .expect("it is memory");
        for i in 0..times {
            let swap = Atomic::compare_swap(i, *black_box(&word), i, i + 1).into(to);
            self.here
                .qp
                .post_send(swap.signaled())
                .expect("there is room");
            self.complete(0);
        }
    }

    /// Polls both queues until the sender has one completion and the receiver so many. The end that only answers is
    /// polled too: over a network it acknowledges in its polls.
    #[inline]
    fn complete(&mut self, received: usize) {
        let (mut sent, mut got) = (0, 0);
        while sent < 1 || got < received {
            got += taken(&mut self.there.cq);
            sent += taken(&mut self.here.cq);
        }
    }

    /// The same ends, their queues behind the lock by which threads share them.
    pub fn shared(self) -> SharedEnds {
        let Self { here, there } = self;
        let (here_qp, send, _) = here.qp.split().expect("queues that were not split off");
        let (there_qp, _, recv) = there.qp.split().expect("queues that were not split off");
        SharedEnds {
            send: Shared::new(send),
            recv: Shared::new(recv),
            sent: Shared::new(here.cq),
            received: Shared::new(there.cq),
            mrs: [here.mr, there.mr],
            _qps: [here_qp, there_qp],
            _others: [(here._pd, here._device), (there._pd, there._device)],
        }
    }
}

#[inline]
fn taken(cq: &mut Cq) -> usize {
    let mut out = [Wc::default()];
    let got = cq.poll(&mut out);
    assert!(got.iter().all(Wc::is_ok));
    got.len()
}

/// Two connected queue pairs whose queues threads could share. Dropped in this order.
#[derive(Debug)]
pub struct SharedEnds {
    send: Shared<SendQueue>,
    recv: Shared<RecvQueue>,
    _qps: [Qp; 2],
    sent: Shared<Cq>,
    received: Shared<Cq>,
    mrs: [Mr; 2],
    _others: [(Pd, Device); 2],
}

impl SharedEnds {
    /// That many SENDs of so many bytes, each with its receive and both completions.
    pub fn send(&self, bytes: usize, times: u64) {
        let [here, there] = &self.mrs;
        let (from, to) = (here.slice(0..bytes), there.slice(APART..APART + bytes));
        let taken = |cq: &Shared<Cq>| cq.poll(&mut [Wc::default()]).len();
        for i in 0..times {
            let recv = Recv::new(i).into(*black_box(&to));
            self.recv.post(recv).expect("there is room");
            let send = Send::new(i).from(*black_box(&from)).signaled();
            self.send.post(send).expect("there is room");
            let (mut sent, mut got) = (0, 0);
            while sent < 1 || got < 1 {
                got += taken(&self.received);
                sent += taken(&self.sent);
            }
        }
    }
}
