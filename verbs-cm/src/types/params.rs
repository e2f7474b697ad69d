//! What a user says: connect, accept, listen; and what the table knows of its port.

use std::net::IpAddr;
use std::time::Duration;

use verbs_core::addr::{Gid, Guid, Lid, Mtu, PKey, Psn, QKey, Qpn};
use verbs_core::mad::sa::PathRecord;
use verbs_core::mad::{Address, Bits, Blob, TimeCode};
use verbs_core::{Av, GlobalRoute, LinkLayer};

use crate::wire::{IpHeader, ReqPath, ServiceId, SidrStatus, Transport};

/// The port that a table of connections is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number of the port, from 1.
    pub number: u8,
    /// GUID of the channel adapter: names this side to its peers.
    pub ca_guid: Guid,
    /// What the port is connected to.
    pub link_layer: LinkLayer,
    /// LID; 0 where there are none.
    pub lid: Lid,
    /// The GID table: index and GID.
    pub gids: Vec<(u16, Gid)>,
    /// Largest path MTU that is taken from a peer.
    pub mtu: Mtu,
    /// How long the adapter may take to acknowledge a packet.
    pub ack_delay: TimeCode,
    /// Whether the adapter's queue pairs have alternate paths
    /// ([`AUTO_PATH_MIG`](verbs_core::DeviceCap::AUTO_PATH_MIG)). They are agreed on where there are LIDs only:
    /// elsewhere nothing says that an address is its sender's.
    pub migrates: bool,
}

impl Port {
    /// Index of a GID of this port.
    pub fn gid_index(&self, gid: Gid) -> Option<u16> {
        self.gids
            .iter()
            .find(|(_, own)| *own == gid)
            .map(|&(index, _)| index)
    }

    /// Which of the port's LIDs that is, by how far it is from the first; 0 for one that cannot be the port's.
    pub(crate) fn path_bits(&self, own: Lid) -> u8 {
        self.own_bits(own).unwrap_or(0)
    }

    /// The same; `None` for a LID that cannot be the port's.
    pub(crate) fn own_bits(&self, own: Lid) -> Option<u8> {
        let bits = own.0.wrapping_sub(self.lid.0);
        u8::try_from(bits).ok().filter(|&bits| bits < 128)
    }

    /// Whether alternate paths are agreed on.
    pub(crate) fn has_alternates(&self) -> bool {
        self.migrates && self.link_layer == LinkLayer::InfiniBand
    }
}

/// A way to a peer's port, with all that a REQ says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Address vector of the peer's port.
    pub av: Av,
    /// GID of this port on that way.
    pub local_gid: Gid,
    /// GID of the peer's port.
    pub remote_gid: Gid,
    /// Partition, and its index at this port.
    pub pkey: (PKey, u16),
    /// Path MTU.
    pub mtu: Mtu,
    /// How long a packet may be on its way. 18 (1.07 s) by default: what Linux takes over RoCE.
    pub packet_lifetime: TimeCode,
    /// Rate, by its code.
    pub rate: Bits<6>,
    /// Whether both ports are in one subnet.
    pub is_subnet_local: bool,
}

impl Default for Route {
    fn default() -> Self {
        Self {
            av: Av::default(),
            local_gid: Gid::default(),
            remote_gid: Gid::default(),
            pkey: (PKey::DEFAULT, 0),
            mtu: Mtu::B1024,
            packet_lifetime: TimeCode::new(18),
            rate: Bits::default(),
            is_subnet_local: false,
        }
    }
}

impl Route {
    /// The way from one GID of `port` to another's over a network without LIDs; `None` when
    /// `local` is no GID of the port.
    pub fn roce(port: &Port, local: Gid, remote: Gid) -> Option<Self> {
        let index = port.gid_index(local)?;
        Some(Self {
            av: Av::to_gid(port.number, index, remote),
            local_gid: local,
            remote_gid: remote,
            mtu: port.mtu,
            ..Self::default()
        })
    }

    /// The way that a path record of the subnet administrator describes; `None` when the record's
    /// source is no GID of the port, or its MTU is none.
    pub fn from_record(port: &Port, record: &PathRecord, pkey_index: u16) -> Option<Self> {
        let index = port.gid_index(record.sgid)?;
        let mtu = Mtu::from_code(record.mtu.value())?;
        // Within the subnet a path has no use for a GRH.
        let is_subnet_local = record.hop_limit <= 1;
        let global = GlobalRoute {
            dgid: record.dgid,
            sgid_index: index,
            flow_label: record.flow_label.value(),
            hop_limit: record.hop_limit,
            traffic_class: record.traffic_class,
        };
        Some(Self {
            av: Av {
                global: (!is_subnet_local).then_some(global),
                dlid: record.dlid,
                sl: record.sl.byte(),
                src_path_bits: port.path_bits(record.slid),
                port: port.number,
            },
            local_gid: record.sgid,
            remote_gid: record.dgid,
            pkey: (record.pkey, pkey_index),
            mtu,
            packet_lifetime: TimeCode::new(record.packet_lifetime.byte()),
            rate: record.rate,
            is_subnet_local,
        })
    }

    /// The same way between other LIDs of both ports: from the one that `src_path_bits` are added to the port's for,
    /// to `dlid`. Where the subnet manager has given ports several, they lead by other switches.
    #[must_use]
    pub fn between(mut self, src_path_bits: u8, dlid: Lid) -> Self {
        (self.av.src_path_bits, self.av.dlid) = (src_path_bits, dlid);
        self
    }

    /// Where messages for the peer go.
    pub fn address(&self) -> Address {
        Address {
            pkey_index: self.pkey.1,
            ..Address::gsi(self.av)
        }
    }

    /// The route as a REQ shows it.
    pub(crate) fn to_wire(self, port: &Port, ack_timeout: TimeCode) -> ReqPath {
        // Without LIDs the permissive one stands for them, as Linux has it.
        let (local_lid, remote_lid) = match port.link_layer {
            LinkLayer::InfiniBand => {
                let own = port.lid.0.saturating_add(self.av.src_path_bits.into());
                (Lid(own), self.av.dlid)
            }
            _ => (Lid(0xffff), Lid(0xffff)),
        };
        let global = self.av.global;
        ReqPath {
            local_lid,
            remote_lid,
            local_gid: self.local_gid,
            remote_gid: self.remote_gid,
            flow_label: Bits::truncated(global.map_or(0, |global| global.flow_label)),
            rate: self.rate,
            traffic_class: global.map_or(0, |global| global.traffic_class),
            hop_limit: global.map_or(1, |global| global.hop_limit),
            sl: Bits::truncated(self.av.sl.into()),
            subnet_local: self.is_subnet_local,
            ack_timeout,
        }
    }
}

/// Asks for a connection. The queue pair is in INIT; the connection brings it to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The service.
    pub service_id: ServiceId,
    /// The queue pair.
    pub qpn: Qpn,
    /// The way to the peer.
    pub route: Route,
    /// Another one, which both queue pairs get as their alternate path if the peer takes it. None by default.
    pub alternate: Option<Route>,
    /// RC, UC, or [`Transport::Extended`] for an initiator of extended reliable connections (XRC), whose peer has a
    /// target.
    pub transport: Transport,
    /// First packet that the peer is to send; a random number.
    pub psn: Psn,
    /// Whether the queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// READs and atomics that the queue pair serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that may be outstanding.
    pub initiator_depth: u8,
    /// Transport retries of both queue pairs. 7 by default.
    pub retry_count: Bits<3>,
    /// Receiver-not-ready retries that the peer's queue pair is to use; 7, for ever, by default.
    pub rnr_retry_count: Bits<3>,
    /// Delay that the queue pair asks for when it is not ready, by its code; 0 (655 ms) by default.
    pub min_rnr_timer: u8,
    /// Within what time either side answers. 20 (4.3 s) by default.
    pub response_timeout: TimeCode,
    /// How often either side sends a message again. 15 by default.
    pub max_cm_retries: Bits<4>,
    /// How long the peer has to show that it is there, if that is less than the above makes: the REQ is
    /// sent again as often as they say, but sooner. `None`, as long as they make, by default.
    pub timeout: Option<Duration>,
    /// What the service gets to see. [`Connect::ip`] puts a header before it.
    pub private_data: Blob<92>,
}

impl Connect {
    /// A reliable connection with the defaults that the field is used to.
    pub fn new(service_id: ServiceId, qpn: Qpn, route: Route) -> Self {
        Self {
            service_id,
            qpn,
            route,
            alternate: None,
            transport: Transport::Rc,
            psn: Psn::default(),
            srq: false,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: Bits::MAX,
            rnr_retry_count: Bits::MAX,
            min_rnr_timer: 0,
            response_timeout: TimeCode::new(20),
            max_cm_retries: Bits::MAX,
            timeout: None,
            private_data: Blob::default(),
        }
    }

    /// Sets private data as the RDMA IP connection manager has them: its header, then the service's
    /// bytes.
    #[must_use]
    pub fn ip(mut self, header: &IpHeader, data: Blob<56>) -> Self {
        let (head, rest) = self.private_data.0.split_at_mut(IpHeader::LEN);
        if let Some(head) = head.first_chunk_mut() {
            header.emit(head);
        }
        rest.copy_from_slice(&data.0);
        self
    }
}

/// Accepts a connection. The queue pair is in INIT; the connection brings it to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// The queue pair.
    pub qpn: Qpn,
    /// First packet that the peer is to send; a random number.
    pub psn: Psn,
    /// Whether the queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// READs and atomics that the queue pair serves at a time.
    pub responder_resources: u8,
    /// READs and atomics that may be outstanding; no more than the peer serves are used.
    pub initiator_depth: u8,
    /// Receiver-not-ready retries that the peer's queue pair is to use; 7, for ever, by default.
    pub rnr_retry_count: Bits<3>,
    /// Delay that the queue pair asks for when it is not ready, by its code; 0 (655 ms) by default.
    pub min_rnr_timer: u8,
    /// Whether alternate paths are taken: the one in the request, and those that the peer offers later. Where the
    /// port has any, they are by default.
    pub takes_paths: bool,
    /// What the peer gets to see.
    pub private_data: Blob<196>,
}

impl Default for Accept {
    fn default() -> Self {
        Self {
            qpn: Qpn::default(),
            psn: Psn::default(),
            srq: false,
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: Bits::MAX,
            min_rnr_timer: 0,
            takes_paths: true,
            private_data: Blob::default(),
        }
    }
}

/// Listens for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The service.
    pub service_id: ServiceId,
    /// Only requests whose RDMA IP header has this destination; `None` for all.
    pub addr: Option<IpAddr>,
    /// Requests that wait for an answer of the user; more are rejected. 128 by default.
    pub backlog: u32,
    /// Whether requests for extended reliable connections, which are accepted with a target queue pair, are put before
    /// the user. They are refused by default: most users have none.
    pub extended: bool,
}

impl Listen {
    /// Listens for a service, whatever the address.
    pub const fn new(service_id: ServiceId) -> Self {
        Self {
            service_id,
            addr: None,
            backlog: 128,
            extended: false,
        }
    }
}

/// Asks which queue pair serves datagrams for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// The service.
    pub service_id: ServiceId,
    /// The way to the peer.
    pub route: Route,
    /// Within what time the peer answers. 20 (4.3 s) by default.
    pub response_timeout: TimeCode,
    /// How often the request is sent again. 15 by default.
    pub max_cm_retries: Bits<4>,
    /// How long the peer has to answer, if that is less than the above makes: the request is sent again as
    /// often as they say, but sooner. `None`, as long as they make, by default.
    pub timeout: Option<Duration>,
    /// What the service gets to see.
    pub private_data: Blob<216>,
}

impl Resolve {
    /// With the defaults that the field is used to.
    pub fn new(service_id: ServiceId, route: Route) -> Self {
        Self {
            service_id,
            route,
            response_timeout: TimeCode::new(20),
            max_cm_retries: Bits::MAX,
            timeout: None,
            private_data: Blob::default(),
        }
    }

    /// Sets private data as the RDMA IP connection manager has them: its header, then the service's
    /// bytes.
    #[must_use]
    pub fn ip(mut self, header: &IpHeader, data: Blob<180>) -> Self {
        let (head, rest) = self.private_data.0.split_at_mut(IpHeader::LEN);
        if let Some(head) = head.first_chunk_mut() {
            header.emit(head);
        }
        rest.copy_from_slice(&data.0);
        self
    }
}

/// Answers such a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// How it went; queue pair and Q_Key count only when it is [`SidrStatus::Valid`].
    pub status: SidrStatus,
    /// The service's queue pair.
    pub qpn: Qpn,
    /// The Q_Key to send with.
    pub qkey: QKey,
    /// What the client gets to see.
    pub private_data: Blob<136>,
}
