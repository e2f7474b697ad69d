//! The messages that make a connection: REQ, MRA, REJ, REP, RTU (IBTA vol. 1, 12.6.5 to 12.6.9).

use verbs_core::addr::{Gid, Guid, Lid, Mtu, PKey, Psn, QKey, Qpn};
use verbs_core::mad::field::{Field, Run};
use verbs_core::mad::{Bits, Blob, TimeCode};
use verbs_core::wire_record;

use crate::wire::ids::{CommId, ServiceId};
use crate::wire::reason::{Acknowledged, RejectReason, Rejected, Transport};

wire_record! {
    /// Request for communication: the active side asks for a connection.
    pub struct Req, ReqView: 232 bytes {
        /// The sender's name for the connection.
        local_id: CommId = (0, 0, 32),
        /// The service that is asked for.
        service_id: ServiceId = (8, 0, 64),
        /// GUID of the sender's channel adapter.
        ca_guid: Guid = (16, 0, 64),
        /// Q_Key of the sender's queue pair, for datagrams.
        qkey: QKey = (28, 0, 32),
        /// The sender's queue pair.
        qpn: Qpn = (32, 0, 24),
        /// READs and atomics that the sender's queue pair serves at a time.
        responder_resources: u8 = (35, 0, 8),
        /// The sender's end-to-end context, for reliable datagrams.
        local_eecn: Bits<24> = (36, 0, 24),
        /// READs and atomics that the sender wants to have outstanding.
        initiator_depth: u8 = (39, 0, 8),
        /// The receiver's end-to-end context, if there is one already.
        remote_eecn: Bits<24> = (40, 0, 24),
        /// Within what time the receiver is to answer.
        remote_response_timeout: TimeCode = (43, 0, 5),
        /// Transport.
        transport: Transport = (43, 5, 2),
        /// Whether the sender's queue pair gives credits.
        flow_control: bool = (43, 7, 1),
        /// First packet that the receiver is to send.
        psn: Psn = (44, 0, 24),
        /// Within what time the sender will answer.
        local_response_timeout: TimeCode = (47, 0, 5),
        /// Transport retries that the receiver's queue pair is to use.
        retry_count: Bits<3> = (47, 5, 3),
        /// Partition.
        pkey: PKey = (48, 0, 16),
        /// Path MTU.
        path_mtu: MtuCode = (50, 0, 4),
        /// Whether there is a reliable datagram channel already.
        rdc_exists: bool = (50, 4, 1),
        /// Receiver-not-ready retries that the receiver's queue pair is to use.
        rnr_retry_count: Bits<3> = (50, 5, 3),
        /// How often either side sends a message again.
        max_cm_retries: Bits<4> = (51, 0, 4),
        /// Whether the sender's queue pair takes its receives from a shared queue.
        srq: bool = (51, 4, 1),
        /// Which extended transport: 1 is XRC.
        extended_transport: Bits<3> = (51, 5, 3),
        /// The path.
        primary: ReqPath = (52, 0, 352),
        /// Another path; there is none if its local LID is 0.
        alternate: ReqPath = (96, 0, 352),
        /// What the service sends along.
        private_data: Blob<92> = (140, 0, 736),
    }
}

impl Req {
    /// [`extended_transport`](Self::extended_transport) of an extended reliable connection (IBTA vol. 1, annex A14).
    pub const XRC: Bits<3> = Bits::truncated(1);
}

wire_record! {
    /// A path in a REQ, as its sender sees it.
    pub struct ReqPath, ReqPathView: 44 bytes {
        /// The sender's port. Linux sends 0xffff where the network has no LIDs.
        local_lid: Lid = (0, 0, 16),
        /// The receiver's port.
        remote_lid: Lid = (2, 0, 16),
        /// The sender's port.
        local_gid: Gid = (4, 0, 128),
        /// The receiver's port.
        remote_gid: Gid = (20, 0, 128),
        /// Flow label.
        flow_label: Bits<20> = (36, 0, 20),
        /// Rate, by its code.
        rate: Bits<6> = (39, 2, 6),
        /// Traffic class.
        traffic_class: u8 = (40, 0, 8),
        /// Hop limit.
        hop_limit: u8 = (41, 0, 8),
        /// Service level.
        sl: Bits<4> = (42, 0, 4),
        /// Whether both ports are in one subnet.
        subnet_local: bool = (42, 4, 1),
        /// ACK timeout that the receiver's queue pair is to use.
        ack_timeout: TimeCode = (43, 0, 5),
    }
}

impl Field for ReqPath {
    fn read(bytes: &[u8], run: Run) -> Self {
        let view = bytes.get(run.byte..).and_then(ReqPathView::new);
        view.map_or_else(Self::default, Self::parse)
    }

    fn write(self, bytes: &mut [u8], run: Run) {
        if let Some(place) = bytes.get_mut(run.byte..).and_then(<[u8]>::first_chunk_mut) {
            self.emit(place);
        }
    }
}

/// A path MTU as a REQ has it: four bits, not all of which stand for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MtuCode(Bits<4>);

impl MtuCode {
    /// The MTU, if the code stands for one.
    pub fn mtu(self) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|&mtu| Self::from(mtu) == self)
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0.byte()
    }
}

impl From<Mtu> for MtuCode {
    fn from(mtu: Mtu) -> Self {
        Self(Bits::saturating(mtu.shift() - 7))
    }
}

impl Field for MtuCode {
    fn read(bytes: &[u8], run: Run) -> Self {
        Self(Bits::read(bytes, run))
    }

    fn write(self, bytes: &mut [u8], run: Run) {
        self.0.write(bytes, run);
    }
}

wire_record! {
    /// Message receipt acknowledgment: the answer takes longer than announced.
    pub struct Mra, MraView: 232 bytes {
        /// The sender's name for the connection.
        local_id: CommId = (0, 0, 32),
        /// The receiver's.
        remote_id: CommId = (4, 0, 32),
        /// Which message is meant.
        message: Acknowledged = (8, 0, 2),
        /// How long the answer will take from now.
        service_timeout: TimeCode = (9, 0, 5),
        /// What the service sends along.
        private_data: Blob<222> = (10, 0, 1776),
    }
}

wire_record! {
    /// Reject: there will be no connection.
    pub struct Rej, RejView: 232 bytes {
        /// The sender's name for the connection; 0 where it has none.
        local_id: CommId = (0, 0, 32),
        /// The receiver's; 0 where the sender does not know it.
        remote_id: CommId = (4, 0, 32),
        /// What is rejected.
        message: Rejected = (8, 0, 2),
        /// Bytes of `info` that mean something.
        info_len: Bits<7> = (9, 0, 7),
        /// Why.
        reason: RejectReason = (10, 0, 16),
        /// What belongs to the reason.
        info: Blob<72> = (12, 0, 576),
        /// What the service sends along.
        private_data: Blob<148> = (84, 0, 1184),
    }
}

wire_record! {
    /// Reply: the passive side accepts.
    pub struct Rep, RepView: 232 bytes {
        /// The sender's name for the connection.
        local_id: CommId = (0, 0, 32),
        /// The receiver's.
        remote_id: CommId = (4, 0, 32),
        /// Q_Key of the sender's queue pair, for datagrams.
        qkey: QKey = (8, 0, 32),
        /// The sender's queue pair.
        qpn: Qpn = (12, 0, 24),
        /// The sender's end-to-end context, for reliable datagrams; its queue pair, for extended connections.
        local_eecn: Bits<24> = (16, 0, 24),
        /// First packet that the receiver is to send.
        psn: Psn = (20, 0, 24),
        /// READs and atomics that the sender's queue pair serves at a time.
        responder_resources: u8 = (24, 0, 8),
        /// READs and atomics that the sender will have outstanding.
        initiator_depth: u8 = (25, 0, 8),
        /// How long the sender's adapter may take to acknowledge.
        target_ack_delay: TimeCode = (26, 0, 5),
        /// What became of the alternate path: 0 accepted, 1 not supported, 2 rejected.
        failover: Bits<2> = (26, 5, 2),
        /// Whether the sender's queue pair gives credits.
        flow_control: bool = (26, 7, 1),
        /// Receiver-not-ready retries that the receiver's queue pair is to use.
        rnr_retry_count: Bits<3> = (27, 0, 3),
        /// Whether the sender's queue pair takes its receives from a shared queue.
        srq: bool = (27, 3, 1),
        /// GUID of the sender's channel adapter.
        ca_guid: Guid = (28, 0, 64),
        /// What the service sends along.
        private_data: Blob<196> = (36, 0, 1568),
    }
}

impl Rep {
    /// As it is sent: where the queue pair is a target of an extended reliable connection, the message has its number in
    /// place of an end-to-end context, as Linux writes it, and its receives come from shared queues.
    pub(crate) fn written_as(&self, is_xrc: bool) -> Self {
        if !is_xrc {
            return *self;
        }
        Self {
            qpn: Qpn::default(),
            local_eecn: Bits::truncated(self.qpn.value()),
            srq: true,
            ..*self
        }
    }

    /// The other way round.
    pub(crate) fn read_as(&self, is_xrc: bool) -> Self {
        let qpn = if is_xrc {
            Qpn::new(self.local_eecn.value())
        } else {
            self.qpn
        };
        Self { qpn, ..*self }
    }
}

wire_record! {
    /// Ready to use: the active side has the reply.
    pub struct Rtu, RtuView: 232 bytes {
        /// The sender's name for the connection.
        local_id: CommId = (0, 0, 32),
        /// The receiver's.
        remote_id: CommId = (4, 0, 32),
        /// What the service sends along.
        private_data: Blob<224> = (8, 0, 1792),
    }
}
