//! The HCA on a link that carries packets: what the link tells about itself.

use std::net::IpAddr;

use verbs_core::event::Undelivered;
use verbs_core::mad::{MadArrival, MadBytes, MadHeader, MadHeaderView, MadVerdict};
use verbs_core::sync::{Arc, Weak};
use verbs_core::{EventType, Gid, PortState, Qpn, Subject};

use crate::hca::Hca;
use crate::link::{Change, Refusal};
use crate::port::{LinkEvents, gids};
use crate::queue::base::limits::PORT;
use crate::wire::{Head, Service};

impl Hca {
    /// Has packets seen to from now on.
    pub(crate) fn start(self: &Arc<Self>) {
        if let Some(driver) = self.port.driver() {
            let hca = Arc::downgrade(self) as Weak<dyn LinkEvents>;
            driver.start(&self.port, Some(hca));
        }
    }

    /// Takes in packets that have come, on the caller's thread, and sends what they lead to: some rounds
    /// of it, as somebody does who polls. Whether there were any. On a loopback link nothing happens.
    ///
    /// Nobody needs this where a thread waits for packets. It drives an HCA whose link has none, such as
    /// a [`Cable`](crate::link::Cable). Never blocks.
    pub fn turn(&self) -> bool {
        let driver = self.port.driver();
        driver.is_some_and(|driver| driver.turn(&self.port))
    }

    /// The subnet manager has changed something, which the port's sheet has by now.
    fn managed_changed(&self, change: Change, before: PortState, now: PortState) {
        let event = match change {
            Change::Up | Change::Down | Change::State(_) => match (before, now) {
                (PortState::Active, PortState::Active) => return,
                (PortState::Active, _) => {
                    self.port.counters.link_downed.up();
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
        self.raise(event, Subject::Port(PORT));
    }

    /// What the port's own agents make of a datagram.
    pub(super) fn answer_mad(&self, incoming: &MadArrival<'_>, reply: &mut MadBytes) -> MadVerdict {
        match &self.port.managed {
            Some(managed) if incoming.port == PORT => managed.process(incoming, reply),
            _ => MadVerdict::NotMine,
        }
    }

    /// What connections over packets go by has changed.
    pub(super) fn connections_changed(&self) {
        if let Some(driver) = self.port.driver() {
            driver.change();
        }
    }
}

impl LinkEvents for Hca {
    /// Something has changed about the link: the port's state or its GID table, with the event that the
    /// field knows for it.
    fn link_changed(&self, change: Change, addresses: &[IpAddr]) {
        let state = match change {
            Change::Up => Some(PortState::Active),
            Change::Down => Some(PortState::Down),
            Change::State(state) => Some(state),
            _ => None,
        };
        if let Some((before, now)) = self.port.follow_manager(state) {
            self.connections_changed();
            return self.managed_changed(change, before, now);
        }
        match change {
            Change::Down => self.port_down(),
            Change::Up => self.port_up(),
            Change::Addresses => {
                let now = gids(addresses);
                let changed = self.port.change(|sheet| {
                    let changed = sheet.gids != now;
                    sheet.gids = now;
                    changed
                });
                if changed {
                    self.connections_changed();
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

    /// A host has refused a packet. Services hear so of management datagrams. Holds no lock then.
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
