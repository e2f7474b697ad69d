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

/// Goal: while a thread is inside, the region's memory is kept though nothing else holds it, and the key is dead
/// at once; the slot is free for others only afterwards.
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
            assert_eq!(window.write_from(&[1; 64]), Ok(64));
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
    assert_eq!(window.write_from(&[1; 8]), Ok(8));
    drop(pin);
    assert_eq!(Arc::strong_count(&memory), 1);
}

/// Goal: a thread that continues with the rest of a set after [`grace::is_over`] also waits for the pin of the
/// asking thread. Method: asked inside a pin; a job for the rest, parked by another thread.
#[test]
fn who_asks_inside_a_pin_is_still_waited_for() {
    let word = TouchWord::new(1);
    let inside = pin();
    assert!(word.admits(&inside, TouchWord::TAG, 1));
    let mut touched = word.kill().unwrap();
    assert!(grace::is_over(&mut touched), "but for this thread");
    let (done, set) = flag();
    thread::scope(|scope| {
        scope.spawn(|| grace::after(touched, set));
    });
    assert!(!done.load(Acquire));
    drop(inside);
    assert!(done.load(Acquire));
}

/// Goal: every job runs, whichever panics, and the leaver gets the first panic; a leaver that is already
/// unwinding continues to unwind. Method: two jobs wait for one thread, and both panic.
#[test]
fn a_panicking_job_takes_no_other_with_it() {
    for unwinds in [false, true] {
        let words = [(); 3].map(|()| TouchWord::new(1));
        let ran = Arc::new(AtomicU64::new(0));
        let leaves = || {
            let inside = pin();
            let touched = words.each_ref().map(|word| {
                assert!(word.admits(&inside, TouchWord::TAG, 1));
                word.kill().unwrap()
            });
            for (n, touched) in touched.into_iter().enumerate() {
                let ran = Arc::clone(&ran);
                grace::after(touched, move || {
                    ran.fetch_add(1, Relaxed);
                    assert!(n == 2, "expected by the test: {n}");
                });
            }
            assert!(!unwinds, "expected by the test: unwinds");
            drop(inside);
        };
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(leaves)).unwrap_err();
        assert_eq!(ran.load(Relaxed), 3, "each once");
        let told = told.downcast_ref::<String>().cloned();
        let told = told.unwrap_or("expected by the test: unwinds".to_owned());
        assert_eq!(told.ends_with("unwinds"), unwinds, "{told}");
    }
}

/// Goal: a job that panics does not affect jobs that wait for others.
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
