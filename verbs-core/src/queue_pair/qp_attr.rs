//! Attributes of a queue pair.

use std::fmt;

use crate::addr::{Gid, Lid, Mtu, Psn, QKey, Qpn};
use crate::mem::Access;
use crate::qp_state::{QpAttrMask, QpState, QpType};
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The global part of an address: what a GRH is made from (IBTA vol. 1, 8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GlobalRoute {
    /// Destination.
    pub dgid: Gid,
    /// Index of the source in the port's GID table.
    pub sgid_index: u16,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// Address vector: where packets go (IBTA vol. 1, 11.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Av {
    /// Global part; `None` for packets that stay in the subnet without a GRH.
    pub global: Option<GlobalRoute>,
    /// Destination port; 0 where there are no LIDs.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// Low bits of the source LID, where the port has several.
    pub src_path_bits: u8,
    /// Local port, from 1.
    pub port: u8,
}

impl Av {
    /// The way to the port with that LID.
    pub const fn to_lid(port: u8, dlid: Lid) -> Self {
        Self {
            global: None,
            dlid,
            sl: 0,
            src_path_bits: 0,
            port,
        }
    }

    /// The way to the port with that GID.
    pub const fn to_gid(port: u8, sgid_index: u16, dgid: Gid) -> Self {
        let global = GlobalRoute {
            dgid,
            sgid_index,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
        };
        Self {
            global: Some(global),
            dlid: Lid(0),
            sl: 0,
            src_path_bits: 0,
            port,
        }
    }
}

/// All that a queue pair must know of its peer to be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Where the peer's port is.
    pub av: Av,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// Number of the first packet that the peer sends.
    pub rq_psn: Psn,
    /// Payload bytes per packet; the same at both ends.
    pub mtu: Mtu,
}

/// Another path to the same peer (IBTA vol. 1, 17.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AltPath {
    // An address vector and two numbers more, in the size of the former: attributes are copied with every modify.
    global: Option<GlobalRoute>,
    dlid: Lid,
    sl: u8,
    src_path_bits: u8,
    port: u8,
    /// Local ACK timeout on that path, as [`QpAttr::timeout`].
    pub timeout: u8,
    /// Index into the P_Key table.
    pub pkey_index: u16,
}

impl AltPath {
    /// The path to the peer's port at `av`, with an index into the P_Key table and a local ACK timeout.
    pub const fn new(av: Av, pkey_index: u16, timeout: u8) -> Self {
        let Av {
            global,
            dlid,
            sl,
            src_path_bits,
            port,
        } = av;
        Self {
            global,
            dlid,
            sl,
            src_path_bits,
            port,
            timeout,
            pkey_index,
        }
    }

    /// Where the peer's port is on that path.
    pub const fn av(&self) -> Av {
        Av {
            global: self.global,
            dlid: self.dlid,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            port: self.port,
        }
    }
}

/// State of path migration of a connected queue pair (IBTA vol. 1, 17.2.8.1); numbers as `ibv_mig_state`.
///
/// A queue pair begins in [`Migrated`](Self::Migrated). A client loads an alternate path and asks for
/// [`Rearm`](Self::Rearm); both ends are [`Armed`](Self::Armed) once each has heard that from the other, by a bit of
/// their packets. An armed queue pair moves to the alternate path when a modify says so, when its peer has moved, or
/// when its retries on the first path are used up; it is `Migrated` then, and
/// [`EventType::PathMig`](crate::EventType::PathMig) tells its client. The path that it came from is its alternate
/// one from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum MigState {
    /// There is no alternate path to go to, or it was taken.
    #[default]
    Migrated = 0,
    /// An alternate path is loaded, and the peer has not said that it has one, too.
    Rearm = 1,
    /// Both ends have an alternate path.
    Armed = 2,
}

impl MigState {
    /// Every state, in the order of its number.
    pub const ALL: [Self; 3] = [Self::Migrated, Self::Rearm, Self::Armed];
}

impl fmt::Display for MigState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Migrated => "MIGRATED",
            Self::Rearm => "REARM",
            Self::Armed => "ARMED",
        })
    }
}

/// What a modify changes: the attributes that are `Some`.
///
/// The three transitions that connect a queue pair have constructors with the required attributes;
/// any other combination can be written down field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QpAttr {
    /// The state to go to.
    pub state: Option<QpState>,
    /// The state that the caller believes it to be in.
    pub cur_state: Option<QpState>,
    /// Whether to raise an event when the send queue has drained.
    pub en_sqd_async_notify: Option<bool>,
    /// What the peer may do to memory through this queue pair.
    pub access: Option<Access>,
    /// Index into the P_Key table.
    pub pkey_index: Option<u16>,
    /// Port, from 1.
    pub port: Option<u8>,
    /// Q_Key of a datagram queue pair.
    pub qkey: Option<QKey>,
    /// Address vector of the peer.
    pub av: Option<Av>,
    /// Path MTU.
    pub path_mtu: Option<Mtu>,
    /// Local ACK timeout: the exponent n of 4.096 us * 2^n, 0 for none, at most 31.
    pub timeout: Option<u8>,
    /// Transport retries, at most 7.
    pub retry_cnt: Option<u8>,
    /// Retries after receiver-not-ready; 7 means for ever.
    pub rnr_retry: Option<u8>,
    /// First packet sequence number to expect.
    pub rq_psn: Option<Psn>,
    /// First packet sequence number to send.
    pub sq_psn: Option<Psn>,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// Shortest delay that a receiver-not-ready answer asks for: a code of the IBTA's table, at most
    /// 31 (12 is 0.64 ms).
    pub min_rnr_timer: Option<u8>,
    /// Queue pair number of the peer.
    pub dest_qpn: Option<Qpn>,
    /// Alternate path of a connected queue pair. Loading it does not use it: that is what
    /// [`path_mig_state`](Self::path_mig_state) is for.
    pub alt_path: Option<AltPath>,
    /// State of path migration. A modify names [`MigState::Rearm`] or [`MigState::Migrated`]; the device alone
    /// arms.
    pub path_mig_state: Option<MigState>,
}

impl QpAttr {
    /// A change of state alone.
    pub fn to(state: QpState) -> Self {
        Self {
            state: Some(state),
            ..Self::default()
        }
    }

    /// RESET to INIT of a connected queue pair, with the port's first P_Key.
    pub fn init(port: u8, access: Access) -> Self {
        Self {
            access: Some(access),
            pkey_index: Some(0),
            port: Some(port),
            ..Self::to(QpState::Init)
        }
    }

    /// RESET to INIT of a queue pair for datagrams, with the port's first P_Key. It takes datagrams that
    /// come with that Q_Key.
    pub fn init_datagram(port: u8, qkey: QKey) -> Self {
        Self {
            qkey: Some(qkey),
            pkey_index: Some(0),
            port: Some(port),
            ..Self::to(QpState::Init)
        }
    }

    /// RESET to INIT of the general services or the subnet management queue pair.
    pub fn init_special(qkey: QKey) -> Self {
        Self {
            port: None,
            ..Self::init_datagram(0, qkey)
        }
    }

    /// INIT to RTR of a connected queue pair of that type, with what it needs of [`QpAttr::rtr`].
    pub fn rtr_of(qp_type: QpType, path: &Path) -> Self {
        let attr = Self::rtr(path);
        match qp_type {
            QpType::Uc | QpType::XrcSend => Self {
                max_dest_rd_atomic: None,
                min_rnr_timer: None,
                ..attr
            },
            _ => attr,
        }
    }

    /// RTR to RTS of a queue pair of that type, with what it needs of [`QpAttr::rts`].
    pub fn rts_of(qp_type: QpType, psn: Psn) -> Self {
        let attr = Self::rts(psn);
        match qp_type {
            QpType::Rc | QpType::XrcSend => attr,
            _ => Self {
                timeout: attr.timeout.filter(|_| qp_type == QpType::XrcRecv),
                retry_cnt: None,
                rnr_retry: None,
                max_rd_atomic: None,
                ..attr
            },
        }
    }

    /// INIT to RTR of a reliable connection: 16 READs and atomics as responder, RNR timer 0.64 ms.
    pub fn rtr(path: &Path) -> Self {
        Self {
            av: Some(path.av),
            path_mtu: Some(path.mtu),
            dest_qpn: Some(path.dest_qpn),
            rq_psn: Some(path.rq_psn),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(12),
            ..Self::to(QpState::Rtr)
        }
    }

    /// RTR to RTS of a reliable connection: 16 READs and atomics as requester, ACK timeout 67 ms
    /// with 7 retries, receiver-not-ready retried for ever.
    ///
    /// A peer is given up after half a second of silence, then. A program on a host that is short of processors
    /// may be silent for longer: for such peers, `timeout` may be 16 (2.1 s in all) to 18 (8.6 s).
    pub fn rts(psn: Psn) -> Self {
        Self {
            sq_psn: Some(psn),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..Self::to(QpState::Rts)
        }
    }

    /// Loads an alternate path, and asks for it to be armed. Both ends do so; the state stays as it is.
    pub fn load_path(alt_path: AltPath) -> Self {
        Self {
            alt_path: Some(alt_path),
            path_mig_state: Some(MigState::Rearm),
            ..Self::default()
        }
    }

    /// Moves an armed queue pair to its alternate path. Its peer follows with the first packet that it gets from
    /// there.
    pub fn migrate() -> Self {
        Self {
            path_mig_state: Some(MigState::Migrated),
            ..Self::default()
        }
    }

    /// Which attributes it names.
    pub fn mask(&self) -> QpAttrMask {
        let bits = [
            (self.state.is_some(), QpAttrMask::STATE),
            (self.cur_state.is_some(), QpAttrMask::CUR_STATE),
            (
                self.en_sqd_async_notify.is_some(),
                QpAttrMask::EN_SQD_ASYNC_NOTIFY,
            ),
            (self.access.is_some(), QpAttrMask::ACCESS_FLAGS),
            (self.pkey_index.is_some(), QpAttrMask::PKEY_INDEX),
            (self.port.is_some(), QpAttrMask::PORT),
            (self.qkey.is_some(), QpAttrMask::QKEY),
            (self.av.is_some(), QpAttrMask::AV),
            (self.path_mtu.is_some(), QpAttrMask::PATH_MTU),
            (self.timeout.is_some(), QpAttrMask::TIMEOUT),
            (self.retry_cnt.is_some(), QpAttrMask::RETRY_CNT),
            (self.rnr_retry.is_some(), QpAttrMask::RNR_RETRY),
            (self.rq_psn.is_some(), QpAttrMask::RQ_PSN),
            (self.sq_psn.is_some(), QpAttrMask::SQ_PSN),
            (self.max_rd_atomic.is_some(), QpAttrMask::MAX_QP_RD_ATOMIC),
            (
                self.max_dest_rd_atomic.is_some(),
                QpAttrMask::MAX_DEST_RD_ATOMIC,
            ),
            (self.min_rnr_timer.is_some(), QpAttrMask::MIN_RNR_TIMER),
            (self.dest_qpn.is_some(), QpAttrMask::DEST_QPN),
            (self.alt_path.is_some(), QpAttrMask::ALT_PATH),
            (self.path_mig_state.is_some(), QpAttrMask::PATH_MIG_STATE),
        ];
        let named = bits.into_iter().filter(|&(named, _)| named);
        named.fold(QpAttrMask::empty(), |mask, (_, bit)| mask | bit)
    }

    /// Takes over what `change` names.
    pub fn apply(&mut self, change: &Self) {
        macro_rules! take {
            ($($field:ident)*) => { $(if change.$field.is_some() { self.$field = change.$field; })* };
        }
        take!(state en_sqd_async_notify access pkey_index port qkey av path_mtu timeout retry_cnt rnr_retry
              rq_psn sq_psn max_rd_atomic max_dest_rd_atomic min_rnr_timer dest_qpn alt_path path_mig_state);
    }
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Work requests on the send queue.
    pub max_send_wr: u32,
    /// Work requests on the receive queue.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of one send.
    pub max_send_sge: u32,
    /// Scatter/gather elements of one receive.
    pub max_recv_sge: u32,
    /// Inline bytes of one send.
    pub max_inline_data: u32,
}

impl Default for QpCap {
    /// 16 work requests of one element on each queue, no inline data.
    fn default() -> Self {
        Self {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        }
    }
}

/// The sizes of a queue pair whose queues can be resized while others look at them.
#[doc(hidden)]
#[derive(Debug)]
pub struct LiveCap {
    max_send_wr: AtomicU32,
    max_recv_wr: AtomicU32,
    rest: [u32; 3],
}

impl LiveCap {
    /// These sizes.
    pub fn new(cap: &QpCap) -> Self {
        Self {
            max_send_wr: AtomicU32::new(cap.max_send_wr),
            max_recv_wr: AtomicU32::new(cap.max_recv_wr),
            rest: [cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data],
        }
    }

    /// The sizes now.
    #[inline]
    pub fn get(&self) -> QpCap {
        let [max_send_sge, max_recv_sge, max_inline_data] = self.rest;
        QpCap {
            max_send_wr: self.max_send_wr.load(Relaxed),
            max_recv_wr: self.max_recv_wr.load(Relaxed),
            max_send_sge,
            max_recv_sge,
            max_inline_data,
        }
    }

    /// Takes over the depths of both queues.
    pub fn resize(&self, cap: &QpCap) {
        self.max_send_wr.store(cap.max_send_wr, Relaxed);
        self.max_recv_wr.store(cap.max_recv_wr, Relaxed);
    }
}

/// A queue pair as a query shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// State now.
    pub state: QpState,
    /// The attributes as they were set; the packet sequence numbers as they are now.
    pub attr: QpAttr,
    /// Sizes.
    pub cap: QpCap,
    /// Whether every send makes a completion.
    pub sq_sig_all: bool,
    /// Whether the send queue is still draining in state SQD.
    pub sq_draining: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp_state::check;

    /// Goal: an alternate path makes the attributes no larger, which are copied with every modify.
    #[test]
    fn an_alternate_path_is_an_address_and_no_larger() {
        let size = size_of::<Option<Av>>();
        assert_eq!(size_of::<Option<AltPath>>(), size);
        let mut av = Av::to_gid(1, 2, Gid([3; 16]));
        (av.dlid, av.sl, av.src_path_bits) = (Lid(4), 5, 6);
        let path = AltPath::new(av, 7, 8);
        assert_eq!((path.av(), path.pkey_index, path.timeout), (av, 7, 8));
    }

    #[test]
    fn constructors_name_what_the_table_requires() {
        let path = Path {
            av: Av::to_lid(1, Lid(1)),
            dest_qpn: Qpn::new(2),
            rq_psn: Psn::new(3),
            mtu: Mtu::B1024,
        };
        let steps = [
            (QpState::Reset, QpAttr::init(1, Access::REMOTE_WRITE)),
            (QpState::Init, QpAttr::rtr(&path)),
            (QpState::Rtr, QpAttr::rts(Psn::new(4))),
        ];
        for (from, attr) in steps {
            let to = attr.state.expect("each names a state");
            assert_eq!(check(from, to, QpType::Rc, attr.mask()), Ok(()));
        }
        let all = [
            QpType::Rc,
            QpType::Uc,
            QpType::Ud,
            QpType::Gsi,
            QpType::XrcSend,
            QpType::XrcRecv,
        ];
        for qp_type in all {
            let (init, rtr) = match qp_type {
                QpType::Ud => (QpAttr::init_datagram(1, QKey(5)), QpAttr::to(QpState::Rtr)),
                QpType::Gsi => (QpAttr::init_special(QKey::GSI), QpAttr::to(QpState::Rtr)),
                _ => (
                    QpAttr::init(1, Access::empty()),
                    QpAttr::rtr_of(qp_type, &path),
                ),
            };
            let rts = QpAttr::rts_of(qp_type, Psn::new(4));
            let steps = [QpState::Reset, QpState::Init, QpState::Rtr];
            for (from, attr) in steps.into_iter().zip([init, rtr, rts]) {
                let to = attr.state.expect("each names a state");
                assert_eq!(check(from, to, qp_type, attr.mask()), Ok(()), "{qp_type}");
            }
        }
    }
}
