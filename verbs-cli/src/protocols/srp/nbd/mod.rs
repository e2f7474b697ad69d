//! The server's side of NBD, the network block device protocol, as its project publishes it: fixed newstyle
//! negotiation, simple replies; flush, FUA, trim and write zeroes.
//!
//! A connection has two threads: one reads requests, the other writes replies. What the disk does is done
//! in neither, so that as many requests are under way as the client has sent.

mod handshake;
mod transmission;

use std::fmt;
use std::io::{self, BufReader, BufWriter};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use verbs_core::Memory;
use verbs_core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use verbs_core::sync::{Arc, thread};

/// Bytes of one request at most: what clients keep to when nothing is agreed on.
pub(super) const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// What a client may do with an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes.
    pub(super) size: u64,
    /// Bytes that every request has to be a multiple of, and that are best.
    pub(super) block: u32,
    pub(super) preferred: u32,
    /// Bytes that one request should have at most.
    pub(super) max: u32,
    pub(super) can_trim: bool,
    pub(super) read_only: bool,
}

/// A request to an export.
#[derive(Debug)]
pub(super) enum Request {
    /// Fill this from there.
    Read { at: u64, into: Arc<Memory> },
    /// Put this there; `fua`: so that it outlives a power failure.
    Write {
        at: u64,
        from: Arc<Memory>,
        fua: bool,
    },
    /// All that was written is to outlive a power failure.
    Flush,
    /// Bytes that are not needed.
    Trim { at: u64, len: u64 },
    /// Zeros; `punch`: by giving their room back, where that can be done.
    Zero {
        at: u64,
        len: u64,
        punch: bool,
        fua: bool,
    },
}

/// Why a request was not done, with the number that clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Errno {
    /// Nothing can be written.
    Permission = 1,
    /// It failed.
    Io = 5,
    /// There is no memory for it.
    NoMemory = 12,
    /// It makes no sense.
    Invalid = 22,
    /// It is beyond the end.
    NoSpace = 28,
    /// The disk has gone.
    Shutdown = 108,
}

/// What an export is: answers requests, some day, in any order.
pub(super) trait Export: Send + Sync + 'static {
    fn shape(&self) -> Shape;

    /// Does it, and calls `done` once. Never blocks, and `done` does not either.
    fn submit(&self, request: Request, done: Box<dyn FnOnce(Result<(), Errno>) + Send>);
}

/// How long to wait when the system has no more descriptors or threads.
const BREATH: Duration = Duration::from_millis(100);

/// How long a client may take to say what it wants.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Clients at a time that are told that there are too many; those beyond hear nothing.
const REFUSED_MAX: u32 = 8;

/// Serves the clients that come, `clients_max` at a time, on threads of its own. `complain` is told what goes wrong, in
/// one line; it may not wait.
///
/// # Errors
/// The system's: no thread can be had.
pub(super) fn start(
    listener: UnixListener,
    export: Arc<dyn Export>,
    clients_max: u32,
    complain: impl Fn(&dyn fmt::Display) + Send + Sync + 'static,
) -> io::Result<()> {
    let server = Arc::new(Server {
        export,
        clients: AtomicU32::new(0),
        clients_max,
        complain: Box::new(complain),
    });
    let builder = thread::Builder::new().name("nbd".into());
    builder.spawn(move || server.serve(&listener)).map(drop)
}

/// What serves an export.
struct Server {
    export: Arc<dyn Export>,
    /// Clients that are served or refused.
    clients: AtomicU32,
    clients_max: u32,
    complain: Complain,
}

/// Is told what goes wrong, in one line.
type Complain = Box<dyn Fn(&dyn fmt::Display) + Send + Sync>;

/// A client's place, given back when it goes.
struct Seat(Arc<Server>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Relaxed);
    }
}

impl Server {
    /// Blocks for ever. Nothing that a client does, and no limit of the system, ends it.
    fn serve(self: &Arc<Self>, listener: &UnixListener) {
        let mut is_short = false;
        loop {
            let welcomed = listener
                .accept()
                .and_then(|(stream, _)| self.welcome(stream));
            if let Err(error) = &welcomed {
                // Once, until it works again.
                if !std::mem::replace(&mut is_short, true) {
                    (self.complain)(&format_args!("cannot serve another client: {error}"));
                }
                thread::sleep(BREATH);
            } else {
                is_short = false;
            }
        }
    }

    /// Serves a client, or refuses it, on a thread of its own.
    fn welcome(self: &Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let before = self.clients.fetch_add(1, Relaxed);
        let seat = Seat(Arc::clone(self));
        let is_one_too_many = before >= self.clients_max;
        if before == self.clients_max {
            let max = self.clients_max;
            (self.complain)(&format_args!(
                "{max} clients are served; another one is refused"
            ));
        }
        if before >= self.clients_max.saturating_add(REFUSED_MAX) {
            return Ok(());
        }
        let builder = thread::Builder::new().name("nbd".into());
        let spawned = builder.spawn(move || {
            // A client that goes, or breaks the protocol, loses its connection and nothing else.
            let _gone = match is_one_too_many {
                true => refuse(&stream, seat.0.clients_max),
                false => converse(&stream, &seat.0.export),
            };
        });
        spawned.map(drop)
    }
}

/// Tells a client that there are too many.
fn refuse(stream: &UnixStream, max: u32) -> io::Result<()> {
    stream.set_read_timeout(Some(HANDSHAKE_MAX))?;
    stream.set_write_timeout(Some(HANDSHAKE_MAX))?;
    let (mut from, mut to) = (BufReader::new(stream), BufWriter::new(stream));
    let text = format!("{max} clients are served already; try again later");
    handshake::refuse(&mut from, &mut to, &text)
}

fn converse(stream: &UnixStream, export: &Arc<dyn Export>) -> io::Result<()> {
    stream.set_read_timeout(Some(HANDSHAKE_MAX))?;
    let mut from = BufReader::new(stream);
    let mut to = BufWriter::new(stream);
    match handshake::negotiate(&mut from, &mut to, &export.shape())? {
        handshake::Agreed::Transmission => {
            stream.set_read_timeout(None)?;
            transmission::transmit(&mut from, stream, export)
        }
        handshake::Agreed::Nothing => Ok(()),
    }
}

#[cfg(test)]
mod tests;
