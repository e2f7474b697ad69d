//! Random programs over the object graph, against a model that knows nothing of headers and slots.
//!
//! The provider holds every command back, and the program decides which one continues, in any order. After every step
//! the model has to agree about which objects were Busy because of which, in which order requests ended, what the
//! provider holds back, how many objects exist, and what is listed as pending.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use verbs_core::testing::busy::{Kept, Object, kept, memory};
use verbs_core::testing::{GROUP, Hold, Null, Subject};
use verbs_core::verb::VerbError;
use verbs_core::{
    Access, Av, CancelHandle, Device, Error, Issued, Kind, Lid, ObjectKind, QpInit, Request, Verb,
};

use crate::model::{DEVICE, End, Model, What, verb};

/// One step of a program; numbers select among the objects that exist.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create {
        kind: ObjectKind,
        picks: [u8; 4],
    },
    Query(u8),
    Destroy(u8),
    DestroyWhenIdle(u8),
    Drop(u8),
    /// The provider carries out a command that it holds back.
    Carry(u8),
    /// Cancels a command that the provider holds back.
    Cancel(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use ObjectKind as K;
    let kind = prop::sample::select(vec![
        K::Pd,
        K::Cq,
        K::Qp,
        K::Qp,
        K::Srq,
        K::Mr,
        K::Ah,
        K::Mcast,
        K::Xrcd,
    ]);
    let step = prop_oneof![
        4 => (kind, any::<[u8; 4]>()).prop_map(|(kind, picks)| Step::Create { kind, picks }),
        1 => any::<u8>().prop_map(Step::Query),
        2 => any::<u8>().prop_map(Step::Destroy),
        1 => any::<u8>().prop_map(Step::DestroyWhenIdle),
        1 => any::<u8>().prop_map(Step::Drop),
        5 => any::<u8>().prop_map(Step::Carry),
        1 => any::<u8>().prop_map(Step::Cancel),
    ];
    prop::collection::vec(step, 1..80)
}

/// The objects under test.
struct World {
    null: Arc<Null>,
    hold: Arc<Hold>,
    /// The client's handles, by node. Routines put them here.
    owned: Shared<BTreeMap<usize, Object>>,
    ended: Shared<Vec<(usize, End)>>,
    /// The cancel handles of requests, by step.
    handles: BTreeMap<usize, CancelHandle>,
}

type Shared<T> = Arc<Mutex<T>>;

fn end(error: Option<Error>) -> End {
    match error {
        None => End::Done,
        Some(Error::Cancelled) => End::Cancelled,
        Some(error) => panic!("a request ended with {error}"),
    }
}

impl World {
    fn new() -> Self {
        let null = Arc::new(Null::default());
        let hold = Hold::over(null.clone());
        let steps = Arc::clone(&hold);
        let subject = Subject::new(hold.clone()).step(move || {
            steps.step();
        });
        let device = Object::from(subject.device());
        Self {
            null,
            hold,
            owned: Arc::new(Mutex::new(BTreeMap::from([(DEVICE, device)]))),
            ended: Shared::default(),
            handles: BTreeMap::new(),
        }
    }

    fn keep(&mut self, step: usize, issued: Issued) {
        if let Issued::Pending(handle) = issued {
            self.handles.insert(step, handle);
        }
    }

    /// Issues a create whose object becomes `node`.
    fn issue_create<V>(&self, request: Request<'_, V>, step: usize, node: usize) -> Issued
    where
        V: Verb<Error = Error>,
        V::Output: Into<Object>,
    {
        let (owned, ended) = (Arc::clone(&self.owned), Arc::clone(&self.ended));
        request.issue(move |result| {
            ended
                .lock()
                .unwrap()
                .push((step, end(result.as_ref().err().copied())));
            if let Ok(object) = result {
                owned.lock().unwrap().insert(node, object.into());
            }
        })
    }

    fn create(&mut self, kind: ObjectKind, parents: &[usize], step: usize, node: usize) {
        let map = Arc::clone(&self.owned);
        let owned = map.lock().unwrap();
        let parent = |n: usize| parents.get(n).map(|node| &owned[node]);
        let issued = match (kind, parent(0), parent(1), parent(2), parent(3)) {
            (ObjectKind::Pd, Some(Object::Device(device)), ..) => {
                self.issue_create(device.alloc_pd(), step, node)
            }
            (ObjectKind::Cq, Some(Object::Device(device)), ..) => {
                self.issue_create(device.create_cq(4), step, node)
            }
            (ObjectKind::Xrcd, Some(Object::Device(device)), ..) => {
                self.issue_create(device.alloc_xrcd(), step, node)
            }
            (ObjectKind::Srq, Some(Object::Pd(pd)), ..) => {
                self.issue_create(pd.create_srq(4, 1), step, node)
            }
            (ObjectKind::Mr, Some(Object::Pd(pd)), ..) => {
                self.issue_create(pd.register(memory(), Access::empty()), step, node)
            }
            (ObjectKind::Ah, Some(Object::Pd(pd)), ..) => {
                self.issue_create(pd.create_ah(Av::to_lid(1, Lid(1))), step, node)
            }
            (ObjectKind::Mcast, Some(Object::Qp(qp)), ..) => {
                self.issue_create(qp.attach_mcast(GROUP, Lid(0xc000)), step, node)
            }
            (_, Some(Object::Pd(pd)), Some(Object::Cq(send)), Some(Object::Cq(recv)), srq) => {
                let init = QpInit::rc(send, recv);
                let init = match srq {
                    Some(Object::Srq(srq)) => init.srq(srq),
                    _ => init,
                };
                self.issue_create(pd.create_qp(init), step, node)
            }
            other => unreachable!("{other:?}"),
        };
        drop(owned);
        self.keep(step, issued);
    }

    fn issue_query<V: Verb>(&self, request: Request<'_, V>, step: usize) -> Issued {
        let ended = Arc::clone(&self.ended);
        request.issue(move |result| {
            let error = result.err().map(|error| error.reason());
            ended.lock().unwrap().push((step, end(error)));
        })
    }

    /// Issues a query; `false` for objects that have none.
    fn query(&mut self, node: usize, step: usize) -> bool {
        let map = Arc::clone(&self.owned);
        let owned = map.lock().unwrap();
        let issued = match &owned[&node] {
            Object::Device(device) => self.issue_query(device.query(), step),
            Object::Cq(cq) => self.issue_query(cq.moderate(0, std::time::Duration::ZERO), step),
            Object::Qp(qp) => self.issue_query(qp.query(), step),
            Object::Srq(srq) => self.issue_query(srq.query(), step),
            Object::Mr(mr) => self.issue_query(mr.query(), step),
            Object::Ah(ah) => self.issue_query(ah.query(), step),
            Object::Pd(_) | Object::Mcast(_) | Object::Xrcd(_) => return false,
            other => unreachable!("no step makes a {other:?}"),
        };
        drop(owned);
        self.keep(step, issued);
        true
    }

    fn destroy(&mut self, node: usize, when_idle: bool, step: usize) {
        let object = self.owned.lock().unwrap().remove(&node);
        let object = object.expect("the model says that it is there");
        let (owned, ended) = (Arc::clone(&self.owned), Arc::clone(&self.ended));
        let told = move |result: Result<(), Kept>| {
            let how = match result {
                Ok(()) => End::Done,
                Err(Kept {
                    error,
                    busy,
                    object,
                }) => {
                    assert_eq!(error, Error::Busy);
                    let busy = busy.expect("Busy says who");
                    let kinds: Vec<_> = busy.kinds().collect();
                    assert_eq!(busy.total, kinds.iter().map(|&(_, n)| n).sum::<u32>());
                    owned
                        .lock()
                        .unwrap()
                        .extend(object.map(|object| (node, object)));
                    End::Busy(kinds)
                }
            };
            ended.lock().unwrap().push((step, how));
        };
        macro_rules! issue {
            ($object:ident, $now:ident, $idle:ident) => {
                match when_idle {
                    false => $object.$now().issue(move |r| told(r.map_err(kept))),
                    true => $object.$idle().issue(move |r| told(r.map_err(kept))),
                }
            };
        }
        let issued = match object {
            Object::Device(device) => issue!(device, close, close_when_idle),
            Object::Pd(pd) => issue!(pd, dealloc, dealloc_when_idle),
            Object::Cq(cq) => issue!(cq, destroy, destroy_when_idle),
            Object::Qp(qp) => issue!(qp, destroy, destroy_when_idle),
            Object::Srq(srq) => issue!(srq, destroy, destroy_when_idle),
            Object::Xrcd(xrcd) => issue!(xrcd, dealloc, dealloc_when_idle),
            Object::Mr(mr) => issue!(mr, dereg, dereg_when_idle),
            // Nothing can hold these.
            Object::Ah(ah) => issue!(ah, destroy, destroy),
            Object::Mcast(mcast) => issue!(mcast, detach, detach),
            other => unreachable!("no step makes a {other:?}"),
        };
        self.keep(step, issued);
    }

    fn agrees_with(&self, model: &mut Model) {
        let ended = std::mem::take(&mut *self.ended.lock().unwrap());
        assert_eq!(
            ended,
            std::mem::take(&mut model.ended),
            "how requests ended"
        );
        let held = model.held.iter();
        let held: Vec<Kind> = held
            .map(|command| verb(command.what, model.nodes[command.node].kind))
            .collect();
        assert_eq!(self.hold.kinds(), held, "what the provider holds back");
        let exists = model.nodes.iter().filter(|node| node.exists).count();
        assert_eq!(self.null.live(), exists as i64 - 1, "what exists");
        let owned = self.owned.lock().unwrap();
        let Object::Device(device) = &owned[&DEVICE] else {
            unreachable!("the first node is the device")
        };
        assert_eq!(device.objects(), model.nodes[DEVICE].total(), "its objects");
        let pending = model.held.len() + model.parked();
        assert_eq!(device.in_flight().len(), pending, "what is listed");
    }

    /// Drops every handle, has every command carried out, and closes the device.
    fn finish(self) {
        let mut owned = std::mem::take(&mut *self.owned.lock().unwrap());
        let device = owned.remove(&DEVICE);
        drop(owned);
        self.hold.run();
        // Creates that completed now left their objects here.
        drop(std::mem::take(&mut *self.owned.lock().unwrap()));
        self.hold.run();
        let Some(Object::Device(device)) = device else {
            unreachable!("the first node is the device")
        };
        assert_eq!((device.objects(), self.null.live()), (0, 0));
        assert_eq!(device.implicit_destroy_failures(), 0);
        assert!(device.in_flight().is_empty());
        close(device, &self.hold);
    }
}

fn close(device: Device, hold: &Hold) {
    let _ = device.close().issue(|result| result.unwrap());
    hold.run();
}

fn run(program: &[Step]) {
    let (mut world, mut model) = (World::new(), Model::new());
    for (n, &step) in program.iter().enumerate() {
        take(step, n, &mut world, &mut model);
        world.agrees_with(&mut model);
    }
    world.finish();
}

fn take(step: Step, n: usize, world: &mut World, model: &mut Model) {
    let owned: Vec<usize> = (0..model.nodes.len())
        .filter(|&n| model.nodes[n].owned)
        .collect();
    // The device is always owned.
    let node = |pick: u8| owned[usize::from(pick) % owned.len()];
    let held = |pick: u8| usize::from(pick).checked_rem(model.held.len());
    match step {
        Step::Create { kind, picks } => {
            if let Some(parents) = model.parents(kind, picks) {
                let node = model.create(kind, &parents, n);
                world.create(kind, &parents, n, node);
            }
        }
        Step::Query(pick) => {
            let node = node(pick);
            if world.query(node, n) {
                model.nodes[node].users += 1;
                model.hold(What::Query, node, Some(n));
            }
        }
        Step::Destroy(pick) => {
            let node = node(pick);
            // The device stays, so that it can be queried.
            if node != DEVICE || model.nodes[DEVICE].total() > 0 {
                world.destroy(node, false, n);
                model.destroy(node, false, Some(n));
            }
        }
        Step::DestroyWhenIdle(pick) if node(pick) != DEVICE => {
            world.destroy(node(pick), true, n);
            model.destroy(node(pick), true, Some(n));
        }
        Step::Drop(pick) if node(pick) != DEVICE => {
            let object = world.owned.lock().unwrap().remove(&node(pick));
            drop(object);
            model.destroy(node(pick), true, None);
        }
        Step::DestroyWhenIdle(_) | Step::Drop(_) => {}
        Step::Carry(pick) => {
            if let Some(place) = held(pick) {
                world.hold.step_nth(place);
                model.carry(place);
            }
        }
        Step::Cancel(pick) => {
            if let Some(place) = held(pick) {
                let ticket = model.held[place].ticket;
                if let Some(handle) = ticket.and_then(|step| world.handles.get(&step)) {
                    handle.cancel();
                }
                model.cancel(place);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_programs_agree_with_the_model(program in steps()) {
        run(&program);
    }
}

#[test]
fn the_model_sees_a_parent_that_waits_through_two_generations() {
    use ObjectKind as K;
    let picks = [0; 4];
    let create = |kind| Step::Create { kind, picks };
    // A domain, a queue, a queue pair; both parents dropped; the queue pair destroyed.
    run(&[
        create(K::Pd),
        create(K::Cq),
        Step::Carry(0),
        Step::Carry(0),
        create(K::Qp),
        Step::Drop(1),
        Step::Drop(1),
        Step::Carry(0),
        Step::Destroy(1),
        Step::Carry(0),
        Step::Carry(1),
        Step::Carry(0),
    ]);
}
