//! A channel: rings in memory that is shared with one other process of the host, and the bell that wakes the end that
//! sleeps.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use verbs_core::host::channel::{FILES, Head, RING_LEN_MAX, RING_LEN_MIN};
use verbs_core::host::message::Packets;
use verbs_core::host::{Block, Channel as News};
use verbs_core::mem::Unmapped;
use verbs_core::sync::Arc;

use super::inbound::{Inbound, message_len};
use super::patience::Patience;
use crate::FillWindow;
use crate::ring::{self, Bell, Broken, End, Mapped, Rings, Shared, Watch, Writer};
use crate::time::Clock;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::joined) enum Put {
    Written,
    /// There is no room now.
    Full,
    /// There has been no room for too long.
    Lost,
}

#[derive(Debug)]
pub(in crate::joined) struct Channel {
    pub(in crate::joined) number: u32,
    /// The neighbour's blocks.
    pub(in crate::joined) blocks: Vec<Block>,
    pub(in crate::joined) inbound: Inbound<Mapped>,
    writer: Writer<Mapped>,
    bell: Arc<OwnedFd>,
    patience: Patience,
    /// Messages that were written.
    written: u64,
    /// The addresses of the last one.
    addresses: Option<(IpAddr, IpAddr)>,
    /// What the neighbour has sent through the daemon has arrived: its ring may be read.
    pub(in crate::joined) is_open: bool,
    /// The neighbour has closed its end: what it has written is read, and then the channel ends.
    pub(in crate::joined) is_over: bool,
    /// The neighbour's blocks that no longer exist, which is told when all that it had written by then has been read.
    gone: Vec<Block>,
    /// The position in the ring up to which that is.
    gone_at: Option<u64>,
}

impl Channel {
    /// Opens the channel whose files these are. `None` if they are not those of a channel, or if the system has no room
    /// for the mapping.
    pub(in crate::joined) fn open(news: &News, files: Vec<OwnedFd>) -> Option<Self> {
        let [file, bell]: [OwnedFd; FILES] = files.try_into().ok()?;
        let may = news.ring_len.is_power_of_two()
            && (RING_LEN_MIN..=RING_LEN_MAX).contains(&news.ring_len);
        let end = match news.end {
            0 => End::First,
            1 => End::Second,
            _ => return None,
        };
        if !may {
            return None;
        }
        let Rings { reader, writer } = Rings::open(&file, news.ring_len as usize, end).ok()?;
        Some(Self {
            number: news.number,
            blocks: Vec::new(),
            inbound: Inbound::new(reader),
            writer,
            bell: Arc::new(bell),
            patience: Patience::default(),
            written: 0,
            addresses: None,
            is_open: false,
            is_over: false,
            gone: Vec::new(),
            gone_at: None,
        })
    }

    /// What the waiter waits with.
    pub(in crate::joined) fn bell(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.bell)
    }

    pub(in crate::joined) fn watch(&self) -> Watch<Mapped> {
        self.inbound.watch()
    }

    /// One of the neighbour's blocks no longer exists. One that has none any longer has ended: its ring may be read even if
    /// it could not say that it has changed over, as the daemon tells of its end behind its packets.
    pub(in crate::joined) fn lose_block(&mut self, block: Block) {
        self.gone.push(block);
        self.gone_at = None;
        self.is_open |= self.has_ended();
    }

    /// Whether all of the neighbour's blocks are gone.
    pub(in crate::joined) fn has_ended(&self) -> bool {
        !self.gone.is_empty() && self.blocks.iter().all(|block| self.gone.contains(block))
    }

    /// Whether something is to be told when it has been read.
    pub(in crate::joined) fn is_ending(&self) -> bool {
        self.is_over || !self.gone.is_empty()
    }

    /// Whether all has been read that has to be before the neighbour's end, or the end of its blocks, is told. A neighbour
    /// that has closed its end, and whose ring may not be read yet, has said that it has changed over, if there is
    /// something in it.
    ///
    /// # Errors
    /// [`Broken`].
    pub(in crate::joined) fn is_read(&mut self) -> Result<bool, Broken> {
        if !self.inbound.has_message()? {
            return Ok(true);
        }
        if !self.is_open || self.gone.is_empty() {
            return Ok(false);
        }
        // One that is said to be gone and goes on writing is not waited for.
        let until = match self.gone_at {
            Some(until) => until,
            None => *self.gone_at.insert(self.inbound.end()?),
        };
        Ok(self.inbound.position() >= until)
    }

    /// Takes the blocks that no longer exist.
    pub(in crate::joined) fn take_gone(&mut self) -> Vec<Block> {
        let gone = std::mem::take(&mut self.gone);
        self.blocks.retain(|block| !gone.contains(block));
        gone
    }

    /// Writes packets, with their head in front.
    pub(in crate::joined) fn put(
        &mut self,
        packets: &Packets<'_>,
        clock: &Clock,
    ) -> Result<Put, Broken> {
        let (bytes, head_len) = self.head_of(packets).bytes();
        let len = head_len + packets.bytes.len();
        if len > self.writer.longest() {
            return Ok(Put::Lost);
        }
        let pieces = [&bytes[..head_len], packets.bytes];
        let written = self.writer.write(len, pieces.into_iter())?;
        Ok(self.put_or_not(packets, written, clock))
    }

    /// Writes a long packet, whose headers these are; within, what `fill` fails with.
    pub(in crate::joined) fn put_long(
        &mut self,
        headers: &Packets<'_>,
        len: usize,
        fill: FillWindow<'_>,
        clock: &Clock,
    ) -> Result<Result<Put, Unmapped>, Broken> {
        let (bytes, head_len) = self.head_of(headers).bytes();
        let pieces = [&bytes[..head_len], headers.bytes];
        let head = (head_len + headers.bytes.len(), pieces.into_iter());
        let written = self
            .writer
            .write_long(head, len, |memory, at| fill(memory.window(at, len)))?;
        Ok(written.map(|written| self.put_or_not(headers, written, clock)))
    }

    /// The longest payload of a long packet, if the neighbour takes any.
    pub(in crate::joined) fn longest(&mut self) -> Option<usize> {
        self.writer.longest_payload()
    }

    /// What is in front of packets.
    fn head_of(&self, packets: &Packets<'_>) -> Head {
        let addresses = Some((packets.src, packets.dst));
        Head {
            addresses: addresses.filter(|_| addresses != self.addresses),
            tclass: packets.tclass,
            ident: packets.ident.unwrap_or(0),
            segment: packets.segment,
        }
    }

    /// Packets were written, unless there was no room for them.
    fn put_or_not(&mut self, packets: &Packets<'_>, written: Option<Bell>, clock: &Clock) -> Put {
        let Some(bell) = written else {
            return match self.waits(clock) {
                true => Put::Full,
                false => Put::Lost,
            };
        };
        if self.patience.is_held() {
            let has_read = self.writer.has_read();
            self.patience.has_room(clock.now(), has_read);
        }
        self.addresses = Some((packets.src, packets.dst));
        self.written += 1;
        self.ring(bell);
        Put::Written
    }

    /// Whether packets of so many bytes have room, or there has been none for so long that nobody waits for it.
    pub(in crate::joined) fn takes(
        &mut self,
        packets: usize,
        clock: &Clock,
    ) -> Result<bool, Broken> {
        let fits = self.writer.fits(message_len(packets))?;
        Ok(fits || !self.waits(clock))
    }

    /// There is no room: whether to wait for some.
    fn waits(&mut self, clock: &Clock) -> bool {
        let has_read = self.writer.has_read();
        self.patience.waits(clock.now(), has_read)
    }

    /// The neighbour has rung so often.
    pub(in crate::joined) fn check_rings(&self, rings: u64) -> Result<(), Broken> {
        match self.inbound.may_ring(rings, self.written) {
            true => Ok(()),
            false => Err(Broken),
        }
    }

    /// Rings for the neighbour, if required.
    pub(in crate::joined) fn ring(&self, bell: Bell) {
        if bell == Bell::Ring {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // Without room, rings wait already; that the neighbour is gone is noticed by whoever waits.
            let _ = rustix::net::send(self.bell.as_fd(), &[1], flags);
        }
    }
}

/// The files of a channel with rings of that many bytes, for each of its ends: memory whose length cannot change, and a
/// bell. The bell is a pair of sockets, because each end is its process's own: a neighbour cannot take rings out of it, nor
/// make it block.
///
/// # Errors
/// The system's error.
pub fn channel_files(ring_len: usize) -> io::Result<[[OwnedFd; FILES]; 2]> {
    let one = ring::file(ring_len)?;
    let other = one.try_clone()?;
    let flags = SocketFlags::CLOEXEC;
    let (first, second) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok([[one, first], [other, second]])
}
