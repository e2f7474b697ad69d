//! What is transmitted next.

use super::Machine;
use super::message::Packet;
use super::state::State;
use super::transmit::Fragment;
use crate::wire::{Extension, Extensions, FRAGMENT_LEN, Header, HeaderFlags};

/// What is transmitted next.
pub(super) enum Turn {
    /// A message, or the next part of one.
    Message,
    /// The congestion map, or the next part of it.
    Map,
    /// A packet without payload, with these extension headers.
    Control(Extensions),
}

impl Machine {
    /// Whether there may be something to transmit, as far as one look can tell.
    #[inline]
    pub fn has_turn(&self) -> bool {
        self.transmit.is_ready()
            || self.ack_due
            || self.announce
            || self.map_due.is_some()
            || self.map_sending.is_some()
            || self.credits.is_due()
    }

    /// What is transmitted next; its credit is taken.
    pub(super) fn choose(&mut self) -> Option<Turn> {
        if self.state != State::Up {
            return None;
        }
        if self.announce {
            let has_credit = self.credits.take(true);
            self.announce = !has_credit;
            let extension = Extension::Generation(self.terms.generation);
            return has_credit.then(|| Turn::Control(Extensions::one(extension)));
        }
        let is_sent = |(map, offset): &mut (Box<[u8]>, usize)| *offset >= map.len();
        let _sent = self.map_sending.take_if(is_sent);
        let is_inside = self.transmit.is_inside();
        let is_map = self.map_sending.is_some() || self.map_due.is_some();
        if is_map && !is_inside && self.credits.take(false) {
            return Some(Turn::Map);
        }
        let is_message = self.transmit.is_ready() && self.map_sending.is_none();
        if (is_inside || is_message) && self.credits.take(false) {
            return Some(Turn::Message);
        }
        let is_due = (self.ack_due || self.credits.is_due()) && !self.control_in_flight;
        (is_due && self.credits.take(true)).then(|| Turn::Control(Extensions::default()))
    }

    /// Whether a message that is queued now would be transmitted next, with nothing before it.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.state == State::Up
            && !self.transmit.is_ready()
            && !self.announce
            && self.map_due.is_none()
            && self.map_sending.is_none()
    }

    pub(super) fn message(&mut self) -> Option<Packet<'_>> {
        let (ack, credit) = self.rides();
        let Fragment {
            header,
            payload,
            ends,
            rdma,
        } = self.transmit.next()?;
        let header = Header {
            ack,
            credit,
            ..header
        };
        Some(Packet {
            header: header.emit(),
            payload,
            ends,
            control: false,
            rdma,
        })
    }

    pub(super) fn map(&mut self) -> Option<Packet<'_>> {
        let (ack, credit) = self.rides();
        if self.map_sending.is_none() {
            self.map_sending = self.map_due.take().map(|map| (map, 0));
        }
        let (map, offset) = self.map_sending.as_mut()?;
        let begin = *offset;
        *offset = map.len().min(begin + FRAGMENT_LEN);
        let header = Header {
            len: map.len() as u32,
            flags: HeaderFlags::CONGESTION,
            ack,
            credit,
            ..Header::default()
        };
        Some(Packet {
            header: header.emit(),
            payload: map.get(begin..*offset).unwrap_or_default(),
            ends: *offset == map.len(),
            control: false,
            rdma: None,
        })
    }

    pub(super) fn control(&mut self, extensions: Extensions) -> Packet<'static> {
        self.control_in_flight = true;
        let (ack, credit) = self.rides();
        let header = Header {
            extensions,
            ack,
            credit,
            ..Header::default()
        };
        Packet {
            header: header.emit(),
            payload: &[],
            ends: true,
            control: true,
            rdma: None,
        }
    }

    /// What travels with every packet: the acknowledgement, and credits for the peer.
    #[inline]
    pub(super) fn rides(&mut self) -> (u64, u8) {
        self.ack_due = false;
        self.counts.packets += 1;
        (self.receive.ack(), self.credits.grant())
    }
}
