//! The HCA on a link that carries packets: what the link tells about itself.

use std::net::IpAddr;

use verbs_core::sync::Arc;
use verbs_core::{EventType, Subject};

use crate::hca::Hca;
use crate::limits::PORT;
use crate::link::Change;
use crate::port::gids;

impl Hca {
    /// Has packets seen to from now on.
    pub(crate) fn start(self: &Arc<Self>) {
        if let Some(driver) = self.port.driver() {
            driver.start(&self.port, Arc::downgrade(self));
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

    /// Something has changed about the link: the port's state or its GID table, with the event that the
    /// field knows for it.
    pub(crate) fn link_changed(&self, change: Change, addresses: &[IpAddr]) {
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
        }
    }

    /// What connections over packets go by has changed.
    pub(super) fn connections_changed(&self) {
        if let Some(driver) = self.port.driver() {
            driver.change();
        }
    }
}
