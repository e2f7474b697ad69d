//! The GIDs of the port.

use std::ffi::c_int;
use std::net::IpAddr;

use rustix::io::Errno as Os;
use verbs_abi::{self as abi, GidEntry};
use verbs_core::Gid;

use super::context::Context;
use super::{Made, Network, PORT};
use crate::call::live::look;
use crate::call::{Errno, caught, code, number};

/// `IBV_GID_TYPE_IB`, and `IBV_GID_TYPE_ROCE_V2`.
const IB: u32 = 0;
pub(super) const ROCE_V2: u32 = 2;

/// The least number of entries that the port's table is reported to have: some are empty, as on other devices.
pub(super) const TABLE_MIN: usize = 16;

impl Context {
    /// The GID at that index, if there is one.
    fn gid(&self, port: u32, index: u32) -> Result<Option<Gid>, Errno> {
        let attr = self.port_attr(u8::try_from(port).unwrap_or(0))?;
        if index as usize >= usize::from(attr.gid_tbl_len).max(TABLE_MIN) {
            return Err(Errno::INVAL);
        }
        if index >= u32::from(attr.gid_tbl_len) {
            return Ok(None);
        }
        let gid = self.device.query_gid(PORT, index as u16).wait()?;
        Ok((gid != Gid::default()).then_some(gid))
    }

    fn entry(&self, port: u32, index: u32) -> Result<Option<GidEntry>, Errno> {
        let entry = |gid: Gid| GidEntry {
            gid: verbs_abi::gid_words(gid),
            gid_index: index,
            port_num: port,
            gid_type: type_of(self.network),
            ndev_ifindex: interface_of(gid).unwrap_or(0),
        };
        Ok(self.gid(port, index)?.map(entry))
    }

    /// The index of that GID among the port's.
    pub(crate) fn index_of(&self, gid: Gid) -> Result<Option<u8>, Errno> {
        let count = self.port_attr(PORT)?.gid_tbl_len;
        for index in 0..count.min(u16::from(u8::MAX)) {
            if self.gid(u32::from(PORT), u32::from(index))? == Some(gid) {
                return Ok(Some(index as u8));
            }
        }
        Ok(None)
    }
}

/// What all GIDs of a device on that network are.
pub(super) fn type_of(network: Network) -> u32 {
    match network {
        Network::Roce => ROCE_V2,
        Network::Iwarp | Network::InfiniBand => IB,
    }
}

/// The device's GUID. On a subnet it is the node's. Elsewhere a locally administered EUI-64, which contains the IPv4 address or the end of the IPv6 address, so
/// that programs that run at the same time have different ones.
pub(crate) fn guid_of(made: &Made) -> u64 {
    if made.network == Network::InfiniBand {
        return made.hca.guid().0;
    }
    let [.., a, b, c, d] = made.hca.gid().0;
    u64::from_be_bytes([0x02, 0, 0x5e, 0xff, a, b, c, d])
}

/// The number of the interface that has the address.
pub(super) fn interface_of(gid: Gid) -> Option<u32> {
    let wanted = IpAddr::from(gid).to_canonical();
    let mut first = std::ptr::null_mut();
    // SAFETY: it sets `first` to a list that freeifaddrs frees.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return None;
    }
    let mut found = None;
    let mut next = first;
    // SAFETY: entries of that list, which is read only, until NULL.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: an address of its family, or NULL.
        let has = unsafe { address_of(entry.ifa_addr) };
        // All of 127.0.0.0/8 is the loopback interface's.
        if has.is_some_and(|has| has == wanted || has.is_loopback() && wanted.is_loopback()) {
            // SAFETY: the name of the interface, a C string.
            found = Some(unsafe { libc::if_nametoindex(entry.ifa_name) });
            break;
        }
        next = entry.ifa_next;
    }
    // SAFETY: from getifaddrs, once.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// NULL, or an address of the length that its family implies.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: guaranteed by the caller.
    let family = c_int::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: as the family says.
            let v4 = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(IpAddr::V4(u32::from_be(v4.sin_addr.s_addr).into()))
        }
        libc::AF_INET6 => {
            // SAFETY: as the family says.
            let v6 = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(IpAddr::V6(v6.sin6_addr.s6_addr.into()))
        }
        _ => None,
    }
}

/// `ibv_query_gid`: an empty entry is a GID of zeros.
pub(crate) unsafe extern "C" fn query_gid(
    context: *mut abi::Context,
    port: u8,
    index: c_int,
    gid: *mut [u64; 2],
) -> c_int {
    number(|| {
        let index = u32::try_from(index).map_err(|_| Errno::INVAL)?;
        // SAFETY: the program does not close it now.
        let found = unsafe { look::<Context, _>(context) }?.gid(u32::from(port), index)?;
        // SAFETY: the program passes the place for the result.
        unsafe { gid.write(found.map_or([0; 2], verbs_abi::gid_words)) };
        Ok(0)
    })
}

/// `_ibv_query_gid_ex`.
pub(crate) unsafe extern "C" fn query_gid_ex(
    context: *mut abi::Context,
    port: u32,
    index: u32,
    entry: *mut GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    code(|| {
        if flags != 0 || size < size_of::<GidEntry>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program does not close it now.
        let found = unsafe { look::<Context, _>(context) }?.entry(port, index)?;
        let found = found.ok_or(Errno(Os::NODATA.raw_os_error()))?;
        // SAFETY: at least `size` bytes.
        unsafe { entry.write(found) };
        Ok(())
    })
}

/// `_ibv_query_gid_table`: how many entries there are, or a negative error number.
pub(crate) unsafe extern "C" fn query_gid_table(
    context: *mut abi::Context,
    entries: *mut GidEntry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    let count = caught(|| {
        if flags != 0 || size < size_of::<GidEntry>() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program does not close it now.
        let context = unsafe { look::<Context, _>(context) }?;
        let length = context.port_attr(PORT)?.gid_tbl_len;
        let mut count = 0;
        for index in 0..u32::from(length) {
            let Some(entry) = context.entry(u32::from(PORT), index)? else {
                continue;
            };
            if count == max {
                return Err(Errno::INVAL);
            }
            // SAFETY: `max` entries of `size` bytes.
            unsafe { entries.wrapping_byte_add(count * size).write(entry) };
            count += 1;
        }
        Ok(count)
    });
    count.map_or_else(|errno| -(errno.0 as isize), |count| count as isize)
}

/// `ibv_query_gid_type`: as in sysfs, where both versions of RoCE are one type beside InfiniBand's.
pub(crate) unsafe extern "C" fn query_gid_type(
    context: *mut abi::Context,
    port: u8,
    index: u32,
    gid_type: *mut u32,
) -> c_int {
    number(|| {
        // SAFETY: the program does not close it now.
        let context = unsafe { look::<Context, _>(context) }?;
        let found = context.gid(u32::from(port), index)?;
        let is_roce = found.is_some() && context.network == Network::Roce;
        // SAFETY: the program passes the place for the result.
        unsafe { gid_type.write(u32::from(is_roce)) };
        Ok(0)
    })
}
