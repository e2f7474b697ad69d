//! `verbs host`: the daemon of this host, for programs that share its addresses.

mod args;
mod error;
mod leases;
mod lines;
mod server;

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hca_sim::Udp;
use hca_sim::link::PacketLink;
use hca_sim::link::fabric::socket::listen_at;
use hca_sim::link::host::place_to_listen;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use verbs_core::sync::Arc;

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

/// Shares addresses until the program is told to end.
pub(crate) fn run(args: &HostArgs, out: &mut dyn Write) -> Result<(), HostError> {
    let path = match &args.socket {
        Some(path) => path.clone(),
        None => place_to_listen()?,
    };
    let lines_max = raise_descriptors();
    // From here on INT and TERM are heard, so that no file is left behind.
    let stop = Stop::begin().map_err(HostError::Signals)?;
    let (place, records) = Place::take(&path)?;
    let link: Box<dyn PacketLink> = match args.bind.is_empty() {
        true => Box::new(Udp::bind_interfaces()?),
        false => Box::new(Udp::bind(&args.bind)?),
    };
    let addresses: Vec<_> = link.addresses().iter().map(ToString::to_string).collect();
    let welcome = format!("sharing {} at {}", addresses.join(", "), path.display());
    let linger = args.linger.map(Duration::from_secs);
    let limits = Limits {
        linger,
        lines_max,
        is_verbose: args.verbose,
    };
    let server = Server::new(link, place, &records, stop, limits).map_err(HostError::Wait)?;
    line(out, &welcome).map_err(HostError::Output)?;
    match server.run().map_err(HostError::Wait)? {
        Some(signal) => signal.obey(),
        None => Ok(()),
    }
}

/// Connections at most, of programs and of those that have not said yet what they are.
const LINES_MAX: usize = 8192;

/// Descriptors for everything but programs.
const OWN: u64 = 512;

/// Each program takes two descriptors: for how many connections the system gives some.
fn raise_descriptors() -> usize {
    let left = raise_limit().saturating_sub(OWN) / 2;
    usize::try_from(left)
        .unwrap_or(usize::MAX)
        .clamp(1, LINES_MAX)
}

/// The socket, and the lock of the one daemon that listens there, which is the file of its leases, too. Removed when this
/// goes.
#[derive(Debug)]
struct Place {
    socket: Option<SocketFile>,
    door: Door,
    lock: PathBuf,
    leases: Arc<Leases>,
    /// There are programs that go on with the next daemon: it reads the leases.
    has_programs: bool,
    /// Released when the program ends, however it ends.
    _held: OwnedFd,
}

impl Place {
    /// With what the last daemon has left there, if it was killed.
    fn take(path: &Path) -> Result<(Self, Vec<Record>), HostError> {
        let failed = |error: io::Error| HostError::Listen {
            path: path.to_owned(),
            error,
        };
        let mut lock = path.as_os_str().to_owned();
        lock.push(".lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let held = open(&lock, flags, Mode::RUSR | Mode::WUSR);
        let held = held.map_err(|error| failed(error.into()))?;
        match flock(&held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(HostError::Running(path.to_owned())),
            Err(error) => return Err(failed(error.into())),
        }
        let (leases, records) = Leases::open(&held).map_err(failed)?;
        let listener = match listen_at(path) {
            Ok(listener) => listener,
            Err(Errno::ADDRINUSE) => return Err(HostError::Running(path.to_owned())),
            Err(error) => return Err(failed(error.into())),
        };
        let place = Self {
            socket: Some(SocketFile::bound(path).map_err(failed)?),
            door: Door::new(listener),
            lock: lock.into(),
            leases: Arc::new(leases),
            has_programs: false,
            _held: held,
        };
        Ok((place, records))
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
        let (place, _) = Place::take(&path).expect("it is free");
        let refused = Place::take(&path).expect_err("it is taken");
        assert!(matches!(refused, HostError::Running(_)), "{refused}");
        drop(place);
        assert_eq!(fs::read_dir(base.path()).expect("it is there").count(), 0);
        // What a daemon left behind that was killed is used again.
        let left = listen_at(&path).expect("it is free");
        drop(left);
        drop(Place::take(&path).expect("it is abandoned"));
    }
}
