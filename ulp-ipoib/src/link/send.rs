//! Packets of the stack behind the face, on their way to the state.

use verbs_core::collect;
use verbs_core::sync::Arc;

use super::Core;
use super::buffers::{DATAGRAM_STRIDE, MESSAGE_STRIDE, Packet, Size, Slot};
use super::state::{State, Verdict};
use crate::config::Mode;
use crate::error::SendError;
use crate::wire::{CONNECTED_MTU, HEADER_LEN, Ip, too_big};

/// Bytes of the longest message to a sender, which quotes less of its packet.
const MESSAGE_MAX: usize = 1280;

/// A packet of the stack, in two parts: the first has at least its headers.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'p> {
    pub(crate) head: &'p [u8],
    pub(crate) body: &'p [u8],
}

impl Outgoing<'_> {
    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// Sends an IP packet. If `more` follow soon, it may wait for them, until [`Core::flush`].
pub(crate) fn send(core: &Arc<Core>, outgoing: Outgoing<'_>, more: bool) -> Result<(), SendError> {
    let ip = Ip::parse(outgoing.head)?;
    let len = outgoing.len();
    if len > longest(core) {
        core.state.lock().counters.too_big += 1;
        tell_sender(core, outgoing, &ip, longest(core));
        return Ok(());
    }
    // A datagram is copied under the lock, which takes less than taking it twice; a long message is not.
    let filled = match Size::of(len) {
        Size::Datagram => None,
        Size::Connected => {
            let slot = take_slot(&mut core.state.lock(), len)?;
            Some(fill(core, slot, &ip, outgoing))
        }
    };
    let verdict = core.with_more(more, |state, now| {
        let packet = match filled {
            Some(packet) => packet,
            None => fill(core, take_slot(state, len)?, &ip, outgoing),
        };
        state.follow_report(outgoing.head, &ip, now);
        let verdict = state.route(&ip, packet, now);
        if verdict != Verdict::Taken {
            state.give_back(packet.slot);
            state.is_awaited |= verdict == Verdict::Full;
            state.counters.too_big += u64::from(matches!(verdict, Verdict::TooBig(_)));
        }
        Ok::<_, SendError>(verdict)
    })?;
    match verdict {
        Verdict::TooBig(mtu) => {
            tell_sender(core, outgoing, &ip, mtu);
            Ok(())
        }
        Verdict::Full => Err(SendError::Full),
        Verdict::Taken | Verdict::Waits => Ok(()),
    }
}

/// Writes a packet with its header into a slot.
fn fill(core: &Core, slot: Slot, ip: &Ip, outgoing: Outgoing<'_>) -> Packet {
    let (memory, stride) = match slot.size {
        Size::Datagram => (&core.memory[0], DATAGRAM_STRIDE),
        Size::Connected => (&core.memory[1], MESSAGE_STRIDE),
    };
    let header = ip.protocol().header();
    let mut offset = slot.index as usize * stride;
    for piece in [&header, outgoing.head, outgoing.body] {
        // The slot is in the memory, and long enough: its size was chosen for the length.
        let written = memory.write(offset, piece);
        debug_assert!(written.is_ok());
        offset += piece.len();
    }
    let len = u32::try_from(HEADER_LEN + outgoing.len()).unwrap_or(u32::MAX);
    Packet { slot, len }
}

/// Tells the sender of a packet that it was too long.
fn tell_sender(core: &Core, outgoing: Outgoing<'_>, ip: &Ip, mtu: usize) {
    let router = core.state.lock().own_address(ip.source);
    let (mut quoted, mut message) = ([0; MESSAGE_MAX], [0; MESSAGE_MAX]);
    let bytes = outgoing.head.iter().chain(outgoing.body);
    for (to, &byte) in quoted.iter_mut().zip(bytes) {
        *to = byte;
    }
    let quoted = quoted.get(..outgoing.len().min(MESSAGE_MAX));
    let written = router.and_then(|router| too_big(quoted?, mtu, router, &mut message));
    if let Some(told) = written.and_then(|len| message.get(..len)) {
        collect(|| {
            core.face.deliver(told);
            core.face.delivered();
        });
    }
}

/// Bytes of the longest packet that any path may carry.
fn longest(core: &Core) -> usize {
    match core.config.mode {
        Mode::Connected => CONNECTED_MTU,
        Mode::Datagram => DATAGRAM_STRIDE - HEADER_LEN,
    }
}

/// A slot for a packet of that many bytes, while the link is up.
fn take_slot(state: &mut State, len: usize) -> Result<Slot, SendError> {
    if state.link.is_none() {
        state.counters.link_down += 1;
        return Err(SendError::Down);
    }
    state.take_slot(len).ok_or(SendError::Full)
}
