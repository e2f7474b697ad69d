//! Every optional feature, taken away, against every operation: one table.
//!
//! Goal: an operation whose bit is clear is refused as unsupported, when it is created or posted, and
//! nothing is half done; every other one works as before. Method: an HCA without the feature, a connection
//! on it, the operation, and a look at what is there afterwards.
//!
//! In each cell: `.` works, `U` refused as unsupported.

use std::sync::Arc;

use hca_sim::{Builder, Hca, connect};
use verbs_core::{
    Access, Atomic, AtomicCap, AtomicWrite, Cq, Device, DeviceCap, Error, Extent, FastMr, Flush,
    FmrPoolAttr, Layout, LocalInv, Memory, Mr, Pd, Placement, PostError, Qp, QpInit, RKey, Recv,
    Send, SendWr, Wc, WindowType, Write,
};

/// What can be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feature {
    Nothing,
    Cap(DeviceCap),
    Atomics,
    MaskedAtomics,
}

use Feature::{Atomics, Cap, MaskedAtomics, Nothing};

const MGT: Feature = Cap(DeviceCap::MEM_MGT_EXTENSIONS);

const FEATURES: [(&str, Feature); 13] = [
    ("all", Nothing),
    ("MGT_EXT", MGT),
    ("MW 1", Cap(DeviceCap::MEM_WINDOW)),
    ("MW 2A", Cap(DeviceCap::MEM_WINDOW_TYPE_2A)),
    ("MW 2B", Cap(DeviceCap::MEM_WINDOW_TYPE_2B)),
    ("SG_GAPS", Cap(DeviceCap::SG_GAPS_REG)),
    ("BLOCKS", Cap(DeviceCap::BLOCK_LIST)),
    ("0-BASED", Cap(DeviceCap::ZERO_BASED)),
    ("FMR", Cap(DeviceCap::FMR_POOL)),
    ("FLUSH", Cap(DeviceCap::FLUSH_GLOBAL)),
    ("AT.WRITE", Cap(DeviceCap::ATOMIC_WRITE)),
    ("ATOMICS", Atomics),
    ("MASKED", MaskedAtomics),
];

/// An operation: its name, what it needs, and how it ends.
type Operation = (&'static str, &'static [Feature], fn(&mut Bed) -> Ended);

/// Whether it works or is refused as unsupported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Works,
    Unsupported,
}

const OPERATIONS: &[Operation] = &[
    ("alloc_mr", &[MGT], |bed| bed.fast(Layout::Pages(4096)).0),
    (
        "alloc_mr of blocks",
        &[MGT, Cap(DeviceCap::BLOCK_LIST)],
        |bed| bed.fast(Layout::Blocks(100)).0,
    ),
    (
        "alloc_mr with gaps",
        &[MGT, Cap(DeviceCap::SG_GAPS_REG)],
        |bed| bed.fast(Layout::Gaps).0,
    ),
    ("REG_MR", &[MGT], |bed| bed.register(Access::LOCAL_WRITE)),
    (
        "REG_MR zero-based",
        &[MGT, Cap(DeviceCap::ZERO_BASED)],
        |bed| bed.register(Access::LOCAL_WRITE | Access::ZERO_BASED),
    ),
    ("LOCAL_INV", &[MGT], |bed| {
        let (_, fast) = bed.fast(Layout::Pages(4096));
        let key = fast.as_ref().map_or(RKey::new(0x100), FastMr::rkey);
        bed.post(LocalInv::new(1, key).signaled(), None)
    }),
    ("SEND with invalidate", &[MGT], |bed| {
        let (_, fast) = bed.fast(Layout::Pages(4096));
        let key = fast.as_ref().map_or(RKey::new(0x100), FastMr::rkey);
        bed.post(Send::new(1).invalidate(key).signaled(), Some(Recv::new(2)))
    }),
    ("alloc_mw 1", &[Cap(DeviceCap::MEM_WINDOW)], |bed| {
        bed.window(WindowType::One)
    }),
    (
        "alloc_mw 2A",
        &[Cap(DeviceCap::MEM_WINDOW_TYPE_2A)],
        |bed| bed.window(WindowType::TwoA),
    ),
    (
        "alloc_mw 2B",
        &[Cap(DeviceCap::MEM_WINDOW_TYPE_2B)],
        |bed| bed.window(WindowType::TwoB),
    ),
    (
        "register zero-based",
        &[Cap(DeviceCap::ZERO_BASED)],
        |bed| {
            let access = Access::LOCAL_WRITE | Access::ZERO_BASED;
            ended(bed.pd.register(page(), access).wait().map(drop))
        },
    ),
    (
        "register for FLUSH",
        &[Cap(DeviceCap::FLUSH_GLOBAL)],
        |bed| {
            ended(
                bed.pd
                    .register(page(), Access::FLUSH_GLOBAL)
                    .wait()
                    .map(drop),
            )
        },
    ),
    ("register for lasting FLUSH", &[Nothing], |bed| {
        ended(
            bed.pd
                .register(page(), Access::FLUSH_PERSISTENT)
                .wait()
                .map(drop),
        )
    }),
    ("create_fmr_pool", &[Cap(DeviceCap::FMR_POOL)], |bed| {
        let attr = FmrPoolAttr::new(2, 1, Access::LOCAL_WRITE);
        ended(bed.pd.create_fmr_pool(attr).wait().map(drop))
    }),
    ("FLUSH", &[Cap(DeviceCap::FLUSH_GLOBAL)], |bed| {
        let all = bed.pd.register(page(), Access::FLUSH_GLOBAL).wait();
        let key = all.as_ref().map_or(RKey::new(0), Mr::rkey);
        bed.post(Flush::region(1, key, Placement::GLOBAL).signaled(), None)
    }),
    ("ATOMIC WRITE", &[Cap(DeviceCap::ATOMIC_WRITE)], |bed| {
        let to = bed.mr.remote(8);
        bed.post(AtomicWrite::new(1, to).inline(b"8 bytes!").signaled(), None)
    }),
    ("CMP SWAP", &[Atomics], |bed| {
        let swap = Atomic::compare_swap(1, bed.mr.remote(0), 0, 1);
        bed.post(swap.into(bed.mr.slice(64..72)).signaled(), None)
    }),
    ("FETCH ADD", &[Atomics], |bed| {
        let add = Atomic::fetch_add(1, bed.mr.remote(0), 1);
        bed.post(add.into(bed.mr.slice(64..72)).signaled(), None)
    }),
    ("masked CMP SWAP", &[MaskedAtomics], |bed| {
        let swap = Atomic::compare_swap(1, bed.mr.remote(0), 0, 1).masks(1, 1);
        bed.post(swap.into(bed.mr.slice(64..72)).signaled(), None)
    }),
    ("masked FETCH ADD", &[MaskedAtomics], |bed| {
        let add = Atomic::fetch_add(1, bed.mr.remote(0), 1).fields(1 << 31);
        bed.post(add.into(bed.mr.slice(64..72)).signaled(), None)
    }),
    ("WRITE", &[], |bed| {
        let write = Write::new(1, bed.mr.remote(0)).from(bed.mr.slice(0..8));
        bed.post(write.signaled(), None)
    }),
];

/// A connection of an HCA with itself.
struct Bed {
    qp: Qp,
    peer: Qp,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    device: Device,
    hca: Arc<Hca>,
}

fn page() -> Memory {
    Memory::alloc(4096).expect("a page")
}

fn ended(result: Result<(), Error>) -> Ended {
    match result {
        Ok(()) => Ended::Works,
        Err(Error::Unsupported(_)) => Ended::Unsupported,
        Err(error) => panic!("refused for another reason: {error}"),
    }
}

impl Bed {
    fn new(feature: Feature) -> Self {
        let builder: Builder = match feature {
            Nothing => Hca::loopback(),
            Cap(cap) => Hca::loopback().without(cap),
            Atomics => Hca::loopback().atomics(AtomicCap::None),
            MaskedAtomics => Hca::loopback().masked_atomics(AtomicCap::None),
        };
        let hca = builder.build();
        futures::executor::block_on(async {
            let device = hca.open().await?;
            let pd = device.alloc_pd().await?;
            let cq = device.create_cq(16).await?;
            let mr = pd
                .register(page(), Access::LOCAL_WRITE | Access::REMOTE)
                .await?;
            let init = QpInit::rc(&cq, &cq).inline(8);
            let (mut qp, mut peer) = (pd.create_qp(init).await?, pd.create_qp(init).await?);
            connect(&mut qp, &mut peer).await?;
            Ok::<_, Error>(Self {
                qp,
                peer,
                cq,
                mr,
                pd,
                device,
                hca,
            })
        })
        .expect("a connection")
    }

    fn fast(&mut self, layout: Layout) -> (Ended, Option<FastMr>) {
        match self.pd.alloc_mr(2).layout(layout).wait() {
            Ok(fast) => (Ended::Works, Some(fast)),
            Err(error) => (ended(Err(error)), None),
        }
    }

    fn register(&mut self, access: Access) -> Ended {
        let (refused, Some(mut fast)) = self.fast(Layout::Pages(4096)) else {
            return Ended::Unsupported;
        };
        assert_eq!(refused, Ended::Works);
        let memory = Arc::new(page());
        let extent = Extent {
            memory: &memory,
            offset: 0,
            len: 4096,
        };
        assert_eq!(fast.map([extent]), Ok(1));
        self.post(fast.register(1, access).signaled(), None)
    }

    fn window(&mut self, kind: WindowType) -> Ended {
        ended(self.pd.alloc_mw(kind).wait().map(drop))
    }

    fn post<'w>(&mut self, wr: impl Into<SendWr<'w>>, recv: Option<Recv<'_>>) -> Ended {
        let received = recv.is_some();
        if let Some(recv) = recv {
            self.peer.post_recv(recv).expect("there is room");
        }
        match self.qp.post_send(wr) {
            Err(PostError::Unsupported) => return Ended::Unsupported,
            other => other.expect("it can be posted or is unsupported"),
        }
        let mut out = [Wc::default(); 4];
        let polled = self.cq.poll(&mut out);
        assert_eq!(polled.len(), 1 + usize::from(received));
        assert!(polled.iter().all(Wc::is_ok), "{polled:?}");
        Ended::Works
    }
}

/// Prints the table and judges it.
pub(crate) fn table() {
    print!("\n{:28}", "operation \\ without");
    FEATURES.iter().for_each(|(name, _)| print!("{name:>9}"));
    println!();
    let (mut cells, mut refused) = (0, 0);
    for &(name, needs, operation) in OPERATIONS {
        print!("{name:28}");
        for (_, feature) in FEATURES {
            let mut bed = Bed::new(feature);
            let before = (bed.device.objects(), bed.hca.regions());
            let got = operation(&mut bed);
            let lasting = needs == [Nothing];
            let wanted = match lasting || feature != Nothing && needs.contains(&feature) {
                true => Ended::Unsupported,
                false => Ended::Works,
            };
            assert_eq!(got, wanted, "{name} without {feature:?}");
            let after = (bed.device.objects(), bed.hca.regions());
            assert_eq!(before, after, "{name} without {feature:?} leaves something");
            // The connection goes on as if nothing had been asked for.
            let write = Write::new(9, bed.mr.remote(0)).from(bed.mr.slice(0..8));
            assert_eq!(bed.post(write.signaled(), None), Ended::Works);
            cells += 1;
            refused += u32::from(got == Ended::Unsupported);
            print!("{:>9}", if got == Ended::Works { '.' } else { 'U' });
        }
        println!();
    }
    println!("{cells} cells; {refused} refused");
    assert_eq!(cells as usize, OPERATIONS.len() * FEATURES.len());
    assert!(refused > 25, "features are taken away");
}
