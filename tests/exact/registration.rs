//! Fast registration allocates nothing, whatever the number of pages, and takes as long for many as for one.

use std::sync::Arc;

use futures::executor::block_on;
use hca_sim::{Hca, connect};
use verbs_core::{
    Access, Cq, Device, Extent, FastMr, LocalInv, Memory, Pd, Qp, QpInit, Recv, Send, Wc, Write,
};

use crate::allocator;

const TIMES: u32 = 200;
/// Pages of a registration, every other one of the memory, from the end on.
const PAGES: usize = 256;

struct Subject {
    ours: Qp,
    theirs: Qp,
    cq: Cq,
    fast: FastMr,
    memory: Arc<Memory>,
    _pd: Pd,
    _device: Device,
}

impl Subject {
    fn new() -> Self {
        block_on(async {
            let device = Hca::loopback().open().await?;
            let pd = device.alloc_pd().await?;
            let cq = device.create_cq(64).await?;
            let init = || QpInit::rc(&cq, &cq);
            let (mut ours, mut theirs) = (pd.create_qp(init()).await?, pd.create_qp(init()).await?);
            connect(&mut ours, &mut theirs).await?;
            let fast = pd.alloc_mr(PAGES as u32).await?;
            let memory = Arc::new(Memory::alloc(2 * PAGES * 4096)?);
            Ok::<_, verbs_core::Error>(Self {
                ours,
                theirs,
                cq,
                fast,
                memory,
                _pd: pd,
                _device: device,
            })
        })
        .expect("a connection")
    }

    fn poll(&mut self, count: usize) {
        let mut out = [Wc::default(); 4];
        let polled = self.cq.poll(&mut out);
        assert_eq!(polled.len(), count);
        assert!(polled.iter().all(Wc::is_ok), "{polled:?}");
    }

    /// Maps and registers pages, has the peer write to the last, and invalidates the key, itself or through the peer.
    fn round(&mut self, pages: usize, by_peer: bool) {
        let Self { fast, memory, .. } = self;
        let page = |number| Extent {
            memory,
            offset: 2 * (PAGES - 1 - number) * 4096,
            len: 4096,
        };
        assert_eq!(fast.map((0..pages).map(page)), Ok(pages));
        let key = fast.next_key();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        self.ours
            .post_send(fast.register(1, access).signaled())
            .expect("there is room");
        let last = self.fast.remote((pages - 1) * 4096);
        let write = Write::new(2, last).from(self.fast.slice(0..64)).signaled();
        self.theirs.post_send(write).expect("there is room");
        if by_peer {
            self.ours.post_recv(Recv::new(3)).expect("there is room");
            let send = Send::new(4).invalidate(key);
            self.theirs.post_send(send).expect("there is room");
        } else {
            let invalidate = LocalInv::new(3, key).signaled();
            self.ours.post_send(invalidate).expect("there is room");
        }
        self.poll(3);
    }
}

#[test]
fn fast_registration_allocates_nothing() {
    let mut subject = Subject::new();
    for by_peer in [false, true] {
        for pages in [1, PAGES] {
            subject.round(pages, by_peer);
            let before = allocator::calls();
            for _ in 0..TIMES {
                subject.round(pages, by_peer);
            }
            let calls = allocator::calls() - before;
            assert_eq!(calls, 0, "{pages} pages, by the peer: {by_peer}");
        }
    }
}
