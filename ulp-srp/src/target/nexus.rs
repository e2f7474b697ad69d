//! The initiators that are logged in: nexuses and their channels.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use futures::future::{AbortHandle, AbortRegistration};
use verbs_core::sync::{Arc, AtomicWaker, Mutex};
use verbs_core::task::{self, OwnWaker};

use super::counters::{Counters, Live};
use crate::iu::{LogoutReason, PortId, Tag};
use crate::scsi::Code;

pub(crate) mod keepalive;
pub(crate) mod login;

/// A channel of this target, in the order of logins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u64);

/// An existing channel.
#[derive(Clone, Debug)]
pub struct ChannelInfo {
    /// Its id.
    pub id: ChannelId,
    /// The initiator's port.
    pub initiator: PortId,
    /// The initiator's address.
    pub peer: SocketAddr,
    /// Its counters.
    pub counters: Counters,
}

/// Unit attentions that an initiator must get before it may use the units.
#[derive(Debug, Default)]
pub(super) struct Nexus {
    attention: Mutex<Vec<(u16, Code)>>,
    /// How many are pending, so no lock is needed when there are none.
    waiting: AtomicUsize,
}

impl Nexus {
    /// Queues a unit attention, to be reported once at the next command.
    pub(super) fn attend(&self, unit: u16, code: Code) {
        let mut attention = self.attention.lock();
        if !attention.contains(&(unit, code)) {
            attention.push((unit, code));
        }
        self.waiting.store(attention.len(), Relaxed);
    }

    /// The oldest pending unit attention of that unit.
    pub(super) fn attention(&self, unit: u16) -> Option<Code> {
        if self.waiting.load(Relaxed) == 0 {
            return None;
        }
        let mut attention = self.attention.lock();
        let at = attention.iter().position(|(number, _)| *number == unit)?;
        let (_, code) = attention.remove(at);
        self.waiting.store(attention.len(), Relaxed);
        Some(code)
    }
}

/// What other code asks of a channel.
#[derive(Debug)]
pub(super) enum Order {
    /// End, and notify the initiator of the reason.
    End(LogoutReason),
    /// Abort the commands on a unit. Commands of other initiators are answered; `ticket` is dropped when all have
    /// ended.
    Abort { unit: u16, ticket: Arc<Ticket> },
    /// All tasks that the task management request in that slot covers have ended.
    Managed(u16),
    /// Change the request limit.
    Adjust(i32),
    /// Report an event.
    Event { unit: u16, code: Code },
}

/// The part of a channel that other code can reach.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) id: ChannelId,
    pub(super) initiator: PortId,
    pub(super) peer: SocketAddr,
    pub(super) nexus: Arc<Nexus>,
    pub(super) live: Live,
    orders: Mutex<Vec<Order>>,
    /// Whether there are orders, so no lock is needed when there are none.
    ordered: AtomicBool,
    pub(super) waker: AtomicWaker,
}

impl Shared {
    pub(super) fn order(&self, order: Order) {
        self.orders.lock().push(order);
        self.ordered.store(true, Relaxed);
        if let Some(waker) = self.waker.take() {
            task::wake(waker);
        }
    }

    pub(super) fn take_orders(&self) -> Vec<Order> {
        if !self.ordered.load(Relaxed) {
            return Vec::new();
        }
        let mut orders = self.orders.lock();
        self.ordered.store(false, Relaxed);
        std::mem::take(&mut *orders)
    }

    pub(super) fn info(&self) -> ChannelInfo {
        ChannelInfo {
            id: self.id,
            initiator: self.initiator,
            peer: self.peer,
            counters: self.live.snapshot(),
        }
    }
}

/// Held by every task that a task management request covers; when the last one ends, the request is answered.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(super) channel: Arc<Shared>,
    pub(super) slot: u16,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.channel.order(Order::Managed(self.slot));
    }
}

/// All channels.
#[derive(Debug, Default)]
pub(super) struct Hall {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    closing: bool,
    /// Logins that were answered but not confirmed, oldest first.
    half_open: Vec<HalfOpen>,
    channels: Vec<Arc<Shared>>,
    /// Tasks that wait for channels to end.
    waiting: Vec<Waker>,
    /// The counters of channels that have ended.
    past: Counters,
}

/// An answered login: its sender may never receive the answer.
#[derive(Debug)]
struct HalfOpen {
    number: u64,
    from: IpAddr,
    abort: AbortHandle,
}

/// Why there is no room for another channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    Closing,
    Full,
}

/// A place among the half-open logins.
pub(super) struct Place<'h> {
    hall: &'h Hall,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.hall.state.lock();
        let at = state
            .half_open
            .iter()
            .position(|it| it.number == self.number);
        let gone = at.map(|at| state.half_open.remove(at));
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        // Its destructor is foreign code, as wakers are.
        drop(gone);
        waiting.into_iter().for_each(task::wake);
    }
}

impl Hall {
    /// A login has arrived from that address. It is half open until its sender has confirmed the answer, which
    /// takes a real sender one round trip. The oldest one is dropped for it: one of the same address if that has
    /// `each` of them, or else one of the address that has most, if there are `max`.
    pub(super) fn arrive(
        &self,
        from: IpAddr,
        each: u32,
        max: u32,
    ) -> Result<(Place<'_>, AbortRegistration), NoRoom> {
        let (abort, registration) = AbortHandle::new_pair();
        let mut state = self.state.lock();
        if state.closing {
            return Err(NoRoom::Closing);
        }
        let of = |state: &State, ip| state.half_open.iter().filter(|it| it.from == ip).count();
        let crowded = match of(&state, from) >= each as usize {
            true => Some(from),
            false if state.half_open.len() < max as usize => None,
            // If several addresses have that many, the one with the oldest first login.
            false => (state.half_open.iter().rev())
                .max_by_key(|it| of(&state, it.from))
                .map(|it| it.from),
        };
        let oldest = crowded.and_then(|ip| state.half_open.iter().position(|it| it.from == ip));
        let out = oldest.map(|at| state.half_open.remove(at));
        let number = state.next;
        state.next += 1;
        state.half_open.push(HalfOpen {
            number,
            from,
            abort,
        });
        drop(state);
        if let Some(out) = out {
            out.abort.abort();
        }
        Ok((Place { hall: self, number }, registration))
    }

    /// Whether there is room for another channel of that initiator (in single mode it ends the existing ones),
    /// and whether the initiator has channels.
    pub(super) fn look(&self, initiator: PortId, single: bool, max: u32) -> Result<bool, NoRoom> {
        let state = self.state.lock();
        let same = |other: &&Arc<Shared>| other.initiator == initiator;
        state.has_room(initiator, single, max)?;
        Ok(state.channels.iter().any(|other| same(&other)))
    }

    /// Adds a channel of that initiator, whose units are `units`. In single mode, the initiator's other channels
    /// get the order to end.
    pub(super) fn enter(
        &self,
        (initiator, peer): (PortId, SocketAddr),
        single: bool,
        max: u32,
        units: impl Iterator<Item = u16>,
    ) -> Result<Arc<Shared>, NoRoom> {
        let mut state = self.state.lock();
        state.has_room(initiator, single, max)?;
        let same = |other: &&Arc<Shared>| other.initiator == initiator;
        // The newest one: others may be about to end.
        let nexus = match state.channels.iter().rev().find(same) {
            Some(other) if !single => Arc::clone(&other.nexus),
            _ => {
                let nexus = Arc::new(Nexus::default());
                units.for_each(|unit| nexus.attend(unit, Code::POWER_ON));
                nexus
            }
        };
        let shared = Arc::new(Shared {
            id: ChannelId(state.next),
            initiator,
            peer,
            nexus,
            live: Live::default(),
            orders: Mutex::default(),
            ordered: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        state.next += 1;
        let others: Vec<_> = match single {
            true => state.channels.iter().filter(same).cloned().collect(),
            false => Vec::new(),
        };
        state.channels.push(Arc::clone(&shared));
        drop(state);
        for other in others {
            other.order(Order::End(LogoutReason::MULTICHANNEL));
        }
        Ok(shared)
    }

    /// The channel has ended, and none of its work is in progress.
    pub(super) fn leave(&self, shared: &Arc<Shared>) {
        let mut state = self.state.lock();
        state.channels.retain(|other| !Arc::ptr_eq(other, shared));
        state.past = state.past.plus(shared.live.snapshot());
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(task::wake);
    }

    pub(super) fn channels(&self) -> Vec<Arc<Shared>> {
        self.state.lock().channels.clone()
    }

    pub(super) fn half_open(&self) -> usize {
        self.state.lock().half_open.len()
    }

    /// The counters of all channels, including those that have ended.
    pub(super) fn total(&self) -> Counters {
        let state = self.state.lock();
        let live = state.channels.iter().map(|shared| shared.live.snapshot());
        live.fold(state.past, Counters::plus)
    }

    /// Whether no channel satisfies `is_one`; if one does, `waker` is woken when a channel has ended.
    pub(super) fn is_clear(&self, is_one: impl Fn(&Shared) -> bool, waker: &Waker) -> bool {
        let mut waker = OwnWaker::of(waker);
        let mut state = self.state.lock();
        let clear = !state.channels.iter().any(|shared| is_one(shared));
        if !clear {
            waker.join(&mut state.waiting);
        }
        clear
    }

    /// Ends all channels that satisfy `is_one`; returns their number.
    pub(super) fn end(&self, is_one: impl Fn(&Shared) -> bool, reason: LogoutReason) -> usize {
        let ended = self.channels().into_iter().filter(|shared| is_one(shared));
        ended.map(|shared| shared.order(Order::End(reason))).count()
    }

    /// Whether nothing is left, as [`Hall::is_clear`].
    pub(super) fn is_empty(&self, waker: &Waker) -> bool {
        let no_channels = self.is_clear(|_| true, waker);
        let mut waker = OwnWaker::of(waker);
        let mut state = self.state.lock();
        let empty = no_channels && state.half_open.is_empty();
        if !empty {
            waker.join(&mut state.waiting);
        }
        empty
    }

    /// No new channel is accepted, and the existing ones end.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closing = true;
        let half_open: Vec<_> = state.half_open.iter().map(|it| it.abort.clone()).collect();
        drop(state);
        half_open.iter().for_each(AbortHandle::abort);
        self.end(|_| true, LogoutReason::UNSPECIFIED);
    }
}

impl State {
    fn has_room(&self, initiator: PortId, single: bool, max: u32) -> Result<(), NoRoom> {
        let stays = |other: &&Arc<Shared>| !single || other.initiator != initiator;
        match self.channels.iter().filter(stays).count() {
            _ if self.closing => Err(NoRoom::Closing),
            count if count >= max as usize => Err(NoRoom::Full),
            _ => Ok(()),
        }
    }
}

/// The tag of this side's requests to the initiator.
pub(super) const OUR_TAG: Tag = Tag(0x7461_7267_6574);

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use verbs_core::collect;

    use super::*;

    struct Returns(Arc<Shared>, Arc<Mutex<usize>>);

    impl Wake for Returns {
        fn wake(self: Arc<Self>) {
            *self.1.try_lock().expect("its caller has let go") += self.0.take_orders().len();
        }
    }

    /// Goal: a waker runs under no lock (K4). Method: a caller holds a lock and collects what becomes due; the
    /// waker takes the lock and calls the channel again.
    #[test]
    fn k4_a_waker_may_take_the_lock_of_its_caller() {
        let shared = Arc::new(Shared {
            id: ChannelId(1),
            initiator: PortId::default(),
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            nexus: Arc::default(),
            live: Live::default(),
            orders: Mutex::default(),
            ordered: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        let lock = Arc::new(Mutex::new(0));
        let returns = Returns(Arc::clone(&shared), Arc::clone(&lock));
        shared.waker.register(&Waker::from(Arc::new(returns)));
        collect(|| {
            let _held = lock.lock();
            shared.order(Order::Adjust(1));
        });
        assert_eq!(*lock.lock(), 1, "the order is taken");
    }
}
