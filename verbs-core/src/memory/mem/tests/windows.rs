//! Memory windows.

use super::*;

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

/// Regions used in the bindings.
struct Regions {
    unbindable: LKey,
    read_only: LKey,
    zero_based: LKey,
    elsewhere: LKey,
}

/// Breaks a binding.
type Spoil = fn(&mut Binding, &Regions);

/// The faults of a binding that all types of windows share, and the error for each.
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

/// Goal: every rule of binding, by its clause, and that a refused bind changes nothing.
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

/// The rules that differ from type to type; returns the key that the window is bound under in the end.
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

/// Goal: which queue pairs can access memory through a window of each type, and which cannot.
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

/// Reads 8 bytes.
fn reach(
    table: &MrTable,
    key: RKey,
    at: u64,
    (pd, qpn): (u32, u32),
    need: Access,
) -> Result<u32, Fault> {
    let pin = pin();
    let found = table.find(&pin, key.value(), at, 8, Who { pd, qpn }, need);
    found.map(Span::len).ok_or_else(|| table.why(&pin))
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

/// Goal: posting never waits for another post of the same kind. Method: threads bind windows under keys of each
/// other's windows, in circles of two and of three, for enough rounds that a deadlock would show.
#[test]
fn binds_in_each_others_keys_do_not_wait_for_each_other() {
    const ROUNDS: u32 = 50_000;
    for around in [2, 3] {
        let table = MrTable::new(16, 3);
        let make = || table.allocate_window(PD, WindowType::TwoB).unwrap();
        let windows: Vec<_> = (0..around).map(|_| make()).collect();
        thread::scope(|scope| {
            for (n, &mw) in windows.iter().enumerate() {
                let next = windows[(n + 1) % around];
                let what = Binding {
                    lkey: LKey::new(next.value()),
                    ..binding(mw, LKey::new(0), &memory(8), Access::REMOTE_READ)
                };
                let table = &table;
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let refused = table.bind(&what, WHO, None);
                        assert_eq!(refused, Err(Stopped::Fault(Fault::Key)));
                    }
                });
            }
        });
    }
}

/// Goal: no safe call frees the bytes that a window refers to. Method: a key is retired, its pages are taken and
/// dropped, and its window is read by a thread that is inside and by one that comes later.
#[test]
fn retiring_a_key_ends_its_windows() {
    let table = MrTable::new(8, 3);
    let memory = memory(64);
    let key = fast(&table);
    register(&table, key, &memory, &[(0, 64)], ALL | Access::MW_BIND).unwrap();
    let find = |key: u32, pin| {
        let span = table.find(pin, key, memory.addr(), 64, WHO, Access::REMOTE_READ)?;
        let mut bytes = [0; 64];
        span.read_into(&mut bytes).ok()
    };
    let bound: Vec<_> = [WindowType::One, WindowType::TwoA, WindowType::TwoB]
        .map(|kind| {
            let mw = table.allocate_window(PD, kind).unwrap();
            let what = binding(mw, key, &memory, Access::REMOTE_READ);
            table.bind(&what, WHO, None).unwrap();
            what
        })
        .to_vec();
    let mut list = PageList::new(4).unwrap();
    assert_eq!(table.unstage(key.index(), &mut list), Err(Error::Busy));
    let inside = pin();
    let keys = || bound.iter().map(|what| what.rkey.value());
    assert!(keys().all(|key| find(key, &inside) == Some(64)));
    let touched = table.retire(key.index());
    assert_ne!(
        touched,
        crate::mem::Touched::NOBODY,
        "this thread is inside"
    );
    assert!(keys().all(|key| find(key, &inside).is_none()));
    assert_eq!(table.unstage(key.index(), &mut list), Ok(true));
    assert_eq!(list.clear(), Err(Error::Busy), "this thread is inside");
    drop(inside);
    assert_eq!(list.clear(), Ok(()));
    // Windows and key are as free as before.
    register(&table, key, &memory, &[(0, 64)], ALL | Access::MW_BIND).unwrap();
    for what in bound {
        let mw = what.rkey;
        let rkey = mw.next();
        let again = Binding { mw, rkey, ..what };
        assert_eq!(table.bind(&again, WHO, None), Ok(false), "{what:?}");
    }
    let invalid = table.invalidate(key.value(), WHO);
    assert_eq!(invalid, Err(Fault::Windows));
}

/// Goal: a region whose window was just unbound waits for threads that entered through the window.
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
            assert_eq!(span.write_from(&[1; 16]), Ok(16));
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
