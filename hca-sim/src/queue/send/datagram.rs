//! The destination of a datagram, as words of the send ring.

use verbs_core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use verbs_core::{Av, Datagram, Gid, GlobalRoute, Lid, QKey, Qpn};

use super::DATAGRAM_WORDS;

/// In the third word: the datagram has a global route.
const GLOBAL: u64 = 1 << 63;

/// Writes it.
pub(super) fn write(words: &[AtomicU64; DATAGRAM_WORDS], to: &Datagram) {
    let Av {
        global,
        dlid,
        sl,
        src_path_bits,
        port,
    } = to.av;
    let (gid, way) = global.map_or((0, 0), |global| {
        let flow_label = u64::from(global.flow_label & 0xf_ffff);
        let way = u64::from(global.sgid_index)
            | u64::from(global.hop_limit) << 16
            | u64::from(global.traffic_class) << 24
            | flow_label << 32
            | GLOBAL;
        (u128::from_be_bytes(global.dgid.0), way)
    });
    let local = u64::from(dlid.0)
        | u64::from(sl) << 16
        | u64::from(src_path_bits) << 24
        | u64::from(port) << 32
        | u64::from(to.pkey_index) << 40;
    let keys = u64::from(to.qpn.value()) << 32 | u64::from(to.qkey.0);
    let values = [(gid >> 64) as u64, gid as u64, way, local, keys];
    for (word, value) in words.iter().zip(values) {
        word.store(value, Relaxed);
    }
}

/// Reads it back.
pub(super) fn read(words: &[AtomicU64; DATAGRAM_WORDS]) -> Datagram {
    let [high, low, way, local, keys] = words.each_ref().map(|word| word.load(Relaxed));
    let global = (way & GLOBAL != 0).then(|| GlobalRoute {
        dgid: Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes()),
        sgid_index: way as u16,
        flow_label: (way >> 32) as u32 & 0xf_ffff,
        hop_limit: (way >> 16) as u8,
        traffic_class: (way >> 24) as u8,
    });
    Datagram {
        av: Av {
            global,
            dlid: Lid(local as u16),
            sl: (local >> 16) as u8,
            src_path_bits: (local >> 24) as u8,
            port: (local >> 32) as u8,
        },
        qpn: Qpn::new((keys >> 32) as u32),
        qkey: QKey(keys as u32),
        pkey_index: (local >> 40) as u16,
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_field_comes_back_as_it_was() {
        let words = [const { AtomicU64::new(0) }; DATAGRAM_WORDS];
        let global = GlobalRoute {
            dgid: Gid(*b"0123456789abcdef"),
            sgid_index: 0xfffe,
            flow_label: 0xf_fffe,
            hop_limit: 0xfd,
            traffic_class: 0xfc,
        };
        let av = Av {
            global: Some(global),
            dlid: Lid(0xfffb),
            sl: 15,
            src_path_bits: 127,
            port: 0xfa,
        };
        let to = Datagram {
            av,
            qpn: Qpn::MULTICAST,
            qkey: QKey(0xffff_fff9),
            pkey_index: 0xfff8,
        };
        let local = Datagram {
            av: Av { global: None, ..av },
            ..to
        };
        for to in [to, local] {
            write(&words, &to);
            assert_eq!(read(&words), to);
        }
    }
}
