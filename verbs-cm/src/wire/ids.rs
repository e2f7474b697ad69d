//! Numbers of the connection manager's own.

use std::fmt;

/// Names one end's view of a connection: each side chooses its own, and both travel
/// (IBTA vol. 1, 12.6.4). Also the request id of service id resolution.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommId(pub u32);

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommId({:#010x})", self.0)
    }
}

/// Names a service at a port: what listeners listen for (IBTA vol. 1, annex A3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// That of a port number in a port space of the RDMA IP connection manager (annex A11).
    pub const fn rdma_cm(space: PortSpace, port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        let [space_high, space_low] = space.code().to_be_bytes();
        let bytes = [0, 0, 0, 0, space_high, space_low, high, low];
        Self(u64::from_be_bytes(bytes))
    }

    /// Port space and port number, if it is one of the RDMA IP connection manager.
    pub fn port(self) -> Option<(PortSpace, u16)> {
        let bytes = self.0.to_be_bytes();
        let [0, 0, 0, 0, space_high, space_low, high, low] = bytes else {
            return None;
        };
        let code = u16::from_be_bytes([space_high, space_low]);
        let space = PortSpace::ALL
            .into_iter()
            .find(|space| space.code() == code)?;
        Some((space, u16::from_be_bytes([high, low])))
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some((space, port)) => write!(f, "ServiceId({space:?} port {port})"),
            None => write!(f, "ServiceId({:#018x})", self.0),
        }
    }
}

/// Port spaces of the RDMA IP connection manager; the numbers are those of `rdma_port_space`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortSpace {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
    /// Datagrams over IPoIB's groups.
    Ipoib,
    /// Connections and datagrams of native InfiniBand.
    Ib,
}

impl PortSpace {
    /// Every port space.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Ipoib, Self::Ib];

    /// Its number.
    pub const fn code(self) -> u16 {
        match self {
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ipoib => 0x0002,
            Self::Ib => 0x013f,
        }
    }
}

verbs_core::number_fields! {
    CommId: |bits| Self(low_32(bits)), |value| u64::from(value.0);
    ServiceId: |bits| Self(bits), |value| value.0;
}

const fn low_32(bits: u64) -> u32 {
    let [.., a, b, c, d] = bits.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ids_have_port_space_and_port() {
        let id = ServiceId::rdma_cm(PortSpace::Tcp, 18634);
        assert_eq!(id, ServiceId(0x0000_0000_0106_48ca));
        assert_eq!(id.port(), Some((PortSpace::Tcp, 18634)));
        assert_eq!(format!("{id:?}"), "ServiceId(Tcp port 18634)");
        assert_eq!(ServiceId(0x0100_0000_0106_48ca).port(), None);
        assert_eq!(ServiceId(0x0107_0000).port(), None);
        for space in PortSpace::ALL {
            assert_eq!(ServiceId::rdma_cm(space, 7).port(), Some((space, 7)));
        }
    }
}
