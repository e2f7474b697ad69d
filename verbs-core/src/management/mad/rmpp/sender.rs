//! The sending end of a transfer.

use crate::mad::header::MadBytes;
use crate::mad::rmpp::{Kind, Layout, RmppConfig, RmppFlags, RmppHeader, RmppStatus, VERSION};
use crate::mad::time_code::TimeCode;
use crate::time::Instant;

/// How a transfer ended for its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The receiver has all of it.
    Done,
    /// The receiver ended it, or did not keep to the protocol, or did not answer
    /// ([`RmppStatus::TOO_MANY_RETRIES`]).
    Failed(RmppStatus),
}

/// Sends one payload in segments.
///
/// Inputs: [`handle`](Self::handle) for ACK, STOP and ABORT, [`handle_timeout`](Self::handle_timeout).
/// Outputs: after each input drain [`poll_transmit`](Self::poll_transmit), then look at
/// [`poll_timeout`](Self::poll_timeout) and [`outcome`](Self::outcome). Nothing blocks.
#[derive(Debug)]
pub struct Sender {
    /// The headers that every segment repeats.
    template: Box<MadBytes>,
    layout: Layout,
    payload: Vec<u8>,
    config: RmppConfig,
    /// Segments of the payload.
    count: u32,
    /// Last segment that the receiver has.
    acked: u32,
    /// Next segment to send.
    next: u32,
    /// Last segment that was sent.
    sent: u32,
    /// Last segment that may be sent.
    window_last: u32,
    retries: u32,
    deadline: Instant,
    /// A STOP or ABORT to be sent.
    farewell: Option<(Kind, RmppStatus)>,
    outcome: Option<Sent>,
}

impl Sender {
    /// Will send `payload` under the headers of `template`, whose RMPP header is written again.
    /// `None` when the payload has more segments than can be numbered.
    pub fn new(
        template: &MadBytes,
        layout: Layout,
        payload: Vec<u8>,
        config: RmppConfig,
    ) -> Option<Self> {
        // An empty table is one segment without data.
        let count = payload.len().div_ceil(layout.segment_len()).max(1);
        Some(Self {
            template: Box::new(*template),
            layout,
            count: u32::try_from(count).ok()?,
            payload,
            config,
            acked: 0,
            next: 1,
            sent: 0,
            window_last: 1,
            retries: 0,
            deadline: Instant::NEVER,
            farewell: None,
            outcome: None,
        })
    }

    /// Takes the header of a datagram that the receiver sent for this transfer.
    pub fn handle(&mut self, now: Instant, header: &RmppHeader) {
        if self.outcome.is_some() {
            return;
        }
        match header.kind {
            _ if header.version != VERSION => self.abort(RmppStatus::BAD_VERSION),
            Kind::ACK => self.handle_ack(now, header),
            Kind::STOP | Kind::ABORT => self.outcome = Some(Sent::Failed(header.status)),
            _ => self.abort(RmppStatus::BAD_KIND),
        }
    }

    /// IBTA vol. 1, 13.6.6.2.1: an ACK.
    fn handle_ack(&mut self, now: Instant, header: &RmppHeader) {
        let (segment, window_last) = (header.segment, header.length_or_window);
        if segment > self.sent {
            return self.abort(RmppStatus::SEGMENT_TOO_BIG);
        }
        if window_last < segment {
            return self.abort(RmppStatus::WINDOW_TOO_SMALL);
        }
        // One that was overtaken says nothing new.
        if segment < self.acked {
            return;
        }
        if segment > self.acked {
            self.retries = 0;
        }
        self.acked = segment;
        self.next = self.next.max(segment + 1);
        let ahead = segment.saturating_add(self.config.window_segments.max(1));
        self.window_last = self.window_last.max(window_last.min(ahead));
        if self.acked == self.count {
            self.outcome = Some(Sent::Done);
        } else {
            self.deadline = now + self.config.resend_after;
        }
    }

    /// Sends again what was not acknowledged in time, or gives up.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.outcome.is_some() || now < self.deadline {
            return;
        }
        if self.retries >= self.config.retries_max {
            return self.abort(RmppStatus::TOO_MANY_RETRIES);
        }
        self.retries += 1;
        self.next = self.acked + 1;
        self.deadline = Instant::NEVER;
    }

    /// The next datagram to send, if there is one now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<MadBytes> {
        if let Some((kind, status)) = self.farewell.take() {
            let header = RmppHeader {
                version: VERSION,
                kind,
                flags: RmppFlags::ACTIVE,
                status,
                ..RmppHeader::default()
            };
            let mut mad = *self.template;
            header.put(&mut mad);
            return Some(mad);
        }
        if self.outcome.is_some() || self.next > self.window_last.min(self.count) {
            return None;
        }
        let mad = self.segment(self.next);
        self.sent = self.sent.max(self.next);
        self.next += 1;
        self.deadline = now + self.config.resend_after;
        Some(mad)
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.outcome.is_none() && self.deadline != Instant::NEVER).then_some(self.deadline)
    }

    /// How it ended, once it has.
    pub fn outcome(&self) -> Option<Sent> {
        self.outcome
    }

    fn segment(&self, number: u32) -> MadBytes {
        let index = usize::try_from(number - 1).unwrap_or(usize::MAX);
        let full = self.layout.segment_len();
        let data = self.payload.chunks(full).nth(index).unwrap_or_default();
        let mut flags = RmppFlags::ACTIVE;
        flags.set(RmppFlags::FIRST, number == 1);
        flags.set(RmppFlags::LAST, number == self.count);
        // The first segment gives the length of all, the last one its own; each counts the class
        // header of every segment that it speaks of.
        let length = if number == 1 {
            let headers = usize::try_from(self.count).map(|n| n * self.layout.class_header);
            self.payload.len() + headers.unwrap_or(0)
        } else if number == self.count {
            data.len() + self.layout.class_header
        } else {
            0
        };
        let header = RmppHeader {
            version: VERSION,
            kind: Kind::DATA,
            response_time: TimeCode::MAX,
            flags,
            status: RmppStatus::NORMAL,
            segment: number,
            length_or_window: u32::try_from(length).unwrap_or(0),
        };
        let mut mad = *self.template;
        header.put(&mut mad);
        let place = mad.get_mut(self.layout.data_at()..).unwrap_or_default();
        place.fill(0);
        for (to, from) in place.iter_mut().zip(data) {
            *to = *from;
        }
        mad
    }

    fn abort(&mut self, status: RmppStatus) {
        self.farewell = Some((Kind::ABORT, status));
        self.outcome = Some(Sent::Failed(status));
    }
}
