//! Regions that are registered a second time or page by page, and windows whose attributes are queried.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use futures::executor::block_on;
use hca_sim::{Hca, connect};
use verbs_core::{
    Access, Attr, Cq, Device, Error, Extent, Layout, LocalInv, Memory, Mr, Pd, Qp, QpInit, Read,
    Remote, SendWr, Wc, WcStatus, Why, WindowType, Write,
};

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

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE)
    .union(Access::MW_BIND);

impl Bed {
    fn new() -> Self {
        let hca = Hca::loopback().build();
        let device = hca.open().wait().unwrap();
        let pd = device.alloc_pd().wait().unwrap();
        let cq = device.create_cq(64).wait().unwrap();
        let mr = pd
            .register(Memory::alloc(8192).unwrap(), ALL)
            .wait()
            .unwrap();
        let init = QpInit::rc(&cq, &cq);
        let mut qp = pd.create_qp(init).wait().unwrap();
        let mut peer = pd.create_qp(init).wait().unwrap();
        block_on(connect(&mut qp, &mut peer)).unwrap();
        Self {
            qp,
            peer,
            cq,
            mr,
            pd,
            device,
            hca,
        }
    }

    /// How one work request ends.
    fn post<'w>(&mut self, wr: impl Into<SendWr<'w>>) -> WcStatus {
        self.qp.post_send(wr).unwrap();
        let mut out = [Wc::default(); 4];
        self.cq.poll(&mut out)[0].status
    }

    fn again(&mut self) {
        let init = QpInit::rc(&self.cq, &self.cq);
        self.qp = self.pd.create_qp(init).wait().unwrap();
        self.peer = self.pd.create_qp(init).wait().unwrap();
        block_on(connect(&mut self.qp, &mut self.peer)).unwrap();
    }
}

#[test]
fn a_shared_region_has_rights_of_its_own_and_goes_alone() {
    let mut bed = Bed::new();
    let to_read = bed
        .mr
        .register_shared(&bed.pd, Access::REMOTE_READ)
        .wait()
        .unwrap();
    assert_eq!((bed.hca.regions(), to_read.len()), (2, 8192));
    assert_eq!(to_read.query().wait().unwrap().access, Access::REMOTE_READ);
    bed.mr.write(4096, b"seen through both").unwrap();
    let into = bed.mr.slice(0..17);
    assert_eq!(
        bed.post(Read::new(1, to_read.remote(4096)).into(into).signaled()),
        WcStatus::Success
    );
    let mut bytes = [0; 17];
    to_read.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"seen through both");

    let write = Write::new(2, to_read.remote(0))
        .from(bed.mr.slice(0..8))
        .signaled();
    assert_eq!(
        bed.post(write),
        WcStatus::RemAccessErr,
        "the right was not given"
    );
    bed.again();
    let write = Write::new(3, bed.mr.remote(0))
        .from(bed.mr.slice(0..8))
        .signaled();
    assert_eq!(
        bed.post(write),
        WcStatus::Success,
        "through the first region it is"
    );

    // The first region is deregistered; the memory and the second region stay.
    let there = to_read.remote(4096);
    let memory = Arc::clone(to_read.memory());
    let into = bed
        .pd
        .register(Memory::alloc(64).unwrap(), ALL)
        .wait()
        .unwrap();
    let Bed { mr, .. } = &mut bed;
    std::mem::replace(mr, into).dereg().wait().unwrap();
    let into = bed.mr.slice(0..17);
    assert_eq!(
        bed.post(Read::new(4, there).into(into).signaled()),
        WcStatus::Success
    );
    to_read.dereg().wait().unwrap();
    let into = bed.mr.slice(0..17);
    assert_eq!(
        bed.post(Read::new(5, there).into(into).signaled()),
        WcStatus::RemAccessErr
    );
    assert_eq!(Arc::strong_count(&memory), 1, "nobody else has it");
}

#[test]
fn a_shared_region_may_be_in_another_domain_and_at_another_address() {
    let mut bed = Bed::new();
    let other = bed.device.alloc_pd().wait().unwrap();
    let foreign = bed
        .mr
        .register_shared(&other, Access::REMOTE_READ)
        .wait()
        .unwrap();
    let into = bed.mr.slice(0..8);
    let read = Read::new(1, foreign.remote(0)).into(into).signaled();
    assert_eq!(
        bed.post(read),
        WcStatus::RemAccessErr,
        "the queue pair is in the first one"
    );
    bed.again();
    let moved = bed
        .mr
        .register_shared(&bed.pd, Access::REMOTE_READ)
        .iova(1 << 40);
    let moved = moved.wait().unwrap();
    assert_eq!(moved.iova(), 1 << 40);
    let into = bed.mr.slice(0..8);
    assert_eq!(
        bed.post(Read::new(2, moved.remote(8)).into(into).signaled()),
        WcStatus::Success
    );
    let zero = bed
        .mr
        .register_shared(&bed.pd, ALL | Access::ZERO_BASED)
        .wait()
        .unwrap();
    assert_eq!(zero.iova(), 0);
    let back = zero
        .register_shared(&bed.pd, Access::REMOTE_READ)
        .wait()
        .unwrap();
    assert_eq!(back.iova(), bed.mr.iova(), "the memory's own address");

    let stranger = Hca::loopback().open().wait().unwrap();
    let theirs = stranger.alloc_pd().wait().unwrap();
    let refused = bed
        .mr
        .register_shared(&theirs, Access::REMOTE_READ)
        .wait()
        .unwrap_err();
    let (attr, why) = (Attr::Pd, Why::OtherDevice);
    assert_eq!(refused, Error::Mismatch { attr, why });
    let refused = bed
        .mr
        .register_shared(&bed.pd, Access::REMOTE_WRITE)
        .wait()
        .unwrap_err();
    let (attr, why) = (Attr::Access, Why::NeedsLocalWrite);
    assert_eq!(refused, Error::Mismatch { attr, why });
    assert_eq!(stranger.objects(), 1, "a refused one leaves nothing");
}

#[test]
fn a_list_of_pages_is_valid_at_once_and_can_be_registered_again() {
    let mut bed = Bed::new();
    let memory = Arc::new(Memory::alloc(4 * 4096).unwrap());
    let page = |n: usize| Extent {
        memory: &memory,
        offset: n * 4096,
        len: 4096,
    };
    let layout = Layout::Pages(Layout::PAGE);
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let registered = bed
        .pd
        .register_pages(layout, [page(3), page(1)], access)
        .iova(1 << 32);
    let mut pages = registered.wait().unwrap();
    assert_eq!(pages.len(), 8192);
    memory.write(4096, b"second").unwrap();
    let there = Remote {
        addr: (1 << 32) + 4096,
        rkey: pages.rkey(),
    };
    let read = Read::new(1, there).into(bed.mr.slice(0..6)).signaled();
    assert_eq!(bed.post(read), WcStatus::Success);
    let mut seen = [0; 6];
    bed.mr.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"second");

    // As a region from `alloc_mr`: invalid, mapped again, valid.
    let inv = LocalInv::new(2, pages.rkey()).signaled();
    assert_eq!(bed.post(inv), WcStatus::Success);
    assert_eq!(pages.map([page(0), page(2)]), Ok(2));
    let key = pages.next_key();
    let register = pages.register(3, access).signaled();
    assert_eq!(bed.post(register), WcStatus::Success);
    memory.write(0, b"first!").unwrap();
    let there = Remote {
        rkey: key,
        ..pages.remote(0)
    };
    let read = Read::new(4, there).into(bed.mr.slice(0..6)).signaled();
    assert_eq!(bed.post(read), WcStatus::Success);
    bed.mr.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"first!");
    pages.free().wait().unwrap();
    assert_eq!((bed.hca.regions(), Arc::strong_count(&memory)), (1, 1));
}

#[test]
fn pages_that_make_no_list_are_refused_and_leave_nothing() {
    let bed = Bed::new();
    let memory = Arc::new(Memory::alloc(4 * 4096).unwrap());
    let piece = |offset, len| Extent {
        memory: &memory,
        offset,
        len,
    };
    let layout = Layout::Pages(Layout::PAGE);
    let access = Access::LOCAL_WRITE;
    let refused = |pieces: &[Extent<'_>], iova: Option<u64>| {
        let request = bed
            .pd
            .register_pages(layout, pieces.iter().copied(), access);
        let request = match iova {
            Some(iova) => request.iova(iova),
            None => request,
        };
        request.wait().unwrap_err()
    };
    let (attr, why) = (Attr::PageList, Why::Alignment);
    let gap = refused(&[piece(0, 100), piece(8192, 4096)], None);
    assert_eq!(gap, Error::Mismatch { attr, why });
    let beyond = refused(&[piece(4 * 4096, 1)], None);
    assert!(matches!(beyond, Error::OutOfRange { .. }), "{beyond}");
    let attr = Attr::Iova;
    let crooked = refused(&[piece(4096, 4096)], Some(100));
    assert_eq!(crooked, Error::Mismatch { attr, why });
    let why = Why::Overflow;
    let end = refused(&[piece(4096, 4096)], Some(0u64.wrapping_sub(4096)));
    assert_eq!(end, Error::Mismatch { attr, why });
    let attr = Attr::PageList;
    let zero = bed
        .pd
        .register_pages(Layout::Blocks(0), [piece(0, 1)], access);
    assert_eq!(
        zero.wait().unwrap_err(),
        Error::Mismatch {
            attr,
            why: Why::Zero
        }
    );
    assert_eq!((bed.hca.regions(), Arc::strong_count(&memory)), (1, 1));
}

#[test]
fn a_window_tells_what_it_shows() {
    let mut bed = Bed::new();
    for kind in [WindowType::One, WindowType::TwoB] {
        let mut mw = bed.pd.alloc_mw(kind).wait().unwrap();
        let info = mw.query().wait().unwrap();
        assert_eq!(
            (info.rkey, info.window_type, info.bound),
            (mw.rkey(), kind, None)
        );
        let bind = mw
            .bind(1, bed.mr.slice(64..128), Access::REMOTE_READ)
            .signaled();
        let sends = bed.qp.send_queue().unwrap();
        let key = sends.bind(&mut mw, bind).unwrap();
        let mut out = [Wc::default(); 4];
        assert_eq!(bed.cq.poll(&mut out)[0].status, WcStatus::Success);
        let info = mw.query().wait().unwrap();
        let bound = info.bound.unwrap();
        assert_eq!(
            (info.rkey, bound.addr, bound.len),
            (key, bed.mr.iova() + 64, 64)
        );
        assert_eq!(bound.access, Access::REMOTE_READ);
        let one = (kind != WindowType::One).then(|| bed.qp.qpn());
        assert_eq!(bound.qpn, one);
        let unbound = match kind {
            WindowType::One => bed.post(mw.unbind(2).signaled()),
            _ => bed.post(LocalInv::new(2, key).signaled()),
        };
        assert_eq!(unbound, WcStatus::Success);
        assert_eq!(mw.query().wait().unwrap().bound, None);
        mw.dealloc().wait().unwrap();
    }
}
