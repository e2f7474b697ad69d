//! Copies that end in an error, and not in a signal that ends the process, when the memory is gone.
//!
//! A program behind a C interface may unmap, cut short or protect memory that is registered, and a peer that then
//! uses it would cause SIGSEGV or SIGBUS. Hardware pins the pages; software cannot. After [`catch_faults`], a copy
//! that meets such memory stops there, and its caller is told the address.
//!
//! Each `asm!` block of [`super::copy`] writes into a table of the program (section `verbs_guard`) where it begins and
//! ends, and where to go on after a fault. The handler of both signals looks the faulting instruction up, goes on there,
//! and leaves the address in a cell of the thread. For a copy by the C library, whose `memcpy` and `memmove` call nothing
//! and save nothing, it looks the return address up. Any other fault is handled as before. A copy that meets no fault
//! executes not one instruction more; an atomic operation compares one word with zero, which is the number of faults that
//! no thread has looked at.

use std::fmt;
use std::num::NonZeroUsize;

use crate::error::Error;

pub(super) use handler::result;

/// Memory that a copy was to access was unmapped, cut short or protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmapped(NonZeroUsize);

impl Unmapped {
    /// The address that could not be accessed.
    pub const fn addr(self) -> usize {
        self.0.get()
    }
}

impl fmt::Display for Unmapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addr = self.0;
        write!(
            f,
            "the memory at {addr:#x} was unmapped, cut short or protected"
        )
    }
}

impl std::error::Error for Unmapped {}

/// What the system says of such an address.
impl From<Unmapped> for Error {
    fn from(_: Unmapped) -> Self {
        Self::Os {
            errno: libc::EFAULT,
        }
    }
}

/// From now on, work requests and peers that use registered memory that is gone get an error: a completion with a
/// protection or access error, in place of SIGSEGV or SIGBUS of the process.
///
/// Call it before queue pairs are made, as their short paths have no guard otherwise: a device in software looks at
/// [`faults_are_caught`] when it makes one.
///
/// Installs a handler for both signals, for the whole process, once. A handler that was there before is called for
/// all faults that are not in a copy of registered memory; one that is installed afterwards takes the place of this
/// one, and with it what this one does. A thread that blocks the signals is ended by the system, as ever.
///
/// Programs whose registered memory is their own [`Memory::alloc`](crate::Memory::alloc) do not need it.
///
/// Context: does not wait.
///
/// # Errors
/// [`Error::Unsupported`] on other processors than x86-64 and AArch64.
pub fn catch_faults() -> Result<(), Error> {
    handler::install()
}

/// Whether [`catch_faults`] was called, so that registered memory may be gone.
pub fn faults_are_caught() -> bool {
    handler::is_installed()
}

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, verbs_loom))
))]
mod handler {
    use std::cell::Cell;
    use std::hint::cold_path;
    use std::mem::MaybeUninit;
    use std::num::NonZeroUsize;
    use std::ptr;

    use libc::{SIGBUS, SIGSEGV, c_int, c_void, sigaction, siginfo_t, ucontext_t};

    use super::Unmapped;
    use crate::error::Error;
    use crate::sync::plain::{AtomicU32, Ordering::Relaxed};
    use crate::sync::{OnceLock, thread_local};

    /// Faults of all threads that [`result`] has not taken.
    static FAULTS: AtomicU32 = AtomicU32::new(0);

    thread_local! {
        /// The address of this thread's last fault; 0: it was taken.
        static FAULT: Cell<usize> = const { Cell::new(0) };
    }

    impl Unmapped {
        /// The fault that this thread has just met.
        #[cold]
        #[inline(never)]
        pub(in crate::memory::mem) fn taken() -> Self {
            // Only a fault leads here.
            take().err().unwrap_or(Self(NonZeroUsize::MIN))
        }
    }

    /// Whether this thread's last operation on a word met a fault. After each of them.
    #[inline(always)]
    pub(in crate::memory::mem) fn result() -> Result<(), Unmapped> {
        if FAULTS.load(Relaxed) == 0 {
            return Ok(());
        }
        cold_path();
        take()
    }

    #[cold]
    #[inline(never)]
    fn take() -> Result<(), Unmapped> {
        match NonZeroUsize::new(FAULT.replace(0)) {
            None => Ok(()),
            Some(addr) => {
                FAULTS.fetch_sub(1, Relaxed);
                Err(Unmapped(addr))
            }
        }
    }

    /// Leaves a fault for [`result`], in the thread that it was in.
    fn leave(addr: usize) {
        // No page is at 0; a fault there is told as one at 1.
        if FAULT.replace(addr.max(1)) == 0 {
            FAULTS.fetch_add(1, Relaxed);
        }
    }

    /// The actions for SIGSEGV and SIGBUS that were there before.
    static BEFORE: OnceLock<[sigaction; 2]> = OnceLock::new();

    /// A block: from the first address to the second, behind it, and where to go on after a fault. Each is relative to
    /// where it is written.
    #[repr(C)]
    struct Block {
        begin: i32,
        end: i32,
        fault: i32,
    }

    /// A call: where it returns to, and where to go on after a fault in it.
    #[repr(C)]
    struct Call {
        back: i32,
        fault: i32,
    }

    // The linker gives the first and the last address of the table to these names.
    unsafe extern "C" {
        #[link_name = "__start_verbs_guard"]
        static BLOCKS: [Block; 0];
        #[link_name = "__stop_verbs_guard"]
        static BLOCKS_END: [Block; 0];
        #[link_name = "__start_verbs_guard_calls"]
        static CALLS: [Call; 0];
        #[link_name = "__stop_verbs_guard_calls"]
        static CALLS_END: [Call; 0];
    }

    /// The entries of a table.
    fn entries<T>(begin: *const [T; 0], end: *const [T; 0]) -> &'static [T] {
        let bytes = (end as usize).wrapping_sub(begin as usize);
        // SAFETY: both addresses are the linker's, of a section that holds nothing else and that is never written.
        unsafe { std::slice::from_raw_parts(begin.cast(), bytes / size_of::<T>()) }
    }

    /// The address that an entry names.
    fn named(entry: &i32) -> usize {
        ptr::from_ref(entry)
            .addr()
            .wrapping_add_signed(*entry as isize)
    }

    /// Where to go on after a fault of the instruction at `at`, if it is in a block.
    fn after_block(at: usize) -> Option<usize> {
        let blocks = entries(&raw const BLOCKS, &raw const BLOCKS_END);
        let has = |block: &&Block| (named(&block.begin)..named(&block.end)).contains(&at);
        blocks.iter().find(has).map(|block| named(&block.fault))
    }

    /// Where to go on after a fault in the C library, if it was called from a place that it would return to at `back`.
    fn after_call(back: usize) -> Option<usize> {
        let calls = entries(&raw const CALLS, &raw const CALLS_END);
        let call = calls.iter().find(|call| named(&call.back) == back);
        call.map(|call| named(&call.fault))
    }

    pub(super) fn install() -> Result<(), Error> {
        BEFORE.get_or_init(|| [SIGSEGV, SIGBUS].map(install_for));
        Ok(())
    }

    pub(super) fn is_installed() -> bool {
        BEFORE.get().is_some()
    }

    /// Returns what was there before.
    fn install_for(signal: c_int) -> sigaction {
        let mut before = MaybeUninit::<sigaction>::zeroed();
        // SAFETY: asks for the action and writes it; all zeros are a valid action besides.
        let before = unsafe {
            sigaction(signal, ptr::null(), before.as_mut_ptr());
            before.assume_init()
        };
        let action = sigaction {
            sa_sigaction: on_fault as *const () as usize,
            sa_flags: before.sa_flags & libc::SA_NODEFER
                | libc::SA_SIGINFO
                | libc::SA_ONSTACK
                | libc::SA_RESTART,
            ..before
        };
        // SAFETY: the handler keeps to what a handler of a synchronous signal may do.
        unsafe { sigaction(signal, &raw const action, ptr::null_mut()) };
        before
    }

    /// The handler. It allocates nothing, takes no lock, and leaves `errno` alone.
    extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the system passes both, for a handler with SA_SIGINFO.
        let (addr, sent, context_of) = unsafe {
            let info = &*info;
            (
                info.si_addr() as usize,
                info.si_code <= 0,
                &mut *context.cast::<ucontext_t>(),
            )
        };
        // A signal that a process sent is no fault.
        if !sent && machine::go_on(context_of) {
            leave(addr);
            return;
        }
        hand_on(signal, info, context);
    }

    /// To what was there before.
    fn hand_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let before = BEFORE.get().map(|[segv, bus]| match signal {
            SIGSEGV => segv,
            _ => bus,
        });
        match before {
            Some(before) if !matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) => {
                // SAFETY: what the program has installed, called as the system would: with three arguments if it
                // wants them, and else with one.
                unsafe {
                    if before.sa_flags & libc::SA_SIGINFO != 0 {
                        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                            std::mem::transmute(before.sa_sigaction);
                        handler(signal, info, context);
                    } else {
                        let handler: extern "C" fn(c_int) =
                            std::mem::transmute(before.sa_sigaction);
                        handler(signal);
                    }
                }
            }
            // SAFETY: the default action; the instruction faults again, or the signal is sent again, and the process
            // ends as it would have without this handler.
            _ => unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            },
        }
    }

    #[cfg(target_arch = "x86_64")]
    mod machine {
        use libc::{REG_RIP, REG_RSP, ucontext_t};

        /// Goes on after a copy, if the fault was in one.
        pub(super) fn go_on(context: &mut ucontext_t) -> bool {
            let registers = &mut context.uc_mcontext.gregs;
            let at = registers[REG_RIP as usize] as usize;
            if let Some(after) = super::after_block(at) {
                registers[REG_RIP as usize] = after as i64;
                return true;
            }
            let stack = registers[REG_RSP as usize] as usize;
            let Some(after) = word(stack).and_then(super::after_call) else {
                return false;
            };
            registers[REG_RIP as usize] = after as i64;
            registers[REG_RSP as usize] = (stack + 8) as i64;
            true
        }

        /// The word on top of a stack; `None` if the stack has no room left, so that the fault was in using it. How far
        /// the fault was from it says nothing: memory of the program may lie next to a stack, or in one.
        fn word(stack: usize) -> Option<usize> {
            if !stack.is_multiple_of(8) {
                return None;
            }
            // SAFETY: the system reads the word as a set of signals, says EFAULT if it cannot, and then refuses what is
            // asked, as there is no action -1. `errno` is the thread's, and is put back.
            let refused = unsafe {
                let errno = libc::__errno_location();
                let before = *errno;
                libc::syscall(
                    libc::SYS_rt_sigprocmask,
                    -1,
                    stack,
                    std::ptr::null::<u64>(),
                    size_of::<u64>(),
                );
                std::mem::replace(&mut *errno, before)
            };
            // SAFETY: the system has just read it, and the thread that it is a stack of is this one.
            (refused != libc::EFAULT).then(|| unsafe { *(stack as *const usize) })
        }
    }

    #[cfg(target_arch = "aarch64")]
    mod machine {
        use libc::ucontext_t;

        /// The link register.
        const LR: usize = 30;

        /// Goes on after a copy, if the fault was in one.
        pub(super) fn go_on(context: &mut ucontext_t) -> bool {
            let machine = &mut context.uc_mcontext;
            let back = machine.regs[LR] as usize;
            let after = super::after_block(machine.pc as usize).or_else(|| super::after_call(back));
            let Some(after) = after else { return false };
            machine.pc = after as u64;
            true
        }
    }
}

/// Where copies are loops of the language, a fault in one cannot be told from others.
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, verbs_loom))
)))]
mod handler {
    use super::Unmapped;
    use crate::error::{Attr, Error};

    pub(in crate::memory::mem) fn result() -> Result<(), Unmapped> {
        Ok(())
    }

    pub(super) fn install() -> Result<(), Error> {
        Err(Error::Unsupported(Attr::Access))
    }

    pub(super) fn is_installed() -> bool {
        false
    }
}
