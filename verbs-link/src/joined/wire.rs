//! The sockets of a port whose daemon has the system steer packets of the network: what comes for this process comes to them,
//! and what goes to other hosts leaves by them. The daemon still sees what the connection manager sends, and multicast.

use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;

use verbs_core::host::Message;

use super::line::Line;
use super::packet::{arrived, is_for};
use super::waiter::{LOOKS, LineWaiter};
use crate::udp::interfaces::Interfaces;
use crate::udp::sockets::Sockets;
use crate::{Arrival, Burst, Feedback, LinkCounters, Refusal, Route, Sent};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// `None` while packets of the network pass through the daemon.
    sockets: Option<Sockets>,
    /// Nothing is known of the interfaces: the daemon may be in another namespace.
    local: Interfaces,
    /// Packets that claimed to be from this host.
    forged: u64,
    /// Calls of [`receive`](Self::receive) that look at the sockets, before they are left to threads that wait.
    looks: u32,
}

impl Wire {
    /// There is a socket for that address, in place of an earlier one.
    pub(super) fn add(&mut self, address: IpAddr, socket: OwnedFd, waiter: &LineWaiter) {
        let sockets = self.sockets.get_or_insert_default();
        if let Err(error) = sockets.adopt(address, socket) {
            tracing::warn!(%address, %error, "packets of the network pass through the daemon");
        }
        self.follow(waiter);
    }

    /// Sockets of other addresses than these are no longer needed.
    pub(super) fn keep(&mut self, addresses: &[IpAddr], waiter: &LineWaiter) {
        if let Some(sockets) = &mut self.sockets
            && sockets.keep(addresses)
        {
            self.follow(waiter);
        }
    }

    /// None is needed any longer. What they have counted stays.
    pub(super) fn clear(&mut self, waiter: &LineWaiter) {
        self.keep(&[], waiter);
    }

    /// The sockets are other ones.
    fn follow(&mut self, waiter: &LineWaiter) {
        let sockets = self.sockets.as_ref().map(Sockets::all);
        waiter.watch_wire(sockets.unwrap_or_default());
        self.looks = LOOKS;
    }

    /// The sockets, if packets on that route leave by them.
    fn of(&self, route: &Route) -> Option<&Sockets> {
        let is_one = !route.dst.is_multicast();
        let sockets = self.sockets.as_ref().filter(|_| is_one)?;
        sockets.addresses().contains(&route.src).then_some(sockets)
    }

    /// How many packets a burst on that route may have; `None` if packets pass through the daemon.
    pub(super) fn burst_limit(&self, route: &Route) -> Option<usize> {
        Some(self.of(route)?.burst_limit(&self.local, route))
    }

    /// Sends packets to another host; `None` if they pass through the daemon.
    pub(super) fn transmit(&mut self, burst: &Burst<'_>) -> Option<Sent> {
        self.of(&burst.route)?;
        self.looks = LOOKS;
        let sockets = self.sockets.as_mut()?;
        Some(sockets.transmit(&self.local, burst))
    }

    /// Receives packets for these queue pair numbers; others are handed on to the daemon. Packets from one of `addresses`, the
    /// host's own, are dropped: what its programs send each other does not come from the network, so the address is forged.
    /// Returns how many came.
    pub(super) fn receive(
        &mut self,
        (addresses, numbers): (&[IpAddr], &[Range<u32>]),
        line: &Line,
        waiter: &LineWaiter,
        sink: &mut dyn FnMut(&Arrival<'_>),
    ) -> usize {
        let Some(sockets) = &mut self.sockets else {
            return 0;
        };
        // In any case: no thread sleeps before.
        if waiter.take_wire() {
            self.looks = LOOKS;
        }
        if sockets.addresses().is_empty() {
            return 0;
        }
        if self.looks == 0 {
            return 0;
        }
        let (mut misled, mut forged) = (0, 0);
        let came = sockets.receive(&self.local, &mut |arrival| {
            let is_forged = addresses.contains(&arrival.src);
            if is_for(arrival.bytes, numbers) && !is_forged {
                return sink(arrival);
            }
            misled += 1;
            match is_forged {
                true => forged += 1,
                false => hand_on(arrival, line),
            }
        });
        self.forged += forged;
        match came {
            0 => {
                self.looks -= 1;
                if self.looks == 0 {
                    waiter.arm_wire();
                }
            }
            _ => self.looks = LOOKS,
        }
        came - misled
    }

    /// Calls that still look at the sockets.
    #[cfg(test)]
    pub(super) fn looks(&self) -> u32 {
        self.looks
    }

    pub(super) fn feedback(&mut self, route: &Route, news: Feedback) {
        if let Some(sockets) = &mut self.sockets {
            sockets.feedback(route, news);
        }
    }

    /// A report of another host. The system hands each to one of the programs that share the address, whichever has sent the
    /// packet.
    pub(super) fn refusal(&mut self) -> Option<Refusal> {
        self.sockets.as_mut()?.refusal()
    }

    /// The counters, with what was counted elsewhere.
    pub(super) fn counted(&self, other: LinkCounters) -> LinkCounters {
        let Some(own) = self.sockets.as_ref().map(Sockets::counters) else {
            return other;
        };
        LinkCounters {
            packets_sent: own.packets_sent + other.packets_sent,
            gso_bursts: own.gso_bursts + other.gso_bursts,
            blocked: own.blocked + other.blocked,
            send_errors: own.send_errors + other.send_errors,
            send_errno: own.send_errno.or(other.send_errno),
            receive_errors: own.receive_errors + other.receive_errors + self.forged,
            // Those that were handed on are another's.
            packets_received: other.packets_received,
            shared_sent: other.shared_sent,
            shared_received: other.shared_received,
            shared_lost: other.shared_lost,
            ..own
        }
    }
}

/// Hands a packet on to the daemon. If there is no room it is lost, as on any network.
fn hand_on(arrival: &Arrival<'_>, line: &Line) {
    if let Some(packets) = arrived(arrival) {
        let _ = line.send(&Message::Arrived(packets).encode());
    }
}
