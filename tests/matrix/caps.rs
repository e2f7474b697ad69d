//! Every optional feature, taken away, against every operation: one table.
//!
//! Goal: an operation whose bit is clear is refused when it is created or posted, by a sentence that names the bit, and
//! nothing is half done; every other one works as before. Method: an HCA without the feature, a connection on it, the
//! operation, and a check of what exists afterwards.
//!
//! In each cell: `.` works, `U` refused as unsupported.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use hca_sim::Hca;
use verbs_core::device::ModifyDevice;
use verbs_core::{
    Access, AltPath, Arm, Armed, Atomic, AtomicCap, AtomicWrite, Av, Cq, Device, DeviceCap, Error,
    EventType, Extent, FastMr, Flush, FmrPoolAttr, Guid, Layout, LocalInv, Memory, Mr, Pd,
    Placement, PostError, Qp, QpAttr, QpInit, QpState, RKey, Read, Recv, Send, SendWr, Wc,
    WindowType, Write,
};

use crate::transport::Transport;

/// The features that can be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feature {
    Nothing,
    Cap(DeviceCap),
    Atomics,
    MaskedAtomics,
}

use Feature::{Atomics, Cap, MaskedAtomics, Nothing};

const MGT: Feature = Cap(DeviceCap::MEM_MGT_EXTENSIONS);

const NO_BIT: [(&str, Feature); 3] = [
    ("all", Nothing),
    ("ATOMICS", Atomics),
    ("MASKED", MaskedAtomics),
];

/// Bits without operations that could be refused: [`told`] checks their other effects.
const TOLD: DeviceCap = DeviceCap::BAD_PKEY_CNTR
    .union(DeviceCap::PORT_ACTIVE_EVENT)
    .union(DeviceCap::RC_RNR_NAK_GEN)
    .union(DeviceCap::N_NOTIFY_CQ);

/// Every feature: all existing bits, so that a new one is tried too.
fn features() -> Vec<(&'static str, Feature)> {
    let bits = DeviceCap::all().iter_names();
    let bits = bits.map(|(name, bit)| (name, Cap(bit)));
    NO_BIT.into_iter().chain(bits).collect()
}

/// An operation: its name, what it needs, and how it ends.
type Operation = (&'static str, &'static [Feature], fn(&mut Bed) -> Ended);

/// Whether it works or is refused as unsupported, for want of what.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ended {
    Works,
    Refused(String),
}

impl Feature {
    /// What the refusal of an operation says that needs the feature.
    fn said(self) -> String {
        match self {
            Nothing => String::new(),
            Cap(cap) => (cap.iter_names())
                .map(|(name, _)| format!(": its capability bit {name} is clear"))
                .collect(),
            Atomics => ": its atomic_cap is ATOMIC_NONE".into(),
            MaskedAtomics => ": its masked_atomic_cap is ATOMIC_NONE".into(),
        }
    }
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
    (
        "READ with invalidate",
        &[MGT, Cap(DeviceCap::READ_WITH_INV)],
        |bed| {
            let access = bed.device.read_sink(Access::empty());
            let registered = bed.register(access);
            let Some(fast) = bed.last.take() else {
                let read = Read::new(2, bed.mr.remote(0)).into(bed.mr.slice(64..72));
                return bed.post(read.invalidate().signaled(), None);
            };
            assert_eq!(registered, Ended::Works);
            let read = Read::new(2, bed.mr.remote(0)).into(fast.slice(64..72));
            bed.post(read.invalidate().signaled(), None)
        },
    ),
    (
        "SEND with immediate",
        &[Cap(DeviceCap::SEND_WITH_IMM)],
        |bed| bed.post(Send::new(1).imm(7).signaled(), Some(Recv::new(2))),
    ),
    (
        "WRITE with immediate",
        &[Cap(DeviceCap::WRITE_WITH_IMM)],
        |bed| {
            let write = Write::new(1, bed.mr.remote(0)).imm(7).inline(b"x");
            bed.post(write.signaled(), Some(Recv::new(2)))
        },
    ),
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
    (
        "register for lasting FLUSH",
        &[Cap(DeviceCap::FLUSH_PERSISTENT)],
        |bed| {
            ended(
                bed.pd
                    .register(page(), Access::FLUSH_PERSISTENT)
                    .wait()
                    .map(drop),
            )
        },
    ),
    (
        "register on demand",
        &[Cap(DeviceCap::ON_DEMAND_PAGING)],
        |bed| {
            let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
            ended(bed.pd.register(page(), access).wait().map(drop))
        },
    ),
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
    ("alloc_xrcd", &[Cap(DeviceCap::XRC)], |bed| {
        ended(bed.device.alloc_xrcd().wait().map(drop))
    }),
    ("create XRC sender", &[Cap(DeviceCap::XRC)], |bed| {
        ended(bed.pd.create_qp(QpInit::xrc(&bed.cq)).wait().map(drop))
    }),
    ("resize SRQ", &[Cap(DeviceCap::SRQ_RESIZE)], |bed| {
        let srq = bed.pd.create_srq(4, 1).wait().expect("an SRQ");
        let resized = srq.resize(8).wait();
        assert_eq!(
            srq.query().wait().map(|attr| attr.max_wr),
            Ok(if resized.is_ok() { 8 } else { 4 })
        );
        ended(resized)
    }),
    ("resize QP", &[Cap(DeviceCap::RESIZE_MAX_WR)], |bed| {
        let resized = bed.qp.resize().send(8).wait();
        assert_eq!(
            bed.qp.target().cap().max_send_wr,
            if resized.is_ok() { 8 } else { 16 }
        );
        ended(resized.map(drop))
    }),
    (
        "port of a QP in SQD",
        &[Cap(DeviceCap::CHANGE_PHY_PORT)],
        |bed| {
            bed.qp
                .modify(QpAttr::to(QpState::Sqd))
                .wait()
                .expect("to SQD");
            let port = QpAttr {
                port: Some(1),
                ..QpAttr::default()
            };
            let moved = bed.qp.modify(port).wait();
            bed.qp
                .modify(QpAttr::to(QpState::Rts))
                .wait()
                .expect("back to RTS");
            ended(moved)
        },
    ),
    (
        "system image GUID",
        &[Cap(DeviceCap::SYS_IMAGE_GUID)],
        |bed| {
            let change = ModifyDevice {
                sys_image_guid: Some(Guid(7)),
                ..ModifyDevice::default()
            };
            let changed = bed.device.modify(change).wait();
            let shown = bed
                .device
                .query()
                .wait()
                .expect("attributes")
                .sys_image_guid;
            assert_eq!(shown, Guid(if changed.is_ok() { 7 } else { 0 }));
            ended(changed)
        },
    ),
    ("QP with FLUSH", &[Cap(DeviceCap::FLUSH_GLOBAL)], |bed| {
        let qp = bed
            .pd
            .create_qp(QpInit::rc(&bed.cq, &bed.cq))
            .wait()
            .expect("a QP");
        ended(qp.init(1, Access::FLUSH_GLOBAL).wait())
    }),
    ("register_pages", &[], |bed| bed.pages(Layout::Pages(4096))),
    (
        "register_pages of blocks",
        &[Cap(DeviceCap::BLOCK_LIST)],
        |bed| bed.pages(Layout::Blocks(4096)),
    ),
    (
        "register_pages with gaps",
        &[Cap(DeviceCap::SG_GAPS_REG)],
        |bed| bed.pages(Layout::Gaps),
    ),
    (
        "register_shared zero-based",
        &[Cap(DeviceCap::ZERO_BASED)],
        |bed| {
            let shared = bed.mr.register_shared(&bed.pd, Access::ZERO_BASED);
            ended(shared.wait().map(drop))
        },
    ),
    ("alternate path", &[Cap(DeviceCap::AUTO_PATH_MIG)], |bed| {
        let port = bed.device.query_port(1).wait().expect("attributes");
        let path = AltPath::new(Av::to_gid(1, 0, port.gid), 0, 14);
        ended(bed.qp.modify(QpAttr::load_path(path)).wait())
    }),
    ("WRITE", &[], |bed| {
        let write = Write::new(1, bed.mr.remote(0)).from(bed.mr.slice(0..8));
        bed.post(write.signaled(), None)
    }),
];

/// A connection of an HCA with itself.
struct Bed {
    /// The region that was registered last.
    last: Option<FastMr>,
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
        Err(error) if error.is_unsupported() => Ended::Refused(error.to_string()),
        Err(error) => panic!("refused for another reason: {error}"),
    }
}

impl Bed {
    fn new(transport: Transport, feature: Feature) -> Self {
        let builder = transport.builder();
        let builder = match feature {
            Nothing => builder,
            Cap(cap) => builder.without(cap),
            Atomics => builder.atomics(AtomicCap::None),
            MaskedAtomics => builder.masked_atomics(AtomicCap::None),
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
            transport.connect(&mut qp, &mut peer).await?;
            Ok::<_, Error>(Self {
                last: None,
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
        let (ended, fast) = self.fast(Layout::Pages(4096));
        let Some(mut fast) = fast else {
            return ended;
        };
        let memory = Arc::new(page());
        let extent = Extent {
            memory: &memory,
            offset: 0,
            len: 4096,
        };
        assert_eq!(fast.map([extent]), Ok(1));
        let ended = self.post(fast.register(1, access).signaled(), None);
        self.last = Some(fast);
        ended
    }

    fn pages(&mut self, layout: Layout) -> Ended {
        let memory = Arc::new(page());
        let extent = Extent {
            memory: &memory,
            offset: 0,
            len: 4096,
        };
        let registered = self
            .pd
            .register_pages(layout, [extent], Access::LOCAL_WRITE);
        ended(registered.wait().map(drop))
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
            Err(error @ (PostError::Unsupported | PostError::NoCapability(_))) => {
                return Ended::Refused(error.to_string());
            }
            other => other.expect("it can be posted or is unsupported"),
        }
        let until = Instant::now() + Duration::from_secs(60);
        for _ in 0..1 + usize::from(received) {
            let mut out = [Wc::default(); 1];
            while self.cq.poll(&mut out).is_empty() {
                assert!(Instant::now() < until, "a completion is missing");
            }
            assert!(out[0].is_ok(), "{out:?}");
        }
        Ended::Works
    }
}

/// Prints the table and judges it.
pub(crate) fn table() {
    table_of(Transport::Loopback);
    told();
}

/// Those of HCAs over sockets, which have threads; and connections over TCP are made by calls that wait.
pub(crate) fn table_over_sockets() {
    table_of(Transport::Roce);
    table_of(Transport::Iwarp);
}

fn table_of(transport: Transport) {
    let features = features();
    println!("\n{transport:?}");
    for (number, (name, _)) in features.iter().enumerate() {
        println!("{number:>3} without {name}");
    }
    print!("{:28}", "operation");
    (0..features.len()).for_each(|number| print!("{number:>3}"));
    println!();
    let absent = transport.absent();
    let (mut cells, mut refused) = (0, 0);
    for operation in OPERATIONS {
        print!("{:28}", operation.0);
        for &(_, feature) in &features {
            let got = cell(transport, operation, feature);
            cells += 1;
            refused += u32::from(got != Ended::Works);
            print!("{:>3}", if got == Ended::Works { '.' } else { 'U' });
        }
        println!();
    }
    println!("{cells} cells; {refused} refused");
    assert_eq!(cells as usize, OPERATIONS.len() * features.len());
    let tried = |bit: DeviceCap| {
        let needs_it = |(_, needs, _): &Operation| needs.contains(&Cap(bit));
        OPERATIONS.iter().any(needs_it)
    };
    for (name, bit) in DeviceCap::all().iter_names() {
        let elsewhere = TOLD.contains(bit);
        assert!(
            tried(bit) != elsewhere,
            "{name}: no operation needs the bit"
        );
    }
    let bed = Bed::new(transport, Nothing);
    let caps = bed.device.query().wait().expect("attributes").caps;
    assert_eq!(caps, DeviceCap::all().difference(absent));
}

/// Tries one operation without one feature.
fn cell(transport: Transport, (name, needs, operation): &Operation, feature: Feature) -> Ended {
    let mut bed = Bed::new(transport, feature);
    let before = (bed.device.objects(), bed.hca.regions());
    let got = operation(&mut bed);
    bed.last = None;
    let absent = transport.absent();
    let is_missing = |need: &Feature| match need {
        Cap(cap) => absent.contains(*cap) || feature == Cap(*cap),
        _ => *need == feature && feature != Nothing,
    };
    let mut missing = needs.iter().filter(|need| is_missing(need)).peekable();
    let right = match &got {
        Ended::Works => missing.peek().is_none(),
        Ended::Refused(said) => missing.any(|need| said.ends_with(&need.said())),
    };
    assert!(right, "{transport:?}: {name} without {feature:?}: {got:?}");
    let after = (bed.device.objects(), bed.hca.regions());
    assert_eq!(before, after, "{name} without {feature:?} leaves something");
    // The connection continues as if nothing had been requested.
    let write = Write::new(9, bed.mr.remote(0)).from(bed.mr.slice(0..8));
    assert_eq!(bed.post(write.signaled(), None), Ended::Works);
    got
}

/// Checks the effects of the bits that no operation needs.
fn told() {
    for (cap, raised) in [(DeviceCap::empty(), 1), (DeviceCap::PORT_ACTIVE_EVENT, 0)] {
        let bed = Bed::new(Transport::Loopback, Cap(cap));
        let events = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&events);
        bed.device.on_event(move |event| {
            let active = event.event == EventType::PortActive;
            seen.fetch_add(u32::from(active), SeqCst);
        });
        bed.hca.port_down();
        bed.hca.port_up();
        assert_eq!(events.load(SeqCst), raised, "without {cap:?}");
    }
    let bed = Bed::new(Transport::Loopback, Cap(DeviceCap::RC_RNR_NAK_GEN));
    let caps = bed.device.query().wait().expect("attributes").caps;
    assert!(
        caps.contains(DeviceCap::RC_RNR_NAK_GEN),
        "it cannot be taken away"
    );
    for (cap, armed) in [
        (DeviceCap::empty(), Armed::Empty),
        (DeviceCap::N_NOTIFY_CQ, Armed::Waiting),
    ] {
        let mut bed = Bed::new(Transport::Loopback, Cap(cap));
        let write = Write::new(1, bed.mr.remote(0)).from(bed.mr.slice(0..8));
        bed.qp.post_send(write.signaled()).expect("there is room");
        assert_eq!(
            bed.cq.arm(Arm::Count(2)),
            armed,
            "without {cap:?}: one of two waits"
        );
    }
}
