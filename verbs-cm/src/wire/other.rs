//! The messages after the connection is made, and those without one: DREQ, DREP, LAP, APR
//! (IBTA vol. 1, 12.6.10, 12.6.11, 12.8) and SIDR_REQ, SIDR_REP (12.11).

use verbs_core::addr::{Gid, Lid, PKey, QKey, Qpn};
use verbs_core::mad::{Bits, Blob, TimeCode};
use verbs_core::wire_record;

use crate::wire::connect::ReqPath;
use crate::wire::ids::{CommId, ServiceId};
use crate::wire::reason::{AprStatus, SidrStatus};

wire_record! {
    /// Request for disconnection.
    pub struct Dreq, DreqView: 232 bytes {
        /// The sender's name for the connection.
        local_id: CommId = (0, 0, 32),
        /// The receiver's.
        remote_id: CommId = (4, 0, 32),
        /// The receiver's queue pair.
        remote_qpn: Qpn = (8, 0, 24),
        /// What the service sends along.
        private_data: Blob<220> = (12, 0, 1760),
    }
}

wire_record! {
    /// Reply to a request for disconnection.
    pub struct Drep, DrepView: 232 bytes {
        /// The sender's name for the connection.
        local_id: CommId = (0, 0, 32),
        /// The receiver's.
        remote_id: CommId = (4, 0, 32),
        /// What the service sends along.
        private_data: Blob<224> = (8, 0, 1792),
    }
}

wire_record! {
    /// Service id resolution request: which queue pair serves datagrams for a service?
    pub struct SidrReq, SidrReqView: 232 bytes {
        /// The sender's name for the request.
        request_id: CommId = (0, 0, 32),
        /// Partition.
        pkey: PKey = (4, 0, 16),
        /// The service.
        service_id: ServiceId = (8, 0, 64),
        /// What the client sends along.
        private_data: Blob<216> = (16, 0, 1728),
    }
}

wire_record! {
    /// Service id resolution reply.
    pub struct SidrRep, SidrRepView: 232 bytes {
        /// The request's name.
        request_id: CommId = (0, 0, 32),
        /// How it went.
        status: SidrStatus = (4, 0, 8),
        /// Bytes of `info` that mean something.
        info_len: u8 = (5, 0, 8),
        /// The service's queue pair.
        qpn: Qpn = (8, 0, 24),
        /// The service.
        service_id: ServiceId = (12, 0, 64),
        /// The Q_Key to send with.
        qkey: QKey = (20, 0, 32),
        /// What belongs to the status.
        info: Blob<72> = (24, 0, 576),
        /// What the service sends along.
        private_data: Blob<136> = (96, 0, 1088),
    }
}

wire_record! {
    /// Load alternate path: the side that asked for the connection offers another path.
    pub struct Lap, LapView: 232 bytes {
        /// The sender's name for the connection.
        local_id: CommId = (0, 0, 32),
        /// The receiver's.
        remote_id: CommId = (4, 0, 32),
        /// The receiver's queue pair.
        remote_qpn: Qpn = (12, 0, 24),
        /// Within what time the receiver is to answer.
        remote_response_timeout: TimeCode = (15, 0, 5),
        /// The sender's port.
        local_lid: Lid = (20, 0, 16),
        /// The receiver's port.
        remote_lid: Lid = (22, 0, 16),
        /// The sender's port.
        local_gid: Gid = (24, 0, 128),
        /// The receiver's port.
        remote_gid: Gid = (40, 0, 128),
        /// Flow label.
        flow_label: Bits<20> = (56, 0, 20),
        /// Traffic class.
        traffic_class: u8 = (59, 0, 8),
        /// Hop limit.
        hop_limit: u8 = (60, 0, 8),
        /// Rate, by its code.
        rate: Bits<6> = (61, 2, 6),
        /// Service level.
        sl: Bits<4> = (62, 0, 4),
        /// Whether both ports are in one subnet.
        subnet_local: bool = (62, 4, 1),
        /// ACK timeout that the receiver's queue pair is to use.
        ack_timeout: TimeCode = (63, 0, 5),
        /// What the service sends along.
        private_data: Blob<168> = (64, 0, 1344),
    }
}

impl Lap {
    /// A message with that path, and nothing else.
    pub fn of(path: &ReqPath) -> Self {
        let ReqPath {
            local_lid,
            remote_lid,
            local_gid,
            remote_gid,
            flow_label,
            rate,
            traffic_class,
            hop_limit,
            sl,
            subnet_local,
            ack_timeout,
        } = *path;
        Self {
            local_lid,
            remote_lid,
            local_gid,
            remote_gid,
            flow_label,
            rate,
            traffic_class,
            hop_limit,
            sl,
            subnet_local,
            ack_timeout,
            ..Self::default()
        }
    }

    /// The path, as a REQ has it.
    pub fn path(&self) -> ReqPath {
        ReqPath {
            local_lid: self.local_lid,
            remote_lid: self.remote_lid,
            local_gid: self.local_gid,
            remote_gid: self.remote_gid,
            flow_label: self.flow_label,
            rate: self.rate,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: self.sl,
            subnet_local: self.subnet_local,
            ack_timeout: self.ack_timeout,
        }
    }
}

wire_record! {
    /// Alternate path response.
    pub struct Apr, AprView: 232 bytes {
        /// The sender's name for the connection.
        local_id: CommId = (0, 0, 32),
        /// The receiver's.
        remote_id: CommId = (4, 0, 32),
        /// Bytes of `info` that mean something.
        info_len: u8 = (8, 0, 8),
        /// How it went.
        status: AprStatus = (9, 0, 8),
        /// What belongs to the status.
        info: Blob<72> = (12, 0, 576),
        /// What the service sends along.
        private_data: Blob<148> = (84, 0, 1184),
    }
}
