//! Fast registration, and the contents of page lists.

use super::*;

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

/// Goal: pieces at any address are accessed as one range, and a list that has been replaced is not registered.
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
    assert_eq!(find(0, 16).unwrap().write_from(b"0123456789abcdef"), Ok(16));
    let mut bytes = [0; 64];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(
        (&bytes[40..46], &bytes[7..17], &bytes[20..23]),
        (&b"01234\0"[..], &b"56789abcd\0"[..], &b"ef\0"[..])
    );
    for (at, len) in [(0, 5), (3, 4), (4, 1), (5, 9), (13, 3), (15, 1), (0, 16)] {
        let mut got = [0; 16];
        assert_eq!(find(at, len).unwrap().read_into(&mut got), Ok(len));
        let whole = &b"0123456789abcdef"[at as usize..][..len as usize];
        assert_eq!(&got[..len as usize], whole, "{len} bytes at {at}");
        let part = find(0, 16).unwrap().part(at as u32, len).unwrap();
        let lens: Vec<_> = part.windows().map(Window::len).collect();
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

/// Goal: a verb cannot re-register keys whose memory work requests change: neither those of a fast registration
/// nor those of windows, valid or not; they are unchanged. Method: each of the three.
#[test]
fn keys_of_the_data_path_are_not_registered_again() {
    let table = Arc::new(MrTable::new(4, 3));
    let memory = memory(64);
    let (empty, mapped) = (fast(&table), fast(&table).next());
    register(&table, mapped, &memory, &[(0, 64)], ALL).unwrap();
    let window = table.allocate_window(PD, WindowType::TwoB).unwrap();
    for key in [empty, mapped, LKey::new(window.value())] {
        let region = Region::new(super::memory(64), ALL, PD);
        let refused = table.reregister(key, region, Keys::New, || panic!("nothing is done"));
        let (attr, why) = (Attr::Key, Why::State);
        assert_eq!(refused, Err(Error::Mismatch { attr, why }));
    }
    let pin = pin();
    let (key, addr, need) = (mapped.value(), memory.addr(), Access::LOCAL_WRITE);
    assert!(table.check(&pin, key, addr, 64, PD, need).is_some());
    assert_eq!(table.in_use(), 3);
}
