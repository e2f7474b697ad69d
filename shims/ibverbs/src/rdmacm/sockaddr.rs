//! Addresses and paths as C programs have them.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use verbs_abi::rdmacm::{PathRec, Storage};
use verbs_cm::Route;

use crate::call::Errno;

/// The program's address.
///
/// # Safety
/// NULL, or as long as its family's addresses are.
pub(crate) unsafe fn from_c(addr: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: the caller's.
    unsafe {
        match c_int::from(addr.as_ref().ok_or(Errno::INVAL)?.sa_family) {
            libc::AF_INET => {
                let addr = addr.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
                Ok(SocketAddr::new(ip.into(), u16::from_be(addr.sin_port)))
            }
            libc::AF_INET6 => {
                let addr = addr.cast::<libc::sockaddr_in6>().read_unaligned();
                let (ip, port) = (
                    Ipv6Addr::from(addr.sin6_addr.s6_addr),
                    u16::from_be(addr.sin6_port),
                );
                Ok(SocketAddrV6::new(ip, port, 0, addr.sin6_scope_id).into())
            }
            // AF_IB: there are no LIDs to resolve it to.
            _ => Err(Errno(libc::EAFNOSUPPORT)),
        }
    }
}

/// The address as C programs have it, and its length.
pub(crate) fn to_c(addr: SocketAddr) -> (Storage, usize) {
    let mut storage = Storage::default();
    let mut put = |at: usize, bytes: &[u8]| storage.0[at..at + bytes.len()].copy_from_slice(bytes);
    put(2, &addr.port().to_be_bytes());
    let length = match addr {
        SocketAddr::V4(v4) => {
            put(0, &(libc::AF_INET as u16).to_ne_bytes());
            put(4, &v4.ip().octets());
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
            put(8, &v6.ip().octets());
            put(24, &v6.scope_id().to_ne_bytes());
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length)
}

pub(super) fn storage(addr: SocketAddr) -> Storage {
    to_c(addr).0
}

/// A route as a path record of the subnet administrator's.
pub(super) fn path_of(route: &Route) -> PathRec {
    /// "Exactly", of a selector.
    const EXACTLY: u8 = 2;
    let global = route.av.global;
    PathRec {
        dgid: verbs_abi::gid_words(route.remote_gid),
        sgid: verbs_abi::gid_words(route.local_gid),
        flow_label: global.map_or(0, |global| global.flow_label).to_be(),
        hop_limit: global.map_or(0, |global| global.hop_limit),
        traffic_class: global.map_or(0, |global| global.traffic_class),
        reversible: 1,
        numb_path: 1,
        pkey: route.pkey.0.0.to_be(),
        mtu_selector: EXACTLY,
        mtu: route.mtu as u8,
        rate_selector: EXACTLY,
        rate: route.rate.byte(),
        packet_life_time_selector: EXACTLY,
        packet_life_time: route.packet_lifetime.code(),
        ..PathRec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_there_and_back() {
        for text in ["127.0.0.9:7174", "[fd77::2]:18515"] {
            let addr: SocketAddr = text.parse().expect("an address");
            let (storage, length) = to_c(addr);
            assert_eq!(length, if addr.is_ipv4() { 16 } else { 28 });
            // SAFETY: a whole one.
            assert_eq!(unsafe { from_c((&raw const storage).cast()) }, Ok(addr));
        }
        // SAFETY: NULL, and one of family 27.
        unsafe {
            assert_eq!(from_c(std::ptr::null()), Err(Errno::INVAL));
            let mut ib = Storage::default();
            ib.0[..2].copy_from_slice(&27_u16.to_ne_bytes());
            assert_eq!(
                from_c((&raw const ib).cast()),
                Err(Errno(libc::EAFNOSUPPORT))
            );
        }
    }
}
