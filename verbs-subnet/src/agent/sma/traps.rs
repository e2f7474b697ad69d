//! Traps: sent to the subnet manager, and repeated until it has acknowledged them (IBTA vol. 1, 13.4.9).

use std::collections::BTreeMap;
use std::time::Duration;

use verbs_core::Lid;
use verbs_core::mad::header::{MAD_LEN, emit_header};
use verbs_core::mad::sm::{self, Notice, TrapNumber};
use verbs_core::mad::{AttributeId, Class, MadBytes, MadHeader, Method, TransactionId};
use verbs_core::time::Instant;

/// A trap to be sent from queue pair 0.
#[derive(Clone, Debug)]
pub struct Trap {
    /// The port it leaves from.
    pub port: u8,
    /// The port's LID.
    pub from: Lid,
    /// The subnet manager's LID.
    pub to: Lid,
    /// Service level of the path to it.
    pub sl: u8,
    /// The datagram.
    pub mad: Box<MadBytes>,
}

/// The time between repetitions of a trap: the manager's answer takes milliseconds, and it ignores traps that are
/// repeated too fast.
const REPEAT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Raised {
    tid: TransactionId,
    notice: [u8; Notice::TRAP_LEN],
    next: Instant,
}

/// The traps of a node that have not been repressed: one of each kind per port.
#[derive(Debug, Default)]
pub(super) struct Traps {
    raised: BTreeMap<(u8, TrapNumber), Raised>,
    count: u32,
}

impl Traps {
    /// Starts sending a notice. It replaces one of the same kind that is still being sent.
    pub(super) fn raise(&mut self, now: Instant, port: u8, notice: &Notice) {
        self.count = self.count.wrapping_add(1);
        let mut bytes = [0; Notice::LEN];
        notice.emit(&mut bytes);
        let mut trap = [0; Notice::TRAP_LEN];
        for (to, from) in trap.iter_mut().zip(bytes) {
            *to = from;
        }
        let raised = Raised {
            tid: TransactionId::new(u32::from(port), self.count),
            notice: trap,
            next: now,
        };
        self.raised.insert((port, notice.trap), raised);
    }

    /// The manager has acknowledged the trap.
    pub(super) fn repress(&mut self, tid: TransactionId) {
        // Managers keep the lower half; the upper one belongs to their port's service.
        let heard = tid.request();
        self.raised
            .retain(|_, raised| raised.tid.request() != heard);
    }

    /// The number of traps.
    pub(super) fn len(&self) -> usize {
        self.raised.len()
    }

    /// The first one's notice, which is removed if `takes`.
    pub(super) fn first(&mut self, takes: bool) -> Option<[u8; Notice::TRAP_LEN]> {
        let first = self.raised.first_entry()?;
        let notice = first.get().notice;
        if takes {
            first.remove();
        }
        Some(notice)
    }

    /// A trap that is due now.
    pub(super) fn poll(&mut self, now: Instant) -> Option<(u8, Box<MadBytes>)> {
        let due = self
            .raised
            .iter_mut()
            .find(|(_, raised)| raised.next <= now);
        let (&(port, _), raised) = due?;
        raised.next = now + REPEAT;
        let mut mad = Box::new([0; MAD_LEN]);
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: Class::SUBN_LID,
            class_version: sm::CLASS_VERSION,
            method: Method::TRAP,
            tid: raised.tid,
            attribute: AttributeId::NOTICE,
            ..MadHeader::default()
        };
        emit_header(&header, &mut mad);
        sm::put_attribute(&mut mad, &raised.notice);
        Some((port, mad))
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.raised.values().map(|raised| raised.next).min()
    }
}
