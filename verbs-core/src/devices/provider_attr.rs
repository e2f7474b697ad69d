//! What a provider says of the ways to its ports: what the connection manager chooses its own from.

use std::fmt;

use bitflags::bitflags;

use crate::mem::Access;

/// What carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TransportType {
    /// InfiniBand in a subnet with LIDs.
    #[default]
    InfiniBand,
    /// InfiniBand's transport over UDP: RoCEv2.
    RoceV2,
    /// RDMA over TCP.
    Iwarp,
}

impl TransportType {
    /// The rights that the sink of a READ needs, the memory that it fills.
    ///
    /// InfiniBand's transports need `LOCAL_WRITE`. With RDMA over TCP the response is a tagged message to the sink's key,
    /// which the peer was told with the request, so that RNICs want `REMOTE_WRITE` as well (RFC 5040, section 5.4): the
    /// peer can write there as long as the key is valid.
    pub const fn read_sink(self) -> Access {
        match self {
            Self::InfiniBand | Self::RoceV2 => Access::LOCAL_WRITE,
            Self::Iwarp => Access::LOCAL_WRITE.union(Access::REMOTE_WRITE),
        }
    }
}

impl fmt::Display for TransportType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV2 => "RoCEv2",
            Self::Iwarp => "iWARP",
        })
    }
}

/// What kind of node a device is; numbers as `ibv_node_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum NodeType {
    /// A channel adapter.
    #[default]
    Ca = 1,
    /// An adapter for RDMA over TCP: it has no queue pairs 0 and 1, which the core refuses to create.
    Rnic = 4,
}

bitflags! {
    /// What a port can do for the managers of the port and of its connections.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct PortCaps: u32 {
        /// Connections are made by messages of the connection manager on queue pair 1.
        const IB_CM = 1 << 0;
        /// Connections are those of RDMA over TCP. The provider makes them itself, by verbs; see
        /// [`cm`](crate::cm).
        const IW_CM = 1 << 1;
        /// Management datagrams can be sent and received: queue pair 1 can be made.
        const MAD = 1 << 2;
        /// Queue pair 0 can be made, too.
        const SMI = 1 << 3;
        /// A subnet administrator answers for paths and groups.
        const SA = 1 << 4;
        /// Queue pairs can be attached to multicast groups.
        const MCAST = 1 << 5;
        /// Connections are InfiniBand's, made by the connection manager of the system and not by messages of
        /// ours. The provider has it make them, by verbs; see [`cm`](crate::cm).
        const RDMA_CM = 1 << 6;
        /// Software of this host carries the messages. Without it an adapter does, past the host's network stack.
        const SOFTWARE = 1 << 7;
    }
}

impl PortCaps {
    /// Whether the provider makes connections itself, by the verbs of [`cm`](crate::cm).
    pub const fn has_cm_verbs(self) -> bool {
        self.intersects(Self::IW_CM.union(Self::RDMA_CM))
    }
}

/// Limits of the connections that a provider makes itself, which the core enforces. A provider without
/// [those verbs](PortCaps::has_cm_verbs) has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CmLimits {
    /// Bytes of private data with a connect, an accept or a reject.
    pub private_data: u16,
    /// READs and atomics that a queue pair serves at a time (IRD).
    pub max_ird: u8,
    /// READs and atomics that may be outstanding (ORD).
    pub max_ord: u8,
}

/// The answer of [`Provider::query_provider`](crate::Provider::query_provider).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ProviderAttr {
    /// What carries messages.
    pub transport: TransportType,
    /// What kind of node the device is.
    pub node: NodeType,
    /// What the port can do.
    pub caps: PortCaps,
    /// Limits of connections that the provider makes itself.
    pub cm: CmLimits,
}
