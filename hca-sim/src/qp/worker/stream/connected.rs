//! The stream of a connection, with the bytes that it had no room for.

use std::fmt;
use std::io;

use verbs_core::Error;
use verbs_core::cm::CmCore;
use verbs_core::sync::Weak;
use verbs_link::stream::{Interest, Stream, Token};

use crate::port::streams::buffers::Outgoing;
use crate::port::streams::making::Making;

/// The stream of a connection.
pub(crate) struct Connected {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) token: Token,
    pub(crate) outgoing: Outgoing,
    pub(crate) has_crc: bool,
    /// Bytes that were read, with the Reply or with a message that waits for a receive, and not taken.
    surplus: Vec<u8>,
    /// The endpoint to which the end is reported.
    pub(crate) endpoint: Option<Weak<CmCore>>,
}

impl Connected {
    pub(crate) fn new(making: Making) -> Result<Self, Error> {
        let mut outgoing = Outgoing::new()?;
        outgoing.push(&making.reply);
        Ok(Self {
            stream: making.stream,
            token: making.token,
            outgoing,
            has_crc: making.agreed.has_crc,
            surplus: making.surplus,
            endpoint: making.endpoint,
        })
    }

    /// Reads what comes next.
    ///
    /// # Errors
    /// As [`Stream::receive`].
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.surplus.is_empty() {
            return self.stream.receive(into);
        }
        let count = self.surplus.len().min(into.len());
        into[..count].copy_from_slice(&self.surplus[..count]);
        self.surplus.drain(..count);
        if self.surplus.is_empty() {
            self.surplus = Vec::new();
        }
        Ok(count)
    }

    /// Has the rest of what was read come next again.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn put_back(&mut self, rest: &[u8]) -> Result<(), Error> {
        if rest.is_empty() {
            return Ok(());
        }
        let reserved = self.surplus.try_reserve(rest.len());
        reserved.map_err(|_| Error::NoMemory)?;
        self.surplus.splice(..0, rest.iter().copied());
        Ok(())
    }

    /// Has the poller wait for bytes if the connection `receives`, and for room as long as bytes wait for it.
    pub(crate) fn watch(&mut self, receives: bool) {
        let interest = match (receives, self.outgoing.is_empty()) {
            (true, true) => Interest::Receive,
            (true, false) => Interest::Both,
            (false, true) => Interest::Nothing,
            (false, false) => Interest::Send,
        };
        if let Err(error) = self.stream.watch(self.token, interest) {
            tracing::warn!(%error, "a socket cannot be watched");
        }
    }
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected")
            .field("stream", &self.stream)
            .field("outgoing", &self.outgoing)
            .finish_non_exhaustive()
    }
}
