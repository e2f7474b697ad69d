//! The server's side of NBD, the network block device protocol, as its project publishes it: fixed newstyle
//! negotiation, simple replies; flush, FUA, trim and write zeroes.
//!
//! A connection has two threads: one reads requests, the other writes replies. What the disk does is done
//! in neither, so that as many requests are under way as the client has sent.

mod handshake;
mod transmission;

use std::io::{self, BufReader, BufWriter};
use std::os::unix::net::{UnixListener, UnixStream};

use verbs_core::Memory;
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
    /// Bytes that nobody needs.
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

/// Serves whoever comes, for ever. Blocks.
pub(super) fn serve(listener: &UnixListener, export: &Arc<dyn Export>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        let export = Arc::clone(export);
        let builder = thread::Builder::new().name("nbd".into());
        // A client that goes, or breaks the protocol, loses its connection and nothing else.
        builder.spawn(move || drop(converse(&stream, &export)))?;
    }
}

fn converse(stream: &UnixStream, export: &Arc<dyn Export>) -> io::Result<()> {
    let mut from = BufReader::new(stream);
    let mut to = BufWriter::new(stream);
    match handshake::negotiate(&mut from, &mut to, &export.shape())? {
        handshake::Agreed::Transmission => transmission::transmit(&mut from, stream, export),
        handshake::Agreed::Nothing => Ok(()),
    }
}

#[cfg(test)]
mod tests;
