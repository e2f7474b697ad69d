//! Addresses of this host's own, of which each program has another.

use std::net::{IpAddr, Ipv4Addr};

use super::{LinkError, Udp};

/// As many programs can run at a time that take one by themselves.
const ADDRESSES: u16 = 1022;

/// The addresses of 127.0.0.0/8 that programs take by themselves, in turn, from 127.0.0.2 on: 127.0.0.1 is left to servers.
pub fn loopback_addresses() -> impl DoubleEndedIterator<Item = IpAddr> {
    (2..2 + ADDRESSES).map(|number| {
        let [high, low] = number.to_be_bytes();
        Ipv4Addr::new(127, 0, high, low).into()
    })
}

impl Udp {
    /// A link with the first of [`loopback_addresses`] that is free. Several programs may look for one at the same time: one
    /// that finds it taken tries the next.
    ///
    /// # Errors
    /// [`LinkError::NoneFree`]; otherwise as [`Udp::bind`].
    pub fn bind_loopback() -> Result<Self, LinkError> {
        for address in loopback_addresses() {
            match Self::bind(&[address]) {
                Err(LinkError::InUse { .. }) => {}
                bound => return bound,
            }
        }
        Err(LinkError::NoneFree)
    }
}
