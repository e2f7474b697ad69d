//! Threads of the crates, which take none of the program's signals.
//!
//! A program decides which of its threads take a signal: it blocks the signal in all others, or in all of them and waits
//! with `sigwait` or a `signalfd`. A thread that it does not know of would take the signal all the same, and its default
//! action ends the process. Every thread that a crate makes for its own work therefore starts here (`tests/tidy` looks).

use std::io;

use crate::sync::thread;

/// Starts a thread in which all signals are blocked, except those that report a fault of the thread itself.
///
/// Handlers of the program's signals never run on it. What it starts in turn inherits the mask; [`std::process::Command`]
/// gives new programs an empty one.
///
/// # Errors
/// Those of [`std::thread::Builder::spawn`].
pub fn spawn_without_signals<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    // A new thread has the mask of the thread that starts it.
    let _blocked = Blocked::new();
    thread::Builder::new().name(name.into()).spawn(body)
}

/// The calling thread takes no signals as long as this lives.
#[cfg(not(any(miri, verbs_loom)))]
struct Blocked(libc::sigset_t);

#[cfg(not(any(miri, verbs_loom)))]
impl Blocked {
    /// Signals that an instruction or a system call of the thread itself raises. Blocked, they would end the process
    /// without the program's handler, which a debugger or a sandbox may rely on.
    const FAULTS: [libc::c_int; 7] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGSYS,
    ];

    fn new() -> Self {
        // SAFETY: a set of signals is plain bits, for which 0 is valid.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = set;
        // SAFETY: each call writes to the sets alone, which outlive it. It fails for no set and no known signal.
        unsafe {
            libc::sigfillset(&raw mut set);
            for signal in Self::FAULTS {
                libc::sigdelset(&raw mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
        }
        Self(before)
    }
}

#[cfg(not(any(miri, verbs_loom)))]
impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the call reads the set, which outlives it.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}

/// Neither Miri nor loom has signals.
#[cfg(any(miri, verbs_loom))]
struct Blocked;

#[cfg(any(miri, verbs_loom))]
impl Blocked {
    fn new() -> Self {
        Self
    }
}

#[cfg(all(test, not(any(miri, verbs_loom))))]
mod tests {
    use super::*;

    /// The signals that the calling thread has blocked, as bits from signal 1 on.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(line.expect("the line").trim(), 16).expect("a hexadecimal number")
    }

    /// Goal: such a thread takes signals of its own faults alone, and the thread that starts it keeps its mask. Method: all
    /// that the system numbers, except the two of the C library's own, which it lets nobody block.
    #[test]
    fn the_thread_blocks_what_is_not_its_own_fault_and_its_starter_blocks_as_before() {
        let before = blocked();
        let thread = spawn_without_signals("masked", || {
            let name = thread::current().name().map(str::to_owned);
            (blocked(), name)
        });
        let (inside, name) = thread.expect("a thread").join().expect("no panic");
        assert_eq!((blocked(), name.as_deref()), (before, Some("masked")));
        for signal in 1..=31 {
            let is_open = [libc::SIGKILL, libc::SIGSTOP].contains(&signal)
                || Blocked::FAULTS.contains(&signal);
            assert_eq!(inside >> (signal - 1) & 1 == 0, is_open, "signal {signal}");
        }
        for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
            assert_eq!(inside >> (signal - 1) & 1, 1, "signal {signal}");
        }
    }
}
