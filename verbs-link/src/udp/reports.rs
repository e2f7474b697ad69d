//! What the network reports of packets that it did not deliver (ICMP errors), out of the sockets' error queues.

use std::collections::VecDeque;

use super::ancillary::{Address, QueuedError, Said};
use crate::Refusal;
use crate::sys::Slot;
use verbs_wire::ROCE_PORT;

/// Refusals that wait to be fetched; later ones are counted and dropped, as they are hints.
const WAITING_MAX: usize = 64;

/// Whether what stood in an error queue is a report, and not a packet of ours as it left.
pub(super) fn is_report(slot: &Slot) -> bool {
    let error = Said::parse(slot.control()).error;
    error.is_some_and(QueuedError::is_report)
}

/// Reports that were taken out of error queues.
#[derive(Debug, Default)]
pub(super) struct Reports {
    waiting: VecDeque<Refusal>,
    /// ICMP errors.
    pub(super) icmp_errors: u64,
    /// Those that say that no program has the destination's port.
    pub(super) port_unreachable: u64,
}

impl Reports {
    /// Takes in what stood in an error queue; `false` for what is no report, such as a time stamp.
    pub(super) fn note(&mut self, slot: &Slot) -> bool {
        let Some(error) = Said::parse(slot.control()).error else {
            return false;
        };
        if error.is_icmp() {
            self.icmp_errors += 1;
            if error.errno == libc::ECONNREFUSED {
                self.port_unreachable += 1;
                self.refused(slot);
            }
        }
        error.is_report()
    }

    fn refused(&mut self, slot: &Slot) {
        // The address that the packet was sent to, which the kernel took from the quoted headers.
        let Some((dst, ROCE_PORT)) = Address::parse(slot.from()) else {
            return;
        };
        if self.waiting.len() < WAITING_MAX {
            let quoted = slot.bytes();
            let len = quoted.len().min(Refusal::QUOTED_MAX);
            self.waiting.push_back(Refusal {
                dst,
                quoted: quoted[..len].to_vec(),
            });
        }
    }

    /// The oldest refusal.
    pub(super) fn take(&mut self) -> Option<Refusal> {
        self.waiting.pop_front()
    }
}
