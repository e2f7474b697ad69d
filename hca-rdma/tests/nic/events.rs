//! The unsolicited events of a NIC, and what is left when it is removed.

use std::time::{Duration, Instant};

use futures::executor::block_on;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{
    Access, Attr, Capability, Device, DeviceCap, Error, EventType, Memory, PostError, QpState,
    QpType, Remote, Subject, Target, Wc, WcStatus, Write,
};

use crate::pair::connected;
use crate::rdma_core::nic;

/// Waits until `done`.
#[track_caller]
fn until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain");
        std::thread::yield_now();
    }
}

/// A peer that accesses memory that it may not touch: both ends learn of it, each by its own event.
#[test]
fn an_error_of_the_peer_is_an_event_about_the_queue_pair() {
    let device = Device::open(nic()).wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let (mut left, right) = connected(&device, &pd, QpType::Rc);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&heard);
    device.on_event(move |event| log.lock().push((event.event, event.subject)));
    let nowhere = Remote {
        addr: 64,
        ..right.remote()
    };
    left.qp
        .post_send(Write::new(1, nowhere).inline(b"x").signaled())
        .unwrap();
    assert_eq!(left.completion().status, WcStatus::RemAccessErr);
    let about = Subject::Object(right.qp.target().id());
    let expected = (EventType::QpAccessErr, about);
    // Not every driver raises an event for it: rxe's responder does not.
    if crate::rdma_core::is_our_own() {
        until(|| heard.lock().contains(&expected));
    }
    // States that were not set by a verb are known nevertheless.
    for end in [&left, &right] {
        until(|| end.qp.query().wait().unwrap().state == QpState::Err);
    }
    right
        .qp
        .modify(verbs_core::QpAttr::to(QpState::Reset))
        .wait()
        .unwrap();
}

/// Removal under load: everything that waits ends, later posts are refused, and everything can be dropped.
#[test]
fn a_nic_that_goes_under_load_leaves_nothing_that_waits() {
    let nic = nic();
    let device = Device::open(Arc::clone(&nic) as Arc<_>).wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let (mut left, right) = connected(&device, &pd, QpType::Rc);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&heard);
    device.on_event(move |event| log.lock().push(event.event));
    let far = right.remote();
    let puller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        nic.remove();
    });
    let refused = loop {
        match left
            .qp
            .post_send(Write::new(1, far).inline(b"load").signaled())
        {
            Ok(()) | Err(PostError::Full { .. }) => {
                left.cq.poll(&mut [Wc::default(); 16]);
            }
            Err(error) => break error,
        }
    };
    assert_eq!(refused, PostError::DeviceRemoved);
    puller.join().unwrap();
    assert_eq!(*heard.lock(), [EventType::DeviceFatal]);
    assert_eq!(block_on(device.fatal()), Error::DeviceRemoved);
    assert_eq!(device.alloc_pd().wait().unwrap_err(), Error::DeviceRemoved);
    drop((left, right));
    pd.dealloc_when_idle().wait().unwrap();
    until(|| device.objects() == 0);
    device.close().wait().unwrap();
}

/// Ten thousand creates are under way at a time, and are refused by a limit instead of queueing up without bound.
#[test]
fn commands_wait_in_line_up_to_the_limit() {
    const LIMIT: u32 = 1000;
    let device = Device::open_with(nic(), LIMIT).wait().unwrap();
    let (made, refused) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
    for _ in 0..10_000 {
        let (made, refused) = (Arc::clone(&made), Arc::clone(&refused));
        let _ = device.alloc_pd().issue(move |result| match result {
            Ok(pd) => made.lock().push(pd),
            Err(error) => {
                assert_eq!(error, Error::TooManyRequests { max: LIMIT });
                *refused.lock() += 1;
            }
        });
    }
    until(|| made.lock().len() + *refused.lock() == 10_000);
    assert!(made.lock().len() >= LIMIT as usize, "{}", made.lock().len());
    made.lock().clear();
    until(|| device.objects() == 0);
    device.close().wait().unwrap();
}

/// Goal: a region without pinned pages works where the device reports that it has them, and is refused by name elsewhere.
#[test]
fn pages_are_faulted_in_where_the_device_can_do_that() {
    let device = Device::open(nic()).wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let caps = device.query().wait().unwrap().caps;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::ON_DEMAND;
    let made = pd.register(Memory::alloc(1 << 20).unwrap(), access).wait();
    if !caps.contains(DeviceCap::ON_DEMAND_PAGING) {
        let attr = Attr::Access;
        let missing = Capability::of(DeviceCap::ON_DEMAND_PAGING);
        assert_eq!(made.unwrap_err(), Error::NoCapability { attr, missing });
        return;
    }
    let mr = made.unwrap();
    let (mut left, _right) = connected(&device, &pd, QpType::Rc);
    let write = Write::new(1, mr.remote(9000))
        .inline(b"faulted in")
        .signaled();
    left.qp.post_send(write).unwrap();
    assert_eq!(left.completion().status, WcStatus::Success);
    let mut bytes = [0; 10];
    mr.read(9000, &mut bytes).unwrap();
    assert_eq!(&bytes, b"faulted in");
    let broken = Access::REMOTE_WRITE | Access::ON_DEMAND;
    let refused = pd.register(Memory::alloc(1).unwrap(), broken).wait();
    assert!(matches!(refused.unwrap_err(), Error::Mismatch { .. }));
}

#[test]
fn what_is_registered_outlives_its_handle_no_longer_than_its_destroy() {
    let device = Device::open(nic()).wait().unwrap();
    let pd = device.alloc_pd().wait().unwrap();
    let memory = Arc::new(Memory::alloc(4096).unwrap());
    let mr = pd
        .register(Arc::clone(&memory), Access::LOCAL_WRITE)
        .wait()
        .unwrap();
    assert!(Arc::strong_count(&memory) > 1);
    mr.dereg().wait().unwrap();
    // The command thread releases it after it has reported the result.
    until(|| Arc::strong_count(&memory) == 1);
}
