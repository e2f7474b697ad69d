//! What passes through a subnet.

use verbs_core::addr::{PKey, QKey, Qpn};
use verbs_core::mad::header::header_of;
use verbs_core::mad::{Class, GSI_QKEY, MadBytes, sm};
use verbs_core::{Gid, Lid};

/// Bytes of the local route header, and of the CRC behind a transport packet.
const LRH_LEN: usize = 8;
const ICRC_LEN: usize = 4;
/// Bytes of a GRH.
const GRH_LEN: usize = 40;
/// Bytes of the headers of a datagram: BTH and DETH.
const UD_LEN: usize = 12 + 8;

/// The virtual lane of subnet management.
pub(super) const VL15: u8 = 15;

/// A packet on an InfiniBand link, with the fields of its local route header that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sent it.
    pub slid: Lid,
    /// Who gets it: a port, or a multicast group.
    pub dlid: Lid,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Sender and receiver by GID, where the packet has a global route header.
    pub gids: Option<(Gid, Gid)>,
    /// What it carries.
    pub body: Body,
    /// Links that it has passed.
    pub(super) hops: u8,
}

/// What a packet carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A management datagram.
    Mad(MadPacket),
    /// A packet of any transport, from its BTH to its ICRC.
    Transport(Vec<u8>),
}

/// A management datagram, and the queue pairs that it goes between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadPacket {
    /// Who sent it: 0 for subnet management, 1 or higher for all else.
    pub src_qpn: Qpn,
    /// Who gets it.
    pub dst_qpn: Qpn,
    /// Q_Key; queue pair 0 does not look at it.
    pub qkey: QKey,
    /// Partition; queue pair 0 does not look at it.
    pub pkey: PKey,
    /// The datagram.
    pub mad: Box<MadBytes>,
}

impl Packet {
    /// A datagram of subnet management between the queue pairs 0.
    pub fn smp(slid: Lid, dlid: Lid, mad: Box<MadBytes>) -> Self {
        let body = MadPacket {
            src_qpn: Qpn::new(0),
            dst_qpn: Qpn::new(0),
            qkey: QKey(0),
            pkey: PKey::DEFAULT,
            mad,
        };
        Self::new(slid, dlid, 0, Body::Mad(body))
    }

    /// A datagram of general services between the queue pairs 1, in the default partition.
    pub fn gmp(slid: Lid, dlid: Lid, mad: Box<MadBytes>) -> Self {
        let body = MadPacket {
            src_qpn: Qpn::new(1),
            dst_qpn: Qpn::new(1),
            qkey: GSI_QKEY,
            pkey: PKey::DEFAULT,
            mad,
        };
        Self::new(slid, dlid, 0, Body::Mad(body))
    }

    /// Any packet, without a global route header.
    pub fn new(slid: Lid, dlid: Lid, sl: u8, body: Body) -> Self {
        Self {
            slid,
            dlid,
            sl,
            gids: None,
            body,
            hops: 0,
        }
    }

    /// Whether it is one of subnet management, which goes on virtual lane 15 and passes ports that
    /// are not in service yet.
    pub fn is_smp(&self) -> bool {
        matches!(&self.body, Body::Mad(mad) if mad.dst_qpn.value() == 0)
    }

    /// Whether it goes where its own paths say.
    pub fn is_directed(&self) -> bool {
        self.is_smp() && matches!(&self.body, Body::Mad(mad) if sm::is_directed(&mad.mad))
    }

    /// The class of a management datagram.
    pub(super) fn class(&self) -> Option<Class> {
        match &self.body {
            Body::Mad(mad) => Some(header_of(&mad.mad).class()),
            Body::Transport(_) => None,
        }
    }

    /// The partition, as the packet says; `None` for subnet management and for what is too short.
    pub(super) fn pkey(&self) -> Option<PKey> {
        match &self.body {
            Body::Mad(mad) => (mad.dst_qpn.value() != 0).then_some(mad.pkey),
            Body::Transport(bytes) => {
                let key = bytes.get(2..).and_then(<[u8]>::first_chunk);
                key.map(|&key| PKey(u16::from_be_bytes(key)))
            }
        }
    }

    /// Words of four bytes that counters count: from the local route header to the ICRC.
    pub(super) fn words(&self) -> u64 {
        let body = match &self.body {
            Body::Mad(mad) => UD_LEN + mad.mad.len() + ICRC_LEN,
            Body::Transport(bytes) => bytes.len(),
        };
        let global = if self.gids.is_some() { GRH_LEN } else { 0 };
        u64::try_from((LRH_LEN + global + body).div_ceil(4)).unwrap_or(u64::MAX)
    }
}
