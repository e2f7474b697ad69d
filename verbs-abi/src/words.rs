//! The same values as types of verbs-core: addresses, sizes and attributes of queue pairs.
//!
//! States, masks and flags have the same numbers on both sides.

use verbs_core::{
    Access, AltPath, Av, Gid, GlobalRoute, Lid, MigState, Mtu, Psn, QKey, QpAttrMask, QpState, Qpn,
};

use crate::{AhAttr, QpAttr, QpCap};

/// A GID as in the structures: 16 bytes, aligned as two words.
pub fn gid_words(gid: Gid) -> [u64; 2] {
    let (first, last) = gid.0.split_at(8);
    [first, last].map(|half| u64::from_ne_bytes(half.try_into().unwrap_or_default()))
}

/// The GID of these words.
pub fn gid_of(words: [u64; 2]) -> Gid {
    let mut bytes = [0; 16];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    Gid(bytes)
}

/// The address in the structure.
pub fn av_of(attr: &AhAttr) -> Av {
    let grh = &attr.grh;
    let global = (attr.is_global != 0).then(|| GlobalRoute {
        dgid: gid_of(grh.dgid),
        sgid_index: u16::from(grh.sgid_index),
        flow_label: grh.flow_label & 0xf_ffff,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
    });
    Av {
        global,
        dlid: Lid(attr.dlid),
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        port: attr.port_num,
    }
}

/// The structure for that address. It has room for GID indices up to 255.
pub fn shown_av(av: &Av) -> AhAttr {
    let grh = av
        .global
        .map_or_else(crate::GlobalRoute::default, |route| crate::GlobalRoute {
            dgid: gid_words(route.dgid),
            flow_label: route.flow_label,
            sgid_index: route.sgid_index as u8,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        });
    AhAttr {
        grh,
        dlid: av.dlid.0,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: 0,
        is_global: u8::from(av.global.is_some()),
        port_num: av.port,
    }
}

macro_rules! same_sizes {
    ($($from:ty => $to:ty),*) => { $(
        impl From<$from> for $to {
            fn from(cap: $from) -> Self {
                Self {
                    max_send_wr: cap.max_send_wr,
                    max_recv_wr: cap.max_recv_wr,
                    max_send_sge: cap.max_send_sge,
                    max_recv_sge: cap.max_recv_sge,
                    max_inline_data: cap.max_inline_data,
                }
            }
        }
    )* };
}

same_sizes!(QpCap => verbs_core::QpCap, verbs_core::QpCap => QpCap);

/// The state of that number, if there is one.
pub fn state_of(number: u32) -> Option<QpState> {
    let mut states = QpState::ALL.into_iter();
    states.find(|&state| state as u32 == number)
}

/// The state of path migration of that number, if there is one.
fn mig_state_of(number: u32) -> Option<MigState> {
    let mut states = MigState::ALL.into_iter();
    states.find(|&state| state as u32 == number)
}

/// The attributes of the structure that `mask` names. A state or an MTU with an unknown number is left out.
pub fn attr_of(attr: &QpAttr, mask: QpAttrMask) -> verbs_core::QpAttr {
    macro_rules! take {
        ($bit:ident, $value:expr) => {
            mask.contains(QpAttrMask::$bit).then(|| $value)
        };
    }
    verbs_core::QpAttr {
        state: take!(STATE, attr.qp_state).and_then(state_of),
        cur_state: take!(CUR_STATE, attr.cur_qp_state).and_then(state_of),
        en_sqd_async_notify: take!(EN_SQD_ASYNC_NOTIFY, attr.en_sqd_async_notify != 0),
        access: take!(ACCESS_FLAGS, Access::from_bits_retain(attr.qp_access_flags)),
        pkey_index: take!(PKEY_INDEX, attr.pkey_index),
        port: take!(PORT, attr.port_num),
        qkey: take!(QKEY, QKey(attr.qkey)),
        av: take!(AV, av_of(&attr.ah_attr)),
        path_mtu: take!(PATH_MTU, attr.path_mtu).and_then(Mtu::from_code),
        timeout: take!(TIMEOUT, attr.timeout),
        retry_cnt: take!(RETRY_CNT, attr.retry_cnt),
        rnr_retry: take!(RNR_RETRY, attr.rnr_retry),
        rq_psn: take!(RQ_PSN, Psn::new(attr.rq_psn)),
        sq_psn: take!(SQ_PSN, Psn::new(attr.sq_psn)),
        max_rd_atomic: take!(MAX_QP_RD_ATOMIC, attr.max_rd_atomic),
        max_dest_rd_atomic: take!(MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic),
        min_rnr_timer: take!(MIN_RNR_TIMER, attr.min_rnr_timer),
        dest_qpn: take!(DEST_QPN, Qpn::new(attr.dest_qp_num)),
        alt_path: take!(
            ALT_PATH,
            AltPath::new(
                Av {
                    port: attr.alt_port_num,
                    ..av_of(&attr.alt_ah_attr)
                },
                attr.alt_pkey_index,
                attr.alt_timeout,
            )
        ),
        path_mig_state: take!(PATH_MIG_STATE, attr.path_mig_state).and_then(mig_state_of),
    }
}

/// Writes the attributes that `change` names into the structure, and returns their mask.
pub fn write_attr(change: &verbs_core::QpAttr, attr: &mut QpAttr) -> QpAttrMask {
    let mut named = QpAttrMask::empty();
    macro_rules! put {
        ($($value:expr => $field:ident, $bit:ident;)*) => { $(
            if let Some(value) = $value {
                attr.$field = value;
                named |= QpAttrMask::$bit;
            }
        )* };
    }
    put! {
        change.state.map(|state| state as u32) => qp_state, STATE;
        change.cur_state.map(|state| state as u32) => cur_qp_state, CUR_STATE;
        change.en_sqd_async_notify.map(u8::from) => en_sqd_async_notify, EN_SQD_ASYNC_NOTIFY;
        change.access.map(|access| access.bits()) => qp_access_flags, ACCESS_FLAGS;
        change.pkey_index => pkey_index, PKEY_INDEX;
        change.port => port_num, PORT;
        change.qkey.map(|qkey| qkey.0) => qkey, QKEY;
        change.av.as_ref().map(shown_av) => ah_attr, AV;
        change.path_mtu.map(|mtu| mtu as u32) => path_mtu, PATH_MTU;
        change.timeout => timeout, TIMEOUT;
        change.retry_cnt => retry_cnt, RETRY_CNT;
        change.rnr_retry => rnr_retry, RNR_RETRY;
        change.rq_psn.map(Psn::value) => rq_psn, RQ_PSN;
        change.sq_psn.map(Psn::value) => sq_psn, SQ_PSN;
        change.max_rd_atomic => max_rd_atomic, MAX_QP_RD_ATOMIC;
        change.max_dest_rd_atomic => max_dest_rd_atomic, MAX_DEST_RD_ATOMIC;
        change.min_rnr_timer => min_rnr_timer, MIN_RNR_TIMER;
        change.dest_qpn.map(Qpn::value) => dest_qp_num, DEST_QPN;
        change.path_mig_state.map(|state| state as u32) => path_mig_state, PATH_MIG_STATE;
    }
    if let Some(alt) = &change.alt_path {
        attr.alt_ah_attr = shown_av(&alt.av());
        attr.alt_port_num = alt.av().port;
        attr.alt_pkey_index = alt.pkey_index;
        attr.alt_timeout = alt.timeout;
        named |= QpAttrMask::ALT_PATH;
    }
    named
}
