//! The list of a daemon's clients, for a process that is none of them.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};
use verbs_core::host::Message;
use verbs_core::host::list::{Cursor, Listed};
use verbs_core::host::message::MESSAGE_MAX;

use super::{JoinError, PATIENCE, failed, line};

/// The most pieces that are read: a daemon has no more.
const PIECES_MAX: u64 = 131_072;

/// Asks the daemon at the other end of a Unix socket of type seqpacket for its clients. The pieces of each are put together,
/// so that no client is in the list twice.
///
/// Waits for the daemon's answers.
///
/// # Errors
/// [`JoinError`]; [`JoinError::Socket`] with [`ConnectionReset`](std::io::ErrorKind::ConnectionReset) if it ends the line, as a
/// daemon does that has no lists.
pub fn clients_of(socket: &OwnedFd) -> Result<Vec<Listed>, JoinError> {
    let mut all: Vec<Listed> = Vec::new();
    let mut from = Cursor::default();
    for tag in 0..PIECES_MAX {
        let Some(piece) = ask(socket, tag, from)? else {
            return Ok(all);
        };
        let next = piece.next;
        match all.last_mut().filter(|last| last.client == piece.client) {
            Some(last) => last.connections.extend(piece.connections),
            None => all.push(*piece),
        }
        match next {
            // Otherwise it would not end.
            Some(next) if next > from => from = next,
            Some(_) => break,
            None => return Ok(all),
        }
    }
    Err(JoinError::Unexpected)
}

fn ask(socket: &OwnedFd, tag: u64, from: Cursor) -> Result<Option<Box<Listed>>, JoinError> {
    line::send(socket, &Message::List(tag, from).encode()).map_err(|error| {
        failed(match error {
            Errno::PIPE => Errno::CONNRESET,
            error => error,
        })
    })?;
    let patience = Timespec::try_from(PATIENCE).map_err(|_| JoinError::Unexpected)?;
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    let ready = retry_on_intr(|| poll(&mut polled, Some(&patience)));
    if ready.map_err(failed)? == 0 {
        return Err(failed(Errno::TIMEDOUT));
    }
    let mut answer = vec![0; MESSAGE_MAX];
    let received = retry_on_intr(|| recv(socket, &mut answer, RecvFlags::DONTWAIT));
    let (len, _) = received.map_err(failed)?;
    if len == 0 {
        return Err(failed(Errno::CONNRESET));
    }
    match Message::decode(&answer[..len])? {
        Message::Listing(answered, piece) if answered == tag => Ok(piece),
        _ => Err(JoinError::Unexpected),
    }
}
