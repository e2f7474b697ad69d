//! The end of a program that runs until it is told to end: INT and TERM are told to the program, which says
//! goodbye to its peers first, and then ends as the signal would have ended it.
//!
//! ```text
//! let ending = Ending::begin()?;
//! match block_on(ending.unless_told(work)) {
//!     Ok(done) => done,
//!     Err(signal) => {
//!         let _ = within(Instant::now() + GOODBYE, goodbye);
//!         signal.obey()
//!     }
//! }
//! ```

use std::fs;
use std::future::{Future, IntoFuture, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::process;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use verbs_core::sync::atomic::{AtomicI32, Ordering::SeqCst};
use verbs_core::sync::{Arc, Mutex, thread};
use verbs_core::task::OwnWaker;

/// How long a program that was told to end waits for its peers' answers to its goodbye.
pub(crate) const GOODBYE: Duration = Duration::from_secs(1);

/// Tells when the process is to end.
#[derive(Clone, Debug)]
pub(crate) struct Ending(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// The signal that came first; 0 before.
    signal: AtomicI32,
    waiting: Mutex<Vec<Waker>>,
}

/// A signal that tells the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the process ends when the signal is obeyed"]
pub(crate) struct Signal(i32);

impl Ending {
    /// From now on INT and TERM are told here. A second one ends the process at once, as before. A signal that
    /// the process was started to ignore, as a shell does for what runs in the background, stays ignored.
    ///
    /// # Errors
    /// The system's: no thread or no pipe can be had.
    pub(crate) fn begin() -> io::Result<Self> {
        let ignored = ignored_signals();
        let caught = [SIGINT, SIGTERM]
            .into_iter()
            .filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let caught: Vec<i32> = caught.collect();
        let was_told = Arc::default();
        for &signal in &caught {
            // In this order: the first one finds the flag unset, and sets it.
            flag::register_conditional_default(signal, Arc::clone(&was_told))?;
            flag::register(signal, Arc::clone(&was_told))?;
        }
        let ending = Self(Arc::default());
        let mut signals = Signals::new(caught)?;
        let state = Arc::clone(&ending.0);
        let builder = thread::Builder::new().name("signals".into());
        builder.spawn(move || signals.forever().for_each(|signal| state.tell(signal)))?;
        Ok(ending)
    }

    /// Ends when the process is told to end.
    ///
    /// # Cancel safety
    /// Nothing is lost: a signal that came is told to every caller that asks.
    pub(crate) async fn told(&self) -> Signal {
        poll_fn(|cx| {
            let mut waker = OwnWaker::of(cx.waker());
            let mut waiting = self.0.waiting.lock();
            match self.0.signal.load(SeqCst) {
                0 => {
                    waker.join(&mut waiting);
                    Poll::Pending
                }
                signal => Poll::Ready(Signal(signal)),
            }
        })
        .await
    }

    /// The signal, if one has come: for work in pieces that nothing else interrupts.
    pub(crate) fn signal(&self) -> Option<Signal> {
        Some(self.0.signal.load(SeqCst))
            .filter(|&signal| signal != 0)
            .map(Signal)
    }

    /// What the future gives. If the process is told to end before, the future is dropped.
    ///
    /// # Errors
    /// The signal.
    pub(crate) async fn unless_told<F: Future>(&self, future: F) -> Result<F::Output, Signal> {
        match select(pin!(future), pin!(self.told())).await {
            Either::Left((output, _)) => Ok(output),
            Either::Right((signal, _)) => Err(signal),
        }
    }
}

impl State {
    fn tell(&self, signal: i32) {
        // The first one counts.
        let _later = self.signal.compare_exchange(0, signal, SeqCst, SeqCst);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Signal {
    /// The one with that number, if it is one that tells a process to end.
    pub(crate) fn of(number: i32) -> Option<Self> {
        [SIGINT, SIGTERM].contains(&number).then_some(Self(number))
    }

    /// As the system's calls name it.
    pub(crate) fn raw(self) -> rustix::process::Signal {
        match self.0 {
            SIGINT => rustix::process::Signal::INT,
            _ => rustix::process::Signal::TERM,
        }
    }

    /// Ends the process as the signal does by default, so that its parent sees why it ended.
    pub(crate) fn obey(self) -> ! {
        // It comes back only if the system refuses.
        let _refused = low_level::emulate_default_handler(self.0);
        process::exit(128 + self.0)
    }
}

/// The signals that the process ignores, bit by bit; none where procfs does not say.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0)
}

/// What the future gives, or `None` if that takes longer. Blocks.
pub(crate) fn within<F>(deadline: Instant, future: F) -> Option<F::Output>
where
    F: IntoFuture<IntoFuture: Unpin>,
{
    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let mut future = future.into_future();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut context) {
            return Some(output);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    #[test]
    fn waiting_ends_at_the_deadline_or_when_there_is_something() {
        let soon = || Instant::now() + Duration::from_millis(20);
        assert_eq!(within(soon(), std::future::pending::<()>()), None);
        let (tell, told) = futures::channel::oneshot::channel();
        let telling = thread::spawn(move || tell.send(7));
        let late = Instant::now() + Duration::from_secs(60);
        assert_eq!(within(late, told), Some(Ok(7)));
        assert_eq!(telling.join().expect("no panic"), Ok(()));
    }

    /// Goal: a signal is told to all threads that wait, to those that ask later, and the first one counts. The signals
    /// themselves are tested with processes (`tests/cli/srp.rs`).
    #[test]
    fn the_first_signal_is_told_to_all() {
        let ending = Ending(Arc::default());
        assert_eq!(block_on(ending.unless_told(async { 7 })), Ok(7));
        let other = ending.clone();
        let waiting = thread::spawn(move || block_on(other.told()));
        assert_eq!(ending.signal(), None);
        ending.0.tell(SIGTERM);
        ending.0.tell(SIGINT);
        assert_eq!(ending.signal(), Some(Signal(SIGTERM)));
        assert_eq!(waiting.join().expect("no panic"), Signal(SIGTERM));
        let told = block_on(ending.unless_told(std::future::pending::<()>()));
        assert_eq!(told, Err(Signal(SIGTERM)));
    }
}
