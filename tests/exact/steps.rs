//! Counts the instructions of a piece of code by stepping through it one at a time.
//!
//! The processor's trap flag raises `SIGTRAP` after every instruction; the handler looks at the next one. So the code
//! is the program's own, and every atomic read-modify-write is seen, whatever code contains it: a reference count, a
//! lock, a word of a queue.

use std::arch::asm;
use std::cell::Cell;
use std::sync::Once;

use crate::allocator;

/// The counts of a piece of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    /// Atomic read-modify-writes: instructions with a lock prefix, and exchanges with memory. They include counted
    /// references, and fences that compilers implement by one.
    pub(crate) atomics: u64,
    /// Those of one byte, by which locks are taken and released: two for each lock.
    pub(crate) of_locks: u64,
    /// System calls.
    pub(crate) calls: u64,
    /// Instructions.
    pub(crate) all: u64,
}

thread_local! {
    static STEPS: Cell<Steps> = const {
        Cell::new(Steps { atomics: 0, of_locks: 0, calls: 0, all: 0 })
    };
}

/// Counts what `run` executes on this thread, except in the system's allocator.
pub(crate) fn count(run: impl FnOnce()) -> Steps {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(install);
    STEPS.set(Steps::default());
    // SAFETY: only sets the trap flag. The stack is used as the compiler expects of assembly.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    run();
    // SAFETY: clears the flag.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    STEPS.get()
}

fn install() {
    // SAFETY: all bytes zero are a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = trapped;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler is made for these arguments and does only what a signal handler may do.
    let installed = unsafe { libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()) };
    assert_eq!(installed, 0, "a handler for SIGTRAP");
}

extern "C" fn trapped(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the context of the thread that was interrupted.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let next = context.uc_mcontext.gregs[libc::REG_RIP as usize] as *const u8;
    // Whether the system's allocator takes its lock depends on what the rest of the program has allocated and freed.
    if allocator::is_running() {
        return;
    }
    let mut steps = STEPS.get();
    steps.all += 1;
    // SAFETY: it is the instruction that the thread executes next, and no byte behind its end is looked at.
    unsafe { look(next, &mut steps) };
    STEPS.set(steps);
}

/// # Safety
/// An instruction starts there.
unsafe fn look(mut at: *const u8, steps: &mut Steps) {
    let mut is_locked = false;
    let byte = loop {
        // SAFETY: an instruction has a byte behind its prefixes.
        match unsafe { at.read() } {
            0xf0 => is_locked = true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x66 | 0xf2 | 0xf3 => {}
            other => break other,
        }
        at = at.wrapping_add(1);
    };
    // SAFETY: these opcodes have a second byte.
    let second = || unsafe { at.wrapping_add(1).read() };
    match byte {
        0x0f if is_locked => {
            steps.atomics += 1;
            steps.of_locks += u64::from(second() == 0xb0);
        }
        _ if is_locked => steps.atomics += 1,
        // An exchange of a register and memory is locked implicitly.
        0x86 | 0x87 if second() < 0xc0 => {
            steps.atomics += 1;
            steps.of_locks += u64::from(byte == 0x86);
        }
        0x0f if second() == 0x05 => steps.calls += 1,
        _ => {}
    }
}
