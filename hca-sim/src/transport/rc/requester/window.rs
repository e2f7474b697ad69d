//! The packets that the requester has sent and not seen answered: from the oldest unconfirmed packet to the next new
//! one.
//!
//! ```text
//!        base, acked                cursor                          begun
//!   ---------|-------------------------|------------------------------|-----------
//!    retired |  sent, not confirmed    |  to be sent again, or first  |  not begun
//!           una                        |<-- sent at least once, `sent` from una -->
//! ```
//!
//! Positions are those of the send ring. Distances are counted from the oldest unconfirmed packet on, so they need no
//! half-circle rule and one READ may take 2^23 numbers.

use verbs_core::{Error, Psn, WcOpcode};

use crate::queue::base::memory::allocate;

/// Numbers that may be outstanding: with more, the responder would mistake a repetition for a new request.
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
    /// The numbers that it takes: at least 1, except for messages that send nothing.
    pub(in crate::transport) packets: u32,
    /// Bytes.
    pub(in crate::transport) len: u32,
    pub(in crate::transport) kind: Kind,
    pub(in crate::transport) opcode: WcOpcode,
    pub(in crate::transport) signaled: bool,
    /// For a READ: the packet with which the last request for it began, and the one before which it ended, unless it
    /// requested everything that is missing.
    pub(in crate::transport) asked_from: u32,
    pub(in crate::transport) asked_to: Option<u32>,
    /// A part of it that is not its end was requested: answers to that and to earlier requests mix.
    pub(in crate::transport) is_patched: bool,
}

/// The next packet to send: its message, and its number within the message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::transport::rc) struct Cursor {
    pub(in crate::transport::rc) at: u32,
    pub(in crate::transport::rc) packet: u32,
}

/// How far sending has got.
#[derive(Clone, Copy, Debug, Default)]
struct Front {
    cursor: Cursor,
    /// Between `una` and the cursor: request packets, READs and atomics, and READ response packets.
    requests: u32,
    reads: u32,
    responses: u32,
}

impl Front {
    fn at(at: u32, packet: u32) -> Self {
        Self {
            cursor: Cursor { at, packet },
            ..Self::default()
        }
    }

    /// That many packets of the oldest message, at that position, are confirmed: `acked` of it now. Returns whether
    /// they were before the cursor.
    fn confirm(&mut self, kind: Kind, packets: u32, base: u32, acked: u32) -> bool {
        match kind {
            Kind::Plain => self.requests = self.requests.saturating_sub(packets),
            Kind::Local => {}
            Kind::Read | Kind::Atomic | Kind::Done => {
                self.responses = self.responses.saturating_sub(packets);
            }
        }
        let is_behind = self.cursor.at == base && self.cursor.packet < acked;
        if is_behind {
            *self = Self::at(base, acked);
        }
        !is_behind
    }

    /// The oldest message, at that position, is finished. Returns whether the cursor was behind it.
    fn retire(&mut self, kind: Kind, base: u32) -> bool {
        if matches!(kind, Kind::Read | Kind::Atomic | Kind::Done) {
            self.reads = self.reads.saturating_sub(1);
            self.requests = self.requests.saturating_sub(1);
        }
        let is_there = self.cursor.at == base;
        if is_there {
            *self = Self::at(base.wrapping_add(1), 0);
        }
        !is_there
    }
}

/// Packets that are sent again while sending has got further.
#[derive(Clone, Copy, Debug)]
struct Patch {
    /// Where sending continues afterwards.
    ahead: Front,
    /// Packets that are still to be sent again.
    left: u32,
    /// The number behind all that had been sent before.
    end: Psn,
}

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::transport::rc) struct Window {
    flights: Box<[Flight]>,
    mask: u32,
    base: u32,
    /// Packets of the oldest message that are confirmed.
    acked: u32,
    /// The oldest number that is not confirmed.
    una: Psn,
    front: Front,
    patch: Option<Patch>,
    /// The number behind the packets of SENDs and WRITEs that were last sent again in part; and the number behind
    /// everything that had been sent before.
    patched: Option<(Psn, Psn)>,
    /// Packets were confirmed that had not been sent again yet, when everything was to be sent again.
    overtaken: bool,
    begun: u32,
    /// The number of the next message.
    next: Psn,
    /// Numbers from `una` on that were used at least once.
    sent: u32,
}

impl Window {
    /// For as many messages as the send queue holds, 32 bytes each.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(in crate::transport::rc) fn new(max_send_wr: u32) -> Result<Self, Error> {
        let count = max_send_wr.max(1).next_power_of_two();
        Ok(Self {
            flights: allocate(count as usize, Flight::default)?,
            mask: count - 1,
            base: 0,
            acked: 0,
            una: Psn::new(0),
            front: Front::default(),
            patch: None,
            patched: None,
            overtaken: false,
            begun: 0,
            next: Psn::new(0),
            sent: 0,
        })
    }

    /// Nothing outstanding, from that number on.
    pub(in crate::transport::rc) fn start(&mut self, psn: Psn) {
        self.base = self.begun;
        self.una = psn;
        self.next = psn;
        self.sent = 0;
        self.acked = 0;
        self.go_back();
    }

    /// Nothing is outstanding and the ring continues at that position.
    pub(in crate::transport::rc) fn go_on_at(&mut self, at: u32) {
        debug_assert!(self.is_idle());
        self.base = at;
        self.begun = at;
        self.acked = 0;
        self.go_back();
    }

    pub(in crate::transport::rc) fn is_idle(&self) -> bool {
        self.base == self.begun
    }

    pub(in crate::transport::rc) fn base(&self) -> u32 {
        self.base
    }

    pub(in crate::transport::rc) fn begun(&self) -> u32 {
        self.begun
    }

    pub(in crate::transport::rc) fn cursor(&self) -> Cursor {
        self.front.cursor
    }

    pub(in crate::transport::rc) fn acked(&self) -> u32 {
        self.acked
    }

    pub(in crate::transport::rc) fn next(&self) -> Psn {
        self.next
    }

    pub(in crate::transport::rc) fn requests(&self) -> u32 {
        self.front.requests
    }

    pub(in crate::transport::rc) fn reads(&self) -> u32 {
        self.front.reads
    }

    pub(in crate::transport::rc) fn responses(&self) -> u32 {
        self.front.responses
    }

    /// The oldest number that is not confirmed.
    pub(in crate::transport::rc) fn una(&self) -> Psn {
        self.una
    }

    /// The number behind all that was sent.
    pub(in crate::transport::rc) fn end(&self) -> Psn {
        self.una.add(self.sent)
    }

    /// How far that number is behind the oldest unconfirmed one.
    pub(in crate::transport::rc) fn distance(&self, psn: Psn) -> u32 {
        Psn::new(psn.value().wrapping_sub(self.una.value())).value()
    }

    /// Whether an answer to that number is meaningful: it was sent and is not confirmed.
    pub(in crate::transport::rc) fn awaits(&self, psn: Psn) -> bool {
        self.distance(psn) < self.sent
    }

    /// Whether something was sent that is not confirmed.
    pub(in crate::transport::rc) fn is_outstanding(&self) -> bool {
        self.sent != 0
    }

    pub(in crate::transport::rc) fn flight(&self, at: u32) -> &Flight {
        &self.flights[(at & self.mask) as usize]
    }

    pub(in crate::transport::rc) fn flight_mut(&mut self, at: u32) -> &mut Flight {
        &mut self.flights[(at & self.mask) as usize]
    }

    /// The oldest message that is not retired.
    pub(in crate::transport::rc) fn oldest(&self) -> Option<&Flight> {
        (!self.is_idle()).then(|| self.flight(self.base))
    }

    /// Whether there are enough numbers for another message of that many packets.
    pub(in crate::transport::rc) fn has_numbers(&self, packets: u32) -> bool {
        self.distance(self.next).saturating_add(packets) <= SPAN_MAX
    }

    /// A message begins: the next one in the ring, and the cursor is there.
    pub(in crate::transport::rc) fn begin(&mut self, mut flight: Flight) -> Flight {
        flight.first = self.next;
        self.next = self.next.add(flight.packets);
        *self.flight_mut(self.begun) = flight;
        self.begun = self.begun.wrapping_add(1);
        flight
    }

    /// The number at the cursor, and whether it was used before.
    #[inline(always)]
    pub(in crate::transport::rc) fn psn(&self, flight: &Flight) -> (Psn, bool) {
        let psn = flight.first.add(self.front.cursor.packet);
        (psn, self.awaits(psn))
    }

    /// So many packets of a SEND or WRITE went out, as one; of those that are sent again, each by itself.
    #[inline(always)]
    pub(in crate::transport::rc) fn passed_packets(&mut self, flight: &Flight, packets: u32) {
        debug_assert!(packets == 1 || self.patch.is_none());
        self.front.requests += packets;
        let end = self.pass(flight, packets);
        if let Some(patch) = self.patch {
            self.patched = Some((end, patch.end));
            self.passed_again();
        }
    }

    /// The oldest message is a READ of which only that many packets are missing, or all to its end.
    pub(in crate::transport::rc) fn ask_for(&mut self, packets: Option<u32>) {
        let to = packets.map(|packets| self.acked.saturating_add(packets));
        let flight = self.flight_mut(self.base);
        flight.asked_to = to.filter(|&to| to < flight.packets);
        flight.is_patched |= flight.asked_to.is_some();
    }

    /// The request of a READ or an atomic went out, for all that is missing of it.
    pub(in crate::transport::rc) fn passed_request(&mut self, flight: &Flight) {
        let at = self.front.cursor;
        let missing = flight.packets - at.packet;
        let flight_mut = self.flight_mut(at.at);
        flight_mut.asked_from = at.packet;
        // If it is requested once more, then to its end.
        flight_mut.asked_to = None;
        self.front.requests += 1;
        self.front.reads += 1;
        self.front.responses += missing;
        self.pass(flight, missing);
        if self.patch.is_some() {
            // Its answers confirm it piece by piece.
            self.patched = None;
            self.passed_again();
        }
    }

    /// A work request at the cursor that sends nothing was carried out.
    pub(in crate::transport::rc) fn passed_local(&mut self) {
        self.front.cursor = Cursor {
            at: self.front.cursor.at.wrapping_add(1),
            packet: 0,
        };
        self.end_patch();
    }

    /// The number behind what was passed.
    #[inline(always)]
    fn pass(&mut self, flight: &Flight, packets: u32) -> Psn {
        let cursor = &mut self.front.cursor;
        cursor.packet += packets;
        let end = flight.first.add(cursor.packet);
        if cursor.packet == flight.packets {
            *cursor = Cursor {
                at: cursor.at.wrapping_add(1),
                packet: 0,
            };
        }
        self.sent = self.sent.max(self.distance(end.add(u32::MAX)) + 1);
        end
    }

    /// That many packets of the oldest message are confirmed, or that much of it has arrived.
    pub(in crate::transport::rc) fn confirm(&mut self, packets: u32) {
        let kind = self.flight(self.base).kind;
        self.una = self.una.add(packets);
        self.sent = self.sent.saturating_sub(packets);
        self.acked += packets;
        let (base, acked) = (self.base, self.acked);
        let was_sent = self.front.confirm(kind, packets, base, acked);
        match &mut self.patch {
            Some(patch) => {
                patch.ahead.confirm(kind, packets, base, acked);
                if !was_sent {
                    patch.left = patch.left.saturating_sub(packets);
                }
                self.end_patch();
            }
            None => self.overtaken |= !was_sent,
        }
    }

    /// Whether the oldest message is confirmed as a whole.
    pub(in crate::transport::rc) fn is_confirmed(&self) -> bool {
        self.oldest()
            .is_some_and(|flight| self.acked == flight.packets)
    }

    /// The oldest message, confirmed as a whole, is finished.
    pub(in crate::transport::rc) fn retire(&mut self) {
        let (kind, base) = (self.flight(self.base).kind, self.base);
        self.front.retire(kind, base);
        if let Some(patch) = &mut self.patch {
            patch.ahead.retire(kind, base);
        }
        self.base = base.wrapping_add(1);
        self.acked = 0;
        self.end_patch();
    }

    /// Everything that is not confirmed is to be sent again.
    pub(in crate::transport::rc) fn go_back(&mut self) {
        self.front = Front::at(self.base, self.acked);
        self.patch = None;
        self.patched = None;
        self.overtaken = false;
    }

    /// That many of the oldest unconfirmed packets are to be sent again, if they were sent.
    pub(in crate::transport::rc) fn send_again(&mut self, packets: u32) {
        let ahead = self.patch.map_or(self.front, |patch| patch.ahead);
        self.patch = Some(Patch {
            ahead,
            left: packets,
            end: self.end(),
        });
        self.patched = None;
        self.front = Front::at(self.base, self.acked);
        self.end_patch();
    }

    /// Whether the packet at the cursor is sent again while sending has got further.
    pub(in crate::transport::rc) fn is_patching(&self) -> bool {
        self.patch.is_some()
    }

    /// Whether the packet at the cursor is the last one that is sent again for now.
    pub(in crate::transport::rc) fn ends_patch(&self) -> bool {
        self.patch.is_some_and(|patch| patch.left == 1)
    }

    fn passed_again(&mut self) {
        if let Some(patch) = &mut self.patch {
            patch.left -= 1;
            self.end_patch();
        }
    }

    /// Continues where sending had got to, if enough was sent again.
    fn end_patch(&mut self) {
        let Some(patch) = self.patch else { return };
        let behind = |cursor: Cursor| (cursor.at.wrapping_sub(self.base), cursor.packet);
        if patch.left == 0 || behind(self.front.cursor) >= behind(patch.ahead.cursor) {
            self.front = patch.ahead;
            self.patch = None;
        }
    }

    /// The outcome of packets that were sent again, from the answers since the last call.
    pub(in crate::transport::rc) fn outcome(&mut self) -> Outcome {
        if std::mem::take(&mut self.overtaken) {
            return Outcome::More;
        }
        let arrived = |patched: &mut (Psn, Psn)| self.una.since(patched.0) >= 0;
        let Some((end, before)) = self.patched.take_if(arrived) else {
            return Outcome::Open;
        };
        if self.una != end || end == before {
            Outcome::More
        } else {
            Outcome::Itself
        }
    }

    /// The packet before the cursor, which is the last one of a SEND or WRITE and not confirmed, is to
    /// be sent again.
    pub(in crate::transport::rc) fn step_back(&mut self) {
        let at = self.front.cursor.at.wrapping_sub(1);
        self.front.cursor = Cursor {
            at,
            packet: self.flight(at).packets - 1,
        };
        self.front.requests = self.front.requests.saturating_sub(1);
    }
}

/// The outcome of packets that were sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport::rc) enum Outcome {
    /// It is not known, or there were none.
    Open,
    /// They are confirmed, and nothing else, although more was sent.
    Itself,
    /// More is confirmed than was sent again, or all is.
    More,
}
