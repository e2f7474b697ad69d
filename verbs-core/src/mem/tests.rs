//! Tests of the whole door: keys against a reference model, grace periods between real threads, and
//! the proof that deregistration means what it says.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::barrier::WITHOUT;
use super::grace;
use super::pin::OWN;
use super::{
    Access, Extent, Fault, Layout, Memory, MrTable, PageList, Region, Stopped, TouchWord, Who,
    WindowType, pin,
};
use crate::addr::{LKey, RKey};
use crate::error::{Attr, ByteCount, Error, Why};
use crate::sync::plain::{AtomicBool, AtomicU64, Ordering::*};
use crate::sync::{Arc, Mutex, spin_loop, thread};
use crate::wr::{Binding, Registration};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const PD: u32 = 7;

fn memory(len: usize) -> Arc<Memory> {
    Arc::new(Memory::alloc(len).unwrap())
}

fn flag() -> (Arc<AtomicBool>, impl FnOnce() + Send + 'static) {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    (flag, move || {
        assert!(!set.swap(true, AcqRel), "a job runs once");
    })
}

/// Spins until `done`, which other threads will bring about.
fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        spin_loop();
        thread::yield_now();
    }
}

// --- keys ---------------------------------------------------------------------------------------

#[test]
fn a_key_leads_to_its_bytes_until_it_is_taken_away() {
    let table = Arc::new(MrTable::new(8, 1));
    let memory = memory(4096);
    let (lkey, rkey) = table
        .register(Region::new(Arc::clone(&memory), ALL, PD))
        .unwrap();
    assert_eq!(lkey.value(), rkey.value());
    let addr = memory.addr() + 100;
    {
        let pin = pin();
        let window = table.check(&pin, rkey.value(), addr, 5, PD, Access::REMOTE_WRITE);
        assert_eq!(window.expect("all in order").write_from(b"hello"), 5);
        let key = lkey.value();
        let check = |addr, len, pd, need| {
            assert!(table.check(&pin, key, addr, len, pd, need).is_none());
            table.why(&pin)
        };
        let none = Access::empty();
        assert_eq!(check(addr, 4000, PD, none), Fault::Bounds);
        assert_eq!(check(memory.addr() - 1, 1, PD, none), Fault::Bounds);
        assert_eq!(check(u64::MAX, 1, PD, none), Fault::Bounds);
        assert_eq!(check(addr, 1, PD + 1, none), Fault::Pd);
        assert_eq!(check(addr, 1, PD, Access::MW_BIND), Fault::Access);
        assert!(
            table.check(&pin, 0, 0, 0, 0, ALL).is_some(),
            "no bytes, no check"
        );
        assert_eq!(table.misses(), 0);
    }
    let mut back = [0; 5];
    memory.read(100, &mut back).unwrap();
    assert_eq!(&back, b"hello");

    let (done, set) = flag();
    table.deregister(lkey, set).unwrap();
    assert!(done.load(Acquire), "nobody else was inside");
    assert_eq!(Arc::strong_count(&memory), 1, "the table has let go");
    let pin = pin();
    assert!(
        table
            .check(&pin, lkey.value(), addr, 5, PD, Access::empty())
            .is_none()
    );
    assert_eq!((table.why(&pin), table.misses()), (Fault::Key, 1));
    let missing = Err(Error::Mismatch {
        attr: Attr::Key,
        why: Why::Missing,
    });
    assert_eq!(table.deregister(lkey, || ()), missing);
}

#[test]
fn a_table_has_room_for_its_capacity_and_keys_change_on_reuse() {
    let table = Arc::new(MrTable::new(3, 42));
    let region = Region::new(memory(64), Access::empty(), PD);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let keys: Vec<LKey> = (0..3)
            .map(|_| table.register(region.clone()).unwrap().0)
            .collect();
        let full = Err(Error::Exhausted {
            attr: Attr::MaxMr,
            max: 3,
        });
        assert_eq!(table.register(region.clone()), full);
        assert_eq!(table.in_use(), 3);
        for key in keys {
            assert!((1..=3).contains(&key.index()));
            assert_eq!(table.query(key).unwrap().len, 64);
            table.deregister(key, || ()).unwrap();
            assert!(table.query(key).is_none());
            seen.insert(key.value());
        }
    }
    assert!(seen.len() > 300, "key bytes vary: {}", seen.len());
    let next = |seed| MrTable::new(1000, seed).register(region.clone()).unwrap().0;
    assert_eq!(next(5), next(5), "one seed, one order");
    assert!((0..10).any(|seed| next(seed) != next(seed + 1)));
}

#[test]
fn registration_is_refused_for_what_cannot_be() {
    let table = MrTable::new(4, 0);
    let region = |change: fn(&mut Region)| {
        let mut region = Region::new(memory(100), ALL, PD);
        change(&mut region);
        table.register(region)
    };
    assert_eq!(
        region(|r| r.offset = 1),
        Err(Error::OutOfRange {
            end: ByteCount::new(101),
            size: ByteCount::new(100)
        })
    );
    let mismatch = |attr, why| Err(Error::Mismatch { attr, why });
    assert_eq!(
        region(|r| r.iova = u64::MAX - 99),
        mismatch(Attr::Iova, Why::Overflow)
    );
    assert_eq!(
        region(|r| r.access = Access::REMOTE_WRITE),
        mismatch(Attr::Access, Why::NeedsLocalWrite)
    );
    assert_eq!(table.in_use(), 0);
    let (lkey, rkey) = region(|r| r.access = Access::MW_BIND).unwrap();
    assert_eq!((rkey, table.in_use()), (RKey::new(0), 1));
    assert_ne!(lkey, LKey::new(0));
}

#[test]
fn zero_based_regions_and_empty_regions() {
    let table = MrTable::new(4, 0);
    let region = Region::new(memory(100), ALL | Access::ZERO_BASED, PD);
    let (key, _) = table.register(region).unwrap();
    let pin = pin();
    let check = |key: LKey, addr, len| {
        table
            .check(&pin, key.value(), addr, len, PD, Access::REMOTE_READ)
            .map(super::Window::len)
    };
    assert_eq!(check(key, 0, 100), Some(100));
    assert_eq!(check(key, 99, 2), None);
    let (empty, _) = table.register(Region::new(memory(0), ALL, PD)).unwrap();
    assert_eq!(check(empty, 4096, 1), None);
    assert_eq!(table.why(&pin), Fault::Bounds);
    assert_eq!(check(empty, 4096, 0), Some(0));
}

/// A table, and a key that was allocated in it for 4 pages.
fn fast(table: &MrTable) -> LKey {
    table.allocate(PD, Layout::Gaps, 4).unwrap()
}

/// Stages pieces, as (offset, length) of `memory`, and registers them under that key.
fn register(
    table: &MrTable,
    key: LKey,
    memory: &Arc<Memory>,
    pieces: &[(usize, u32)],
    access: Access,
) -> Result<(), Stopped> {
    let mut list = PageList::new(4).unwrap();
    let extents = pieces.iter().map(|&(offset, len)| Extent {
        memory,
        offset,
        len,
    });
    assert_eq!(list.fill(Layout::Gaps, extents), Ok(pieces.len()));
    let iova = list.addr();
    let mapping = table.stage(key.index(), &mut list).unwrap();
    let what = Registration {
        key,
        access,
        iova,
        mapping,
    };
    table.map(&what, PD)
}

const WHO: Who = Who { pd: PD, qpn: 7 };

#[test]
fn fast_registration_goes_round() {
    let table = Arc::new(MrTable::new(4, 3));
    let memory = memory(64);
    let usable = |key: LKey| {
        let pin = pin();
        let need = Access::LOCAL_WRITE;
        table
            .check(&pin, key.value(), memory.addr(), 64, PD, need)
            .is_some()
    };
    let state = Err(Stopped::Fault(Fault::State));
    let mut key = fast(&table);
    for _ in 0..300 {
        assert!(!usable(key));
        let valid = key.next();
        assert_eq!(register(&table, valid, &memory, &[(0, 64)], ALL), Ok(()));
        assert!(usable(valid) && !usable(key));
        let again = register(&table, valid.next(), &memory, &[(0, 64)], ALL);
        assert_eq!(again, state, "valid already");
        assert_eq!(table.invalidate(key.value(), WHO), Err(Fault::Key), "stale");
        for _ in 0..2 {
            let done = table.invalidate(valid.value(), WHO).unwrap();
            assert!(done.over && !done.settle, "also of one that is invalid");
        }
        key = valid;
    }
    let other = Who { pd: PD + 1, qpn: 7 };
    assert_eq!(table.invalidate(key.value(), other), Err(Fault::Pd));
    table.deregister(key, || ()).unwrap();
    let gone = register_again(&table, key);
    assert_eq!(gone, Err(Stopped::Fault(Fault::State)), "given back");
    let (user, _) = table.register(Region::new(memory, ALL, PD)).unwrap();
    let refused = table.invalidate(user.value(), WHO);
    assert_eq!(refused, Err(Fault::State), "not made for it");
    assert_eq!(table.in_use(), 1);
}

fn register_again(table: &MrTable, key: LKey) -> Result<(), Stopped> {
    let what = Registration {
        key,
        access: ALL,
        iova: 0,
        mapping: 1,
    };
    table.map(&what, PD)
}

/// Goal: pieces anywhere are reached as one range, and a list that was replaced meanwhile is not taken.
#[test]
fn pieces_are_one_range() {
    let table = Arc::new(MrTable::new(4, 3));
    let memory = memory(64);
    let key = fast(&table);
    let pieces = [(40, 5), (3, 0), (7, 9), (20, 2)];
    assert_eq!(register(&table, key, &memory, &pieces, ALL), Ok(()));
    let start = memory.addr() + 40;
    let pin = pin();
    let find = |at, len| table.find(&pin, key.value(), start + at, len, WHO, Access::LOCAL_WRITE);
    assert_eq!(find(0, 16).unwrap().write_from(b"0123456789abcdef"), 16);
    let mut bytes = [0; 64];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(
        (&bytes[40..46], &bytes[7..17], &bytes[20..23]),
        (&b"01234\0"[..], &b"56789abcd\0"[..], &b"ef\0"[..])
    );
    for (at, len) in [(0, 5), (3, 4), (4, 1), (5, 9), (13, 3), (15, 1), (0, 16)] {
        let mut got = [0; 16];
        assert_eq!(find(at, len).unwrap().read_into(&mut got), len);
        let whole = &b"0123456789abcdef"[at as usize..][..len as usize];
        assert_eq!(&got[..len as usize], whole, "{len} bytes at {at}");
        let part = find(0, 16).unwrap().part(at as u32, len).unwrap();
        let lens: Vec<_> = part.windows().map(super::Window::len).collect();
        assert_eq!(lens.iter().sum::<u32>(), len);
    }
    assert!(find(0, 17).is_none() && find(16, 1).is_none());
    assert!(find(0, 5).unwrap().window().is_some());
    assert!(find(0, 6).unwrap().window().is_none());
    drop(pin);
    assert!(table.invalidate(key.value(), WHO).unwrap().over);
    let mut list = PageList::new(4).unwrap();
    table.stage(key.index(), &mut list).unwrap();
    let stale = register_again(&table, key);
    assert_eq!(stale, Err(Stopped::Fault(Fault::Mapping)));
}

/// Goal: the rules for lists of pages and of blocks.
#[test]
fn layouts_take_what_fits() {
    let memory = memory(16 * 4096);
    let take = |layout, pieces: &[(usize, u32)]| {
        let mut list = PageList::new(4).unwrap();
        let extents = pieces.iter().map(|&(offset, len)| Extent {
            memory: &memory,
            offset,
            len,
        });
        list.fill(layout, extents).unwrap()
    };
    let pages = Layout::Pages(4096);
    assert_eq!(take(pages, &[(100, 3996), (8192, 4096), (0, 5)]), 3);
    assert_eq!(take(pages, &[(0, 4095), (8192, 1)]), 1, "ends inside");
    assert_eq!(take(pages, &[(0, 4096), (8193, 1)]), 1, "begins inside");
    assert_eq!(take(pages, &[(0, 100), (100, 50)]), 2, "goes on");
    assert_eq!(take(pages, &[(0, 16384), (0, 1)]), 1, "four pages at most");
    let blocks = Layout::Blocks(100);
    assert_eq!(take(blocks, &[(7, 30), (501, 100), (1003, 100), (3, 1)]), 4);
    assert_eq!(take(blocks, &[(7, 100), (501, 99), (1003, 100)]), 2);
    assert_eq!(take(blocks, &[(7, 101)]), 0);
    assert_eq!(
        take(Layout::Gaps, &[(1, 1), (7, 5), (0, 3), (9, 9), (0, 1)]),
        4
    );
    let mut list = PageList::new(1).unwrap();
    let beyond = Extent {
        memory: &memory,
        offset: 65535,
        len: 2,
    };
    assert!(matches!(
        list.fill(pages, [beyond]),
        Err(Error::OutOfRange { .. })
    ));
    assert!(Layout::Pages(3000).check().is_err() && Layout::Blocks(0).check().is_err());
}

/// A binding of all of `memory`, which `lkey` names.
fn binding(mw: RKey, lkey: LKey, memory: &Memory, access: Access) -> Binding {
    Binding {
        mw,
        rkey: mw.next(),
        lkey,
        access,
        addr: memory.addr(),
        len: memory.len() as u64,
    }
}

/// Regions that bindings are tried with.
struct Regions {
    unbindable: LKey,
    read_only: LKey,
    zero_based: LKey,
    elsewhere: LKey,
}

/// Spoils a binding.
type Spoil = fn(&mut Binding, &Regions);

/// What is wrong with a binding, whatever the type of the window, and what it is refused with.
const BROKEN: [(Spoil, Fault); 12] = [
    (|b, _| b.mw = b.mw.next(), Fault::Key),
    (|b, _| b.rkey = RKey::new(b.mw.value() ^ 0x100), Fault::Key),
    (|b, _| b.lkey = b.lkey.next(), Fault::Key),
    (|b, _| b.lkey = LKey::new(b.mw.value()), Fault::Key),
    (|b, _| b.access = Access::MW_BIND, Fault::Access),
    // C10-73, C10-74; the region must not be zero-based, and be of the window's domain.
    (|b, r| b.lkey = r.unbindable, Fault::Access),
    (
        |b, r| (b.lkey, b.access) = (r.read_only, Access::REMOTE_WRITE),
        Fault::Access,
    ),
    (|b, r| (b.lkey, b.addr) = (r.zero_based, 0), Fault::Access),
    (|b, r| b.lkey = r.elsewhere, Fault::Pd),
    // C10-75.
    (|b, _| b.len = 65, Fault::Bounds),
    (|b, _| b.addr += 1, Fault::Bounds),
    (|b, _| (b.addr, b.len) = (b.addr - 1, 2), Fault::Bounds),
];

/// Goal: every rule of binding, by the clause that has it, and that a refused bind changes nothing.
#[test]
fn binds_are_checked() {
    let table = Arc::new(MrTable::new(16, 3));
    let memory = memory(64);
    let plain = |access, pd| {
        let region = Region::new(Arc::clone(&memory), access, pd);
        table.register(region).unwrap().0
    };
    let bindable = ALL | Access::MW_BIND;
    let regions = Regions {
        unbindable: plain(ALL, PD),
        read_only: plain(Access::REMOTE_READ | Access::MW_BIND, PD),
        zero_based: plain(bindable | Access::ZERO_BASED, PD),
        elsewhere: plain(bindable, PD + 1),
    };
    let lkey = plain(bindable, PD);
    for kind in [WindowType::One, WindowType::TwoA, WindowType::TwoB] {
        let mw = table.allocate_window(PD, kind).unwrap();
        let good = binding(mw, lkey, &memory, Access::REMOTE_READ);
        for (number, (change, fault)) in BROKEN.iter().enumerate() {
            let mut wrong = good;
            change(&mut wrong, &regions);
            let got = table.bind(&wrong, WHO, None);
            assert_eq!(got, Err(Stopped::Fault(*fault)), "{kind:?} {number}");
        }
        let key = rules_of_one_type(&table, kind, good);
        assert_eq!(table.deregister(lkey, || ()), Err(Error::Busy));
        table.deregister(LKey::new(key.value()), || ()).unwrap();
    }
    table.deregister(lkey, || ()).unwrap();
}

/// The rules that differ from type to type; the key that the window is bound under in the end.
fn rules_of_one_type(table: &MrTable, kind: WindowType, good: Binding) -> RKey {
    let other = Who { pd: PD + 1, qpn: 7 };
    let refused = |what, who, fault| {
        assert_eq!(table.bind(&what, who, None), Err(Stopped::Fault(fault)));
    };
    let (mut based, mut none) = (good, good);
    based.access |= Access::ZERO_BASED;
    none.len = 0;
    match kind {
        // o10-36.2.2
        WindowType::One => refused(based, WHO, Fault::Access),
        // o10-37.2.40
        _ => refused(none, WHO, Fault::Bounds),
    }
    // C10-72
    if kind == WindowType::TwoA {
        assert_eq!(table.bind(&good, other, None), Ok(false));
    } else {
        refused(good, other, Fault::Pd);
        assert_eq!(table.bind(&good, WHO, None), Ok(false));
    }
    let mut again = good;
    (again.mw, again.rkey) = (good.rkey, good.rkey.next());
    if kind != WindowType::One {
        // o10-37.2.30
        refused(again, WHO, Fault::State);
        return good.rkey;
    }
    assert_eq!(table.bind(&again, WHO, None), Ok(true), "at any time");
    table.settle(again.mw.index());
    // o10-37.2.26
    let refused = table.invalidate(again.rkey.value(), WHO);
    assert_eq!(refused, Err(Fault::State));
    again.rkey
}

/// Goal: who reaches memory through a window of each type, and who does not.
#[test]
fn windows_let_in_whom_they_are_for() {
    let table = Arc::new(MrTable::new(8, 3));
    let memory = memory(64);
    let region = Region::new(Arc::clone(&memory), ALL | Access::MW_BIND, PD);
    let (lkey, _) = table.register(region).unwrap();
    for (kind, based) in [
        (WindowType::One, Access::empty()),
        (WindowType::TwoA, Access::empty()),
        (WindowType::TwoB, Access::empty()),
        (WindowType::TwoB, Access::ZERO_BASED),
    ] {
        let mw = table.allocate_window(PD, kind).unwrap();
        let what = Binding {
            addr: memory.addr() + 16,
            len: 8,
            ..binding(mw, lkey, &memory, Access::REMOTE_READ | based)
        };
        table.bind(&what, WHO, None).unwrap();
        let (key, start) = (what.rkey, if based.is_empty() { what.addr } else { 0 });
        look_through(&table, kind, &what, start);
        if kind == WindowType::One {
            let (mw, rkey) = (key, key.next());
            let none = Binding {
                mw,
                rkey,
                len: 0,
                ..what
            };
            assert_eq!(table.bind(&none, WHO, None), Ok(true));
        } else {
            let other = Who { pd: PD, qpn: 8 };
            assert_eq!(table.invalidate(key.value(), other), Err(Fault::Qp));
            assert!(table.invalidate(key.value(), WHO).unwrap().settle);
        }
        table.settle(mw.index());
        let gone = reach(&table, key, start, (PD, 7), Access::REMOTE_READ);
        assert_eq!(gone, Err(Fault::Key));
        table.deregister(LKey::new(key.value()), || ()).unwrap();
    }
    table.deregister(lkey, || ()).unwrap();
    assert_eq!(table.in_use(), 0);
}

/// Looks at 8 bytes.
fn reach(
    table: &MrTable,
    key: RKey,
    at: u64,
    (pd, qpn): (u32, u32),
    need: Access,
) -> Result<u32, Fault> {
    let pin = pin();
    let found = table.find(&pin, key.value(), at, 8, Who { pd, qpn }, need);
    found.map(super::Span::len).ok_or_else(|| table.why(&pin))
}

/// A window of 8 bytes from `start` on that grants reading.
fn look_through(table: &MrTable, kind: WindowType, what: &Binding, start: u64) {
    let (read, key) = (Access::REMOTE_READ, what.rkey);
    let look = |key, at, who, need| reach(table, key, at, who, need);
    assert_eq!(look(key, start, (PD, 7), read), Ok(8));
    assert_eq!(look(what.mw, start, (PD, 7), read), Err(Fault::Key), "old");
    let others = (
        look(key, start, (PD + 1, 7), read),
        look(key, start, (PD, 8), read),
    );
    let expected = match kind {
        WindowType::One => (Err(Fault::Pd), Ok(8)),
        WindowType::TwoA => (Ok(8), Err(Fault::Qp)),
        WindowType::TwoB => (Err(Fault::Pd), Err(Fault::Qp)),
    };
    assert_eq!(others, expected);
    // The region's own bytes and rights are wider.
    for at in [start.wrapping_sub(1), start + 1] {
        assert_eq!(look(key, at, (PD, 7), read), Err(Fault::Bounds));
    }
    let write = look(key, start, (PD, 7), Access::REMOTE_WRITE);
    assert_eq!(write, Err(Fault::Access));
    for local in [Access::empty(), Access::LOCAL_WRITE] {
        let refused = look(key, start, (PD, 7), local);
        assert_eq!(refused, Err(Fault::Access), "its key is no local one");
    }
}

/// Goal: a region whose window was unbound a moment ago waits for who got in through the window.
#[test]
fn a_region_waits_for_who_is_in_its_windows() {
    let table = Arc::new(MrTable::new(8, 3));
    let memory = memory(64);
    let key = fast(&table);
    let access = ALL | Access::MW_BIND;
    register(&table, key, &memory, &[(8, 8), (32, 8)], access).unwrap();
    let mw = table.allocate_window(PD, WindowType::TwoB).unwrap();
    let what = Binding {
        addr: memory.addr() + 8,
        len: 16,
        ..binding(mw, key, &memory, Access::REMOTE_WRITE)
    };
    table.bind(&what, WHO, None).unwrap();
    assert_eq!(table.invalidate(key.value(), WHO), Err(Fault::Windows));
    let [inside, leave] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let user = thread::spawn({
        let (table, inside, leave) = (Arc::clone(&table), Arc::clone(&inside), Arc::clone(&leave));
        let (addr, rkey) = (what.addr, what.rkey.value());
        move || {
            let pin = pin();
            let need = Access::REMOTE_WRITE;
            let span = table.find(&pin, rkey, addr, 16, WHO, need).unwrap();
            inside.store(true, Release);
            until(|| leave.load(Acquire));
            assert_eq!(span.write_from(&[1; 16]), 16);
        }
    });
    until(|| inside.load(Acquire));
    let unbound = table.invalidate(what.rkey.value(), WHO).unwrap();
    assert!(!unbound.over && unbound.settle);
    assert!(!table.invalidate(key.value(), WHO).unwrap().over);
    let again = register(&table, key, &memory, &[(0, 8)], access);
    assert_eq!(again, Err(Stopped::Later));
    let (done, set) = flag();
    table.when_over(key.index(), set);
    assert!(!done.load(Acquire));
    leave.store(true, Release);
    user.join().unwrap();
    assert!(done.load(Acquire));
    assert_eq!(memory.load_u64(32), Ok(0x0101_0101_0101_0101));
    assert_eq!(register(&table, key, &memory, &[(0, 8)], access), Ok(()));
}

#[test]
fn masked_atomics_keep_to_their_bits() {
    let table = MrTable::new(1, 0);
    let memory = memory(64);
    let region = Region::new(Arc::clone(&memory), ALL, PD);
    let (key, _) = table.register(region).unwrap();
    let pin = pin();
    let word = table
        .check(&pin, key.value(), memory.addr(), 8, PD, ALL)
        .unwrap();
    let put = |value| memory.store_u64(0, value).unwrap();
    let get = || memory.load_u64(0).unwrap();
    put(0xff);
    assert_eq!(
        word.masked_compare_swap((0xf0, 0xf0), (0xa00, 0xf00)),
        Some(0xff)
    );
    assert_eq!(get(), 0xaff);
    assert_eq!(
        word.masked_compare_swap((0x0, 0xf0), (0, u64::MAX)),
        Some(0xaff)
    );
    assert_eq!(get(), 0xaff, "other bits were expected");
    for (before, add, boundary, after) in [
        (0xffff, 0x0101, 0x8080, 0x0000),
        (0xff7f, 0x0101, 0x8080, 0x0080),
        (u64::MAX, 1, 0, 0),
        (0x1234, 0x5678, u64::MAX, 0x1234 ^ 0x5678),
        (0xffff_ffff, 1, 0x8000_0000_8000_0000, 0),
    ] {
        put(before);
        assert_eq!(word.masked_fetch_add(add, boundary), Some(before));
        assert_eq!(get(), after, "{before:#x} + {add:#x} in {boundary:#x}");
    }
}

#[test]
fn windows_have_parts_and_atomics() {
    let table = MrTable::new(1, 0);
    let memory = memory(64);
    let (key, _) = table
        .register(Region::new(Arc::clone(&memory), ALL, PD))
        .unwrap();
    let pin = pin();
    let whole = table
        .check(&pin, key.value(), memory.addr(), 64, PD, ALL)
        .unwrap();
    let word = whole.part(8, 8).unwrap();
    assert_eq!(word.fetch_add(5), Some(0));
    assert_eq!(word.compare_swap(4, 9), Some(5));
    assert_eq!(word.compare_swap(5, 9), Some(5));
    assert_eq!(memory.load_u64(8), Ok(9));
    assert_eq!(whole.part(4, 8).unwrap().fetch_add(1), None, "not aligned");
    assert_eq!(whole.part(56, 7).unwrap().fetch_add(1), None, "too short");
    assert!(whole.part(60, 5).is_none() && whole.part(u32::MAX, 2).is_none());
    assert_eq!(whole.part(16, 8).unwrap().copy_from(word), 8);
    let mut bytes = [1; 9];
    assert_eq!(whole.part(16, 8).unwrap().read_into(&mut bytes), 8);
    assert_eq!(bytes, [9, 0, 0, 0, 0, 0, 0, 0, 1]);
}

/// What a region is to the reference model: numbers only.
#[derive(Clone, Debug)]
struct Known {
    memory: usize,
    offset: u64,
    len: u64,
    iova: u64,
    access: Access,
    pd: u32,
}

impl Known {
    fn judge(&self, addr: u64, len: u32, pd: u32, need: Access) -> Result<u64, Fault> {
        let (first, end) = (u128::from(addr), u128::from(addr) + u128::from(len));
        let start = u128::from(self.iova);
        if pd != self.pd {
            Err(Fault::Pd)
        } else if !self.access.contains(need) {
            Err(Fault::Access)
        } else if first < start || end > start + u128::from(self.len) {
            Err(Fault::Bounds)
        } else {
            Ok(self.offset + (addr - self.iova))
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Register(Known),
    Deregister(usize),
    Reregister(usize, Known),
    /// Key: one of those ever seen, with the low byte changed by so much; address: relative to the
    /// start or the end of what that key names or named.
    Check(usize, u8, bool, i64, u32, u32, Access),
}

const SIZES: [usize; 3] = [64, 100, 8192];

fn known() -> impl Strategy<Value = Known> {
    let iova = prop_oneof![
        Just(0),
        Just(0x1000_u64),
        any::<u64>(),
        (0..300_u64).prop_map(|d| u64::MAX - d)
    ];
    (
        0..SIZES.len(),
        0..150_u64,
        0..150_u64,
        iova,
        0..16_u32,
        0..2_u32,
    )
        .prop_map(|(memory, offset, len, iova, access, pd)| Known {
            memory,
            offset,
            len,
            iova,
            access: Access::from_bits_retain(access),
            pd,
        })
}

fn step() -> impl Strategy<Value = Step> {
    let need = prop_oneof![
        Just(Access::empty()),
        (0..4_u32).prop_map(|bit| Access::from_bits_retain(1 << bit))
    ];
    let check = (
        any::<usize>(),
        prop_oneof![4 => Just(0), 1 => any::<u8>()],
        any::<bool>(),
        -20..20_i64,
        0..100_u32,
        0..2_u32,
        need,
    );
    prop_oneof![
        2 => known().prop_map(Step::Register),
        1 => any::<usize>().prop_map(Step::Deregister),
        1 => (any::<usize>(), known()).prop_map(|(i, k)| Step::Reregister(i, k)),
        6 => check.prop_map(|(i, byte, end, d, len, pd, need)| {
            Step::Check(i, byte, end, d, len, pd, need)
        }),
    ]
}

/// A table, its memories, and beside it what it should do.
struct Pair {
    table: Arc<MrTable>,
    memories: Vec<Arc<Memory>>,
    bytes: Vec<Vec<u8>>,
    live: BTreeMap<u32, Known>,
    /// Every key ever given out, with what it named.
    seen: Vec<(u32, Known)>,
    misses: u64,
    writes: u8,
}

impl Pair {
    const CAPACITY: u32 = 5;

    fn new(seed: u64) -> Self {
        Self {
            table: Arc::new(MrTable::new(Self::CAPACITY, seed)),
            memories: SIZES.map(memory).to_vec(),
            bytes: SIZES.map(|size| vec![0; size]).to_vec(),
            live: BTreeMap::new(),
            seen: Vec::new(),
            misses: 0,
            writes: 0,
        }
    }

    fn region(&self, known: &Known) -> Region {
        Region {
            memory: Arc::clone(&self.memories[known.memory]),
            offset: known.offset as usize,
            len: known.len as usize,
            iova: known.iova,
            access: known.access,
            pd: known.pd,
        }
    }

    fn legal(known: &Known) -> bool {
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        known.offset + known.len <= SIZES[known.memory] as u64
            && known.iova.checked_add(known.len).is_some()
            && (!known.access.intersects(writes) || known.access.contains(Access::LOCAL_WRITE))
    }

    fn learn(&mut self, known: &Known, keys: (LKey, RKey)) {
        let key = keys.0.value();
        let remote = known.access.intersects(Access::REMOTE);
        assert_eq!(keys.1.value(), if remote { key } else { 0 });
        assert!(self.live.insert(key, known.clone()).is_none(), "key in use");
        self.seen.push((key, known.clone()));
    }

    fn pick(&self, i: usize) -> Option<(u32, Known)> {
        (!self.seen.is_empty()).then(|| self.seen[i % self.seen.len()].clone())
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Register(known) => {
                let full = self.live.len() == Self::CAPACITY as usize;
                match self.table.register(self.region(&known)) {
                    Ok(keys) => {
                        assert!(Self::legal(&known) && !full);
                        self.learn(&known, keys);
                    }
                    Err(error) => assert!(full || !Self::legal(&known), "{error}"),
                }
            }
            Step::Deregister(i) => {
                let Some((key, _)) = self.pick(i) else { return };
                let (done, set) = flag();
                let result = self.table.deregister(LKey::new(key), set);
                assert_eq!(result.is_ok(), self.live.remove(&key).is_some());
                assert_eq!(result.is_ok(), done.load(Acquire));
            }
            Step::Reregister(i, known) => {
                let Some((key, _)) = self.pick(i) else { return };
                let (done, set) = flag();
                let result = self
                    .table
                    .reregister(LKey::new(key), self.region(&known), set);
                let expected = self.live.contains_key(&key) && Self::legal(&known);
                assert_eq!((result.is_ok(), done.load(Acquire)), (expected, expected));
                if let Ok(keys) = result {
                    self.live.remove(&key);
                    self.learn(&known, keys);
                }
            }
            Step::Check(i, byte, from_end, delta, len, pd, need) => {
                let Some((key, was)) = self.pick(i) else {
                    return;
                };
                let key = key & !0xff | u32::from((key as u8).wrapping_add(byte));
                let from = if from_end {
                    was.iova.wrapping_add(was.len)
                } else {
                    was.iova
                };
                self.check(key, from.wrapping_add_signed(delta), len, pd, need);
            }
        }
        assert_eq!(self.table.in_use() as usize, self.live.len());
        assert_eq!(self.table.misses(), self.misses);
    }

    fn check(&mut self, key: u32, addr: u64, len: u32, pd: u32, need: Access) {
        let pin = pin();
        let got = self.table.check(&pin, key, addr, len, pd, need);
        if len == 0 {
            assert_eq!(got.expect("no bytes, no check").len(), 0);
            return;
        }
        let judged = self.live.get(&key).map_or(Err(Fault::Key), |known| {
            known
                .judge(addr, len, pd, need)
                .map(|at| (known.memory, at as usize))
        });
        self.misses += u64::from(judged == Err(Fault::Key));
        match (got, judged) {
            (Some(window), Ok((memory, at))) => {
                self.writes = self.writes.wrapping_add(1);
                let data = vec![self.writes; len as usize];
                assert_eq!(window.write_from(&data), len);
                self.bytes[memory][at..at + len as usize].copy_from_slice(&data);
            }
            (None, Err(fault)) => assert_eq!(self.table.why(&pin), fault),
            (got, judged) => panic!("{got:?}, but the model says {judged:?}"),
        }
    }
}

proptest! {
    /// Goal: key, domain, right and range are judged as written in the specification, and what is
    /// written through a window lands where it should and nowhere else. Method: random histories on
    /// a small table beside a model made of plain numbers in 128 bits.
    #[test]
    fn table_agrees_with_reference(seed: u64, steps in prop::collection::vec(step(), 1..120)) {
        let mut pair = Pair::new(seed);
        for step in steps {
            pair.run(step);
        }
        for (memory, bytes) in pair.memories.iter().zip(&pair.bytes) {
            let mut got = vec![0; bytes.len()];
            memory.read(0, &mut got).unwrap();
            assert_eq!(&got, bytes);
        }
        for key in pair.live.keys() {
            pair.table.deregister(LKey::new(*key), || ()).unwrap();
        }
        assert!(pair.memories.iter().all(|memory| Arc::strong_count(memory) == 1));
    }
}

// --- grace periods ------------------------------------------------------------------------------

/// A thread that touches `word` and stays inside until told to leave.
fn sitter(word: &Arc<TouchWord>) -> (Arc<AtomicBool>, Arc<AtomicBool>, thread::JoinHandle<()>) {
    let (leave, inside) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let handle = thread::spawn({
        let (word, leave, inside) = (Arc::clone(word), Arc::clone(&leave), Arc::clone(&inside));
        move || {
            let pin = pin();
            assert!(word.admits(&pin, TouchWord::TAG, 1));
            inside.store(true, Release);
            until(|| leave.load(Acquire));
        }
    });
    until(|| inside.load(Acquire));
    (leave, inside, handle)
}

/// Goal: the job runs when the last of many threads leaves, not before, and nobody has to help.
/// Method: more threads than there are bits, released one by one.
#[test]
fn the_last_to_leave_runs_the_job() {
    let word = Arc::new(TouchWord::new(1));
    let sitters: Vec<_> = (0..OWN + 6).map(|_| sitter(&word)).collect();
    let (done, set) = flag();
    grace::after(word.kill().unwrap(), set);
    for (leave, _, handle) in sitters {
        grace::help();
        assert!(!done.load(Acquire), "somebody is still inside");
        leave.store(true, Release);
        handle.join().unwrap();
    }
    assert!(done.load(Acquire));
}

#[test]
fn a_job_never_runs_inside_a_pin() {
    let word = TouchWord::new(1);
    let outer = pin();
    assert!(word.admits(&outer, TouchWord::TAG, 1));
    let (done, set) = flag();
    grace::after(word.kill().unwrap(), set);
    drop(pin());
    grace::help();
    assert!(!done.load(Acquire), "this thread is inside itself");
    drop(outer);
    assert!(done.load(Acquire));
}

/// Goal: while a thread is inside, the region's memory is kept though nobody else holds it, and the
/// key is dead at once; the slot is free for others only afterwards.
#[test]
fn memory_outlives_the_last_window() {
    let table = Arc::new(MrTable::new(1, 9));
    let gone = Arc::new(AtomicBool::new(false));
    struct Keep(
        Arc<AtomicBool>,
        #[expect(dead_code, reason = "the bytes")] Memory,
    );
    impl Drop for Keep {
        fn drop(&mut self) {
            self.0.store(true, Release);
        }
    }
    let owner = Memory::alloc(64).unwrap();
    let start = std::ptr::NonNull::new(owner.addr() as *mut u8).unwrap();
    // SAFETY: the bytes are those of `owner`, which `Keep` holds.
    let foreign = unsafe { Memory::foreign(start, 64, Box::new(Keep(Arc::clone(&gone), owner))) };
    let region = Region::new(Arc::new(foreign), ALL, PD);
    let addr = region.iova;
    let (key, _) = table.register(region).unwrap();
    let inside = Arc::new(AtomicBool::new(false));
    let leave = Arc::new(AtomicBool::new(false));
    let user = thread::spawn({
        let (table, inside, leave) = (Arc::clone(&table), Arc::clone(&inside), Arc::clone(&leave));
        move || {
            let pin = pin();
            let window = table.check(&pin, key.value(), addr, 64, PD, ALL).unwrap();
            inside.store(true, Release);
            until(|| leave.load(Acquire));
            assert_eq!(window.write_from(&[1; 64]), 64);
            assert!(table.check(&pin, key.value(), addr, 64, PD, ALL).is_none());
        }
    });
    until(|| inside.load(Acquire));
    let (done, set) = flag();
    table.deregister(key, set).unwrap();
    assert_eq!(table.deregister(key, || ()), Err(Error::Closing));
    assert!(!done.load(Acquire) && !gone.load(Acquire));
    assert!(
        table.allocate(PD, Layout::Gaps, 1).is_err(),
        "the slot is still in use"
    );
    leave.store(true, Release);
    user.join().unwrap();
    assert!(done.load(Acquire) && gone.load(Acquire));
    assert!(table.allocate(PD, Layout::Gaps, 1).is_ok());
}

#[test]
fn a_window_outlives_its_table() {
    let table = MrTable::new(1, 0);
    let memory = memory(64);
    let region = Region::new(Arc::clone(&memory), ALL, PD);
    let (key, _) = table.register(region).unwrap();
    let pin = pin();
    let window = table
        .check(&pin, key.value(), memory.addr(), 8, PD, ALL)
        .unwrap();
    drop(table);
    assert_eq!(Arc::strong_count(&memory), 2, "the bytes are still there");
    assert_eq!(window.write_from(&[1; 8]), 8);
    drop(pin);
    assert_eq!(Arc::strong_count(&memory), 1);
}

#[test]
fn a_panicking_job_leaves_the_others_parked() {
    let word = [TouchWord::new(1), TouchWord::new(1)].map(Arc::new);
    let (leave, _, first) = sitter(&word[0]);
    let (leave_too, _, second) = sitter(&word[1]);
    grace::after(word[0].kill().unwrap(), || panic!("expected by the test"));
    let (done, set) = flag();
    grace::after(
        word[0]
            .kill()
            .map_or(word[1].kill().unwrap(), |_| unreachable!()),
        set,
    );
    leave.store(true, Release);
    assert!(first.join().is_err(), "the panic is the leaver's");
    leave_too.store(true, Release);
    second.join().unwrap();
    until(|| {
        grace::help();
        done.load(Acquire)
    });
}

// --- deregistration under fire ------------------------------------------------------------------

const FIRE_BYTES: usize = 64;
const COLD_BYTES: usize = 64 << 20;
/// Bytes per burst: more lines than a store buffer holds, few enough that `memcpy` uses plain stores.
const COLD_BURST: usize = 1792;
/// Looks at the memory after it was taken back.
const LOOKS: usize = 400;

fn memory_filled(len: usize) -> Memory {
    let memory = Memory::alloc(len).unwrap();
    memory.fill(0..len, 1).unwrap();
    memory
}

/// How a region is taken away from the writer.
#[derive(Clone, Copy, PartialEq)]
enum Taken {
    Deregistered,
    Invalidated,
}

/// Places bytes as fast as it can, through whatever key is current.
struct Writer {
    table: Arc<MrTable>,
    current: Arc<AtomicU64>,
    placed: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    addr: u64,
}

impl Writer {
    fn run(&self) {
        let (ones, filler) = ([0xff; FIRE_BYTES], [1; COLD_BURST]);
        let cold = memory_filled(COLD_BYTES);
        let (mut n, mut draw) = (0, 1_u64);
        while !self.over.load(Relaxed) {
            // Stores that miss the cache, so that the pin's and the window's wait for long in the
            // store buffer behind them.
            draw = draw.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let page = (draw >> 33) as usize % (COLD_BYTES / 4096);
            cold.write(page * 4096, &filler).unwrap();
            let key = self.current.load(Acquire) as u32;
            let pin = pin();
            let window = self.table.check(
                &pin,
                key,
                self.addr,
                FIRE_BYTES as u32,
                PD,
                Access::REMOTE_WRITE,
            );
            if let Some(window) = window {
                window.write_from(&ones);
                n += u64::from(!window.is_empty());
                self.placed.store(n, Release);
            }
        }
    }
}

/// Registers, lets a writer place bytes, deregisters, owns the memory, looks whether it changes; so
/// many rounds; without the barrier only until it does. Returns late writes and placements.
fn fire(rounds: u32, taken: Taken, barrier: bool) -> (u64, u64) {
    // Two of these at once would have too few processors.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock();
    WITHOUT.set(!barrier);
    let table = Arc::new(MrTable::new(4, 7));
    let memory = memory(4096);
    let current = Arc::new(AtomicU64::new(0));
    let placed = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let writer = {
        let writer = Writer {
            table: Arc::clone(&table),
            current: Arc::clone(&current),
            placed: Arc::clone(&placed),
            over: Arc::clone(&over),
            addr: memory.addr(),
        };
        thread::spawn(move || writer.run())
    };
    let region = Region::new(Arc::clone(&memory), ALL, PD);
    let mut fast = fast(&table);
    let mut late = 0;
    for round in 0..rounds {
        let key = match taken {
            Taken::Deregistered => table.register(region.clone()).unwrap().0,
            Taken::Invalidated => {
                fast = fast.next();
                register(&table, fast, &memory, &[(0, 4096)], ALL).unwrap();
                fast
            }
        };
        let before = placed.load(Acquire);
        current.store(u64::from(key.value()), Release);
        until(|| placed.load(Acquire) > before + 2);
        // Not always at the same point of the writer's loop.
        (0..round % 97).for_each(|_| spin_loop());
        let (done, set) = flag();
        match taken {
            Taken::Deregistered => table.deregister(key, set).unwrap(),
            Taken::Invalidated => match table.invalidate(key.value(), WHO).unwrap().over {
                true => set(),
                false => table.when_over(key.index(), set),
            },
        }
        until(|| {
            // Without the barrier the leaver may not notice that it should help.
            done.load(Acquire) || {
                grace::help();
                done.load(Acquire)
            }
        });
        memory.fill(0..FIRE_BYTES, 0).unwrap();
        late += u64::from((0..LOOKS).any(|i| memory.load_u64(i % 8 * 8) != Ok(0)));
        if !barrier && late > 0 {
            break;
        }
    }
    over.store(true, Release);
    writer.join().unwrap();
    WITHOUT.set(false);
    (late, placed.load(Acquire))
}

/// Goal: after the completion of a deregistration no byte is placed any more, and it is the
/// process-wide barrier that makes it so. Method: a writer that never rests; the same rounds with the
/// barrier (none late) and without (some late, else this test has lost its teeth).
#[test]
fn deregistration_holds_under_fire() {
    let (late, placed) = fire(3_000, Taken::Deregistered, true);
    assert_eq!(late, 0, "late writes with the barrier, {placed} placed");
    let (late, placed_without) = fire(200_000, Taken::Deregistered, false);
    println!("with barrier 0 late of {placed}; without {late} late of {placed_without}");
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    if late == 0 && cores == 1 {
        println!("could not provoke a late write: one core");
        return;
    }
    assert!(
        late > 0,
        "no late write without the barrier in {placed_without} placements"
    );
}

/// Goal: the same for an invalidation, which has fences instead of the barrier.
#[test]
fn invalidation_holds_under_fire() {
    let (late, placed) = fire(3_000, Taken::Invalidated, true);
    assert_eq!(late, 0, "late writes, {placed} placed");
}
