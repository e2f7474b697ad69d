//! The way back to whoever sent a datagram.

use crate::addr::Gid;
use crate::mad::Address;
use crate::mad::process::GRH_LEN;
use crate::qp_attr::{Av, GlobalRoute};
use crate::wc::{Wc, WcFlags};

/// Where a received datagram came from, as this port has to write to it; `gids` is the port's table.
pub(super) fn source(wc: &Wc, grh: &[u8; GRH_LEN], port: u8, gids: &[(u16, Gid)]) -> Address {
    let global = wc.flags.contains(WcFlags::GRH).then(|| {
        let header = GlobalHeader::parse(grh);
        let own = gids.iter().find(|(_, gid)| *gid == header.dgid);
        GlobalRoute {
            dgid: header.sgid,
            // Multicast, or an address that has gone: the first is as good as any.
            sgid_index: own.map_or(0, |&(index, _)| index),
            flow_label: header.flow_label,
            hop_limit: 64,
            traffic_class: header.traffic_class,
        }
    });
    Address {
        av: Av {
            global,
            dlid: wc.slid,
            sl: wc.sl,
            src_path_bits: 0,
            port,
        },
        qpn: wc.src_qpn,
        pkey_index: wc.pkey_index,
    }
}

/// What a GRH says, or the IP header that a RoCEv2 port leaves in its place.
struct GlobalHeader {
    sgid: Gid,
    dgid: Gid,
    flow_label: u32,
    traffic_class: u8,
}

impl GlobalHeader {
    fn parse(grh: &[u8; GRH_LEN]) -> Self {
        // IPv4 headers are in the last 20 bytes, and what is before them is undefined: the header
        // counts as IPv4 when it can be one (as in `ib_get_rdma_header_version`).
        let v4 = &grh[20..];
        if v4[0] == 0x45 && grh[0] >> 4 != 6 {
            let mapped = |at: usize| {
                let [a, b, c, d] = [v4[at], v4[at + 1], v4[at + 2], v4[at + 3]];
                Gid::from(std::net::Ipv4Addr::new(a, b, c, d))
            };
            return Self {
                sgid: mapped(12),
                dgid: mapped(16),
                flow_label: 0,
                traffic_class: v4[1],
            };
        }
        let mut gids = [Gid::default(); 2];
        gids[0].0.copy_from_slice(&grh[8..24]);
        gids[1].0.copy_from_slice(&grh[24..40]);
        let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
        Self {
            sgid: gids[0],
            dgid: gids[1],
            flow_label: word & 0xf_ffff,
            traffic_class: grh[0] << 4 | grh[1] >> 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Lid, Qpn};

    fn gid(text: &str) -> Gid {
        let addr: std::net::IpAddr = text.parse().expect("an address");
        addr.into()
    }

    #[test]
    fn the_way_back_is_the_way_there_turned_round() {
        let mut v4 = [0; GRH_LEN];
        v4[20..24].copy_from_slice(&[0x45, 0x60, 1, 0]);
        v4[32..40].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let mut v6 = [0; GRH_LEN];
        v6[..4].copy_from_slice(&[0x6a, 0xbc, 0xde, 0xf0]);
        v6[8..24].copy_from_slice(&gid("fd00::1").0);
        v6[24..].copy_from_slice(&gid("fd00::2").0);
        let table = [
            (0, gid("fe80::9")),
            (3, gid("10.0.0.2")),
            (5, gid("fd00::2")),
        ];
        let wc = Wc {
            flags: WcFlags::GRH,
            src_qpn: Qpn::new(1),
            slid: Lid(7),
            sl: 2,
            pkey_index: 4,
            ..Wc::default()
        };
        for (grh, from, index, label, class) in [
            (v4, "10.0.0.1", 3, 0, 0x60),
            (v6, "fd00::1", 5, 0xc_def0, 0xab),
        ] {
            let back = source(&wc, &grh, 1, &table);
            let global = back.av.global.expect("it had a GRH");
            assert_eq!((global.dgid, global.sgid_index), (gid(from), index));
            assert_eq!((global.flow_label, global.traffic_class), (label, class));
            assert_eq!((back.av.dlid, back.av.sl, back.pkey_index), (Lid(7), 2, 4));
        }
        let bare = Wc {
            flags: WcFlags::empty(),
            ..wc
        };
        assert_eq!(source(&bare, &v4, 1, &table).av.global, None);
    }
}
