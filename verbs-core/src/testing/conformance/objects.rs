//! How objects come and go: K10 to K13.

use std::collections::BTreeSet;

use super::Make;
use crate::command::Kind;
use crate::cq::Cq;
use crate::device::Device;
use crate::error::Error;
use crate::mem::Access;
use crate::mr::Mr;
use crate::object::header::IfBusy;
use crate::object::{Handle, ObjectKind, Refused, Target};
use crate::pd::Pd;
use crate::qp::{Qp, QpInit};
use crate::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire},
};
use crate::sync::{Arc, Mutex};
use crate::testing::Subject;
use crate::testing::busy::{EDGES, memory};

/// The objects that every provider has.
struct Family {
    qp: Qp,
    mr: Mr,
    cq: Cq,
    pd: Pd,
}

/// A region that peers may reach has a remote key as well.
const KEYED: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ);

fn family(subject: &Subject, device: &Device) -> Family {
    let pd = subject.must(device.alloc_pd());
    let cq = subject.must(device.create_cq(4));
    let qp = subject.must(pd.create_qp(QpInit::rc(&cq, &cq)));
    let mr = subject.must(pd.register(memory(), KEYED));
    Family { qp, mr, cq, pd }
}

/// Everything that was made has gone, also in the provider's eyes; then the device goes.
fn close(subject: &Subject, device: Device) {
    subject.until("the objects go", || device.objects() == 0);
    if let Some(holds) = subject.holds() {
        assert_eq!(holds, 0, "the provider still holds objects");
    }
    assert_eq!(device.implicit_destroy_failures(), 0);
    assert_eq!(device.late_completions(), 0, "completions came twice (K6)");
    subject.must(device.close());
}

fn busy<H: Handle>(subject: &Subject, handle: H, kinds: &[(ObjectKind, u32)]) -> H {
    let refused: Refused<H> = match subject.finish(crate::object::destroy(handle, IfBusy::Refuse)) {
        Ok(_) => panic!("destroyed while {kinds:?} use it"),
        Err(refused) => refused,
    };
    assert_eq!(refused.error, Error::Busy);
    let holders = refused.busy.map(|busy| busy.kinds().collect::<Vec<_>>());
    assert_eq!(holders.as_deref(), Some(kinds), "who is in the way");
    refused.handle.expect("a refusal gives the handle back")
}

/// A parent's destroy is refused; parent and children work on, and go in the right order.
pub fn k10_busy_changes_nothing(make: Make<'_>) {
    use ObjectKind as K;
    let subject = make();
    let device = subject.device();
    let Family { qp, mr, cq, pd } = family(&subject, &device);
    let device = busy(&subject, device, &[(K::Pd, 1), (K::Cq, 1)]);
    let pd = busy(&subject, pd, &[(K::Qp, 1), (K::Mr, 1)]);
    let cq = busy(&subject, cq, &[(K::Qp, 2)]);
    // All of them still do what they are for.
    subject.must(qp.query());
    subject.must(device.query());
    let second = subject.must(pd.register(memory(), KEYED));
    let other = subject.must(pd.create_qp(QpInit::rc(&cq, &cq)));
    subject.must(second.dereg());
    subject.must(other.destroy());
    subject.must(qp.destroy());
    let pd = busy(&subject, pd, &[(K::Mr, 1)]);
    subject.must(mr.dereg());
    subject.must(cq.destroy());
    subject.must(pd.dealloc());
    close(&subject, device);
}

/// Every object is Busy while another is made of it, for each kind of both that the provider has.
pub fn k10_every_edge(make: Make<'_>) {
    let checked = EDGES.iter().filter_map(|edge| edge.check(&make()));
    assert!(checked.count() > 0, "no edge could be made");
}

/// Requests on an object that is destroyed complete before it, in place of making it Busy.
pub fn k11_requests_delay_a_destroy(make: Make<'_>) {
    let subject = make();
    let device = subject.device();
    let Family { qp, mr, cq, pd } = family(&subject, &device);
    let order = Arc::new(Mutex::new(Vec::new()));
    let log = |what: &'static str| {
        let order = Arc::clone(&order);
        move |ok: bool| order.lock().push((what, ok))
    };
    let (first, last) = (log("query"), log("destroy"));
    let _ = qp.query().issue(move |result| first(result.is_ok()));
    let _ = qp.destroy().issue(move |result| last(result.is_ok()));
    subject.until("both complete", || order.lock().len() == 2);
    assert_eq!(*order.lock(), [("query", true), ("destroy", true)]);
    drop((mr, cq, pd));
    close(&subject, device);
}

/// Handles that are dropped, parents first, take their objects along.
pub fn k12_dropped_handles_leave_nothing(make: Make<'_>) {
    let subject = make();
    let device = subject.device();
    for _ in 0..4 {
        let Family { qp, mr, cq, pd } = family(&subject, &device);
        drop(pd);
        drop(cq);
        for _ in 0..4 {
            subject.advance();
        }
        subject.must(qp.query());
        drop(mr);
        drop(qp);
    }
    close(&subject, device);
}

/// A destroy that waits for the children completes after the last of them, and is not refused.
pub fn k12_when_idle_waits_for_the_children(make: Make<'_>) {
    let subject = make();
    let device = subject.device();
    let Family { qp, mr, cq, pd } = family(&subject, &device);
    let gone = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&gone);
    let _ = pd.dealloc_when_idle().issue(move |result| {
        assert!(result.is_ok(), "{result:?}");
        count.fetch_add(1, AcqRel);
    });
    subject.must(qp.destroy());
    for _ in 0..4 {
        subject.advance();
    }
    assert_eq!(gone.load(Acquire), 0, "the region is still there");
    subject.must(mr.dereg());
    subject.until("the domain goes", || gone.load(Acquire) == 1);
    subject.must(cq.destroy());
    close(&subject, device);
}

/// Numbers and keys name one living object of a kind each.
pub fn k13_living_objects_have_different_numbers(make: Make<'_>) {
    const MANY: usize = 16;
    let subject = make();
    let device = subject.device();
    let families: Vec<_> = (0..MANY).map(|_| family(&subject, &device)).collect();
    let mut numbers = BTreeSet::new();
    for Family { qp, mr, cq, pd } in &families {
        let ids = [
            qp.core().id(),
            cq.core().id(),
            pd.core().id(),
            Handle::core(mr).id(),
        ];
        for id in ids {
            assert!(numbers.insert((id.kind as u8, id.number)), "{id} twice");
        }
    }
    let rkeys: BTreeSet<u32> = families.iter().map(|f| f.mr.rkey().value()).collect();
    assert_eq!(rkeys.len(), MANY, "remote keys differ");
    drop(families);
    close(&subject, device);
}

/// The keys of a region that is gone are not those of the next one: a peer that kept them misses.
pub fn k13_a_key_is_not_used_again_at_once(make: Make<'_>) {
    let subject = make();
    let device = subject.device();
    let pd = subject.must(device.alloc_pd());
    let mut before = None;
    for _ in 0..8 {
        let mr = subject.must(pd.register(memory(), KEYED));
        let keys = (mr.lkey(), mr.rkey());
        if let Some((lkey, rkey)) = before.replace(keys) {
            assert!(lkey != keys.0 && rkey != keys.1, "{keys:?} twice in a row");
        }
        subject.must(mr.dereg());
    }
    if subject.has(Kind::ReregMr) {
        let mr = subject.must(pd.register(memory(), KEYED));
        let old = (mr.lkey(), mr.rkey());
        let mr = subject.must(mr.rereg().access(Access::REMOTE_READ));
        assert!(old.0 != mr.lkey() && old.1 != mr.rkey(), "{old:?} kept");
        assert_eq!(mr.access(), Access::REMOTE_READ);
        subject.must(mr.dereg());
    }
    subject.must(pd.dealloc());
    close(&subject, device);
}

/// Nothing is used up by making and destroying.
pub fn objects_can_be_made_again_and_again(make: Make<'_>) {
    let subject = make();
    for _ in 0..3 {
        let device = subject.device();
        for _ in 0..100 {
            let Family { qp, mr, cq, pd } = family(&subject, &device);
            subject.must(qp.destroy());
            subject.must(mr.dereg());
            subject.must(cq.destroy());
            subject.must(pd.dealloc());
        }
        close(&subject, device);
    }
}
