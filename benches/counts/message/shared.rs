//! Two connected queue pairs whose queues are behind the lock by which threads share them.

use std::hint::black_box;

use futures::executor::block_on;
use hca_sim::{Hca, connect};
use verbs_core::{
    Access, Cq, Device, Memory, Mr, Pd, Qp, QpInit, Recv, RecvQueue, Send, SendQueue, Shared, Wc,
};

/// The objects that a message needs. Dropped in this order.
pub(crate) struct Subject {
    sender: Shared<SendQueue>,
    receiver: Shared<RecvQueue>,
    _qps: [Qp; 2],
    sent: Shared<Cq>,
    received: Shared<Cq>,
    mr: Mr,
    _pd: Pd,
    _device: Device,
}

impl Subject {
    /// Connected, after one message was sent.
    pub(crate) fn new() -> Self {
        let mut subject = block_on(Self::connected()).expect("a connection");
        subject.send(1);
        subject
    }

    async fn connected() -> Result<Self, verbs_core::Error> {
        let device = Hca::loopback().open().await?;
        let pd = device.alloc_pd().await?;
        let sent = Shared::new(device.create_cq(256).await?);
        let received = Shared::new(device.create_cq(256).await?);
        let mr = pd
            .register(Memory::alloc(1 << 20)?, Access::LOCAL_WRITE)
            .await?;
        let init = || QpInit::rc(&sent, &received).depth(64, 64);
        let (mut a, mut b) = (pd.create_qp(init()).await?, pd.create_qp(init()).await?);
        connect(&mut a, &mut b).await?;
        let (a, sender, _) = a.split().expect("queues that were not split off");
        let (b, _, receiver) = b.split().expect("queues that were not split off");
        Ok(Self {
            sender: Shared::new(sender),
            receiver: Shared::new(receiver),
            _qps: [a, b],
            sent,
            received,
            mr,
            _pd: pd,
            _device: device,
        })
    }

    /// That many SENDs with their receives, posted singly, and both completions of each.
    pub(crate) fn send(&mut self, times: u64) {
        let (from, to) = (self.mr.slice(0..8), self.mr.slice(4096..4104));
        let mut out = [Wc::default(); 16];
        for i in 0..times {
            let recv = Recv::new(i).into(*black_box(&to));
            self.receiver.post(recv).expect("there is room");
            let send = Send::new(i).from(*black_box(&from)).signaled();
            self.sender.post(send).expect("there is room");
            assert_eq!(self.sent.poll(&mut out[..1]).len(), 1);
            assert_eq!(self.received.poll(&mut out[..1]).len(), 1);
        }
    }
}
