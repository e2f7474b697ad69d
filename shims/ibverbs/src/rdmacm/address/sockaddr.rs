//! Addresses and paths in the form of C programs.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use verbs_abi::rdmacm::{PathRec, Storage};
use verbs_cm::Route;
use verbs_core::Lid;

use crate::call::Errno;

/// The program's address.
///
/// # Safety
/// NULL, or of the length that its family's addresses have.
pub(crate) unsafe fn from_c(addr: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: guaranteed by the caller.
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

/// The address in the form of C programs, and its length.
pub(crate) fn to_c(addr: SocketAddr) -> (Storage, usize) {
    let length = match addr {
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
    };
    (Storage::of(addr), length)
}

pub(in crate::rdmacm) fn storage(addr: SocketAddr) -> Storage {
    Storage::of(addr)
}

/// A route as a path record of the subnet administrator; `own` is the port's LID.
pub(in crate::rdmacm) fn path_of(route: &Route, own: Lid) -> PathRec {
    /// "Exactly", as a selector.
    const EXACTLY: u8 = 2;
    let global = route.av.global;
    PathRec {
        dgid: verbs_abi::gid_words(route.remote_gid),
        sgid: verbs_abi::gid_words(route.local_gid),
        dlid: route.av.dlid.0.to_be(),
        slid: (own.0 | u16::from(route.av.src_path_bits)).to_be(),
        sl: route.av.sl,
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
            // SAFETY: a complete address.
            assert_eq!(unsafe { from_c((&raw const storage).cast()) }, Ok(addr));
        }
        // SAFETY: NULL, and an address of family 27.
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
