//! The packets of a subnet.

use verbs_core::addr::{PKey, Psn, QKey, Qpn};
use verbs_core::mad::{GSI_QKEY, MAD_LEN, MadBytes, sm};
use verbs_core::{Gid, Lid};

use verbs_link::{Local, Route};
use verbs_wire::{
    Bth, BthFlags, Deth, Extended, Frame, Grh, Head, Icrc, Opcode, Operation, PacketView, Service,
};

/// Bytes of the local route header, and of the CRC after a transport packet.
const LRH_LEN: usize = 8;
const ICRC_LEN: usize = 4;
/// Bytes of the headers of a datagram: BTH and DETH.
const UD_LEN: usize = 12 + 8;

/// The virtual lane of subnet management.
pub(super) const VL15: u8 = 15;

/// A packet on an InfiniBand link, with the fields of its local route header that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The sender.
    pub slid: Lid,
    /// The destination: a port, or a multicast group.
    pub dlid: Lid,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Its global route header, if it has one; the length in it follows from the rest.
    pub grh: Option<Grh>,
    /// Its content.
    pub body: Body,
    /// Links that it has passed.
    pub(super) hops: u8,
}

/// The content of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A management datagram.
    Mad(MadPacket),
    /// A packet of any transport, from its BTH to its ICRC.
    Transport(Vec<u8>),
}

/// A management datagram, with its source and destination queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadPacket {
    /// The source: 0 for subnet management, 1 or higher for everything else.
    pub src_qpn: Qpn,
    /// The destination.
    pub dst_qpn: Qpn,
    /// Q_Key; queue pair 0 ignores it.
    pub qkey: QKey,
    /// Partition; queue pair 0 ignores it.
    pub pkey: PKey,
    /// The datagram.
    pub mad: Box<MadBytes>,
}

impl MadPacket {
    /// Reads the datagram in a packet from BTH to ICRC; `None` if the packet has none.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let view = PacketView::new(bytes).ok()?;
        if view.bth().dest_qpn() > Qpn::new(1) {
            return None;
        }
        let packet = verbs_wire::Packet::parse(bytes).ok()?;
        let deth = packet.head.ext().deth?;
        Some(Self {
            src_qpn: deth.src_qpn,
            dst_qpn: packet.head.bth().dest_qpn,
            qkey: deth.qkey,
            pkey: packet.head.bth().pkey,
            mad: Box::new(packet.payload.try_into().ok()?),
        })
    }

    /// Writes it as a packet from BTH to ICRC. `None` if that is impossible.
    fn emit(&self, icrc: &Icrc, out: &mut Vec<u8>) -> Option<()> {
        let bth = Bth {
            opcode: Opcode::new(Service::Ud, Operation::SendOnly)?,
            flags: BthFlags::empty(),
            pkey: self.pkey,
            dest_qpn: self.dst_qpn,
            psn: Psn::new(0),
        };
        let deth = Deth {
            qkey: self.qkey,
            src_qpn: self.src_qpn,
        };
        let ext = Extended {
            deth: Some(deth),
            ..Extended::default()
        };
        let packet = verbs_wire::Packet {
            head: Head::new(bth, ext).ok()?,
            payload: &*self.mad,
        };
        out.resize(packet.wire_len(), 0);
        packet.emit(out, icrc).ok().map(|_| ())
    }
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
            grh: None,
            body,
            hops: 0,
        }
    }

    /// Whether it is a subnet management packet, which uses virtual lane 15 and passes ports that are not in
    /// service yet.
    pub fn is_smp(&self) -> bool {
        matches!(&self.body, Body::Mad(mad) if mad.dst_qpn.value() == 0)
    }

    /// Whether it follows a directed route.
    pub fn is_directed(&self) -> bool {
        self.is_smp() && matches!(&self.body, Body::Mad(mad) if sm::is_directed(&mad.mad))
    }

    /// A packet of an HCA, from its BTH to its ICRC, to that LID. Management datagrams are recognized.
    pub(super) fn of_transport(route: &Route, dlid: Lid, bytes: &[u8]) -> Self {
        let body = match MadPacket::parse(bytes) {
            Some(mad) => Body::Mad(mad),
            None => Body::Transport(bytes.to_vec()),
        };
        let local = route.local;
        let slid = local.map_or(Lid(0), |local| local.slid);
        let sl = local.map_or(0, |local| local.sl);
        let grh = Grh {
            traffic_class: route.tclass,
            hop_limit: route.hop_limit,
            sgid: route.src.into(),
            dgid: route.dst.into(),
            ..Grh::default()
        };
        Self {
            grh: local.is_none_or(|local| local.global).then_some(grh),
            ..Self::new(slid, dlid, sl, body)
        }
    }

    /// The same for a packet with those headers.
    pub(super) fn of_frame(frame: &Frame, transport: &[u8]) -> Self {
        let body = match MadPacket::parse(transport) {
            Some(mad) => Body::Mad(mad),
            None => Body::Transport(transport.to_vec()),
        };
        Self {
            grh: frame.grh,
            ..Self::new(frame.slid, frame.dlid, frame.sl, body)
        }
    }

    /// Its headers on a link.
    pub(super) fn frame(&self) -> Frame {
        Frame {
            vl: if self.is_smp() { VL15 } else { 0 },
            sl: self.sl,
            dlid: self.dlid,
            slid: self.slid,
            grh: self.grh,
        }
    }

    /// The fields of its local route header.
    pub(super) fn local(&self) -> Local {
        Local {
            slid: self.slid,
            dlid: self.dlid,
            sl: self.sl,
            global: self.grh.is_some(),
        }
    }

    /// The packet from its BTH to its ICRC; a datagram is written to `out`. `None` if no header can represent it.
    pub(super) fn transport<'a>(&'a self, out: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        match &self.body {
            Body::Transport(bytes) => Some(bytes),
            Body::Mad(mad) => {
                let none = Gid::default();
                let (src, dst) = self.grh.map_or((none, none), |grh| (grh.sgid, grh.dgid));
                let len = UD_LEN + MAD_LEN + Icrc::LEN;
                let icrc = self.local().icrc(src.into(), dst.into(), len)?;
                mad.emit(&icrc, out)?;
                Some(out)
            }
        }
    }

    /// The partition in the packet; `None` for subnet management and for packets that are too short.
    pub(super) fn pkey(&self) -> Option<PKey> {
        match &self.body {
            Body::Mad(mad) => (mad.dst_qpn.value() != 0).then_some(mad.pkey),
            Body::Transport(bytes) => {
                let key = bytes.get(2..).and_then(<[u8]>::first_chunk);
                key.map(|&key| PKey(u16::from_be_bytes(key)))
            }
        }
    }

    /// The length for counters, in words of four bytes: from the local route header to the ICRC.
    pub(super) fn words(&self) -> u64 {
        let body = match &self.body {
            Body::Mad(mad) => UD_LEN + mad.mad.len() + ICRC_LEN,
            Body::Transport(bytes) => bytes.len(),
        };
        let global = if self.grh.is_some() { Grh::LEN } else { 0 };
        u64::try_from((LRH_LEN + global + body).div_ceil(4)).unwrap_or(u64::MAX)
    }
}
