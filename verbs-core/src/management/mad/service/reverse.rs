//! The path back to the sender of a datagram.

use std::net::{IpAddr, Ipv4Addr};

use crate::addr::Gid;
use crate::mad::Address;
use crate::mad::process::GRH_LEN;
use crate::qp_attr::Av;
use crate::wc::Wc;

/// Where a received datagram came from, as this port has to write to it; `gids` is the port's table.
/// `None` if the datagram's header makes no sense.
pub(super) fn source(
    wc: &Wc,
    grh: &[u8; GRH_LEN],
    port: u8,
    gids: &[(u16, Gid)],
) -> Option<Address> {
    let mut av = Av::reverse(port, wc, grh, 0)?;
    if let Some(global) = &mut av.global {
        let dgid = destination(grh, global.dgid);
        let own = gids.iter().find(|(_, gid)| *gid == dgid);
        // Multicast, or an address that has gone: the first is as good as any.
        global.sgid_index = own.map_or(0, |&(index, _)| index);
    }
    Some(Address {
        av,
        qpn: wc.src_qpn,
        pkey_index: wc.pkey_index,
    })
}

/// The destination of a datagram, in the header that says it came from `sgid`. Mapped addresses come from
/// IPv4 headers, which are in the last 20 bytes.
fn destination(grh: &[u8; GRH_LEN], sgid: Gid) -> Gid {
    let whole: [u8; 16] = grh.last_chunk().copied().unwrap_or_default();
    let [.., a, b, c, d] = whole;
    match IpAddr::from(sgid) {
        IpAddr::V4(_) => Gid::from(Ipv4Addr::new(a, b, c, d)),
        IpAddr::V6(_) => Gid(whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Lid, Qpn};
    use crate::wc::WcFlags;

    fn gid(text: &str) -> Gid {
        let addr: IpAddr = text.parse().expect("an address");
        addr.into()
    }

    #[test]
    fn the_way_back_is_the_way_there_turned_round() {
        let mut v4 = [0; GRH_LEN];
        v4[20..].copy_from_slice(&[
            0x45, 0x60, 1, 0x3c, 0, 0, 0x40, 0, 64, 17, 0x25, 0x4f, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
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
            let back = source(&wc, &grh, 1, &table).expect("it has a header");
            let global = back.av.global.expect("it had a GRH");
            assert_eq!((global.dgid, global.sgid_index), (gid(from), index));
            assert_eq!((global.flow_label, global.traffic_class), (label, class));
            assert_eq!((back.av.dlid, back.av.sl, back.pkey_index), (Lid(7), 2, 4));
        }
        let bare = Wc {
            flags: WcFlags::empty(),
            ..wc
        };
        let local = source(&bare, &v4, 1, &table);
        assert_eq!(local.and_then(|local| local.av.global), None);
        assert_eq!(source(&wc, &[0; GRH_LEN], 1, &table), None);
    }
}
