//! `verbs host`: the daemon of this host, for programs that share its addresses.

mod args;
mod error;
mod keeper;
mod leases;
mod lines;
mod server;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hca_sim::Udp;
use hca_sim::link::fabric::socket::{connect_now, listen_at};
use hca_sim::link::host::place_to_listen;
use hca_sim::link::{PROGRAMS_MAX, PacketLink, SHARED_MAX, Seat, Steering};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use verbs_core::sync::{Arc, thread};

pub(crate) use args::{ABOUT, EXAMPLES, HostArgs};
pub(crate) use error::HostError;

use super::door::Door;
use crate::file_id::SocketFile;
use crate::report::line;
use crate::subnet::descriptors::raise_limit;
use crate::subnet::stop::Stop;
use leases::Leases;
use server::{Limits, Server};
use verbs_host::Record;

/// Shares addresses until the program is told to end. Returns the exit code.
pub(crate) fn run(args: &HostArgs, out: &mut dyn Write) -> Result<u8, HostError> {
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => place_to_listen()?,
    };
    match args.kept_by {
        Some(keeper) => serve(args, keeper, &path, out).map(|()| 0),
        None => keeper::keep(&path),
    }
}

/// The daemon itself.
fn serve(args: &HostArgs, keeper: u32, path: &Path, out: &mut dyn Write) -> Result<(), HostError> {
    // From here on INT and TERM are heard, so that no file is left behind.
    let stop = Stop::begin().map_err(HostError::Signals)?;
    let lines_max = raise_descriptors();
    let (mut held, is_again) = keeper::take_over(keeper)?;
    let (bound, seats) = held.whole_groups();
    let place = Place::of(path, held)?;
    let kept = bound.keys().copied().collect();
    let link = match args.bind.is_empty() {
        true => Udp::bind_interfaces_again(bound)?,
        false => Udp::bind_again(&args.bind, bound)?,
    };
    let steering = Steering::restored(&link, seats);
    let addresses: Vec<_> = link.addresses().iter().map(ToString::to_string).collect();
    let welcome = format!("sharing {} at {}", addresses.join(", "), path.display());
    let linger = args.linger.map(Duration::from_secs);
    let limits = Limits {
        linger,
        lines_max,
        is_verbose: args.verbose,
    };
    let server = Server::new(link, steering, kept, place, stop, limits);
    let server = server.map_err(HostError::Wait)?;
    // Who has started it has read this once.
    if !is_again {
        line(out, &welcome).map_err(HostError::Output)?;
    }
    match server.run().map_err(HostError::Wait)? {
        Some(signal) => signal.obey(),
        None => Ok(()),
    }
}

/// Connections at most, of programs and of those that have not said yet what they are.
const LINES_MAX: usize = 8192;

/// Descriptors for everything but programs' lines.
const OWN: u64 = 512 + 2 * (PROGRAMS_MAX * SHARED_MAX) as u64;

/// Each program takes two descriptors: for how many connections the system gives some.
fn raise_descriptors() -> usize {
    let left = raise_limit().saturating_sub(OWN) / 2;
    usize::try_from(left)
        .unwrap_or(usize::MAX)
        .clamp(1, LINES_MAX)
}

/// How long a daemon may take to be gone that was told to end.
const IS_GOING: Duration = Duration::from_millis(100);

/// The same for one whose keeper was killed: the system ends it, when a processor is free.
const IS_KILLED: Duration = Duration::from_secs(10);

/// What a keeper has: the listening socket, the lock of the one daemon that listens there, and sockets of the network.
#[derive(Debug)]
struct Held {
    listener: OwnedFd,
    lock: OwnedFd,
    /// By their places; the daemon's own have place 0.
    seats: BTreeMap<Seat, OwnedFd>,
}

impl Held {
    fn take(path: &Path) -> Result<Self, HostError> {
        let failed = |error: Errno| HostError::Listen {
            path: path.to_owned(),
            error: error.into(),
        };
        let since = Instant::now();
        let lock = loop {
            // The daemon that goes removes the file, so that it is opened anew.
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let lock = open(lock_of(path), flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break lock,
                Err(Errno::WOULDBLOCK)
                    if since.elapsed() < IS_GOING
                        || since.elapsed() < IS_KILLED && is_abandoned(path) =>
                {
                    thread::sleep(IS_GOING / 20);
                }
                Err(Errno::WOULDBLOCK) => return Err(HostError::Running(path.to_owned())),
                Err(error) => return Err(failed(error)),
            }
        };
        let listener = listen_at(path).map_err(|error| match error {
            Errno::ADDRINUSE => HostError::Running(path.to_owned()),
            error => failed(error),
        })?;
        let seats = BTreeMap::new();
        Ok(Self {
            listener,
            lock,
            seats,
        })
    }

    /// The sockets of the network: the daemon's own, and those of programs. All of an address are left out if one is missing:
    /// the others' places may be different ones now.
    fn whole_groups(&mut self) -> (BTreeMap<IpAddr, OwnedFd>, BTreeMap<Seat, OwnedFd>) {
        let mut seats = std::mem::take(&mut self.seats);
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        for &(address, place) in seats.keys() {
            let count = counts.entry(address).or_default();
            // A hole is never filled.
            *count = if place == *count {
                place + 1
            } else {
                usize::MAX
            };
        }
        seats.retain(|(address, _), _| counts.get(address) != Some(&usize::MAX));
        let (own, others): (Vec<_>, Vec<_>) =
            seats.into_iter().partition(|((_, place), _)| *place == 0);
        let own = own
            .into_iter()
            .map(|((address, _), socket)| (address, socket));
        (own.collect(), others.into_iter().collect())
    }
}

/// Whether the keeper of the daemon at that place has ended, so that the daemon is about to. It is the keeper that listens.
fn is_abandoned(path: &Path) -> bool {
    let line = match connect_now(path) {
        Ok(line) => line,
        // Nobody listens any longer, or not yet.
        Err(error) => return matches!(error, Errno::CONNREFUSED | Errno::NOENT),
    };
    let keeper = socket_peercred(&line).map(|who| who.pid);
    match keeper.and_then(|keeper| pidfd_open(keeper, PidfdFlags::empty())) {
        // It may be a process that nobody has asked yet how it has ended.
        Ok(keeper) => {
            let mut polled = [PollFd::new(&keeper, PollFlags::IN)];
            matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1..))
        }
        Err(error) => error == Errno::SRCH,
    }
}

fn lock_of(path: &Path) -> PathBuf {
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    lock.into()
}

/// The socket, and the lock, which is the file of the leases, too. Removed when this goes.
#[derive(Debug)]
struct Place {
    socket: Option<SocketFile>,
    door: Door,
    lock: PathBuf,
    leases: Arc<Leases>,
    /// What the last daemon has left there.
    records: Vec<Record>,
    /// There are programs that go on with the next daemon: it reads the leases.
    has_programs: bool,
    /// Released when the keeper and the daemon have ended, however they end.
    _held: OwnedFd,
}

impl Place {
    fn of(path: &Path, held: Held) -> Result<Self, HostError> {
        let failed = |error: io::Error| HostError::Listen {
            path: path.to_owned(),
            error,
        };
        let (leases, records) = Leases::open(&held.lock).map_err(failed)?;
        Ok(Self {
            socket: Some(SocketFile::bound(path).map_err(failed)?),
            door: Door::new(held.listener),
            lock: lock_of(path),
            leases: Arc::new(leases),
            records,
            has_programs: false,
            _held: held.lock,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Before the lock's: the next daemon finds neither, or both.
        self.socket = None;
        if !self.has_programs {
            let _left = fs::remove_file(&self.lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_one_daemon() {
        let base = tempfile::tempdir().expect("a folder");
        let path = base.path().join("host");
        let take = || Place::of(&path, Held::take(&path)?);
        let place = take().expect("it is free");
        let refused = take().expect_err("it is taken");
        assert!(matches!(refused, HostError::Running(_)), "{refused}");
        drop(place);
        assert_eq!(fs::read_dir(base.path()).expect("it is there").count(), 0);
        // What a daemon left behind that was killed is used again.
        let left = listen_at(&path).expect("it is free");
        drop(left);
        drop(take().expect("it is abandoned"));
    }
}
