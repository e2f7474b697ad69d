//! What the network reports about packets that it did not deliver (ICMP errors), from the sockets' error queues.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::ancillary::{Address, QueuedError, Said};
use crate::Refusal;
use crate::sys::Slot;
use verbs_wire::ROCE_PORT;

/// Refusals that wait to be fetched; later ones are counted and dropped, as they are hints.
const WAITING_MAX: usize = 64;

/// Whether an entry of an error queue is a report, and not a packet as it was sent.
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
    /// Those that report that no program has the destination's port.
    pub(super) port_unreachable: u64,
    /// Those that report that a packet is larger than the path takes.
    pub(super) packet_too_big: u64,
    /// The last of these paths that was logged, and how much it takes.
    narrow: Option<(IpAddr, u32)>,
}

impl Reports {
    /// Takes in an entry of an error queue; `false` if it is not a report, such as a time stamp.
    pub(super) fn note(&mut self, slot: &Slot) -> bool {
        let Some(error) = Said::parse(slot.control()).error else {
            return false;
        };
        if error.is_icmp() {
            self.icmp_errors += 1;
            match error.errno {
                libc::ECONNREFUSED => {
                    self.port_unreachable += 1;
                    self.refused(slot);
                }
                libc::EMSGSIZE => self.too_big(slot, error.info),
                _ => {}
            }
        }
        error.is_report()
    }

    /// The kernel remembers how much the path takes, so connections that are made from now on have a path MTU that fits.
    /// Those that exist keep theirs (IBTA vol. 1, 11.2.5.2 allows no change of it in RTS), and their large packets are lost.
    fn too_big(&mut self, slot: &Slot, mtu: u32) {
        self.packet_too_big += 1;
        let Some((dst, _)) = Address::parse(slot.from()) else {
            return;
        };
        if self.narrow != Some((dst, mtu)) {
            self.narrow = Some((dst, mtu));
            tracing::warn!(
                %dst,
                mtu,
                "the path takes smaller packets than were sent: connections that were made before lose theirs"
            );
        }
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
