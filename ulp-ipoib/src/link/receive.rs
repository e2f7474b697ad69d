//! Completions: received packets, and buffers that are free again.

use arrayvec::ArrayVec;
use verbs_core::sync::Arc;
use verbs_core::time::Instant;
use verbs_core::{Arm, Armed, Bounce, Recv, Wc, WcStatus, task};

use super::Core;
use super::buffers::{MESSAGE_STRIDE, RECEIVE_STRIDE, Work};
use super::state::{Action, State};
use crate::wire::{GRH_LEN, HEADER_LEN, Protocol};

/// Completions that are taken at a time.
pub(super) const LOT: usize = 32;

/// The state of the completion queue's handler, which runs one call at a time (K14).
pub(super) struct Receiver {
    /// The packet that is being delivered: registered memory is only copied.
    packet: Bounce,
    /// Packets were delivered, and the face was not told yet that there are no more.
    has_delivered: bool,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            packet: Bounce::new(MESSAGE_STRIDE),
            has_delivered: false,
        }
    }
}

impl Receiver {
    /// Takes completions until there are none.
    pub(super) fn turn(&mut self, core: &Arc<Core>) {
        let poll = |wcs: &mut [Wc]| core.cq.lock().poll(wcs).len();
        let arm = || core.cq.lock().arm(Arm::Next);
        drain(poll, arm, |wcs| self.take(core, wcs));
    }

    /// Handles completions that were taken together, or that there are no more: the lock is taken once for all sends
    /// and once for all receives.
    fn take(&mut self, core: &Arc<Core>, wcs: &[Wc]) {
        if wcs.is_empty() {
            if std::mem::take(&mut self.has_delivered) {
                core.face.delivered();
            }
            return;
        }
        let works = || wcs.iter().filter_map(|wc| Some((wc, Work::of(wc.wr_id)?)));
        if works().any(|(_, work)| matches!(work, Work::Send(_))) {
            // What an open batch gathers goes on waiting; what found no room does not.
            core.with_more(true, |state, _| {
                works().for_each(|(wc, work)| core.sent(state, wc, work));
                if state.outbox.is_held() {
                    state.flush();
                }
            });
        }
        let mut receives = ArrayVec::<Received<'_>, LOT>::new();
        for (wc, work) in works() {
            let taken = match work {
                Work::Send(_) => continue,
                Work::Receive(index) => self.datagram(core, wc, index),
                Work::ConnectedReceive(index) => self.message(core, wc, index),
                Work::Drain => {
                    let waiting = core.with(|state, _| state.drained(wc.qpn.value()));
                    if let Some(waiting) = waiting {
                        // The receiver is dropped when the interface is being closed.
                        let _gone = waiting.send(());
                    }
                    continue;
                }
            };
            receives.push(Received { wc, work, taken });
        }
        // There are as many receives again as a lot has, so that a slow face starves no other interface.
        if !receives.is_empty() {
            core.with_more(true, |state, now| core.take_back(state, &receives, now));
        }
    }

    /// Delivers the packet of a receive of the queue pair for datagrams. Returns its length if it counts.
    fn datagram(&mut self, core: &Arc<Core>, wc: &Wc, index: u32) -> Option<usize> {
        let start = index as usize * RECEIVE_STRIDE;
        let len = (wc.byte_len as usize).saturating_sub(GRH_LEN);
        let place = self.packet.get_mut(..len).filter(|_| wc.is_ok())?;
        core.received.read(start + GRH_LEN, place).ok()?;
        if core.is_echo(wc, start) {
            return None;
        }
        self.deliver(core, len);
        Some(len)
    }

    /// Delivers the packet of a receive of the queue that connections share. Returns its length if there is one.
    fn message(&mut self, core: &Arc<Core>, wc: &Wc, index: u32) -> Option<usize> {
        let len = wc.byte_len as usize;
        let place = self.packet.get_mut(..len).filter(|_| wc.is_ok())?;
        let memory = core.messages.as_ref()?;
        memory.read(index as usize * MESSAGE_STRIDE, place).ok()?;
        self.deliver(core, len);
        Some(len)
    }

    /// Looks at a received packet, and passes it on if it is not for the interface itself.
    fn deliver(&mut self, core: &Arc<Core>, len: usize) {
        let message = self.packet.get(..len).unwrap_or_default();
        match Protocol::split(message) {
            Some((Protocol::Arp, body)) => core.with(|state, now| state.take_arp(body, now)),
            Some((Protocol::Ipv6, packet)) => {
                let is_discovery =
                    is_icmpv6(packet) && core.with(|state, now| state.take_nd(packet, now));
                if !is_discovery {
                    core.face.deliver(packet);
                    self.has_delivered = true;
                }
            }
            Some((Protocol::Ipv4, packet)) => {
                core.face.deliver(packet);
                self.has_delivered = true;
            }
            Some((Protocol::Rarp, _)) | None => core.state.lock().counters.unknown += 1,
        }
    }
}

/// A receive that has completed.
struct Received<'w> {
    wc: &'w Wc,
    work: Work,
    /// Bytes of the packet that was taken out of it, with its header.
    taken: Option<usize>,
}

/// Takes completions until there are none and the queue is armed: a completion between the last poll and the
/// arming is already there, and no handler is called for it. An empty lot says that there are none for now.
fn drain(
    mut poll: impl FnMut(&mut [Wc]) -> usize,
    mut arm: impl FnMut() -> Armed,
    mut lot: impl FnMut(&[Wc]),
) {
    let mut wcs = [Wc::default(); LOT];
    loop {
        let taken = poll(&mut wcs);
        lot(wcs.get(..taken).unwrap_or_default());
        if taken == 0 && arm() == Armed::Empty {
            return;
        }
    }
}

/// Whether it may be a message of neighbour discovery.
fn is_icmpv6(packet: &[u8]) -> bool {
    matches!((packet.get(6), packet.get(40)), (Some(58), Some(135 | 136)))
}

impl Core {
    /// A send has completed, if it is one.
    fn sent(&self, state: &mut State, wc: &Wc, work: Work) {
        let Work::Send(slot) = work else { return };
        state.give_back(slot);
        let is_datagram = wc.qpn == self.qp.qpn();
        if is_datagram {
            state.sending -= 1;
        }
        if !wc.is_ok() {
            state.counters.send_errors += 1;
            match is_datagram {
                // Flushed sends are caused by the keeper.
                true if state.reposts => state.actions.push(Action::Restart),
                true => {}
                false => state.connection_broken(wc.qpn),
            }
        }
        if !state.reposts {
            self.drained_if(state);
        }
    }

    /// Counts receives that have completed, and posts them again.
    fn take_back(&self, state: &mut State, receives: &[Received<'_>], now: Instant) {
        let mut datagrams = ArrayVec::<_, LOT>::new();
        let mut messages = ArrayVec::<_, LOT>::new();
        for &Received { wc, work, taken } in receives {
            let bytes = taken.map_or(0, |len| len.saturating_sub(HEADER_LEN));
            state.counters.bytes_received += bytes as u64;
            if let Work::ConnectedReceive(index) = work {
                if let Some(passive) = state.passive.get_mut(&wc.qpn.value()) {
                    passive.used = now;
                }
                // Receives of a queue pair that is taken down complete unused.
                let is_flushed = wc.status == WcStatus::WrFlushErr;
                state.counters.connected_received += u64::from(taken.is_some());
                state.counters.receive_errors += u64::from(taken.is_none() && !is_flushed);
                messages.push(index);
            } else if let Work::Receive(index) = work {
                state.receiving -= 1;
                state.counters.datagrams_received += u64::from(taken.is_some());
                state.counters.receive_errors += u64::from(!wc.is_ok() && state.reposts);
                if state.reposts {
                    datagrams.push(index);
                }
            }
        }
        self.post_datagrams(state, &datagrams);
        self.post_messages(state, &messages);
        if !state.reposts {
            self.drained_if(state);
        }
    }

    /// Whether a datagram is one of the interface's own, returned by its group.
    fn is_echo(&self, wc: &Wc, start: usize) -> bool {
        if wc.src_qpn != self.qp.qpn() {
            return false;
        }
        let mut source = [0; 16];
        let read = self.received.read(start + 8, &mut source);
        let own = self.state.lock().own.gid;
        read.is_ok() && wc.flags.contains(verbs_core::WcFlags::GRH) && own.0 == source
    }

    /// Posts receives for datagrams, at most a lot of them.
    pub(super) fn post_datagrams(&self, state: &mut State, indices: &[u32]) {
        let recvs = indices.iter().map(|&index| {
            let start = index as usize * RECEIVE_STRIDE;
            let room = self.received.slice(start..start + RECEIVE_STRIDE);
            Recv::new(Work::Receive(index).id()).into(room)
        });
        let recvs = recvs.collect::<ArrayVec<_, LOT>>();
        let posted = match state.recv.post_batch(&recvs) {
            Ok(()) => recvs.len(),
            // The others were not posted: the queue pair is in a state that the keeper handles.
            Err(error) => error.posted,
        };
        state.receiving += posted as u32;
        state.counters.receive_errors += (recvs.len() - posted) as u64;
    }

    /// Posts receives for messages, at most a lot of them.
    pub(super) fn post_messages(&self, state: &mut State, indices: &[u32]) {
        let (Some(srq), Some(memory)) = (&mut state.srq, &self.messages) else {
            return;
        };
        let recvs = indices.iter().map(|&index| {
            let start = index as usize * MESSAGE_STRIDE;
            let room = memory.slice(start..start + MESSAGE_STRIDE);
            Recv::new(Work::ConnectedReceive(index).id()).into(room)
        });
        let recvs = recvs.collect::<ArrayVec<_, LOT>>();
        if let Err(error) = srq.post_batch(&recvs) {
            state.counters.receive_errors += (recvs.len() - error.posted) as u64;
        }
    }

    /// Wakes the keeper when everything has completed.
    pub(super) fn drained_if(&self, state: &State) {
        if state.receiving == 0 && state.sending == 0 {
            // The caller holds the lock.
            if let Some(waker) = self.drained.take() {
                task::wake(waker);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a completion between the last poll and the arming is taken. Method: a queue that reports once that
    /// something waits, and one that fills whole batches.
    #[test]
    fn what_waits_when_the_queue_is_armed_is_taken() {
        let mut looks = [0, 2, 0, LOT, LOT, 1, 0].into_iter();
        let mut arms = [Armed::Waiting, Armed::Waiting, Armed::Empty].into_iter();
        let (mut taken, mut lots, mut number) = (Vec::new(), Vec::new(), 0);
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
            |wcs| {
                lots.push(wcs.len());
                taken.extend(wcs.iter().map(|wc| wc.wr_id));
            },
        );
        assert_eq!(
            lots,
            [0, 2, 0, LOT, LOT, 1, 0],
            "an empty one ends each row"
        );
        assert!(taken.iter().copied().eq(0..2 * LOT as u64 + 3), "{taken:?}");
        assert_eq!((looks.next(), arms.next()), (None, None));
    }
}
