//! Completions: packets that have come, and buffers that are free again.

use verbs_core::sync::Arc;
use verbs_core::{Arm, Armed, Bounce, Recv, Wc, task};

use super::Core;
use super::buffers::{MESSAGE_STRIDE, RECEIVE_STRIDE, Work};
use super::state::{Action, State};
use crate::wire::{GRH_LEN, HEADER_LEN, Protocol};

/// Completions that are taken at a time.
const LOT: usize = 32;

/// What the handler of the completion queue needs: it runs one call at a time (K14).
pub(super) struct Receiver {
    /// The packet that is being delivered: registered memory is only ever copied from.
    packet: Bounce,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            packet: Bounce::new(MESSAGE_STRIDE),
        }
    }
}

impl Receiver {
    /// Takes completions until there are none.
    pub(super) fn turn(&mut self, core: &Arc<Core>) {
        let poll = |wcs: &mut [Wc]| core.cq.lock().poll(wcs).len();
        let arm = || core.cq.lock().arm(Arm::Next);
        drain(poll, arm, |wc| self.completed(core, wc));
    }

    fn completed(&mut self, core: &Arc<Core>, wc: &Wc) {
        match Work::of(wc.wr_id) {
            Some(work @ Work::Send(_)) => core.sent(wc, work),
            Some(Work::Receive(index)) => self.datagram(core, wc, index),
            Some(Work::ConnectedReceive(index)) => self.message(core, wc, index),
            Some(Work::Drain) => {
                let waiting = core.with(|state, _| state.drained(wc.qpn.value()));
                if let Some(waiting) = waiting {
                    // Nobody waits any more when the interface is being closed.
                    let _gone = waiting.send(());
                }
            }
            None => {}
        }
    }

    /// A receive of the queue pair for datagrams.
    fn datagram(&mut self, core: &Arc<Core>, wc: &Wc, index: u32) {
        let start = index as usize * RECEIVE_STRIDE;
        let len = (wc.byte_len as usize).saturating_sub(GRH_LEN);
        let place = self.packet.get_mut(..len).filter(|_| wc.is_ok());
        let read = place.map(|place| core.received.read(start + GRH_LEN, place));
        let is_read = matches!(read, Some(Ok(())));
        let is_echo = is_read && core.is_echo(wc, start);
        // Posted again before anybody else has the packet, so that one who is slow starves nobody.
        core.with(|state, _| {
            state.receiving -= 1;
            state.counters.receive_errors += u64::from(!wc.is_ok() && state.reposts);
            if is_read && !is_echo {
                state.counters.datagrams_received += 1;
                state.counters.bytes_received += len.saturating_sub(HEADER_LEN) as u64;
            }
            match state.reposts {
                true => core.repost(state, index),
                false => core.drained_if(state),
            }
        });
        if is_read && !is_echo {
            self.deliver(core, len);
        }
    }

    /// A receive of the queue that connections share.
    fn message(&mut self, core: &Arc<Core>, wc: &Wc, index: u32) {
        let len = wc.byte_len as usize;
        let place = self.packet.get_mut(..len).filter(|_| wc.is_ok());
        let memory = core.messages.as_ref();
        let read = place
            .zip(memory)
            .map(|(place, memory)| memory.read(index as usize * MESSAGE_STRIDE, place));
        let is_read = matches!(read, Some(Ok(())));
        core.with(|state, now| {
            if let Some(passive) = state.passive.get_mut(&wc.qpn.value()) {
                passive.used = now;
            }
            match is_read {
                true => {
                    state.counters.connected_received += 1;
                    state.counters.bytes_received += len.saturating_sub(HEADER_LEN) as u64;
                }
                // Receives of a queue pair that is taken down come back unused.
                false => {
                    let is_flushed = wc.status == verbs_core::WcStatus::WrFlushErr;
                    state.counters.receive_errors += u64::from(!is_flushed);
                }
            }
            core.repost_message(state, index);
        });
        if is_read {
            self.deliver(core, len);
        }
    }

    /// Looks at what has come, and passes on what is not for the interface itself.
    fn deliver(&self, core: &Arc<Core>, len: usize) {
        let message = self.packet.get(..len).unwrap_or_default();
        match Protocol::split(message) {
            Some((Protocol::Arp, body)) => core.with(|state, now| state.take_arp(body, now)),
            Some((Protocol::Ipv6, packet)) => {
                let is_discovery =
                    is_icmpv6(packet) && core.with(|state, now| state.take_nd(packet, now));
                if !is_discovery {
                    core.face.deliver(packet);
                }
            }
            Some((Protocol::Ipv4, packet)) => core.face.deliver(packet),
            Some((Protocol::Rarp, _)) | None => core.state.lock().counters.unknown += 1,
        }
    }
}

/// Takes completions until there are none and the queue is armed: what comes between the last look and the
/// arming is there already, and no handler will be called for it.
fn drain(
    mut poll: impl FnMut(&mut [Wc]) -> usize,
    mut arm: impl FnMut() -> Armed,
    mut each: impl FnMut(&Wc),
) {
    let mut wcs = [Wc::default(); LOT];
    loop {
        let taken = poll(&mut wcs);
        if taken == 0 && arm() == Armed::Empty {
            return;
        }
        wcs.iter().take(taken).for_each(&mut each);
    }
}

/// Whether it may be a message of neighbour discovery.
fn is_icmpv6(packet: &[u8]) -> bool {
    matches!((packet.get(6), packet.get(40)), (Some(58), Some(135 | 136)))
}

impl Core {
    /// A send has completed.
    fn sent(self: &Arc<Self>, wc: &Wc, work: Work) {
        let Work::Send(slot) = work else { return };
        self.with(|state, _| {
            state.give_back(slot);
            let is_datagram = wc.qpn == self.qp.qpn();
            if is_datagram {
                state.sending -= 1;
            }
            if !wc.is_ok() {
                state.counters.send_errors += 1;
                match is_datagram {
                    // Flushed ones are the keeper's doing.
                    true if state.reposts => state.actions.push(Action::Restart),
                    true => {}
                    false => state.connection_broken(wc.qpn),
                }
            }
            if !state.reposts {
                self.drained_if(state);
            }
        });
    }

    /// Whether a datagram is one of the interface's own, which its group has brought back.
    fn is_echo(&self, wc: &Wc, start: usize) -> bool {
        if wc.src_qpn != self.qp.qpn() {
            return false;
        }
        let mut source = [0; 16];
        let read = self.received.read(start + 8, &mut source);
        let own = self.state.lock().own.gid;
        read.is_ok() && wc.flags.contains(verbs_core::WcFlags::GRH) && own.0 == source
    }

    /// Posts a receive for a datagram.
    pub(super) fn repost(&self, state: &mut State, index: u32) {
        let start = index as usize * RECEIVE_STRIDE;
        let room = self.received.slice(start..start + RECEIVE_STRIDE);
        let recv = Recv::new(Work::Receive(index).id()).into(room);
        match state.recv.post(recv) {
            Ok(()) => state.receiving += 1,
            // It was not posted: the queue pair is in a state that the keeper sees to.
            Err(_) => state.counters.receive_errors += 1,
        }
    }

    /// Posts a receive for a message.
    pub(super) fn repost_message(&self, state: &mut State, index: u32) {
        let (Some(srq), Some(memory)) = (&mut state.srq, &self.messages) else {
            return;
        };
        let start = index as usize * MESSAGE_STRIDE;
        let room = memory.slice(start..start + MESSAGE_STRIDE);
        let recv = Recv::new(Work::ConnectedReceive(index).id()).into(room);
        if srq.post_recv(recv).is_err() {
            state.counters.receive_errors += 1;
        }
    }

    /// Tells the keeper when everything has come back.
    pub(super) fn drained_if(&self, state: &State) {
        if state.receiving == 0 && state.sending == 0 {
            // The caller has the lock.
            if let Some(waker) = self.drained.take() {
                task::wake(waker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what comes between the last look and the arming is taken. Method: a queue that says once that
    /// something waits, and one that fills whole lots.
    #[test]
    fn what_waits_when_the_queue_is_armed_is_taken() {
        let mut looks = [0, 2, 0, LOT, LOT, 1, 0].into_iter();
        let mut arms = [Armed::Waiting, Armed::Waiting, Armed::Empty].into_iter();
        let (mut taken, mut number) = (Vec::new(), 0);
        drain(
            |wcs| {
                let count = looks
                    .next()
                    .expect("it was armed, and is looked at no more");
                for wc in &mut wcs[..count] {
                    (wc.wr_id, number) = (number, number + 1);
                }
                count
            },
            || arms.next().expect("it was empty"),
            |wc| taken.push(wc.wr_id),
        );
        assert!(taken.iter().copied().eq(0..2 * LOT as u64 + 3), "{taken:?}");
        assert_eq!((looks.next(), arms.next()), (None, None));
    }
}
