//! What the two ends of a test tell each other over TCP, as perftest does.
//!
//! Each step is a message each way: the client writes, then reads; the server reads, then writes. So every step is a
//! barrier as well.

mod streams;

use std::time::{Duration, Instant};

use verbs_core::Mtu;

use super::error::PerfError;
use super::key::Key;
use super::report::numbers::Bandwidth;
use crate::net::{Connection, NetError, PATIENCE};

pub(super) use streams::Streams;

/// The protocol that this end speaks. From 6.28 on, peers negotiate a structure that depends on how they were built.
const VERSION: &str = "6.27";

/// The oldest version that tells everything as is expected here: perftest 4.5.
const VERSION_MIN: f64 = 5.33;

const VERSION_LEN: usize = 16;

/// What perftest sends last, up to 4.5.
const DONE: &[u8] = b"done\0";

/// While a test runs nothing is said. A peer whose host has vanished is found out by TCP.
const TEST_MAX: Duration = Duration::from_secs(2 * 86_400);

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

/// Sizes that both ends have to take alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    /// Messages go to one place after the other within as many bytes.
    pub(super) cycle: u32,
    /// Each begins at a multiple of it.
    pub(super) line: u32,
    pub(super) mtu: Mtu,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

pub(super) struct Talk {
    role: Role,
    pub(super) connection: Connection,
}

impl Talk {
    pub(super) fn new(role: Role, connection: Connection) -> Self {
        Self { role, connection }
    }

    /// Versions and sizes.
    pub(super) fn agree(&mut self, ours: Agreed) -> Result<Agreed, PerfError> {
        let mut version = [0; VERSION_LEN];
        for (to, from) in version.iter_mut().zip(VERSION.bytes()) {
            *to = from;
        }
        let theirs = self.swap(version, PATIENCE)?;
        let text = str::from_utf8(&theirs).unwrap_or_default();
        let text = text.trim_end_matches('\0');
        match text.parse::<f64>() {
            Ok(number) if number >= VERSION_MIN => {}
            Ok(_) => return Err(PerfError::Version(text.into())),
            Err(_) => return Err(self.foreign(&theirs, "perftest's version")),
        }
        let cycle = self.swap(ours.cycle.to_be_bytes(), PATIENCE)?;
        let line = self.swap(ours.line.to_be_bytes(), PATIENCE)?;
        let digit = b'0' + ours.mtu as u8;
        let mtu = self.swap([digit, 0], PATIENCE)?;
        let is_said = |known: &Mtu| b'0' + *known as u8 == mtu[0];
        let theirs_mtu = Mtu::ALL.into_iter().find(is_said);
        let theirs_mtu = theirs_mtu.ok_or_else(|| self.foreign(&mtu, "a path MTU"))?;
        let larger = |theirs: [u8; 4], ours: u32, what| match u32::from_be_bytes(theirs) {
            // A page is 4 KiB to 64 KiB, a line 32 to 256 bytes; nobody has more than this.
            theirs if theirs <= 1 << 24 => Ok(theirs.max(ours)),
            _ => Err(self.foreign(&theirs, what)),
        };
        Ok(Agreed {
            cycle: larger(cycle, ours.cycle, "the size of a page")?,
            line: larger(line, ours.line, "the size of a cache line")?.max(1),
            mtu: ours.mtu.min(theirs_mtu),
        })
    }

    /// Tells of a queue pair, and hears of the peer's.
    pub(super) fn handshake(&mut self, ours: &Key) -> Result<Key, PerfError> {
        self.handshake_within(ours, PATIENCE)
    }

    /// As [`handshake`](Self::handshake), when the peer may still be measuring.
    pub(super) fn handshake_after_test(&mut self, ours: &Key) -> Result<Key, PerfError> {
        self.handshake_within(ours, TEST_MAX)
    }

    fn handshake_within(&mut self, ours: &Key, patience: Duration) -> Result<Key, PerfError> {
        let bytes = self.swap(ours.emit(), patience)?;
        Key::parse(&bytes).ok_or_else(|| self.foreign(&bytes, "a queue pair with a GID"))
    }

    /// Tells what was measured, and hears what the peer has.
    pub(super) fn reports(&mut self, ours: &Bandwidth) -> Result<Bandwidth, PerfError> {
        let size = u64::from_be_bytes(self.swap(ours.size.to_be_bytes(), PATIENCE)?);
        let iterations = u64::from_be_bytes(self.swap(ours.iterations.to_be_bytes(), PATIENCE)?);
        let mut number = |ours: f64| self.swap(ours.to_be_bytes(), PATIENCE);
        Ok(Bandwidth {
            size,
            iterations,
            peak_mib: f64::from_be_bytes(number(ours.peak_mib)?),
            average_mib: f64::from_be_bytes(number(ours.average_mib)?),
            rate_m: f64::from_be_bytes(number(ours.rate_m)?),
        })
    }

    /// Ends it in order. The `ib_write_lat` of perftest 4.5 just goes, and so may others: the test is over.
    pub(super) fn close(mut self, ours: &Key) -> Result<(), PerfError> {
        match self.handshake_after_test(ours) {
            Ok(_) => self.connection.drain(DONE.len()),
            Err(PerfError::Net(NetError::Ended(_))) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn swap<const N: usize>(
        &mut self,
        ours: [u8; N],
        patience: Duration,
    ) -> Result<[u8; N], PerfError> {
        let mut theirs = [0; N];
        if self.role == Role::Client {
            self.connection.send(&ours)?;
        }
        self.connection
            .receive(&mut theirs, Instant::now() + patience)?;
        if self.role == Role::Server {
            self.connection.send(&ours)?;
        }
        Ok(theirs)
    }

    fn foreign(&self, bytes: &[u8], wanted: &str) -> PerfError {
        PerfError::Net(NetError::Foreign {
            peer: self.connection.peer(),
            what: format!("\"{}\" is not {wanted}", bytes.escape_ascii()),
        })
    }
}
