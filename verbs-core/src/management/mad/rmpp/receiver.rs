//! The receiving end of a transfer.

use crate::mad::header::{MadBytes, MadHeader, emit_header, header_of};
use crate::mad::rmpp::{Kind, Layout, RmppConfig, RmppFlags, RmppHeader, RmppStatus, VERSION};
use crate::mad::time_code::TimeCode;
use crate::time::Instant;

/// How a transfer ended for its receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// All of it is here: the payload, without headers.
    Done(Vec<u8>),
    /// The sender ended it, or did not keep to the protocol, or fell silent
    /// ([`RmppStatus::TOTAL_TIME`]), or sends more than is taken ([`RmppStatus::RESOURCES`]).
    Failed(RmppStatus),
}

/// Puts the segments of one transfer together.
///
/// Inputs: [`handle`](Self::handle) for its datagrams, [`handle_timeout`](Self::handle_timeout).
/// Outputs: after each input drain [`poll_transmit`](Self::poll_transmit), then
/// [`poll_received`](Self::poll_received) (once) and [`poll_timeout`](Self::poll_timeout). Segments
/// are taken in order; one that has overtaken another is asked for again. A receiver that is done
/// is kept until [`is_over`](Self::is_over), because its last acknowledgement may get lost.
#[derive(Debug)]
pub struct Receiver {
    /// The headers of the first segment, with the method of the answers.
    template: Box<MadBytes>,
    layout: Layout,
    config: RmppConfig,
    payload: Vec<u8>,
    /// Bytes that the first segment has announced, class headers included; 0 for unknown.
    announced: usize,
    /// Last segment that is here.
    received: u32,
    /// Last segment that the sender may send.
    window_last: u32,
    deadline: Instant,
    answer: Option<RmppHeader>,
    ended: bool,
    over: bool,
    outcome: Option<Received>,
}

impl Receiver {
    /// Will receive the transfer that `first` belongs to; hand it to [`handle`](Self::handle) as
    /// well.
    pub fn new(now: Instant, first: &MadBytes, layout: Layout, config: RmppConfig) -> Self {
        let header = MadHeader::parse(header_of(first));
        let mut template = [0; 256];
        // An acknowledgement of a response carries the method of the request, and the reverse.
        let method = crate::mad::Method(header.method.0 ^ 0x80);
        emit_header(&MadHeader { method, ..header }, &mut template);
        Self {
            template: Box::new(template),
            layout,
            config,
            payload: Vec::new(),
            announced: 0,
            received: 0,
            window_last: 1,
            deadline: now + config.receive_idle_max,
            answer: None,
            ended: false,
            over: false,
            outcome: None,
        }
    }

    /// Takes a datagram of this transfer.
    pub fn handle(&mut self, now: Instant, mad: &MadBytes) {
        let header = RmppHeader::of(mad);
        match header.kind {
            _ if self.over => {}
            _ if header.version != VERSION => self.fail(Kind::ABORT, RmppStatus::BAD_VERSION),
            Kind::DATA if self.ended => self.acknowledge(),
            Kind::DATA => self.handle_data(now, &header, mad),
            Kind::STOP | Kind::ABORT if !self.ended => self.end(Received::Failed(header.status)),
            // An ACK of our last one, where the transfer's direction would turn: it does not.
            Kind::ACK | Kind::STOP | Kind::ABORT => {}
            _ => self.fail(Kind::ABORT, RmppStatus::BAD_KIND),
        }
    }

    /// IBTA vol. 1, 13.6.6.3: a segment.
    fn handle_data(&mut self, now: Instant, header: &RmppHeader, mad: &MadBytes) {
        self.deadline = now + self.config.receive_idle_max;
        if header.segment != self.received + 1 {
            // A repetition, or one that is ahead: say what is here.
            return self.acknowledge();
        }
        let is_first = header.segment == 1;
        let is_last = header.flags.contains(RmppFlags::LAST);
        if header.flags.contains(RmppFlags::FIRST) != is_first {
            return self.fail(Kind::ABORT, RmppStatus::INCONSISTENT_FIRST);
        }
        let given = usize::try_from(header.length_or_window).unwrap_or(usize::MAX);
        if is_first {
            self.announced = given;
        }
        let full = self.layout.segment_len();
        let len = match (is_last, is_first) {
            (false, _) => Some(full),
            // A single segment gives the length of all, which is its own.
            (true, _) => given.checked_sub(self.layout.class_header),
        };
        let Some(len) = len.filter(|&len| len <= full) else {
            return self.fail(Kind::ABORT, RmppStatus::INCONSISTENT_LENGTH);
        };
        if self.payload.len() + len > self.config.transfer_bytes_max {
            return self.fail(Kind::STOP, RmppStatus::RESOURCES);
        }
        let data = mad.get(self.layout.data_at()..).unwrap_or_default();
        self.payload.extend(data.iter().take(len));
        self.received = header.segment;
        if is_last {
            self.handle_last();
        } else if self.received >= self.window_last {
            self.acknowledge();
        }
    }

    fn handle_last(&mut self) {
        let headers = usize::try_from(self.received).unwrap_or(usize::MAX);
        let total = headers.saturating_mul(self.layout.class_header) + self.payload.len();
        if self.announced != 0 && self.announced != total {
            return self.fail(Kind::ABORT, RmppStatus::INCONSISTENT_LENGTH);
        }
        self.acknowledge();
        let payload = std::mem::take(&mut self.payload);
        self.end(Received::Done(payload));
    }

    /// Gives up on a silent sender; ends a receiver that is done.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.deadline || self.over {
            return;
        }
        if !self.ended {
            self.fail(Kind::ABORT, RmppStatus::TOTAL_TIME);
        }
        self.over = true;
    }

    /// The next datagram to send to the sender, if there is one.
    pub fn poll_transmit(&mut self) -> Option<MadBytes> {
        let header = self.answer.take()?;
        let mut mad = *self.template;
        header.put(&mut mad);
        Some(mad)
    }

    /// How it ended, once.
    pub fn poll_received(&mut self) -> Option<Received> {
        self.outcome.take()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.over).then_some(self.deadline)
    }

    /// Whether it has ended and no late repetition is waited for.
    pub fn is_over(&self) -> bool {
        self.over
    }

    fn acknowledge(&mut self) {
        let ahead = self.config.window_segments.max(1);
        self.window_last = self.window_last.max(self.received.saturating_add(ahead));
        self.answer = Some(RmppHeader {
            version: VERSION,
            kind: Kind::ACK,
            response_time: TimeCode::MAX,
            flags: RmppFlags::ACTIVE,
            status: RmppStatus::NORMAL,
            segment: self.received,
            length_or_window: self.window_last,
        });
    }

    fn fail(&mut self, kind: Kind, status: RmppStatus) {
        if self.ended {
            return;
        }
        self.answer = Some(RmppHeader {
            version: VERSION,
            kind,
            flags: RmppFlags::ACTIVE,
            status,
            ..RmppHeader::default()
        });
        self.end(Received::Failed(status));
        self.over = true;
    }

    fn end(&mut self, outcome: Received) {
        self.payload = Vec::new();
        self.ended = true;
        self.over = matches!(outcome, Received::Failed(_));
        self.outcome = Some(outcome);
    }
}
