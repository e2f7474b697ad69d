//! The Busy matrix: every edge between a parent and the objects that hold it (K10).
//!
//! For each edge: some children are made, the parent's destroy is refused with their kind and number, parent and
//! children still work; the children are destroyed one by one, the parent's destroy refused in between; then it
//! succeeds.

mod object;

use crate::error::Error;
use crate::object::ObjectKind;
use crate::testing::Subject;

pub use object::{Kept, Object, Parents, kept, memory, works};

/// Children of the kind under test.
const CHILDREN: u32 = 3;

/// An edge: objects of one kind hold an object of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// What is held.
    pub parent: ObjectKind,
    /// What holds it.
    pub child: ObjectKind,
    /// How often one child holds the parent.
    pub holds: u32,
}

/// Every edge that a verb makes. A queue pair holds its completion queue once for sends and once for receives.
pub const EDGES: &[Edge] = &[
    edge(ObjectKind::Device, ObjectKind::Pd, 1),
    edge(ObjectKind::Device, ObjectKind::Cq, 1),
    edge(ObjectKind::Pd, ObjectKind::Qp, 1),
    edge(ObjectKind::Pd, ObjectKind::Srq, 1),
    edge(ObjectKind::Pd, ObjectKind::Mr, 1),
    edge(ObjectKind::Pd, ObjectKind::Ah, 1),
    edge(ObjectKind::Cq, ObjectKind::Qp, 2),
    edge(ObjectKind::Qp, ObjectKind::Mcast, 1),
    edge(ObjectKind::Srq, ObjectKind::Qp, 1),
    edge(ObjectKind::Device, ObjectKind::Xrcd, 1),
    edge(ObjectKind::Xrcd, ObjectKind::Srq, 1),
    edge(ObjectKind::Xrcd, ObjectKind::Qp, 1),
    edge(ObjectKind::Cq, ObjectKind::Srq, 1),
    edge(ObjectKind::Pd, ObjectKind::Mw, 1),
    edge(ObjectKind::Pd, ObjectKind::FmrPool, 1),
    edge(ObjectKind::Device, ObjectKind::CmEndpoint, 1),
];

const fn edge(parent: ObjectKind, child: ObjectKind, holds: u32) -> Edge {
    Edge {
        parent,
        child,
        holds,
    }
}

/// The holders that prevent a destroy: kinds with counts.
pub type Holders = Vec<(ObjectKind, u32)>;

/// Tries to destroy the parent of that kind: its holders, or `None` if there is no such parent any longer.
///
/// # Panics
/// If the refusal is not Busy, does not give the handle back, or says otherwise in its sum.
pub fn refused(subject: &Subject, parents: &mut Parents, kind: ObjectKind) -> Option<Holders> {
    let parent = parents.take(kind)?;
    match parent.destroy(subject) {
        Ok(()) => None,
        Err(Kept {
            error,
            busy,
            object,
        }) => {
            assert_eq!(error, Error::Busy, "{kind}");
            let object = object.expect("a refusal gives the handle back");
            works(subject, &object);
            parents.put(object);
            let busy = busy.expect("Busy says who");
            let kinds: Vec<_> = busy.kinds().collect();
            assert_eq!(kinds.iter().map(|&(_, n)| n).sum::<u32>(), busy.total);
            Some(kinds)
        }
    }
}

/// How many holders of that kind there are.
pub fn of(holders: &[(ObjectKind, u32)], kind: ObjectKind) -> u32 {
    holders
        .iter()
        .find(|&&(k, _)| k == kind)
        .map_or(0, |&(_, n)| n)
}

impl Edge {
    /// Checks one edge: the holders at first, or `None` if the provider has no such objects.
    ///
    /// # Panics
    /// If a destroy is not refused, is refused although nothing holds the object, names other holders, or changes anything.
    pub fn check(self, subject: &Subject) -> Option<Holders> {
        let Self {
            parent,
            child,
            holds,
        } = self;
        let mut parents = Parents::of(subject);
        // One child stays until the end, so that the parent is never free by accident.
        let last = parents.child(subject, parent, child)?;
        let Some(before) = refused(subject, &mut parents, parent) else {
            panic!("{parent} was destroyed under a {child}")
        };
        let base = of(&before, child);
        let make = || parents.child(subject, parent, child).expect("as the first");
        let mut children: Vec<Object> = (0..CHILDREN).map(|_| make()).collect();
        let mut first = None;
        for left in (0..=CHILDREN).rev() {
            let now = refused(subject, &mut parents, parent).expect("children hold it");
            assert_eq!(
                of(&now, child),
                base + left * holds,
                "{parent} under {child}"
            );
            let others = |holders: &[(ObjectKind, u32)]| -> Holders {
                holders
                    .iter()
                    .copied()
                    .filter(|&(kind, _)| kind != child)
                    .collect()
            };
            assert_eq!(others(&now), others(&before), "{parent}: other holders");
            children.iter().for_each(|child| works(subject, child));
            first.get_or_insert(now);
            if let Some(child) = children.pop() {
                child.destroy(subject).expect("children are free");
            }
        }
        works(subject, &last);
        last.destroy(subject).expect("children are free");
        // Other users of the parent are destroyed first; then the parent's destroy succeeds.
        let taken = parents.take(parent).expect("it was there all the time");
        let order = [
            ObjectKind::Qp,
            ObjectKind::Srq,
            ObjectKind::Xrcd,
            ObjectKind::Cq,
            ObjectKind::Pd,
        ];
        let free = |kind: ObjectKind| depends(kind, parent);
        for kind in order.into_iter().filter(|&kind| free(kind)) {
            if let Some(object) = parents.take(kind) {
                object.destroy(subject).expect("no children are left");
            }
        }
        taken.destroy(subject).expect("no children are left");
        first
    }
}

/// Whether an object of `kind`, as the parents of this test are made, holds `parent`.
fn depends(kind: ObjectKind, parent: ObjectKind) -> bool {
    match parent {
        ObjectKind::Device => true,
        ObjectKind::Pd => matches!(kind, ObjectKind::Qp | ObjectKind::Srq),
        ObjectKind::Cq => kind == ObjectKind::Qp,
        _ => false,
    }
}
