//! A2: clients in the old style and request clients share one device.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use futures::executor::block_on;
use verbs_core::device::ModifyDevice;
use verbs_core::testing::{GROUP, Hold, Nowhere, Null};
use verbs_core::{
    Access, Arm, Armed, Attr, Av, CqNotify, Device, Error, EventType, Extent, FmrPoolAttr, Kind,
    Layout, Lid, Memory, ObjectKind, Provider, QpAttr, QpInit, QpState, QpType, RawCq, Subject, Wc,
    WindowType, collect, compat,
};

/// Counts how often a callback was called.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicU32>);

impl Calls {
    fn count(&self) -> impl FnOnce() + Send + 'static {
        let calls = Arc::clone(&self.0);
        move || {
            calls.fetch_add(1, SeqCst);
        }
    }

    fn get(&self) -> u32 {
        self.0.load(SeqCst)
    }
}

#[test]
fn a2_old_and_new_clients_share_one_device() {
    let null = Arc::new(Null::default());
    let device = Arc::new(compat::open_ca(null.clone()).unwrap());

    // The new client.
    let theirs = Arc::clone(&device);
    let (pd, cq) =
        block_on(async { Ok::<_, Error>((theirs.alloc_pd().await?, theirs.create_cq(4).await?)) })
            .unwrap();

    // The old one, on the same device and with a queue pair on the other's completion queue.
    let old_pd = compat::alloc_pd(&device).unwrap();
    let old_cq = compat::create_cq(&device, 4, || ()).unwrap();
    let qp = compat::create_qp(&old_pd, QpInit::rc(&old_cq, &cq)).unwrap();
    let mr = compat::reg_mem(&old_pd, Memory::alloc(64).unwrap(), Access::LOCAL_WRITE).unwrap();
    assert_eq!(compat::query_ca(&device).unwrap().name, "null");
    assert_eq!(compat::query_port(&device, 1), device.query_port(1).wait());
    compat::modify_qp(&qp, QpAttr::init(1, Access::empty())).unwrap();
    assert_eq!(compat::query_qp(&qp).unwrap().state, QpState::Init);
    assert_eq!(null.live(), 6);

    // What only the old one has comes and goes, users before what they use.
    let brief = Calls::default();
    let srq = compat::create_srq(&old_pd, 4, 1).unwrap();
    let av = compat::create_av(&old_pd, Av::to_lid(1, Lid(1))).unwrap();
    let ud = QpInit::of(QpType::Ud, &old_cq, &old_cq).srq(&srq);
    let ud = compat::create_qp(&old_pd, ud).unwrap();
    let group = compat::attach_mcast(&ud, GROUP, Lid(0xc000)).unwrap();
    compat::destroy_srq(srq, brief.count());
    compat::destroy_qp(ud, brief.count());
    compat::destroy_av(av, brief.count());
    assert_eq!(brief.get(), 1, "only the address is free");
    compat::detach_mcast(group, brief.count());
    assert_eq!((brief.get(), null.live()), (4, 6));

    // The new client is told what is in its way; the old one need not ask.
    let cq = cq.destroy().wait().unwrap_err();
    assert_eq!(cq.busy.unwrap().of(ObjectKind::Qp), 1);
    let calls = Calls::default();
    compat::dealloc_pd(old_pd, calls.count());
    compat::destroy_cq(old_cq, calls.count());
    assert_eq!(calls.get(), 0, "the queue pair and the region use them");
    assert_eq!(device.in_flight().len(), 2, "what waits is visible");
    compat::destroy_qp(qp, calls.count());
    assert_eq!(calls.get(), 2, "the queue pair and its completion queue");
    compat::dereg_mr(mr, calls.count());
    assert_eq!(calls.get(), 4, "the region and its domain");

    cq.handle.unwrap().destroy().wait().unwrap();
    pd.dealloc().wait().unwrap();
    assert_eq!((null.live(), device.objects()), (0, 0));
    drop(theirs);
    let device = Arc::into_inner(device).unwrap();
    compat::close_ca(device, calls.count());
    assert_eq!(calls.get(), 5);
}

#[test]
fn a2_every_entry_of_the_old_table_has_a_call() {
    let null = Arc::new(Null::default());
    let ca = compat::open_ca(null.clone()).unwrap();
    compat::modify_ca(&ca, ModifyDevice::default()).unwrap();
    compat::modify_port(&ca, 1, 0, 0).unwrap();
    assert_eq!(compat::query_pkey(&ca, 1, 0), ca.query_pkey(1, 0).wait());
    assert_eq!(compat::query_gid(&ca, 1, 0), ca.query_gid(1, 0).wait());
    let refused = compat::vendor_call::<Nowhere>(&ca, ());
    assert_eq!(refused.unwrap_err(), Error::Unsupported(Attr::Extension));
    let pd = compat::alloc_pd(&ca).unwrap();
    let mut cq = compat::create_cq(&ca, 4, || ()).unwrap();
    assert_eq!(compat::resize_cq(&mut cq, 8), Ok(8));
    assert_eq!(compat::query_cq(&cq).unwrap().cqe, 8);
    assert_eq!(compat::rearm_cq(&mut cq, true), Armed::Empty);
    assert_eq!(compat::rearm_n_cq(&mut cq, 3), Armed::Empty);
    assert_eq!(compat::peek_cq(&mut cq), Some(0));
    let qp = compat::create_qp(&pd, QpInit::rc(&cq, &cq)).unwrap();
    let cap = compat::resize_qp(&qp, 32, 64).unwrap();
    assert_eq!((cap.max_send_wr, cap.max_recv_wr), (32, 64));
    let srq = compat::create_srq(&pd, 4, 1).unwrap();
    compat::resize_srq(&srq, 8).unwrap();
    compat::arm_srq_limit(&srq, 2).unwrap();
    let attr = compat::query_srq(&srq).unwrap();
    assert_eq!((attr.max_wr, attr.srq_limit), (8, 2));
    let av = compat::create_av(&pd, Av::to_lid(1, Lid(1))).unwrap();
    compat::modify_av(&av, Av::to_lid(1, Lid(2))).unwrap();
    assert_eq!(compat::query_av(&av), Ok(Av::to_lid(1, Lid(2))));

    let access = Access::LOCAL_WRITE;
    let mr = compat::reg_mem(&pd, Memory::alloc(64).unwrap(), access).unwrap();
    let shared = compat::reg_shared(&mr, &pd, Access::REMOTE_READ).unwrap();
    let mr = compat::modify_mr(mr, Access::empty()).unwrap();
    assert_eq!(compat::query_mr(&mr).unwrap().access, Access::empty());
    let memory = Arc::new(Memory::alloc(4096).unwrap());
    let piece = Extent {
        memory: &memory,
        offset: 0,
        len: 4096,
    };
    let pages = compat::reg_pages(&pd, Layout::Pages(4096), &[piece], access).unwrap();
    let fast = compat::alloc_fast_mr(&pd, 4).unwrap();
    let mw = compat::create_mw(&pd, WindowType::One).unwrap();
    assert_eq!(compat::query_mw(&mw).unwrap().bound, None);
    let pool = compat::create_fmr_pool(&pd, FmrPoolAttr::new(1, 4, access)).unwrap();
    compat::flush_fmr_pool(&pool).unwrap();
    let xrcd = compat::alloc_xrcd(&ca).unwrap();
    let events = Calls::default();
    let count = events.clone();
    compat::on_event(&ca, move |_| count.count()());
    ca.target().raise(EventType::PortActive, Subject::Port(1));
    assert_eq!(events.get(), 1);

    let gone = Calls::default();
    compat::dealloc_xrcd(xrcd, gone.count());
    compat::destroy_fmr_pool(pool, gone.count());
    compat::destroy_mw(mw, gone.count());
    compat::free_fast_mr(fast, gone.count());
    compat::free_fast_mr(pages, gone.count());
    compat::dereg_mr(shared, gone.count());
    compat::dereg_mr(mr, gone.count());
    compat::destroy_av(av, gone.count());
    compat::destroy_srq(srq, gone.count());
    compat::destroy_qp(qp, gone.count());
    compat::destroy_cq(cq, gone.count());
    compat::dealloc_pd(pd, gone.count());
    assert_eq!((gone.get(), null.live()), (12, 0));
    compat::close_ca(ca, gone.count());
    assert_eq!(gone.get(), 13);
}

#[test]
fn a22_synchronous_calls_refuse_where_blocking_is_not_allowed() {
    let null = Arc::new(Null::default());
    let device = compat::open_ca(null.clone()).unwrap();
    let pd = compat::alloc_pd(&device).unwrap();
    let gone = Calls::default();
    collect(|| {
        assert_eq!(compat::alloc_pd(&device).unwrap_err(), Error::WouldBlock);
        let refused = compat::sync_destroy(pd).unwrap_err();
        assert_eq!(refused.error, Error::WouldBlock);
        assert_eq!(null.live(), 1, "nothing was done");
        compat::dealloc_pd(refused.handle.unwrap(), gone.count());
        assert_eq!(gone.get(), 0, "under NoBlock, the call returns first");
    });
    assert_eq!((gone.get(), null.live()), (1, 0));
    assert!(compat::sync_destroy(device).is_ok());
}

#[test]
fn p1_a_refused_destroy_leaves_children_alone() {
    let device = compat::open_ca(Arc::new(Null::default())).unwrap();
    let pd = compat::alloc_pd(&device).unwrap();
    let mr = compat::reg_mem(&pd, Memory::alloc(64).unwrap(), Access::LOCAL_WRITE).unwrap();
    let refused = compat::sync_destroy(pd).unwrap_err();
    assert_eq!(refused.busy.unwrap().of(ObjectKind::Mr), 1);
    mr.write(0, b"still here").unwrap();
    compat::sync_destroy(mr).unwrap();
    compat::sync_destroy(refused.handle.unwrap()).unwrap();
}

/// A provider whose completion queues the test rings.
#[derive(Default)]
struct Rings(Null, Mutex<Option<Arc<CqNotify>>>);

#[derive(Debug)]
struct Silent;

impl RawCq for Silent {
    fn poll(&mut self, _out: &mut [Wc]) -> usize {
        0
    }

    fn arm(&mut self, _when: Arm) -> Armed {
        Armed::Empty
    }
}

impl Provider for Rings {
    fn issue(&self, command: verbs_core::AnyCommand<'_>) {
        match command {
            verbs_core::AnyCommand::CreateCq(command) => {
                *self.1.lock().unwrap() = Some(Arc::clone(&command.notify));
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(1, 1, Box::new(()), Box::new(Silent))));
            }
            other => self.0.issue(other),
        }
    }
}

#[test]
fn p3_destroy_from_the_own_callback_calls_back_after_it() {
    let rings = Arc::new(Rings::default());
    let device = compat::open_ca(rings.clone()).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let place = Arc::new(Mutex::new(None));
    let (mine, log) = (Arc::clone(&place), Arc::clone(&order));
    let cq = compat::create_cq(&device, 1, move || {
        log.lock().unwrap().push("callback begins");
        if let Some(cq) = mine.lock().unwrap().take() {
            let log = Arc::clone(&log);
            compat::destroy_cq(cq, move || log.lock().unwrap().push("gone"));
        }
        log.lock().unwrap().push("callback ends");
    })
    .unwrap();
    *place.lock().unwrap() = Some(cq);
    let notify = rings.1.lock().unwrap().take().unwrap();
    notify.fire();
    let told = ["callback begins", "callback ends", "gone"];
    assert_eq!(*order.lock().unwrap(), told);
    notify.fire();
    assert_eq!(*order.lock().unwrap(), told, "no more callbacks");
    assert_eq!(device.objects(), 0);
}

#[test]
fn p2_a_destroy_that_hangs_is_a_visible_request_and_its_callback_waits() {
    let hold = Hold::over(Arc::new(Null::default()));
    let place = Arc::new(Mutex::new(None));
    let theirs = Arc::clone(&place);
    let _ = Device::open(hold.clone()).issue(move |d| *theirs.lock().unwrap() = d.ok());
    hold.run();
    let device: Device = place.lock().unwrap().take().unwrap();
    let gone = Calls::default();
    let pds = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&pds);
    let _ = device
        .alloc_pd()
        .issue(move |pd| theirs.lock().unwrap().extend(pd.ok()));
    hold.run();
    compat::dealloc_pd(pds.lock().unwrap().pop().unwrap(), gone.count());
    let line = line!() - 1;
    let list = device.in_flight();
    assert_eq!((list.len(), list[0].verb), (1, Kind::DeallocPd));
    assert_eq!(list[0].location.line(), line, "the old client's call");
    assert_eq!(gone.get(), 0);
    hold.run();
    assert_eq!(gone.get(), 1);
}
