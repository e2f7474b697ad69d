//! The HCA on a link that carries packets: how it handles the link's events.

use std::net::IpAddr;

use verbs_core::event::Undelivered;
use verbs_core::mad::{MadArrival, MadBytes, MadHeader, MadHeaderView, MadVerdict};
use verbs_core::{EventType, Gid, PortState, Qpn, Subject};

use crate::hca::Hca;
use crate::link::{Change, Refusal};
use crate::port::{LinkEvents, Port, gids};
use crate::queue::base::limits::PORT;
use crate::wire::{Head, Service};

impl LinkEvents for Hca {
    /// Something has changed about the link: the port's state or its GID table. Raises the usual event for it.
    fn link_changed(&self, change: Change, addresses: &[IpAddr]) {
        let state = match change {
            Change::Up => Some(PortState::Active),
            Change::Down => Some(PortState::Down),
            Change::State(state) => Some(state),
            _ => None,
        };
        if let Some((before, now)) = self.port.follow_manager(state) {
            self.port.connections_changed();
            return managed_changed(self, change, before, now);
        }
        match change {
            Change::Down => self.port_down(),
            Change::Up => self.port_up(),
            Change::Addresses => {
                let now = gids(addresses);
                let changed = self.port.change(|settings| {
                    let changed = settings.gids != now;
                    settings.gids = now;
                    changed
                });
                if changed {
                    self.port.connections_changed();
                    self.raise(EventType::GidChange, Subject::Port(PORT));
                }
            }
            // Only managed ports have these.
            Change::State(_)
            | Change::Lids
            | Change::PKeys
            | Change::SubnetManager
            | Change::Reregister => {}
        }
    }

    /// A host has refused a packet. If it was a management datagram, services are informed, with no lock held.
    fn refused(&self, refusal: &Refusal) {
        let Some(header) = quoted_mad(refusal) else {
            return;
        };
        self.report_undelivered(Undelivered {
            port: PORT,
            dgid: Gid::from(refusal.dst),
            tid: header.tid,
        });
    }
}

/// The header of the management datagram that a report quotes, if the datagram went to queue pair 1 and the
/// report quotes enough of it.
fn quoted_mad(refusal: &Refusal) -> Option<MadHeader> {
    let (head, body) = Head::parse(&refusal.quoted).ok()?;
    let is_mad = head.opcode().service() == Service::Ud && head.bth().dest_qpn == Qpn::new(1);
    is_mad.then_some(())?;
    Some(MadHeader::parse(MadHeaderView::new(body)?))
}

/// The subnet manager has changed something that is already in the port's settings.
fn managed_changed(hca: &Hca, change: Change, before: PortState, now: PortState) {
    let event = match change {
        Change::Up | Change::Down | Change::State(_) => match (before, now) {
            (PortState::Active, PortState::Active) => return,
            (PortState::Active, _) => {
                hca.port.counters.link_downed.up();
                EventType::PortErr
            }
            (_, PortState::Active) => EventType::PortActive,
            _ => return,
        },
        Change::Addresses => EventType::GidChange,
        Change::Lids => EventType::LidChange,
        Change::PKeys => EventType::PkeyChange,
        Change::SubnetManager => EventType::SmChange,
        Change::Reregister => EventType::ClientReregister,
    };
    hca.raise(event, Subject::Port(PORT));
}

/// Answers a datagram by the port's own agents.
pub(super) fn answer_mad(
    port: &Port,
    incoming: &MadArrival<'_>,
    reply: &mut MadBytes,
) -> MadVerdict {
    match &port.managed {
        Some(managed) if incoming.port == PORT => managed.process(incoming, reply),
        _ => MadVerdict::NotMine,
    }
}
