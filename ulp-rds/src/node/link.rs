//! A connection as the node knows it, whether there is a queue pair or not.

use std::task::Waker;

use verbs_core::WcStatus;
use verbs_core::time::Instant;

use super::half_open::Arrived as FromPeer;
use super::id::{Key, SocketId};
use super::operations::Operations;
use super::queues::{CONTROL, Completion, Queues, RDMA, Refused, SEND, Slot};
use crate::error::Error;
use crate::machine::{Arrived, Incoming, Machine, Short, State as Stage};
use crate::payload::Pool;
use crate::wire::Header;

/// Times that a driver looks by itself at a completion queue that was left to programs, before it arms it: 100 ms.
const IDLE_MAX: u32 = 100;

/// A connection, and what its driver is told.
pub(crate) struct Link {
    pub(crate) key: Key,
    pub(crate) machine: Machine,
    /// Wakes the driver.
    pub(super) driver: Option<Waker>,
    /// No other link of the node had this number, though its place may have been another one's.
    pub(super) number: u64,
    /// A connection that the peer asked for, which the driver takes when what is there has been taken down.
    pub(super) arrived: Option<Box<FromPeer>>,
    /// Until when the driver leaves it to the peer to make a connection, if it does.
    pub(super) patient_until: Option<Instant>,
    /// When it was lost.
    pub(super) lost_at: Instant,
    /// Why the last attempt to connect has failed, until one succeeds.
    pub(super) error: Option<Box<Error>>,
    /// The queue pair, while one is connected.
    pub(super) queues: Option<Box<Queues>>,
    /// It is of no use any more: its driver takes it down.
    pub(super) is_over: bool,
    /// A program has looked by itself since the driver did.
    pub(super) is_polled: bool,
    /// The completion queue is not armed, as programs look; when the driver looks whether they still do.
    pub(super) is_left: bool,
    pub(super) look_at: Option<Instant>,
    /// Times that the driver has looked since a program did.
    idle: u32,
    /// The sockets that the last datagram and the last acknowledgement were for.
    pub(super) receiver: Option<SocketId>,
    pub(super) source: Option<SocketId>,
}

/// What a completion tells.
pub(super) enum Told {
    Nothing,
    /// A datagram has come.
    Datagram(Incoming),
    /// An operation has ended.
    Operation(u64, WcStatus),
}

impl Link {
    pub(super) fn new(key: Key, machine: Machine) -> Self {
        Self {
            key,
            machine,
            driver: None,
            number: 0,
            arrived: None,
            patient_until: None,
            lost_at: Instant::ZERO,
            error: None,
            queues: None,
            is_over: false,
            is_polled: false,
            is_left: false,
            look_at: None,
            idle: 0,
            receiver: None,
            source: None,
        }
    }

    /// Whether nothing would be lost with it.
    pub(super) fn is_forgettable(&self) -> bool {
        self.arrived.is_none() && self.machine.is_forgettable()
    }

    /// Whether programs look at its completions by themselves, or did lately: a program may have no processor for a while.
    pub(super) fn is_looked_at(&mut self, now: Instant) -> bool {
        if std::mem::take(&mut self.is_polled) {
            self.idle = 0;
            return true;
        }
        let is_due = self.look_at.is_none_or(|at| at <= now);
        self.idle += u32::from(is_due);
        self.is_left && self.idle < IDLE_MAX
    }

    /// Whether its queue pair is connected and is to stay.
    pub(super) fn is_up(&self) -> bool {
        !self.is_over && self.machine.state() == Stage::Up
    }

    /// The next completion of its queue pair; up to so many are polled if none waits.
    #[inline]
    pub(super) fn next(&mut self, width: usize) -> Option<Completion> {
        match self.is_over {
            true => None,
            false => self.queues.as_mut()?.next(width),
        }
    }

    /// Whether something is to be posted, or handed on.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        let queues = self.queues.as_ref();
        self.is_over || !self.machine.is_idle() || queues.is_some_and(|queues| queues.is_due())
    }

    /// Takes a completion, if it is one of a packet that is all of a message for a socket: the packet, and the ports.
    #[inline]
    pub(super) fn single(&mut self, of: &Completion) -> Option<(Slot<'_>, u16, u16)> {
        if of.status != WcStatus::Success || of.id & (SEND | RDMA) != 0 {
            return None;
        }
        let queues = self.queues.as_mut()?;
        let mut bytes = [0; Header::LEN];
        queues.peek(of).read(0, &mut bytes)?;
        let header = Header::parse(&bytes).ok()?;
        let payload = (of.len as usize).checked_sub(Header::LEN)?;
        if !self.machine.handle_single(&header, payload) {
            return None;
        }
        Some((queues.packet(of), header.source, header.destination))
    }

    /// Takes what any other completion tells.
    #[inline(never)]
    pub(super) fn completed(&mut self, of: &Completion, pool: &Pool) -> Told {
        let Some(queues) = &mut self.queues else {
            return Told::Nothing;
        };
        self.is_over |= of.status != WcStatus::Success;
        if of.id & RDMA != 0 {
            return Told::Operation(of.id & !RDMA, of.status);
        }
        if self.is_over {
            return Told::Nothing;
        }
        if of.id & SEND != 0 {
            queues.sent(of.id);
            if of.id & CONTROL != 0 {
                self.machine.control_sent();
            }
            return Told::Nothing;
        }
        let packet = queues.packet(of);
        let handled = self
            .machine
            .handle_packet(&packet, |len| pool.room_for(len));
        match handled {
            Ok(Some(incoming)) => Told::Datagram(incoming),
            Ok(None) => Told::Nothing,
            Err(fault) => {
                tracing::warn!(%fault, remote = %self.key.1, "the connection is dropped");
                self.is_over = true;
                Told::Nothing
            }
        }
    }

    /// Sends a message of one packet at once. `false` if that is not possible now.
    #[inline]
    pub(super) fn transmit_now(&mut self, message: &Short, payload: &[u8]) -> bool {
        let Some(queues) = &mut self.queues else {
            return false;
        };
        match queues.transmit_now(&mut self.machine, message, payload) {
            Ok(is_sent) => is_sent,
            // It is kept, and transmitted again on the next connection.
            Err(Refused) => {
                self.is_over = true;
                true
            }
        }
    }

    /// Posts receives again that are due, and packets that are to be transmitted.
    #[inline]
    pub(super) fn post(&mut self, operations: &mut Operations) {
        let Some(queues) = &mut self.queues else {
            return;
        };
        if self.is_over {
            return;
        }
        while let Some(slot) = self.machine.poll_released() {
            queues.release(slot);
        }
        // Receives are posted before packets that grant credits for them.
        let posted = queues.post_receives(&mut self.machine);
        let posted = posted.and_then(|()| match self.machine.has_turn() {
            true => queues.transmit(&mut self.machine, operations),
            false => Ok(()),
        });
        self.is_over |= posted.is_err();
    }

    /// The queue pair is to be destroyed: yields its queues, which stay as long as that takes.
    pub(super) fn retire(&mut self) -> Option<Box<Queues>> {
        (self.is_polled, self.look_at) = (false, None);
        self.queues.take()
    }
}
