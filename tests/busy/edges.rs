//! The Busy matrix: every edge between a parent and what holds it.
//!
//! For each: some children are made, the parent's destroy is refused with their kind and number,
//! parent and children work on; the children are destroyed one by one, the parent refused in
//! between; then it goes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::command::{CommandConfig, CommandTime};
use verbs_core::testing::{Hold, Null, Subject};
use verbs_core::{Error, ObjectKind};

use crate::object::{Kept, Object, Parents, works};

/// Children of the kind under test.
const CHILDREN: u32 = 3;

/// Every edge in the code, and how often one child of that kind holds the parent: a queue pair holds
/// its completion queue once for sends and once for receives.
const EDGES: &[(ObjectKind, ObjectKind, u32)] = &[
    (ObjectKind::Device, ObjectKind::Pd, 1),
    (ObjectKind::Device, ObjectKind::Cq, 1),
    (ObjectKind::Pd, ObjectKind::Qp, 1),
    (ObjectKind::Pd, ObjectKind::Srq, 1),
    (ObjectKind::Pd, ObjectKind::Mr, 1),
    (ObjectKind::Pd, ObjectKind::Ah, 1),
    (ObjectKind::Cq, ObjectKind::Qp, 2),
    (ObjectKind::Qp, ObjectKind::Mcast, 1),
    (ObjectKind::Srq, ObjectKind::Qp, 1),
    (ObjectKind::Device, ObjectKind::Xrcd, 1),
    (ObjectKind::Xrcd, ObjectKind::Srq, 1),
    (ObjectKind::Xrcd, ObjectKind::Qp, 1),
    (ObjectKind::Cq, ObjectKind::Srq, 1),
];

fn null() -> Subject {
    let null = Arc::new(Null::default());
    let live = Arc::clone(&null);
    Subject::new(null).live(move || live.live().unsigned_abs())
}

fn held() -> Subject {
    let hold = Hold::over(Arc::new(Null::default()));
    let steps = Arc::clone(&hold);
    Subject::new(hold).step(move || {
        steps.step_nth(steps.len().saturating_sub(1));
    })
}

fn software() -> Subject {
    Subject::new(Hca::loopback().build())
}

fn slow() -> Subject {
    let clock = VirtualClock::new();
    let (min, max) = (Duration::from_micros(1), Duration::from_micros(100));
    let time = CommandTime::Drawn { min, max };
    let config = CommandConfig {
        time,
        ..CommandConfig::default()
    };
    let hca = Hca::loopback()
        .clock(clock.clone())
        .commands(config)
        .build();
    Subject::opened_by(move || hca.open()).step(move || {
        clock.step();
    })
}

/// Makes what is under test.
type Make = fn() -> Subject;

/// Who is in the way of a destroy: kinds with counts.
type Holders = Vec<(ObjectKind, u32)>;

/// What the holders of `parent` were before any child was made.
fn refused(subject: &Subject, parents: &mut Parents, kind: ObjectKind) -> Option<Holders> {
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

fn of(holders: &Holders, kind: ObjectKind) -> u32 {
    holders
        .iter()
        .find(|&&(k, _)| k == kind)
        .map_or(0, |&(_, n)| n)
}

/// One edge: who was in the way at first, or nothing if the provider has no such objects.
fn edge(subject: &Subject, parent: ObjectKind, child: ObjectKind, weight: u32) -> Option<Holders> {
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
            base + left * weight,
            "{parent} under {child}"
        );
        let others = |holders: &Holders| -> Holders {
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
    // What else needs the parent goes first; then the parent goes, by itself.
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

/// Whether an object of `kind`, as the parents of this test are made, holds `parent`.
fn depends(kind: ObjectKind, parent: ObjectKind) -> bool {
    match parent {
        ObjectKind::Device => true,
        ObjectKind::Pd => matches!(kind, ObjectKind::Qp | ObjectKind::Srq),
        ObjectKind::Cq => kind == ObjectKind::Qp,
        _ => false,
    }
}

fn print_row(name: &str, cells: [String; 4]) {
    let cells = cells.map(|cell| format!("  {cell:22}")).concat();
    println!("{name:28}{}", cells.trim_end());
}

/// The table of refusals: kinds with counts, as the parent's first refusal named them.
#[test]
fn k10_every_edge_on_every_provider() {
    let providers: [(&str, Make); 4] = [
        ("null", null),
        ("null, held", held),
        ("hca-sim", software),
        ("hca-sim, slow", slow),
    ];
    let names = providers.map(|(name, _)| name.to_owned());
    print_row("parent <- child", names);
    for &(parent, child, weight) in EDGES {
        let cells = providers.map(|(name, make)| {
            let Some(holders) = edge(&make(), parent, child, weight) else {
                assert!(
                    name.starts_with("hca"),
                    "the null provider has every object"
                );
                return String::from("-");
            };
            let words: Vec<_> = holders
                .iter()
                .map(|(kind, n)| format!("{n} {kind}"))
                .collect();
            words.join(", ")
        });
        print_row(&format!("{parent} <- {child}"), cells);
    }
}

/// Looks for edges that the table does not have: makes a child of every kind, and asks every parent
/// who holds it.
#[test]
fn the_table_has_every_edge() {
    let subject = null();
    let mut found = BTreeSet::new();
    for &child in Object::KINDS {
        for &parent in Object::KINDS {
            let mut parents = Parents::of(&subject);
            let before = refused_or_put(&subject, &mut parents, parent);
            if child == ObjectKind::Device || parents.take(parent).map(|p| parents.put(p)).is_none()
            {
                continue;
            }
            let made = parents.child(&subject, parent, child);
            let after = refused_or_put(&subject, &mut parents, parent);
            let more = of(&after, child) - of(&before, child);
            if more > 0 {
                found.insert((parent as u8, child as u8, more));
            }
            drop(made);
        }
    }
    let table = EDGES
        .iter()
        .map(|&(parent, child, n)| (parent as u8, child as u8, n));
    assert_eq!(found, table.collect());
}

/// Who holds the parent; nobody if it was destroyed by asking, and it is made anew.
fn refused_or_put(subject: &Subject, parents: &mut Parents, kind: ObjectKind) -> Holders {
    match refused(subject, parents, kind) {
        Some(holders) => holders,
        None => {
            let fresh = Parents::of(subject);
            *parents = fresh;
            Vec::new()
        }
    }
}
