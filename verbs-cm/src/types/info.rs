//! What is known of connections: of one, and of all that the process has.

use std::net::SocketAddr;

use verbs_core::sync::plain::Mutex;
use verbs_core::sync::{Arc, Weak};
use verbs_core::{PortCaps, ProviderAttr, Qpn, TransportType};

use crate::link::Link;

/// The connections of the process, with some that have gone.
static CONNECTIONS: Mutex<Vec<Weak<dyn Link>>> = Mutex::new(Vec::new());

/// A connection, as programs that show connections have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// This end's address; none for a service that has a number and no address, and once the queue pair was
    /// taken away.
    pub local: Option<SocketAddr>,
    /// The peer's address; port number 0 for a service without one.
    pub remote: SocketAddr,
    /// The queue pair; none once it was taken away.
    pub qpn: Option<Qpn>,
    /// The peer's queue pair, where peers name theirs: not over TCP.
    pub remote_qpn: Option<Qpn>,
    /// How far it is.
    pub state: ConnectionState,
    /// What carries its messages; none once the queue pair was taken away.
    pub transport: Option<TransportType>,
    /// Whether an adapter carries them, past the host's network stack.
    pub is_offloaded: bool,
    /// What the host does for it.
    pub host: HostServices,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// It is there.
    Established,
    /// One side has ended it.
    Closing,
    /// It is over.
    Closed,
}

/// What a host's network stack does for ordinary connections. What is not there for a connection of RDMA is
/// missing without an error: a packet filter, say, does not see its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HostServices {
    /// Packet filters (netfilter) see its packets.
    pub filtering: bool,
    /// Queueing disciplines (tc) apply to its packets.
    pub queueing: bool,
    /// The host counts what it moves by itself, as `ss -i` shows for a TCP connection.
    pub statistics: bool,
}

/// Whether an adapter carries what goes through that port.
pub(crate) fn is_offloaded(port: &ProviderAttr) -> bool {
    !port.caps.contains(PortCaps::SOFTWARE)
}

impl HostServices {
    /// Those of a connection over this transport. A simulated subnet, and an adapter, are outside of the host's
    /// stack; RoCEv2 in software shares the host's UDP sockets; RDMA over TCP in software is a TCP connection.
    pub fn of(transport: TransportType, is_offloaded: bool) -> Self {
        let has_packets = !is_offloaded && transport != TransportType::InfiniBand;
        Self {
            filtering: has_packets,
            queueing: has_packets,
            statistics: has_packets && transport == TransportType::Iwarp,
        }
    }

    /// The names of what is missing.
    pub fn missing(self) -> impl Iterator<Item = &'static str> {
        let services = [
            (self.filtering, "filtering"),
            (self.queueing, "queueing"),
            (self.statistics, "statistics"),
        ];
        let missing = services.into_iter().filter(|(is_there, _)| !is_there);
        missing.map(|(_, name)| name)
    }
}

impl ConnectionInfo {
    pub(crate) fn of(link: &dyn Link) -> Self {
        let attr = link.provider();
        let is_offloaded = attr.is_some_and(|attr| is_offloaded(&attr));
        let services = |transport| HostServices::of(transport, is_offloaded);
        let transport = attr.map(|attr| attr.transport);
        Self {
            local: link.local(),
            remote: link.peer(),
            qpn: link.qpn(),
            remote_qpn: link.remote_qpn(),
            state: match (link.is_established(), link.ended()) {
                (true, None) => ConnectionState::Established,
                (true, Some(_)) => ConnectionState::Closing,
                (false, _) => ConnectionState::Closed,
            },
            transport,
            is_offloaded,
            host: transport.map(services).unwrap_or_default(),
        }
    }
}

/// All connections that this process has made with connection managers and has not dropped, in the order in
/// which they were made. Never waits for a peer.
///
/// ```
/// assert!(verbs_cm::connections().is_empty());
/// ```
pub fn connections() -> Vec<ConnectionInfo> {
    let links: Vec<Arc<dyn Link>> = {
        let mut connections = CONNECTIONS.lock();
        connections.retain(|link| link.strong_count() > 0);
        connections.iter().filter_map(Weak::upgrade).collect()
    };
    // The last reference to one may be ours by now: it is dropped under no lock.
    links
        .iter()
        .map(|link| ConnectionInfo::of(&**link))
        .collect()
}

/// A connection has been made. Those that have gone are forgotten whenever the list would need more memory.
pub(crate) fn list(link: &Arc<dyn Link>) {
    let mut connections = CONNECTIONS.lock();
    if connections.len() == connections.capacity() {
        connections.retain(|link| link.strong_count() > 0);
        let living = connections.len();
        connections.reserve(living.max(16));
    }
    connections.push(Arc::downgrade(link));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_does_not_do_is_named() {
        let missing = |transport, is_offloaded| -> Vec<&str> {
            HostServices::of(transport, is_offloaded)
                .missing()
                .collect()
        };
        assert_eq!(missing(TransportType::Iwarp, false), [""; 0]);
        assert_eq!(missing(TransportType::RoceV2, false), ["statistics"]);
        let all = ["filtering", "queueing", "statistics"];
        assert_eq!(missing(TransportType::InfiniBand, false), all);
        for transport in [TransportType::Iwarp, TransportType::RoceV2] {
            assert_eq!(missing(transport, true), all);
        }
    }
}
