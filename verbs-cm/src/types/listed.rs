//! All connections of a process as one list, however they were made: what programs tell each other.

use std::net::SocketAddr;

use verbs_core::{ConnectedQp, Lid, ProviderAttr, QpState, QpStats, Qpn, TransportType};

use crate::info::{ConnectionInfo, ConnectionState, HostServices, connections, is_offloaded};

/// A connection, in words and numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Listed {
    /// This end's address; port number 0 where there is none.
    pub local: Option<SocketAddr>,
    /// The peer's address, alike.
    pub remote: Option<SocketAddr>,
    /// The LID of the peer's port, where there are any.
    pub remote_lid: Option<u16>,
    /// The queue pair.
    pub qpn: Option<u32>,
    /// The peer's, where peers name theirs.
    pub remote_qpn: Option<u32>,
    /// The service of the queue pair, such as `RC`, where it is known.
    pub service: Option<String>,
    /// `connecting`, `established`, `closing` or `closed`.
    pub state: String,
    /// `InfiniBand`, `RoCEv2` or `iWARP`, where it is known.
    pub transport: Option<String>,
    /// Whether an adapter carries it, past the host's network stack.
    pub offloaded: bool,
    /// What the host does not do for it ([`HostServices::missing`]).
    pub unavailable: Vec<String>,
    /// What has happened on it, where that is counted.
    pub stats: Option<QpStats>,
}

impl Listed {
    /// The name under which programs publish their connections, as JSON, for `verbs connections`.
    pub const PUBLISHED: &'static str = "verbs-connections";

    fn of_qp(provider: &ProviderAttr, qp: &ConnectedQp) -> Self {
        let is_offloaded = is_offloaded(provider);
        Self {
            local: qp.local,
            remote: qp.remote,
            remote_lid: qp.remote_lid.map(|Lid(lid)| lid),
            qpn: Some(qp.qpn.value()),
            remote_qpn: qp.remote_qpn.map(|qpn| qpn.value()),
            service: Some(qp.qp_type.to_string()),
            state: match qp.state {
                QpState::Reset | QpState::Init | QpState::Rtr => "connecting",
                QpState::Rts | QpState::Sqd | QpState::Sqe => "established",
                QpState::Err => "closed",
            }
            .into(),
            transport: name_of(provider.transport),
            offloaded: is_offloaded,
            unavailable: unavailable(HostServices::of(provider.transport, is_offloaded)),
            stats: Some(qp.stats),
        }
    }

    fn of_connection(info: &ConnectionInfo) -> Self {
        Self {
            local: info.local,
            remote: Some(info.remote),
            remote_lid: None,
            qpn: info.qpn.map(Qpn::value),
            remote_qpn: info.remote_qpn.map(Qpn::value),
            service: None,
            state: match info.state {
                ConnectionState::Established => "established",
                ConnectionState::Closing => "closing",
                ConnectionState::Closed => "closed",
            }
            .into(),
            transport: info.transport.and_then(name_of),
            offloaded: info.is_offloaded,
            unavailable: unavailable(info.host),
            stats: None,
        }
    }

    /// Whether that is the same connection, whose port numbers and end the manager knows.
    fn is(&self, info: &ConnectionInfo) -> bool {
        let ip = self.remote.map(|remote| remote.ip());
        self.qpn == info.qpn.map(Qpn::value)
            && ip.is_none_or(|ip| ip == info.remote.ip().to_canonical())
    }
}

fn unavailable(host: HostServices) -> Vec<String> {
    host.missing().map(str::to_owned).collect()
}

fn name_of(transport: TransportType) -> Option<String> {
    let name = match transport {
        TransportType::InfiniBand => "InfiniBand",
        TransportType::RoceV2 => "RoCEv2",
        TransportType::Iwarp => "iWARP",
        _ => return None,
    };
    Some(name.into())
}

/// All connections of the process: the queue pairs of these providers that have a peer, and those that its connection managers
/// have made. Of one that is in both, the manager knows the port numbers.
///
/// ```
/// # async fn example(device: verbs_core::Device) -> Result<(), verbs_core::Error> {
/// let provider = device.query_provider(1);
/// let qps = device.connected_qps().run().await?;
/// for connection in verbs_cm::listed([(provider, qps)]) {
///     println!("{:?} to {:?}", connection.local, connection.remote);
/// }
/// # Ok(())
/// # }
/// ```
pub fn listed(
    providers: impl IntoIterator<Item = (ProviderAttr, Vec<ConnectedQp>)>,
) -> Vec<Listed> {
    listed_with(providers, &connections())
}

/// As [`listed`], in a process whose connections are managed otherwise.
pub fn listed_with(
    providers: impl IntoIterator<Item = (ProviderAttr, Vec<ConnectedQp>)>,
    managed: &[ConnectionInfo],
) -> Vec<Listed> {
    let of = |(provider, qps): (ProviderAttr, Vec<ConnectedQp>)| {
        let listed = qps.into_iter().map(move |qp| Listed::of_qp(&provider, &qp));
        listed.collect::<Vec<_>>()
    };
    let mut all: Vec<Listed> = providers.into_iter().flat_map(of).collect();
    for info in managed {
        let Some(one) = all.iter_mut().find(|one| one.is(info)) else {
            all.push(Listed::of_connection(info));
            continue;
        };
        one.local = info.local.or(one.local);
        one.remote = Some(info.remote);
        if info.state != ConnectionState::Established {
            one.state = Listed::of_connection(info).state;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use verbs_core::{PortCaps, QpType};

    use super::*;

    fn qp(qpn: u32, remote: &str) -> ConnectedQp {
        ConnectedQp {
            qpn: Qpn::new(qpn),
            qp_type: QpType::Rc,
            state: QpState::Rts,
            local: None,
            remote: Some(SocketAddr::new(remote.parse().expect("an address"), 0)),
            remote_lid: None,
            remote_qpn: Some(Qpn::new(9)),
            stats: QpStats::default(),
        }
    }

    fn managed(qpn: u32, remote: &str, state: ConnectionState) -> ConnectionInfo {
        ConnectionInfo {
            local: Some(SocketAddr::from(([10, 0, 0, 1], 4000))),
            remote: remote.parse().expect("an address"),
            qpn: Some(Qpn::new(qpn)),
            remote_qpn: None,
            state,
            transport: Some(TransportType::RoceV2),
            is_offloaded: true,
            host: HostServices::default(),
        }
    }

    /// Goal: a queue pair that a manager knows is listed once, with the manager's port numbers; one that it does not know, or
    /// whose number another device has as well, is listed beside it.
    #[test]
    fn what_two_know_is_listed_once() {
        let provider = ProviderAttr {
            transport: TransportType::RoceV2,
            caps: PortCaps::SOFTWARE,
            ..ProviderAttr::default()
        };
        let qps = vec![qp(1, "10.0.0.2"), qp(2, "10.0.0.3")];
        let all = listed_with(
            [(provider, qps)],
            &[
                managed(1, "10.0.0.2:7", ConnectionState::Closing),
                managed(2, "10.0.0.9:8", ConnectionState::Established),
            ],
        );
        let ports: Vec<_> = all
            .iter()
            .map(|one| (one.qpn, one.remote.map(|at| at.port()), &*one.state))
            .collect();
        assert_eq!(
            ports,
            [
                (Some(1), Some(7), "closing"),
                (Some(2), Some(0), "established"),
                (Some(2), Some(8), "established"),
            ]
        );
        assert_eq!(all[0].service.as_deref(), Some("RC"));
        assert!(all[0].stats.is_some() && !all[0].offloaded);
        assert!(all[2].stats.is_none() && all[2].offloaded);
    }
}
