//! The Busy matrix ([`verbs_core::testing::busy`]) on the null provider and on every transport of the software HCA.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use hca_sim::Hca;
use hca_sim::clock::VirtualClock;
use hca_sim::command::{CommandConfig, CommandTime};
use hca_sim::link::Udp;
use verbs_core::ObjectKind;
use verbs_core::testing::busy::{EDGES, Edge, Holders, Parents, of, refused, works};
use verbs_core::testing::{Hold, Null, Subject};

/// Edges that are made and released on the data path, or with a connection, and the tests that cover them.
const ELSEWHERE: &[(ObjectKind, ObjectKind, &str, &str)] = &[
    (
        ObjectKind::Mr,
        ObjectKind::Mw,
        "hca-sim/tests/rc/windows.rs",
        "windows_of_type_1_are_bound_at_any_time",
    ),
    (
        ObjectKind::Qp,
        ObjectKind::Mw,
        "hca-sim/tests/rc/windows.rs",
        "k12_destroys_that_wait_for_a_window_go_on",
    ),
    (
        ObjectKind::FmrPool,
        ObjectKind::Mw,
        "hca-sim/tests/rc/windows.rs",
        "windows_of_a_pool_end_with_its_flush_and_keep_it_from_being_destroyed",
    ),
    (
        ObjectKind::Qp,
        ObjectKind::CmEndpoint,
        "verbs-cm/tests/provided.rs",
        "a_queue_pair_with_an_endpoint_is_busy",
    ),
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

/// RoCE, at an address that no other device has had.
fn roce() -> Subject {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let address = IpAddr::V4(Ipv4Addr::new(127, 79, 16, NEXT.fetch_add(1, Relaxed)));
    let link = Udp::bind(&[address]).expect("no other test has that address");
    Subject::new(Hca::over(link).build()).address(address)
}

/// iWARP: its endpoints are bound to TCP ports that the system picks.
fn iwarp() -> Subject {
    let builder = Hca::iwarp(&[Ipv4Addr::LOCALHOST.into()]).expect("there are descriptors");
    Subject::new(builder.build()).address(Ipv4Addr::LOCALHOST.into())
}

/// Makes the device under test.
type Make = fn() -> Subject;

/// The edges whose objects that provider does not have: endpoints are those of connections over streams, which have no
/// datagrams and no extended reliable connections.
fn absent(provider: &str) -> &'static [(ObjectKind, ObjectKind)] {
    use ObjectKind::{Ah, CmEndpoint, Cq, Device, Mcast, Pd, Qp, Srq, Xrcd};
    match provider {
        "null" | "null, held" => &[],
        "hca-sim, iWARP" => &[
            (Pd, Ah),
            (Qp, Mcast),
            (Device, Xrcd),
            (Xrcd, Srq),
            (Xrcd, Qp),
            (Cq, Srq),
        ],
        _ => &[(Device, CmEndpoint)],
    }
}

fn print_row(name: &str, cells: [String; 6]) {
    let cells = cells.map(|cell| format!("  {cell:22}")).concat();
    println!("{name:28}{}", cells.trim_end());
}

/// The table of refusals: kinds with counts, as the parent's first refusal named them.
#[test]
fn k10_every_edge_on_every_provider() {
    let providers: [(&str, Make); 6] = [
        ("null", null),
        ("null, held", held),
        ("hca-sim", software),
        ("hca-sim, slow", slow),
        ("hca-sim, RoCE", roce),
        ("hca-sim, iWARP", iwarp),
    ];
    let names = providers.map(|(name, _)| name.to_owned());
    print_row("parent <- child", names);
    for &edge in EDGES {
        let Edge { parent, child, .. } = edge;
        let cells = providers.map(|(name, make)| {
            let holders = edge.check(&make());
            let is_absent = absent(name).contains(&(parent, child));
            assert_eq!(holders.is_none(), is_absent, "{name}: {parent} <- {child}");
            let Some(holders) = holders else {
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

/// Looks for edges that the table does not have: makes a child of every kind, and checks the holders of every parent.
#[test]
fn the_table_has_every_edge() {
    let subject = null();
    let mut found = BTreeSet::new();
    for child in ObjectKind::ALL {
        for parent in ObjectKind::ALL {
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
        .map(|edge| (edge.parent as u8, edge.child as u8, edge.holds));
    assert_eq!(found, table.collect());
}

/// The contract's table of Busy edges, from its documentation: the objects that hold an object.
fn contract() -> BTreeSet<(u8, u8)> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/CONTRACT.md"));
    let text = text.expect("the contract is there");
    let (_, rows) = text
        .split_once("| object | is held by |")
        .expect("the table");
    let rows = rows
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let kind = |words: &str| {
        let names = [
            ("address handle", ObjectKind::Ah),
            ("completion queue", ObjectKind::Cq),
            ("device", ObjectKind::Device),
            ("endpoint", ObjectKind::CmEndpoint),
            ("FMR pool", ObjectKind::FmrPool),
            ("memory region", ObjectKind::Mr),
            ("memory window", ObjectKind::Mw),
            ("multicast attachment", ObjectKind::Mcast),
            ("protection domain", ObjectKind::Pd),
            ("queue pair", ObjectKind::Qp),
            ("shared receive queue", ObjectKind::Srq),
            ("XRC domain", ObjectKind::Xrcd),
        ];
        let first = names
            .iter()
            .filter_map(|&(name, kind)| Some((words.find(name)?, kind)));
        first.min_by_key(|&(at, _)| at).map(|(_, kind)| kind)
    };
    let mut edges = BTreeSet::new();
    for row in rows {
        let mut cells = row.trim_matches('|').split('|');
        let (parent, children) = (cells.next().unwrap_or(""), cells.next().unwrap_or(""));
        let parent = kind(parent).unwrap_or_else(|| panic!("no object: {row}"));
        if children.contains("every object on it") {
            // Kinds that name nothing else; the others hold it through what they name.
            let direct = [
                ObjectKind::Pd,
                ObjectKind::Cq,
                ObjectKind::Xrcd,
                ObjectKind::CmEndpoint,
            ];
            edges.extend(direct.map(|child| (parent as u8, child as u8)));
            continue;
        }
        for child in children.split(',') {
            let child = kind(child).unwrap_or_else(|| panic!("no object: {child}"));
            edges.insert((parent as u8, child as u8));
        }
    }
    edges
}

/// Goal: what is tested is what the contract promises, edge by edge. Method: the table in its documentation.
#[test]
fn the_table_is_the_contracts() {
    let here = EDGES.iter().map(|edge| (edge.parent, edge.child));
    let elsewhere = ELSEWHERE.iter().map(|&(parent, child, ..)| (parent, child));
    let tested = here.chain(elsewhere);
    let tested: BTreeSet<_> = tested
        .map(|(parent, child)| (parent as u8, child as u8))
        .collect();
    assert_eq!(tested, contract());
    for (.., file, test) in ELSEWHERE {
        let path = format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("the test is there");
        assert!(text.contains(&format!("fn {test}()")), "{file} has {test}");
    }
}

/// Regions for fast registration hold their domain like all regions.
#[test]
fn regions_for_fast_registration_hold_their_domain() {
    for make in [null as Make, held, software, slow] {
        let subject = make();
        let mut parents = Parents::of(&subject);
        let before = refused(&subject, &mut parents, ObjectKind::Pd).unwrap_or_default();
        let fast = parents.fast_mr(&subject).expect("all providers have them");
        let after = refused(&subject, &mut parents, ObjectKind::Pd).expect("the region holds it");
        assert_eq!(of(&after, ObjectKind::Mr), of(&before, ObjectKind::Mr) + 1);
        works(&subject, &fast);
        fast.destroy(&subject).expect("it is free");
        let last = refused(&subject, &mut parents, ObjectKind::Pd).unwrap_or_default();
        assert_eq!(last, before);
    }
}

/// The holders of the parent; none if asking destroyed it, in which case it is made again.
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
