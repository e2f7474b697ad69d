//! What keeps the daemon: a process that has its sockets and its lock, starts it, and starts it again when it crashes.
//!
//! The keeper reads no input of programs, so that none of them can harm it. Programs that look for the daemon while it is
//! started again wait at the socket, packets of the network wait at theirs, and no other daemon takes its place. The daemon
//! ends with its keeper.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use hca_sim::link::Seat;
use hca_sim::link::fabric::socket::{Take, pair, receive_into, send, send_with};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, getpid, getppid, kill_process, pidfd_open, set_parent_process_death_signal,
};
use rustix::thread::set_name;
use verbs_core::sync::thread;

use super::{Held, HostError};
use crate::ending::Signal;
use crate::file_id::SocketFile;
use crate::report::remark;
use crate::subnet::descriptors::raise_limit;
use crate::subnet::stop::Stop;

/// How often the daemon is started again that has crashed at once, and how soon that is.
const CRASHES_MAX: u32 = 5;
const AT_ONCE: Duration = Duration::from_secs(1);

/// How long after a crash the daemon is started again, for each that came at once.
const PAUSE: Duration = Duration::from_millis(50);

/// The exit code of a panic.
const PANICKED: i32 = 101;

/// What the keeper says first to a daemon that is started, and started again, with the listening socket.
const FIRST: &[u8] = b"first";
const AGAIN: &[u8] = b"again";
/// Then, with the lock. There follow the sockets of the network, each with its address and place.
const LOCK: &[u8] = b"lock";
/// The last word.
const END: &[u8] = b"end";

/// Keeps a daemon at that socket until it ends by itself, or is told to. Returns its exit code.
pub(super) fn keep(path: &Path) -> Result<u8, HostError> {
    // From here on INT and TERM are heard, so that no file is left behind.
    let mut stop = Stop::begin().map_err(HostError::Signals)?;
    // For the sockets of programs.
    raise_limit();
    let mut held = Held::take(path)?;
    // The daemon removes it itself, unless it crashes.
    let file = SocketFile::bound(path);
    let ended = keep_alive(&mut held, &mut stop);
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
fn keep_alive(held: &mut Held, stop: &mut Stop) -> Result<ExitStatus, HostError> {
    let mut crashes = Crashes::default();
    loop {
        let begun = Instant::now();
        let mut daemon = Daemon::start(held, crashes.any)?;
        let ended = daemon.wait(stop, &mut held.seats);
        let (ended, is_told) = ended.map_err(HostError::Wait)?;
        if is_told || !is_crash(ended) {
            return Ok(ended);
        }
        let Some(pause) = crashes.one_more(begun.elapsed()) else {
            return Err(HostError::Crashes(ended));
        };
        remark(format_args!(
            "verbs host: the daemon has crashed ({ended}), and is started again"
        ));
        thread::sleep(pause);
    }
}

/// Crashes so far.
#[derive(Debug, Default)]
struct Crashes {
    any: bool,
    /// The last ones, each of which came right after a start.
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

/// A daemon that was started.
struct Daemon {
    child: Child,
    /// Readable when it has ended.
    end: OwnedFd,
    /// Where it has its stdin.
    line: OwnedFd,
}

impl Daemon {
    /// Starts it: the same program with the same arguments, and with its keeper's number.
    fn start(held: &Held, is_again: bool) -> Result<Self, HostError> {
        let failed = |error: Errno| HostError::Daemon(error.into());
        let (line, its) = pair().map_err(failed)?;
        let mut arguments = env::args_os();
        // What is run is this file, although another one may have its name by now.
        let mut command = Command::new("/proc/self/exe");
        command.arg0(arguments.next().unwrap_or_else(|| "verbs".into()));
        command.args(arguments).arg("--kept-by");
        command.arg(getpid().as_raw_nonzero().to_string());
        // A terminal's keys reach the keeper alone, which hands them on.
        command.stdin(its).process_group(0);
        let mut child = command.spawn().map_err(HostError::Daemon)?;
        let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).map_err(failed)?;
        match hand_over(held, is_again, line.as_fd()) {
            // One that ends before it has read all of it says why.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(Self { child, end, line }),
            Err(error) => {
                // It would wait for the rest.
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(error))
            }
        }
    }

    /// Waits for its end, keeps what it says, and hands on the signal that tells it to end. Returns how it has ended, and
    /// whether it was told to.
    fn wait(
        &mut self,
        stop: &mut Stop,
        seats: &mut BTreeMap<Seat, OwnedFd>,
    ) -> io::Result<(ExitStatus, bool)> {
        let mut is_told = false;
        let mut is_rung = true;
        loop {
            if is_rung
                && !is_told
                && let Some(signal) = stop.signal()
            {
                is_told = true;
                kill_process(Pid::from_child(&self.child), signal.raw())?;
            }
            let mut polled = [
                PollFd::new(&self.line, PollFlags::IN),
                PollFd::new(&self.end, PollFlags::IN),
                PollFd::from_borrowed_fd(stop.bell(), PollFlags::IN),
            ];
            // After it was told, nothing is left to be told.
            let count = if is_told { 2 } else { 3 };
            match poll(&mut polled[..count], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [_, has_ended, was_rung] = polled.map(|polled| !polled.revents().is_empty());
            self.hear(seats);
            if has_ended {
                return Ok((self.child.wait()?, is_told));
            }
            is_rung = was_rung;
        }
    }

    /// Takes what the daemon has said.
    fn hear(&self, seats: &mut BTreeMap<Seat, OwnedFd>) {
        let mut buffer = Vec::new();
        loop {
            // Without a message, its end is near.
            let Ok((len @ 1.., socket)) =
                receive_into(self.line.as_fd(), Take::Away, false, &mut buffer)
            else {
                return;
            };
            match (Name::read(&buffer[..len]), socket) {
                (Some(Name::Seat(seat)), Some(socket)) => drop(seats.insert(seat, socket)),
                (Some(Name::Address(gone)), None) => seats.retain(|(at, _), _| *at != gone),
                // The daemon is this program.
                _ => {}
            }
        }
    }
}

fn hand_over(held: &Held, is_again: bool, line: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let first = if is_again { AGAIN } else { FIRST };
    send_with(line, first, held.listener.as_fd(), true)?;
    send_with(line, LOCK, held.lock.as_fd(), true)?;
    for (&seat, socket) in &held.seats {
        let name = Name::Seat(seat).to_string();
        send_with(line, name.as_bytes(), socket.as_fd(), true)?;
    }
    send(line, END, true)
}

/// What a message is about: a socket, or all of an address.
enum Name {
    Seat(Seat),
    Address(IpAddr),
}

impl Name {
    fn read(bytes: &[u8]) -> Option<Self> {
        let text = str::from_utf8(bytes).ok()?;
        match text.split_once(' ') {
            Some((address, place)) => {
                Some(Self::Seat((address.parse().ok()?, place.parse().ok()?)))
            }
            None => text.parse().ok().map(Self::Address),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seat((address, place)) => write!(f, "{address} {place}"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// The daemon takes over what the keeper with that number holds, and ends with it from now on. Returns whether another daemon
/// has had it before, too.
pub(super) fn take_over(keeper: u32) -> Result<(Held, bool), HostError> {
    let failed = |error: Errno| HostError::Keeper(error.into());
    set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(failed)?;
    let parent = getppid().map(|parent| parent.as_raw_nonzero().get());
    if parent.and_then(|parent| u32::try_from(parent).ok()) != Some(keeper) {
        return Err(failed(Errno::CHILD));
    }
    // In lists it would have the name of the file that was run, which is /proc/self/exe.
    let _ = set_name(c"verbs");
    let stdin = io::stdin();
    let mut buffer = Vec::new();
    let mut next = || -> Result<(Vec<u8>, Option<OwnedFd>), HostError> {
        let received = receive_into(stdin.as_fd(), Take::Away, true, &mut buffer);
        let (len, file) = received.map_err(failed)?;
        Ok((buffer[..len].to_vec(), file))
    };
    let missing = || failed(Errno::BADMSG);
    let (first, listener) = next()?;
    let (_, lock) = next()?;
    let mut seats = BTreeMap::new();
    loop {
        match next()? {
            (name, None) if name == END => break,
            (name, Some(socket)) => {
                let Some(Name::Seat(seat)) = Name::read(&name) else {
                    return Err(missing());
                };
                seats.insert(seat, socket);
            }
            _ => return Err(missing()),
        }
    }
    let held = Held {
        listener: listener.ok_or_else(missing)?,
        lock: lock.ok_or_else(missing)?,
        seats,
    };
    Ok((held, first == AGAIN))
}

/// The keeper has that socket from now on. It is not waited for: without its copy the sockets of that address are lost with
/// the daemon.
pub(super) fn keep_seat(seat: Seat, socket: &OwnedFd) {
    let name = Name::Seat(seat).to_string();
    if let Err(error) = send_with(io::stdin().as_fd(), name.as_bytes(), socket.as_fd(), false) {
        tracing::warn!(?seat, %error, "the keeper does not keep a socket");
    }
}

/// It keeps no socket of that address any longer.
pub(super) fn forget(address: IpAddr) {
    let name = Name::Address(address).to_string();
    if let Err(error) = send(io::stdin().as_fd(), name.as_bytes(), false) {
        tracing::warn!(%address, %error, "the keeper keeps a socket for nothing");
    }
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
