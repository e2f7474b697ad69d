//! Memory that its program takes away while it is registered.

use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::*;
use crate::mem::catch_faults;

/// More than a library's copy does in one go, and enough for its ways with long copies.
const BYTES: usize = 4 << 20;
const PAGE: usize = 4096;

/// A mapping of a program's own, whose pages its program may protect.
struct Own(NonNull<u8>);

impl Own {
    fn new() -> Self {
        let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping.
        let base = unsafe { mmap_anonymous(null_mut(), BYTES, read_write, private) };
        Self(NonNull::new(base.unwrap().cast()).unwrap())
    }

    /// All of it, as a library has it that was given an address.
    fn memory(&self) -> Arc<Memory> {
        // SAFETY: the mapping is there as long as the test; what is done to its rights is the test's subject.
        Arc::new(unsafe { Memory::foreign(self.0, BYTES, Box::new(())) })
    }

    fn protect(&self, from: usize, rights: MprotectFlags) {
        // SAFETY: pages of this mapping, to which no reference exists.
        unsafe { mprotect(self.0.add(from).as_ptr().cast(), BYTES - from, rights) }.unwrap();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        unsafe { munmap(self.0.as_ptr().cast(), BYTES) }.unwrap();
    }
}

/// Lengths around each way to copy.
fn lengths() -> impl Iterator<Item = usize> {
    let ways = [
        255,
        256,
        257,
        511,
        1000,
        2048,
        4096,
        8191,
        65_536,
        1 << 20,
        3 << 20,
    ];
    (1..=130).chain(ways)
}

/// Goal: a copy of any length that begins in, ends in or crosses into memory without rights ends with the address, in
/// both directions, and what is before arrives; afterwards copies work again.
#[test]
fn copies_end_where_memory_is_gone() {
    catch_faults().unwrap();
    let (own, other) = (Own::new(), Own::new());
    let (memory, elsewhere) = (own.memory(), other.memory());
    let table = MrTable::new(2, 0);
    let [key, safe] = [&memory, &elsewhere].map(|memory| {
        let region = Region::new(Arc::clone(memory), ALL, PD);
        table.register(region).unwrap().0.value()
    });
    let border = BYTES / 2;
    let pin = pin();
    let at = |key, memory: &Memory, from: usize, len: usize| {
        let addr = memory.addr() + from as u64;
        table.check(&pin, key, addr, len as u32, PD, ALL).unwrap()
    };
    let gone = own.0.addr().get() + border..own.0.addr().get() + BYTES;
    let mut bytes = vec![7; BYTES];
    for (rights, may_read) in [(MprotectFlags::empty(), false), (MprotectFlags::READ, true)] {
        own.protect(border, rights);
        for len in lengths().filter(|&len| len <= border) {
            for from in [border, border - len / 2, border - len + 1] {
                let what = format!("{len} bytes from {} before it", border - from);
                let (window, safe) = (at(key, &memory, from, len), at(safe, &elsewhere, 64, len));
                let is_addr = |result: Result<u32, Unmapped>| {
                    let addr = result.expect_err(&what).addr();
                    assert!(gone.contains(&addr), "{what}: {addr:#x}");
                };
                is_addr(window.write_from(&bytes[..len]));
                is_addr(window.copy_from(safe));
                if len <= 64 {
                    is_addr(window.copy_short_from(safe).map(|()| 0));
                    is_addr(window.write_short_from(&bytes[..len]).map(|()| 0));
                }
                let read = [window.read_into(&mut bytes[..len]), safe.copy_from(window)];
                for read in read {
                    match may_read {
                        true => assert_eq!(read, Ok(len as u32), "{what}"),
                        false => is_addr(read),
                    }
                }
            }
            let before = at(key, &memory, border - len, len);
            assert_eq!(before.write_from(&bytes[..len]), Ok(len as u32));
        }
    }
    own.protect(border, MprotectFlags::READ | MprotectFlags::WRITE);
    assert_eq!(
        at(key, &memory, 0, BYTES).write_from(&bytes),
        Ok(BYTES as u32)
    );
}

/// Goal: overlapping copies, which go backwards, and words.
#[test]
fn overlaps_and_words_end_as_well() {
    catch_faults().unwrap();
    let own = Own::new();
    let memory = own.memory();
    let table = MrTable::new(1, 0);
    let key = table.register(Region::new(Arc::clone(&memory), ALL, PD));
    let key = key.unwrap().0.value();
    let border = BYTES - PAGE;
    own.protect(border, MprotectFlags::empty());
    let pin = pin();
    let at = |from: usize, len: usize| {
        let addr = memory.addr() + from as u64;
        table.check(&pin, key, addr, len as u32, PD, ALL).unwrap()
    };
    for len in [100, 1000, 100_000] {
        let (low, high) = (at(border - len - 8, len), at(border - len + 8, len));
        assert!(high.copy_from(low).is_err() && low.copy_from(high).is_err());
    }
    let word = at(border, 8).word().unwrap();
    let gone = Err(own.0.addr().get() + border);
    let of = |result: Result<u64, Unmapped>| result.map_err(Unmapped::addr);
    assert_eq!(of(word.fetch_add(1)), gone);
    assert_eq!(of(word.compare_swap(0, 1)), gone);
    assert_eq!(of(word.masked_compare_swap((0, 1), (1, 1))), gone);
    assert_eq!(of(word.masked_fetch_add(1, 2)), gone);
    assert_eq!(of(word.store([1; 8]).map(|()| 0)), gone);
    assert_eq!(at(border - 8, 8).word().unwrap().fetch_add(1), Ok(0));
}

/// Goal: it does not matter where the memory lies. Method: it is part of the stack of the thread that copies, near to what
/// the thread uses of it, and is copied by straight-line moves and by the library's ways with long copies.
#[test]
fn memory_in_a_stack_ends_as_well() {
    /// A page for what is there and one that is gone, wherever pages begin.
    struct Pages([u8; 3 * PAGE]);
    catch_faults().unwrap();
    let mut pages = Pages([1; 3 * PAGE]);
    let whole = pages.0.as_mut_ptr();
    // SAFETY: one of the first two pages of the three; and a page that nothing but this test uses.
    let (start, gone) = unsafe {
        let start = whole.add(whole.align_offset(PAGE));
        (NonNull::new(start).unwrap(), start.add(PAGE))
    };
    let protect = |rights| {
        // SAFETY: the second whole page is in `pages`, and so is used by nobody else.
        unsafe { mprotect(gone.cast(), PAGE, rights) }.unwrap();
    };
    // SAFETY: two pages as long as this function runs; what is done to the rights is the test's subject.
    let memory = unsafe { Memory::foreign(start, 2 * PAGE, Box::new(())) };
    let mut bytes = [0; PAGE];
    protect(MprotectFlags::empty());
    let ended = lengths().filter(|&len| len < PAGE).find(|&len| {
        let from = PAGE + 1 - len;
        memory.read(from, &mut bytes[..len]).is_ok() || memory.write(from, &bytes[..len]).is_ok()
    });
    protect(MprotectFlags::READ | MprotectFlags::WRITE);
    assert_eq!(ended, None);
    assert_eq!(memory.read(PAGE / 2, &mut bytes), Ok(()));
}

/// Goal: a fault of one thread is never told to another.
#[test]
fn a_fault_is_its_threads_own() {
    catch_faults().unwrap();
    let own = Own::new();
    own.protect(PAGE, MprotectFlags::empty());
    let memory = own.memory();
    let rounds = 2_000;
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    assert!(memory.write(PAGE - 4, &[1; 8]).is_err());
                }
            });
            scope.spawn(|| {
                for _ in 0..rounds * 50 {
                    assert_eq!(memory.write(0, &[2; 8]), Ok(()));
                }
            });
        }
    });
}

/// Goal: faults that are the program's own are handled as before, whatever that was. Method: this test runs itself, in
/// processes that end so.
#[test]
fn other_faults_are_the_programs() {
    use std::os::unix::process::ExitStatusExt;
    let ways: [(&str, fn(), _); 4] = [
        ("by-a-fault", dies_of_a_fault, (Some(libc::SIGSEGV), None)),
        ("by-a-signal", dies_of_a_signal, (Some(libc::SIGSEGV), None)),
        ("by-its-handler", handles_its_faults, (None, Some(77))),
        ("by-no-room", has_no_stack_left, (None, Some(77))),
    ];
    // No test has that name, so the argument skips none, and only tells the way.
    let told = |way: &str| std::env::args().any(|arg| arg == way);
    if let Some((_, end, _)) = ways.iter().find(|(name, ..)| told(name)) {
        return end();
    }
    let module = module_path!().split_once("::").unwrap().1;
    let this = format!("{module}::other_faults_are_the_programs");
    for (name, _, ends) in ways {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &this, "--skip", name]);
        let status = command.output().unwrap().status;
        assert_eq!((status.signal(), status.code()), ends, "{name}");
    }
}

fn dies_of_a_fault() {
    // SAFETY: the program has no handler then.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    catch_faults().unwrap();
    let own = Own::new();
    own.protect(0, MprotectFlags::empty());
    // SAFETY: none: the fault is the test's subject.
    unsafe { own.0.as_ptr().write_volatile(1) };
}

fn dies_of_a_signal() {
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    catch_faults().unwrap();
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(libc::SIGSEGV) };
}

/// From now on, a fault that is handed on ends the process with 77.
fn has_a_handler() {
    extern "C" fn handler(_: libc::c_int) {
        // SAFETY: ends the process.
        unsafe { libc::_exit(77) };
    }
    // SAFETY: the handler does what a handler may.
    unsafe { libc::signal(libc::SIGSEGV, handler as *const () as usize) };
    catch_faults().unwrap();
}

fn handles_its_faults() {
    has_a_handler();
    let own = Own::new();
    own.protect(PAGE, MprotectFlags::empty());
    assert!(own.memory().write(PAGE, &[1]).is_err(), "this one is not");
    // SAFETY: none: the fault is the test's subject.
    unsafe { own.0.as_ptr().add(PAGE).write_volatile(1) };
}

/// The fault is in using the stack, so the handler must not look at what is on top of it.
fn has_no_stack_left() {
    #[inline(never)]
    fn deeper(depth: u64) -> u64 {
        let room = std::hint::black_box([depth; 4 * PAGE]);
        match depth {
            u64::MAX => 0,
            _ => room[PAGE] + deeper(depth + 1) + room[depth as usize % PAGE],
        }
    }
    has_a_handler();
    std::hint::black_box(deeper(0));
}
