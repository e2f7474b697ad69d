//! Two connected queue pairs of one thread, and their most frequent operations.

use std::hint::black_box;

use hca_sim::{Hca, connect};
use verbs_core::{
    Access, Cq, Device, Error, Memory, Mr, Pd, Qp, QpInit, Read, Recv, Send, Sge, Wc, Write,
};

/// The distance between the bytes that are sent and where they arrive: not a multiple of a page, because processors
/// confuse addresses with the same low bits.
const APART: usize = 4096 + 192;

/// Two connected queue pairs, and what they need. Dropped in this order.
#[derive(Debug)]
pub struct Pair {
    /// The sender.
    pub sender: Qp,
    /// The receiver.
    pub receiver: Qp,
    /// The completion queue of sends.
    pub sent: Cq,
    /// The completion queue of receives.
    pub received: Cq,
    /// The memory of both.
    pub mr: Mr,
    /// Its domain.
    pub pd: Pd,
    /// The device of all.
    pub device: Device,
}

impl Pair {
    /// On a new device.
    ///
    /// # Errors
    /// Those of the verbs.
    pub async fn new() -> Result<Self, Error> {
        let device = Hca::loopback().open().await?;
        let pd = device.alloc_pd().await?;
        let (sent, received) = (device.create_cq(256).await?, device.create_cq(256).await?);
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = pd.register(Memory::alloc(1 << 20)?, access).await?;
        let init = || QpInit::rc(&sent, &received).depth(64, 64).inline(64);
        let (mut sender, mut receiver) = (pd.create_qp(init()).await?, pd.create_qp(init()).await?);
        connect(&mut sender, &mut receiver).await?;
        Ok(Self {
            sender,
            receiver,
            sent,
            received,
            mr,
            pd,
            device,
        })
    }

    /// The 8 bytes that are sent, and the place where they arrive.
    pub fn places(&self) -> (Sge, Sge) {
        (self.mr.slice(0..8), self.mr.slice(APART..APART + 8))
    }

    /// That many SENDs, each with its receive and both completions.
    pub fn send(&mut self, times: u64) {
        self.send_from(self.places(), times);
    }

    /// The same with so many bytes.
    pub fn send_bytes(&mut self, bytes: usize, times: u64) {
        let apart = APART.max(bytes + APART);
        let places = (self.mr.slice(0..bytes), self.mr.slice(apart..apart + bytes));
        self.send_from(places, times);
    }

    #[inline]
    fn send_from(&mut self, (from, to): (Sge, Sge), times: u64) {
        let mut out = [Wc::default()];
        for i in 0..times {
            let recv = Recv::new(i).into(*black_box(&to));
            self.receiver.post_recv(recv).expect("there is room");
            let send = Send::new(i).from(*black_box(&from)).signaled();
            self.sender.post_send(send).expect("there is room");
            assert_eq!(self.sent.poll(&mut out).len(), 1);
            assert_eq!(self.received.poll(&mut out).len(), 1);
        }
    }

    /// That many WRITEs with their completions.
    pub fn write(&mut self, times: u64) {
        let (from, to) = (self.mr.slice(0..8), self.mr.remote(APART));
        let mut out = [Wc::default()];
        for i in 0..times {
            let write = Write::new(i, *black_box(&to))
                .from(*black_box(&from))
                .signaled();
            self.sender.post_send(write).expect("there is room");
            assert_eq!(self.sent.poll(&mut out).len(), 1);
        }
    }

    /// That many READs with their completions.
    pub fn read(&mut self, times: u64) {
        let (to, from) = (self.mr.slice(0..8), self.mr.remote(APART));
        let mut out = [Wc::default()];
        for i in 0..times {
            let read = Read::new(i, *black_box(&from))
                .into(*black_box(&to))
                .signaled();
            self.sender.post_send(read).expect("there is room");
            assert_eq!(self.sent.poll(&mut out).len(), 1);
        }
    }
}
