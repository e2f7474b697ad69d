//! Requests and replies.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use verbs_core::Memory;
use verbs_core::sync::{Arc, thread};

use super::handshake::{foreign, take};
use super::{Errno, Export, REQUEST_BYTES_MAX, Request, Shape};

const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// Places of one connection: requests that are under way at most, and fewer of long ones.
const DEPTH: usize = 32;

/// Bytes that one place stands for: 64 MiB for all of a connection.
const PLACE_BYTES: u32 = 2 << 20;

/// Bytes that are copied at a time between memory that a device may reach and the socket.
const CHUNK: usize = 128 << 10;

/// Commands of clients.
mod command {
    pub(super) const READ: u16 = 0;
    pub(super) const WRITE: u16 = 1;
    pub(super) const DISCONNECT: u16 = 2;
    pub(super) const FLUSH: u16 = 3;
    pub(super) const TRIM: u16 = 4;
    pub(super) const ZERO: u16 = 6;
}

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;

/// What goes back to the client.
struct Reply {
    cookie: [u8; 8],
    result: Result<(), Errno>,
    data: Option<Arc<Memory>>,
    /// Places that the request has.
    places: u32,
}

/// The head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    flags: u16,
    command: u16,
    cookie: [u8; 8],
    at: u64,
    len: u32,
}

impl Head {
    fn read(from: &mut impl Read) -> io::Result<Self> {
        if u32::from_be_bytes(take(from)?) != REQUEST {
            return Err(foreign("no request"));
        }
        Ok(Self {
            flags: u16::from_be_bytes(take(from)?),
            command: u16::from_be_bytes(take(from)?),
            cookie: take(from)?,
            at: u64::from_be_bytes(take(from)?),
            len: u32::from_be_bytes(take(from)?),
        })
    }

    /// Whether the export has that.
    fn check(&self, shape: &Shape) -> Result<(), Errno> {
        let block = u64::from(shape.block);
        let is_whole = self.at.is_multiple_of(block) && u64::from(self.len).is_multiple_of(block);
        let end = self.at.checked_add(self.len.into());
        match end {
            _ if self.command == command::FLUSH => Ok(()),
            _ if self.flags & !(FUA | NO_HOLE) != 0 || !is_whole => Err(Errno::Invalid),
            _ if shape.read_only && self.command != command::READ => Err(Errno::Permission),
            Some(end) if end <= shape.size => Ok(()),
            _ if self.command == command::READ => Err(Errno::Invalid),
            _ => Err(Errno::NoSpace),
        }
    }
}

/// Takes requests until the client goes. Blocks.
pub(super) fn transmit(
    from: &mut impl Read,
    stream: &UnixStream,
    export: &Arc<dyn Export>,
) -> io::Result<()> {
    // Room for the replies of all that is under way, so that no thread waits that must not.
    let (replies, to_write) = sync_channel(2 * DEPTH);
    let (returned, places) = sync_channel(DEPTH);
    for _ in 0..DEPTH {
        // The channel is as long as that.
        let _ = returned.send(());
    }
    let mut to = stream.try_clone()?;
    let writer = thread::Builder::new().name("nbd replies".into());
    let writer = writer.spawn(move || {
        let written = write_replies(&mut to, &to_write, &returned);
        // Requests whose replies cannot be written are no longer read.
        let _ = to.shutdown(Shutdown::Both);
        written
    })?;
    let read = read_requests(from, export, &replies, &places);
    // What is under way keeps the channel open.
    drop((replies, places));
    let written = writer.join().unwrap_or(Ok(()));
    read.and(written)
}

fn read_requests(
    from: &mut impl Read,
    export: &Arc<dyn Export>,
    replies: &SyncSender<Reply>,
    places: &Receiver<()>,
) -> io::Result<()> {
    let shape = export.shape();
    loop {
        let head = Head::read(from)?;
        if head.command == command::DISCONNECT {
            return Ok(());
        }
        let moves = matches!(head.command, command::READ | command::WRITE);
        if moves && head.len > REQUEST_BYTES_MAX {
            return Err(foreign("a very long request"));
        }
        let takes = match moves {
            true => head.len.div_ceil(PLACE_BYTES).max(1),
            false => 1,
        };
        if (0..takes).any(|_| places.recv().is_err()) {
            return Ok(());
        }
        let memory = match moves {
            false => Ok(None),
            true => Memory::alloc(head.len as usize).map(|memory| Some(Arc::new(memory))),
        };
        // The data follow, whatever becomes of the request.
        if head.command == command::WRITE {
            let room = memory.as_ref().ok().and_then(Option::as_ref);
            receive(from, head.len as usize, room.map(|memory| &**memory))?;
        }
        let reply = |result, data| Reply {
            cookie: head.cookie,
            result,
            data,
            places: takes,
        };
        let request = head.check(&shape).and_then(|()| {
            let memory = memory.map_err(|_| Errno::NoMemory)?;
            request(&head, memory).ok_or(Errno::Invalid)
        });
        let send = replies.clone();
        match request {
            Err(errno) => drop(send.send(reply(Err(errno), None))),
            Ok(request) => {
                let data = match &request {
                    Request::Read { into, .. } => Some(Arc::clone(into)),
                    _ => None,
                };
                let cookie = head.cookie;
                let done = move |result: Result<(), Errno>| {
                    let data = data.filter(|_| result.is_ok());
                    let reply = Reply {
                        cookie,
                        result,
                        data,
                        places: takes,
                    };
                    // There is room; the client may have gone.
                    let _ = send.try_send(reply);
                };
                export.submit(request, Box::new(done));
            }
        }
    }
}

/// What a request wants; `None` for a command that is not known.
fn request(head: &Head, memory: Option<Arc<Memory>>) -> Option<Request> {
    let (at, len, fua) = (head.at, u64::from(head.len), head.flags & FUA != 0);
    Some(match head.command {
        command::READ => Request::Read { at, into: memory? },
        command::WRITE => Request::Write {
            at,
            from: memory?,
            fua,
        },
        command::FLUSH => Request::Flush,
        command::TRIM => Request::Trim { at, len },
        command::ZERO => Request::Zero {
            at,
            len,
            punch: head.flags & NO_HOLE == 0,
            fua,
        },
        _ => return None,
    })
}

/// Takes the data of a request; nowhere, if there was no memory for them.
fn receive(from: &mut impl Read, len: usize, into: Option<&Memory>) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK.min(len)];
    for at in (0..len).step_by(CHUNK) {
        let part = &mut chunk[..CHUNK.min(len - at)];
        from.read_exact(part)?;
        if let Some(memory) = into {
            memory.write(at, part).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

fn write_replies(
    to: &mut impl Write,
    replies: &Receiver<Reply>,
    returned: &SyncSender<()>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    for reply in replies {
        bytes.clear();
        bytes.extend(REPLY.to_be_bytes());
        bytes.extend(
            reply
                .result
                .err()
                .map_or(0, |errno| errno as u32)
                .to_be_bytes(),
        );
        bytes.extend(reply.cookie);
        if let Some(data) = &reply.data {
            let start = bytes.len();
            bytes.resize(start + data.len(), 0);
            let read = data.read(0, &mut bytes[start..]);
            read.map_err(io::Error::other)?;
        }
        to.write_all(&bytes)?;
        // The thread that reads requests may have gone.
        let back = (0..reply.places).try_for_each(|_| returned.try_send(()));
        debug_assert!(!matches!(back, Err(TrySendError::Full(()))));
    }
    Ok(())
}
