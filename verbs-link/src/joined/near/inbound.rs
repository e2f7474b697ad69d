//! Packets that a neighbour has written to the ring of a channel. None of it is trusted.

use std::net::IpAddr;
use std::ops::Range;

use verbs_core::host::channel::Head;
use verbs_core::host::message::Packets;
use verbs_core::mem::Window;
use verbs_wire::ROCE_PORT;

use crate::joined::packet::is_for;
use crate::ring::{Bell, Broken, Long, Next, Reader, Shared, Watch};

/// The most packets of a burst to another process of the host.
pub(in crate::joined) const BURST: usize = 64;

/// What a neighbour may send packets to: others are dropped. Addresses change while packets are under way, so that this
/// is no reason to end the channel.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// The port's addresses: packets come from one of them, and go to one of them.
    pub addresses: &'a [IpAddr],
    /// The queue pair numbers of this process. Management datagrams are for none of them: the daemon checks those.
    pub numbers: &'a [Range<u32>],
}

impl Bounds<'_> {
    /// Hands packets up that the neighbour may send.
    fn admit(
        &self,
        packets: &Packets<'_>,
        sink: &mut dyn FnMut(&Packets<'_>),
    ) -> Result<Taken, Broken> {
        let count = packets.packets().len();
        if count > BURST || packets.src.is_ipv4() != packets.dst.is_ipv4() {
            return Err(Broken);
        }
        let is_ours = |address| self.addresses.contains(address);
        let fits = |bytes: &[u8]| is_for(bytes, self.numbers);
        let may = is_ours(&packets.src) && is_ours(&packets.dst) && packets.packets().all(fits);
        if !may {
            return Ok(Taken::Refused);
        }
        sink(packets);
        Ok(Taken::Packets(count))
    }
}

/// The packets of a message, of which `last` are the addresses, unless it names others.
fn packets<'a>(
    message: &'a [u8],
    last: &mut Option<(IpAddr, IpAddr)>,
) -> Result<Packets<'a>, Broken> {
    let (head, bytes) = Head::take(message).map_err(|_| Broken)?;
    *last = head.addresses.or(*last);
    let (src, dst) = last.ok_or(Broken)?;
    Ok(Packets {
        src,
        dst,
        tclass: head.tclass,
        hop_limit: 0,
        sport: ROCE_PORT,
        ident: Some(head.ident),
        segment: head.segment,
        bytes,
    })
}

/// What one message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// So many packets, which were handed up.
    Packets(usize),
    /// Packets that the neighbour may not send.
    Refused,
}

/// The reading end of a channel.
#[derive(Debug)]
pub struct Inbound<S> {
    ring: Reader<S>,
    /// Messages that were read.
    messages: u64,
    /// The addresses of the last one.
    addresses: Option<(IpAddr, IpAddr)>,
}

impl<S: Shared> Inbound<S> {
    /// The only reader of a new ring.
    pub fn new(ring: Reader<S>) -> Self {
        Self {
            ring,
            messages: 0,
            addresses: None,
        }
    }

    /// The neighbour may send long packets from now on.
    pub fn take_long(&mut self) {
        self.ring.take_long();
    }

    /// Takes a message, if there is one: copies it to `buffer`, checks it, and hands its packets up. The payload of a long
    /// packet is handed up beside it, where it is.
    ///
    /// # Errors
    /// [`Broken`]: it is nothing that a correct program writes.
    pub fn take(
        &mut self,
        buffer: &mut [u8],
        bounds: &Bounds<'_>,
        sink: &mut dyn FnMut(&Packets<'_>, Option<Window<'_>>),
    ) -> Result<Option<Taken>, Broken> {
        let taken = match self.ring.next(buffer)? {
            None => return Ok(None),
            Some(Next::Whole(len)) => {
                let packets = packets(&buffer[..len], &mut self.addresses)?;
                bounds.admit(&packets, &mut |packets| sink(packets, None))?
            }
            Some(Next::Long(long)) => {
                let taken = self.take_one(&long, buffer, bounds, sink)?;
                self.ring.finish(long);
                taken
            }
        };
        self.messages += 1;
        Ok(Some(taken))
    }

    /// Hands a long packet up.
    fn take_one(
        &mut self,
        long: &Long,
        buffer: &[u8],
        bounds: &Bounds<'_>,
        sink: &mut dyn FnMut(&Packets<'_>, Option<Window<'_>>),
    ) -> Result<Taken, Broken> {
        let whole = packets(&buffer[..long.head], &mut self.addresses)?;
        // Behind the headers is what there was before.
        let bytes = whole.bytes.get(..usize::from(whole.segment));
        let bytes = bytes.ok_or(Broken)?;
        let payload = self.ring.shared().window(long.at, long.len);
        let packet = Packets { bytes, ..whole };
        bounds.admit(&packet, &mut |packet| sink(packet, Some(payload)))
    }

    /// Whether there is a message.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn has_message(&mut self) -> Result<bool, Broken> {
        self.ring.has_message()
    }

    /// The position in the ring behind all messages that have been written.
    ///
    /// # Errors
    /// [`Broken`].
    pub(in crate::joined) fn end(&mut self) -> Result<u64, Broken> {
        self.ring.end()
    }

    /// The position behind all messages that were read.
    pub(in crate::joined) fn position(&self) -> u64 {
        self.ring.position()
    }

    /// Whether to ring for the neighbour after messages were read.
    pub fn bell(&mut self) -> Bell {
        self.ring.bell()
    }

    /// Whether a neighbour that keeps to the rules may have rung so often: for each message that it has written, and for
    /// each of the `written` messages that it has read.
    pub fn may_ring(&self, rings: u64, written: u64) -> bool {
        // A message takes at least 16 bytes of the ring.
        let unread = self.ring.capacity() as u64 / 16;
        rings <= self.messages + unread + written
    }
}

impl<S: Shared + Clone> Inbound<S> {
    /// The part that sleeps.
    pub fn watch(&self) -> Watch<S> {
        self.ring.watch()
    }
}

/// Bytes of the longest message with packets of so many bytes.
pub(in crate::joined) const fn message_len(packets: usize) -> usize {
    Head::LEN_MAX + packets
}
