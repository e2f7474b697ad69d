//! Grace periods between real threads.

use super::*;

/// A thread that touches `word` and stays inside until told to leave.
fn sitter(word: &Arc<TouchWord>) -> (Arc<AtomicBool>, thread::JoinHandle<()>) {
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
    (leave, handle)
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
    let (leave, first) = sitter(&word[0]);
    let (leave_too, second) = sitter(&word[1]);
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
