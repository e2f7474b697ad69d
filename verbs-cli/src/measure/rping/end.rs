//! One end: its objects, the announcements, and the pings.

use std::ops::Range;

use verbs_cm::{Connection, Manager};
use verbs_core::{
    Access, Cq, Device, Memory, Mr, Pd, PostError, Qp, QpInit, RKey, Read, Recv, Remote, Send,
    SendWr, Wc, WcOpcode, WcStatus, Write,
};

use super::error::RpingError;
use crate::wire::PORT;

/// Where a buffer is, as the programs tell each other: address, key, bytes, in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announcement {
    pub(super) remote: Remote,
    pub(super) size: u32,
}

impl Announcement {
    pub(super) const LEN: usize = 16;

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| {
            let [a, b, c, d] = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            u32::from_be_bytes([a, b, c, d])
        };
        let addr = u64::from(word(0)) << 32 | u64::from(word(4));
        Self {
            remote: Remote {
                addr,
                rkey: RKey::new(word(8)),
            },
            size: word(12),
        }
    }

    pub(super) fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.remote.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.remote.rkey.value().to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }
}

/// Where things are in the registered memory: what is received, what is sent, the buffer that the
/// server reads from, the one that it writes to.
struct Places {
    recv: Range<usize>,
    start: Range<usize>,
    rdma: Range<usize>,
}

/// An end with its connection's objects.
pub(super) struct End {
    // Dropped in this order.
    pub(super) connection: Option<Connection>,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    size: usize,
    places: Places,
    /// Whether the peer has ended the connection.
    pub(super) is_over: bool,
    /// Completions that came before they were waited for.
    early: Vec<Wc>,
}

impl End {
    /// Makes the objects.
    pub(super) async fn new(device: &Device, size: u32) -> Result<Self, RpingError> {
        let size = size as usize;
        let pd = device.alloc_pd().await;
        let pd = pd.map_err(RpingError::verb("allocate a protection domain"))?;
        let memory = Memory::alloc(64 + 2 * size);
        let memory = memory.map_err(RpingError::verb("allocate the buffers"))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = pd.register(memory, access).await;
        let mr = mr.map_err(RpingError::verb("register the buffers"))?;
        let cq = device.create_cq(16).await;
        let cq = cq.map_err(RpingError::verb("create a completion queue"))?;
        Ok(Self {
            connection: None,
            cq,
            mr,
            pd,
            size,
            places: Places {
                recv: 0..Announcement::LEN,
                start: 64..64 + size,
                rdma: 64 + size..64 + 2 * size,
            },
            is_over: false,
            early: Vec::new(),
        })
    }

    /// A queue pair that can be connected, with its receive posted.
    pub(super) async fn queue_pair(&self) -> Result<Qp, RpingError> {
        let init = QpInit::rc(&self.cq, &self.cq).depth(4, 2).inline(16);
        let qp = self.pd.create_qp(init).await;
        let mut qp = qp.map_err(RpingError::verb("create a queue pair"))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let done = qp.init(PORT, access).await;
        done.map_err(RpingError::verb("initialise the queue pair"))?;
        let recv = Recv::new(0).into(self.mr.slice(self.places.recv.clone()));
        let posted = qp.post_recv(recv);
        posted.map_err(post("a receive"))?;
        Ok(qp)
    }

    /// Waits for the peer's announcement, and posts the next receive. `None`: the connection is over.
    pub(super) async fn receive(&mut self) -> Result<Option<Announcement>, RpingError> {
        let Some(wc) = self.completion(WcOpcode::Recv, "a receive").await? else {
            return Ok(None);
        };
        if wc.byte_len as usize != Announcement::LEN {
            return Err(RpingError::Foreign(wc.byte_len));
        }
        let mut bytes = [0; Announcement::LEN];
        self.read(self.places.recv.clone(), &mut bytes)?;
        let recv = Recv::new(0).into(self.mr.slice(self.places.recv.clone()));
        match self.connected()?.post_recv(recv) {
            // It ends when the peer has what it wants.
            Ok(()) | Err(PostError::State(_)) => {}
            Err(error) => return Err(post("a receive")(error)),
        }
        Ok(Some(Announcement::parse(&bytes)))
    }

    /// Announces the buffer that the server is to read from, or else to write to.
    pub(super) async fn announce(&mut self, from_start: bool) -> Result<(), RpingError> {
        let place = match from_start {
            true => &self.places.start,
            false => &self.places.rdma,
        };
        let announcement = Announcement {
            remote: self.mr.remote(place.start),
            size: self.size as u32,
        };
        let bytes = announcement.emit();
        self.post("a SEND", Send::new(1).inline(&bytes).signaled())?;
        self.completed(WcOpcode::Send, "a SEND").await
    }

    /// Fetches the peer's buffer.
    pub(super) async fn fetch(&mut self, from: Announcement) -> Result<(), RpingError> {
        if from.size as usize > self.size {
            let (got, max) = (from.size, self.size as u32);
            return Err(RpingError::Size { got, max });
        }
        let place = self.places.rdma.start;
        let piece = self.mr.slice(place..place + from.size as usize);
        self.post("a READ", Read::new(2, from.remote).into(piece).signaled())?;
        self.completed(WcOpcode::RdmaRead, "a READ").await
    }

    /// Writes what was fetched, up to the zero at its end, into the peer's buffer.
    pub(super) async fn write_back(&mut self, to: Announcement) -> Result<(), RpingError> {
        let text = self.fetched()?;
        let end = text.iter().position(|&byte| byte == 0);
        let len = end.map_or(text.len(), |end| end + 1).min(to.size as usize);
        let place = self.places.rdma.start;
        let piece = self.mr.slice(place..place + len);
        self.post("a WRITE", Write::new(3, to.remote).from(piece).signaled())?;
        self.completed(WcOpcode::RdmaWrite, "a WRITE").await
    }

    /// What is in the buffer that was read into or written to.
    pub(super) fn fetched(&self) -> Result<Vec<u8>, RpingError> {
        let mut bytes = vec![0; self.size];
        self.read(self.places.rdma.clone(), &mut bytes)?;
        Ok(bytes)
    }

    /// Puts a ping where the server will read it.
    pub(super) fn prepare(&self, ping: &[u8]) -> Result<(), RpingError> {
        let written = self.mr.write(self.places.start.start, ping);
        written.map_err(RpingError::verb("fill the buffer"))
    }

    fn read(&self, place: Range<usize>, bytes: &mut [u8]) -> Result<(), RpingError> {
        let read = self.mr.read(place.start, bytes);
        read.map_err(RpingError::verb("read the buffer"))
    }

    /// Ends the connection, also after a failure: a peer that has ended it waits for the answer.
    pub(super) async fn leave(
        &mut self,
        device: &Device,
        done: Result<(), RpingError>,
    ) -> Result<(), RpingError> {
        let Some(connection) = self.connection.take() else {
            return done;
        };
        let left = if let Err(RpingError::Completion { .. }) = done {
            // There may be no peer that would answer. The manager would go with its last connection.
            let manager = Manager::of(device);
            let opened = manager.open().await;
            drop(connection);
            opened.and(manager.drained().await)
        } else {
            connection.close().await
        };
        done.and(left.map_err(RpingError::from))
    }

    fn connected(&mut self) -> Result<&mut Connection, RpingError> {
        let gone = RpingError::Connection(verbs_cm::Error::Disconnected);
        self.connection.as_mut().ok_or(gone)
    }

    fn post<'w>(
        &mut self,
        doing: &'static str,
        wr: impl Into<SendWr<'w>>,
    ) -> Result<(), RpingError> {
        self.connected()?.post_send(wr).map_err(post(doing))
    }

    async fn completed(&mut self, of: WcOpcode, what: &'static str) -> Result<(), RpingError> {
        match self.completion(of, what).await? {
            Some(_) => Ok(()),
            None => Err(RpingError::Connection(verbs_cm::Error::Disconnected)),
        }
    }

    /// The next completion of that kind. `None`: the queue pair was flushed, as the connection is over.
    async fn completion(
        &mut self,
        of: WcOpcode,
        what: &'static str,
    ) -> Result<Option<Wc>, RpingError> {
        loop {
            if let Some(at) = self.early.iter().position(|wc| wc.opcode == of) {
                return Ok(Some(self.early.remove(at)));
            }
            // The flush may have come while something else was waited for.
            if self.is_over {
                return Ok(None);
            }
            self.cq.ready().await.map_err(|error| RpingError::Verb {
                doing: "wait for completions",
                error,
            })?;
            let mut wcs = [Wc::default(); 4];
            for wc in self.cq.poll(&mut wcs).iter() {
                match wc.status {
                    WcStatus::Success => self.early.push(*wc),
                    WcStatus::WrFlushErr => self.is_over = true,
                    status => return Err(RpingError::Completion { what, status }),
                }
            }
        }
    }
}

fn post(doing: &'static str) -> impl FnOnce(PostError) -> RpingError {
    move |error| RpingError::Post { doing, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_have_the_bytes_of_the_program() {
        let announcement = Announcement {
            remote: Remote {
                addr: 0x0102_0304_0506_0708,
                rkey: RKey::new(0x1112_1314),
            },
            size: 64,
        };
        let bytes = announcement.emit();
        assert_eq!(
            bytes,
            [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 64]
        );
        assert_eq!(Announcement::parse(&bytes), announcement);
    }
}
