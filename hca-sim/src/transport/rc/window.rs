//! What the requester has sent and not seen answered: from the oldest packet that nobody has confirmed
//! to the next new one.
//!
//! ```text
//!        base, acked                cursor                          begun
//!   ---------|-------------------------|------------------------------|-----------
//!    retired |  sent, not confirmed    |  to be sent again, or first  |  not begun
//!           una                        |<-- sent at least once, `sent` from una -->
//! ```
//!
//! Positions are those of the send ring. Distances are counted from the oldest unconfirmed packet on, so
//! that they need no half-circle rule and one READ may take 2^23 numbers.

use verbs_core::{Error, Psn, WcOpcode};

use crate::queue::base::memory::allocate;

/// Numbers that may be outstanding: with more, the responder would take a repetition for something new.
const SPAN_MAX: u32 = 1 << 23;

/// How a message is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::transport) enum Kind {
    /// By an acknowledgement: SEND and WRITE.
    #[default]
    Plain,
    /// By data, one packet of it for each number.
    Read,
    /// By a value.
    Atomic,
    /// By a READ response without data: ATOMIC WRITE and FLUSH.
    Done,
    /// Not at all: nothing is sent, and it takes no number.
    Local,
}

/// A message that has begun.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::transport) struct Flight {
    pub(in crate::transport) wr_id: u64,
    pub(in crate::transport) first: Psn,
    /// Numbers that it takes: at least 1, but for those that send nothing.
    pub(in crate::transport) packets: u32,
    /// Bytes.
    pub(in crate::transport) len: u32,
    pub(in crate::transport) kind: Kind,
    pub(in crate::transport) opcode: WcOpcode,
    pub(in crate::transport) signaled: bool,
    /// Of a READ: with which packet the last request for it began.
    pub(in crate::transport) asked_from: u32,
}

/// The next packet to send: of which message, and which of its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) at: u32,
    pub(super) packet: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Window {
    flights: Box<[Flight]>,
    mask: u32,
    base: u32,
    /// Packets of the oldest message that are confirmed.
    acked: u32,
    /// The oldest number that is not confirmed.
    una: Psn,
    cursor: Cursor,
    begun: u32,
    /// The number of the next message.
    next: Psn,
    /// Numbers from `una` on that were used at least once.
    sent: u32,
    /// Between `una` and the cursor: request packets, READs and atomics, and READ response packets.
    requests: u32,
    reads: u32,
    responses: u32,
}

impl Window {
    /// For as many messages as the send queue holds, 32 bytes each.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn new(max_send_wr: u32) -> Result<Self, Error> {
        let count = max_send_wr.max(1).next_power_of_two();
        Ok(Self {
            flights: allocate(count as usize, Flight::default)?,
            mask: count - 1,
            base: 0,
            acked: 0,
            una: Psn::new(0),
            cursor: Cursor::default(),
            begun: 0,
            next: Psn::new(0),
            sent: 0,
            requests: 0,
            reads: 0,
            responses: 0,
        })
    }

    /// Nothing outstanding, from that number on.
    pub(super) fn start(&mut self, psn: Psn) {
        self.base = self.begun;
        self.una = psn;
        self.next = psn;
        self.sent = 0;
        self.go_to(self.begun, 0);
        self.acked = 0;
        self.go_back();
    }

    /// Nothing is outstanding and the ring goes on at that position.
    pub(super) fn go_on_at(&mut self, at: u32) {
        debug_assert!(self.is_idle());
        self.base = at;
        self.begun = at;
        self.go_to(at, 0);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.base == self.begun
    }

    pub(super) fn base(&self) -> u32 {
        self.base
    }

    pub(super) fn begun(&self) -> u32 {
        self.begun
    }

    pub(super) fn cursor(&self) -> Cursor {
        self.cursor
    }

    pub(super) fn acked(&self) -> u32 {
        self.acked
    }

    pub(super) fn next(&self) -> Psn {
        self.next
    }

    pub(super) fn requests(&self) -> u32 {
        self.requests
    }

    pub(super) fn reads(&self) -> u32 {
        self.reads
    }

    pub(super) fn responses(&self) -> u32 {
        self.responses
    }

    /// How far that number is from the oldest unconfirmed one.
    pub(super) fn distance(&self, psn: Psn) -> u32 {
        Psn::new(psn.value().wrapping_sub(self.una.value())).value()
    }

    /// Whether an answer to that number makes sense: it was sent and is not confirmed.
    pub(super) fn awaits(&self, psn: Psn) -> bool {
        self.distance(psn) < self.sent
    }

    /// Whether something was sent that is not confirmed.
    pub(super) fn is_outstanding(&self) -> bool {
        self.sent != 0
    }

    pub(super) fn flight(&self, at: u32) -> &Flight {
        &self.flights[(at & self.mask) as usize]
    }

    pub(super) fn flight_mut(&mut self, at: u32) -> &mut Flight {
        &mut self.flights[(at & self.mask) as usize]
    }

    /// The oldest message that is not retired.
    pub(super) fn oldest(&self) -> Option<&Flight> {
        (!self.is_idle()).then(|| self.flight(self.base))
    }

    /// Whether there are numbers for another message of so many packets.
    pub(super) fn has_numbers(&self, packets: u32) -> bool {
        self.distance(self.next).saturating_add(packets) <= SPAN_MAX
    }

    /// A message begins: the next one in the ring, and the cursor is there.
    pub(super) fn begin(&mut self, mut flight: Flight) -> Flight {
        flight.first = self.next;
        self.next = self.next.add(flight.packets);
        *self.flight_mut(self.begun) = flight;
        self.begun = self.begun.wrapping_add(1);
        flight
    }

    /// The number at the cursor, and whether it was used before.
    pub(super) fn psn(&self, flight: &Flight) -> (Psn, bool) {
        let psn = flight.first.add(self.cursor.packet);
        (psn, self.awaits(psn))
    }

    /// A packet of a SEND or WRITE went out.
    pub(super) fn passed_packet(&mut self, flight: &Flight) {
        self.requests += 1;
        self.pass(flight, 1);
    }

    /// The request of a READ or an atomic went out, for all that is missing of it.
    pub(super) fn passed_request(&mut self, flight: &Flight) {
        let at = self.cursor;
        let missing = flight.packets - at.packet;
        self.flight_mut(at.at).asked_from = at.packet;
        self.requests += 1;
        self.reads += 1;
        self.responses += missing;
        self.pass(flight, missing);
    }

    /// A work request at the cursor that sends nothing was carried out.
    pub(super) fn passed_local(&mut self) {
        self.cursor = Cursor {
            at: self.cursor.at.wrapping_add(1),
            packet: 0,
        };
    }

    fn pass(&mut self, flight: &Flight, packets: u32) {
        self.cursor.packet += packets;
        let end = self.distance(flight.first.add(self.cursor.packet - 1)) + 1;
        self.sent = self.sent.max(end);
        if self.cursor.packet == flight.packets {
            self.cursor = Cursor {
                at: self.cursor.at.wrapping_add(1),
                packet: 0,
            };
        }
    }

    /// So many packets of the oldest message are confirmed, or so much of it has come.
    pub(super) fn confirm(&mut self, packets: u32) {
        let kind = self.flight(self.base).kind;
        self.una = self.una.add(packets);
        self.sent = self.sent.saturating_sub(packets);
        self.acked += packets;
        match kind {
            Kind::Plain => self.requests = self.requests.saturating_sub(packets),
            Kind::Local => {}
            Kind::Read | Kind::Atomic | Kind::Done => {
                self.responses = self.responses.saturating_sub(packets);
            }
        }
        if self.cursor.at == self.base && self.cursor.packet < self.acked {
            self.go_back();
        }
    }

    /// Whether the oldest message is confirmed as a whole.
    pub(super) fn is_confirmed(&self) -> bool {
        self.oldest()
            .is_some_and(|flight| self.acked == flight.packets)
    }

    /// The oldest message, confirmed as a whole, is done with.
    pub(super) fn retire(&mut self) {
        if matches!(
            self.flight(self.base).kind,
            Kind::Read | Kind::Atomic | Kind::Done
        ) {
            self.reads = self.reads.saturating_sub(1);
            self.requests = self.requests.saturating_sub(1);
        }
        let is_behind = self.cursor.at == self.base;
        self.base = self.base.wrapping_add(1);
        self.acked = 0;
        if is_behind {
            self.go_back();
        }
    }

    /// Everything that is not confirmed is to be sent again.
    pub(super) fn go_back(&mut self) {
        self.go_to(self.base, self.acked);
    }

    /// The packet before the cursor, which is the last one of a SEND or WRITE and not confirmed, is to
    /// be sent again.
    pub(super) fn step_back(&mut self) {
        let at = self.cursor.at.wrapping_sub(1);
        self.cursor = Cursor {
            at,
            packet: self.flight(at).packets - 1,
        };
        self.requests = self.requests.saturating_sub(1);
    }

    fn go_to(&mut self, at: u32, packet: u32) {
        self.cursor = Cursor { at, packet };
        self.requests = 0;
        self.reads = 0;
        self.responses = 0;
    }
}
