//! What keeps the daemon: a process that has its socket and its lock, starts it, and starts it again when it crashes.
//!
//! The keeper reads no input of programs, so that none of them can harm it. Programs that look for the daemon while it is
//! started again wait at the socket, and no other daemon takes its place. The daemon ends with its keeper.

use std::env;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use hca_sim::link::fabric::socket::{Take, pair, receive_into, send_with};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, getpid, getppid, kill_process, pidfd_open, set_parent_process_death_signal,
};
use verbs_core::sync::thread;

use super::{Held, HostError};
use crate::ending::Signal;
use crate::file_id::SocketFile;
use crate::subnet::stop::Stop;

/// How often the daemon is started again that has crashed at once, and how soon that is.
const CRASHES_MAX: u32 = 5;
const AT_ONCE: Duration = Duration::from_secs(1);

/// How long after a crash the daemon is started again, for each that came at once.
const PAUSE: Duration = Duration::from_millis(50);

/// The exit code of a panic.
const PANICKED: i32 = 101;

/// The two messages that go with the files of a daemon that is started, and started again.
const FIRST: &[u8] = b"first";
const AGAIN: &[u8] = b"again";
const LOCK: &[u8] = b"lock";

/// Keeps a daemon at that socket until it ends by itself, or is told to. Returns its exit code.
pub(super) fn keep(path: &Path) -> Result<u8, HostError> {
    // From here on INT and TERM are heard, so that no file is left behind.
    let mut stop = Stop::begin().map_err(HostError::Signals)?;
    let held = Held::take(path)?;
    // The daemon removes it itself, unless it crashes.
    let file = SocketFile::bound(path);
    let ended = keep_alive(&held, &mut stop);
    drop(file);
    let ended = ended?;
    match ended.signal().and_then(Signal::of) {
        Some(signal) => signal.obey(),
        None => Ok(ended
            .code()
            .and_then(|code| code.try_into().ok())
            .unwrap_or(1)),
    }
}

/// Starts daemons until one ends that has not crashed.
fn keep_alive(held: &Held, stop: &mut Stop) -> Result<ExitStatus, HostError> {
    let mut crashes = Crashes::default();
    loop {
        let begun = Instant::now();
        let mut daemon = start(held, crashes.any)?;
        let (ended, is_told) = wait(&mut daemon, stop).map_err(HostError::Wait)?;
        if is_told || !is_crash(ended) {
            return Ok(ended);
        }
        let Some(pause) = crashes.one_more(begun.elapsed()) else {
            return Err(HostError::Crashes(ended));
        };
        // Nobody may read this.
        let _ = writeln!(
            io::stderr(),
            "verbs host: the daemon has crashed ({ended}), and is started again"
        );
        thread::sleep(pause);
    }
}

/// Crashes so far.
#[derive(Debug, Default)]
struct Crashes {
    any: bool,
    /// In a row, each right after the start.
    at_once: u32,
}

impl Crashes {
    /// The daemon has crashed, that long after it was started. Returns how long to wait before it is started again; `None`
    /// if it is not.
    fn one_more(&mut self, after: Duration) -> Option<Duration> {
        self.any = true;
        self.at_once = match after < AT_ONCE {
            true => self.at_once + 1,
            false => 0,
        };
        (self.at_once < CRASHES_MAX).then(|| PAUSE * self.at_once)
    }
}

/// Whether a program that ends like that has a fault: it was not told to end, and has not said why it does.
fn is_crash(ended: ExitStatus) -> bool {
    match ended.signal() {
        Some(signal) => Signal::of(signal).is_none(),
        None => ended.code() == Some(PANICKED),
    }
}

/// Starts the daemon: the same program with the same arguments, and with its keeper's number.
fn start(held: &Held, is_again: bool) -> Result<Child, HostError> {
    let failed = |error: Errno| HostError::Daemon(error.into());
    let (ours, its) = pair().map_err(failed)?;
    let first = if is_again { AGAIN } else { FIRST };
    send_with(ours.as_fd(), first, held.listener.as_fd(), true).map_err(failed)?;
    send_with(ours.as_fd(), LOCK, held.lock.as_fd(), true).map_err(failed)?;
    let mut arguments = env::args_os();
    // What is run is this file, although another one may have its name by now.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().unwrap_or_else(|| "verbs".into()));
    command.args(arguments).arg("--kept-by");
    command.arg(getpid().as_raw_nonzero().to_string());
    // A terminal's keys reach the keeper alone, which hands them on.
    command.stdin(its).process_group(0);
    command.spawn().map_err(HostError::Daemon)
}

/// Waits for the daemon's end, and hands on the signal that tells it to end. Returns how it has ended, and whether it was told
/// to.
fn wait(daemon: &mut Child, stop: &mut Stop) -> io::Result<(ExitStatus, bool)> {
    let pid = Pid::from_child(daemon);
    let end = pidfd_open(pid, PidfdFlags::empty())?;
    let mut is_told = false;
    let mut is_rung = true;
    loop {
        if is_rung
            && !is_told
            && let Some(signal) = stop.signal()
        {
            is_told = true;
            kill_process(pid, signal.raw())?;
        }
        let mut polled = [
            PollFd::new(&end, PollFlags::IN),
            PollFd::from_borrowed_fd(stop.bell(), PollFlags::IN),
        ];
        // After it was told, nothing is left to be told.
        let count = if is_told { 1 } else { 2 };
        match poll(&mut polled[..count], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !polled[0].revents().is_empty() {
            return Ok((daemon.wait()?, is_told));
        }
        is_rung = !polled[1].revents().is_empty();
    }
}

/// Takes over what the keeper with that number holds; the daemon ends with it from now on. Returns whether another daemon
/// has had it before, too.
pub(super) fn take_over(keeper: u32) -> Result<(Held, bool), HostError> {
    let failed = |error: Errno| HostError::Keeper(error.into());
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(failed)?;
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
    if parent.and_then(|parent| u32::try_from(parent).ok()) != Some(keeper) {
        return Err(failed(Errno::CHILD));
    }
    let stdin = io::stdin();
    let mut buffer = Vec::new();
    let mut next = || -> Result<(Vec<u8>, OwnedFd), HostError> {
        let received = receive_into(stdin.as_fd(), Take::Away, true, &mut buffer);
        let (len, file) = received.map_err(failed)?;
        let file = file.ok_or_else(|| failed(Errno::BADMSG))?;
        Ok((buffer[..len].to_vec(), file))
    };
    let (first, listener) = next()?;
    let (_, lock) = next()?;
    Ok((Held { listener, lock }, first == AGAIN))
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGABRT, SIGBUS, SIGINT, SIGKILL, SIGSEGV, SIGTERM};

    use super::*;

    /// Goal: a daemon that crashes now and then is always started again, at once; one that crashes as soon as it is
    /// started, a few times, later each time.
    #[test]
    fn a_daemon_that_cannot_live_is_given_up() {
        let mut crashes = Crashes::default();
        for _ in 0..100 {
            assert_eq!(crashes.one_more(AT_ONCE), Some(Duration::ZERO));
        }
        let early = AT_ONCE / 2;
        let mut last = Duration::ZERO;
        for _ in 1..CRASHES_MAX {
            let pause = crashes.one_more(early).expect("it is started again");
            assert!(pause > last, "{pause:?}");
            last = pause;
        }
        assert_eq!(crashes.one_more(early), None);
    }

    /// Goal: what ends because it was told to, or because it says so itself, has not crashed.
    #[test]
    fn only_a_fault_is_a_crash() {
        for signal in [SIGSEGV, SIGKILL, SIGABRT, SIGBUS] {
            assert!(is_crash(ExitStatus::from_raw(signal)), "{signal}");
        }
        for signal in [SIGINT, SIGTERM] {
            assert!(!is_crash(ExitStatus::from_raw(signal)), "{signal}");
        }
        for (code, crash) in [(0, false), (1, false), (7, false), (PANICKED, true)] {
            assert_eq!(is_crash(ExitStatus::from_raw(code << 8)), crash, "{code}");
        }
    }
}
