//! Numbers of the protocols, each with a type of its own.
//!
//! None of them is needed to post a SEND; they appear where queue pairs are addressed, keys are
//! handed to a peer, and packets are built.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::{Attr, Error};

/// A number of 24 bits on the wire.
const BITS_24: u32 = 0xff_ffff;

macro_rules! number_24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// Keeps the low 24 bits, as every wire format does.
            #[inline]
            pub const fn new(value: u32) -> Self {
                Self(value & BITS_24)
            }

            /// The number, below 2^24.
            #[inline]
            pub const fn value(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#08x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}

number_24! {
    /// Queue pair number (IBTA vol. 1, 3.2.5): 0 is the subnet management queue pair, 1 the general
    /// services one, 0xffffff stands for multicast.
    Qpn
}

number_24! {
    /// Packet sequence number (IBTA vol. 1, 9.7.2), modulo 2^24.
    Psn
}

number_24! {
    /// Message sequence number (IBTA vol. 1, 9.7.5): messages that a responder has executed,
    /// modulo 2^24.
    Msn
}

number_24! {
    /// Number of a shared receive queue, as XRC requests name it on the wire.
    Srqn
}

impl Qpn {
    /// A number that is known to be below 2^24, as a provider has kept it.
    #[doc(hidden)]
    #[inline(always)]
    pub const fn kept(value: u32) -> Self {
        debug_assert!(value <= BITS_24);
        Self(value)
    }

    /// Destination of multicast packets.
    pub const MULTICAST: Self = Self(BITS_24);
}

impl Psn {
    /// The number `n` packets later.
    #[inline]
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & BITS_24)
    }

    /// How far `self` is ahead of `other`: negative when it is behind, by the half-circle rule
    /// (IBTA vol. 1, 9.7.2).
    #[inline]
    pub const fn since(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// A key as it was received from its owner.
            #[inline]
            pub const fn new(value: u32) -> Self {
                Self(value)
            }

            /// The number that travels.
            #[inline]
            pub const fn value(self) -> u32 {
                self.0
            }

            /// The device's part: bits 31 to 8.
            #[inline]
            pub const fn index(self) -> u32 {
                self.0 >> 8
            }

            /// The consumer's part: bits 7 to 0.
            #[inline]
            pub const fn key_byte(self) -> u8 {
                self.0.to_le_bytes()[0]
            }

            /// The same index with the next key byte, as `ibv_inc_rkey` does.
            #[inline]
            #[must_use]
            pub const fn next(self) -> Self {
                Self((self.0 & !0xff) | (self.0.wrapping_add(1) & 0xff))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#010x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#010x}", self.0)
            }
        }
    };
}

key! {
    /// Local key of a memory region: names it in this process's work requests.
    LKey
}

key! {
    /// Remote key of a memory region or window: names it in a peer's work requests.
    RKey
}

/// Local identifier of a port on its InfiniBand subnet (IBTA vol. 1, 4.1.3); 0 means none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lid(pub u16);

impl Lid {
    /// Whether this names a multicast group: 0xc000 to 0xfffe. The permissive LID behind them names none.
    pub const fn is_multicast(self) -> bool {
        self.0 >= 0xc000 && self.0 != 0xffff
    }
}

impl fmt::Debug for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lid({})", self.0)
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Partition key (IBTA vol. 1, 10.9.2): 15 bits of partition, bit 15 set for full members.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition, full membership.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether two ports with these keys may talk: same partition, not both limited members.
    #[inline]
    pub const fn matches(self, other: Self) -> bool {
        self.0 & 0x7fff == other.0 & 0x7fff
            && self.0 & 0x7fff != 0
            && (self.0 | other.0) & 0x8000 != 0
    }
}

impl Default for PKey {
    /// The default partition.
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Debug for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PKey({:#06x})", self.0)
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// Queue key of datagram queue pairs (IBTA vol. 1, 10.2.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QKey(pub u32);

impl QKey {
    /// Of every general services queue pair (IBTA vol. 1, 10.2.5).
    pub const GSI: Self = Self(0x8001_0000);

    /// Of multicast groups and services that the RDMA connection manager makes (`RDMA_UDP_QKEY`).
    pub const RDMA_CM: Self = Self(0x0123_4567);

    /// Whether only privileged consumers may send with it: the high bit is set.
    pub const fn is_controlled(self) -> bool {
        self.0 >> 31 != 0
    }
}

impl fmt::Debug for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QKey({:#010x})", self.0)
    }
}

/// A 64-bit global unique identifier (EUI-64) of a node, port or system image.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Guid(pub u64);

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, h, i] = self.0.to_be_bytes();
        write!(
            f,
            "{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{g:02x}:{h:02x}{i:02x}"
        )
    }
}

/// Global identifier of a port: an IPv6 address in form (IBTA vol. 1, 4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The default prefix of a subnet that no subnet manager has named.
    pub const LINK_LOCAL_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// The GID that a port with this GUID has in the subnet with this prefix.
    pub const fn from_parts(prefix: u64, guid: Guid) -> Self {
        Self((((prefix as u128) << 64) | guid.0 as u128).to_be_bytes())
    }

    /// The upper half.
    pub fn prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The lower half.
    pub fn interface_id(self) -> Guid {
        Guid((u128::from_be_bytes(self.0) & u128::from(u64::MAX)) as u64)
    }

    /// Whether this names a multicast group: of IPv6 or, mapped, of IPv4.
    pub const fn is_multicast(self) -> bool {
        match Ipv6Addr::from_bits(u128::from_be_bytes(self.0)).to_ipv4_mapped() {
            Some(mapped) => mapped.is_multicast(),
            None => self.0[0] == 0xff,
        }
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(addr: Ipv6Addr) -> Self {
        Self(addr.octets())
    }
}

/// RoCEv2 names IPv4 hosts by their mapped IPv6 address.
impl From<Ipv4Addr> for Gid {
    fn from(addr: Ipv4Addr) -> Self {
        Self(addr.to_ipv6_mapped().octets())
    }
}

impl From<Gid> for Ipv6Addr {
    fn from(gid: Gid) -> Self {
        Self::from(gid.0)
    }
}

/// The GID of a RoCEv2 port with that address.
impl From<IpAddr> for Gid {
    fn from(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(addr) => addr.into(),
            IpAddr::V6(addr) => addr.into(),
        }
    }
}

/// The address of a RoCEv2 port with that GID: IPv4 for mapped addresses.
impl From<Gid> for IpAddr {
    fn from(gid: Gid) -> Self {
        Ipv6Addr::from(gid).to_canonical()
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            write!(
                f,
                "{}{:02x}{:02x}",
                if i == 0 { "" } else { ":" },
                pair[0],
                pair[1]
            )?;
        }
        Ok(())
    }
}

/// Path MTU: payload bytes per packet (IBTA vol. 1, 5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// Every MTU, smallest first.
    pub const ALL: [Self; 5] = [
        Self::B256,
        Self::B512,
        Self::B1024,
        Self::B2048,
        Self::B4096,
    ];

    /// Payload bytes per packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }

    /// Base-two logarithm of [`Mtu::bytes`].
    pub const fn shift(self) -> u32 {
        7 + self as u32
    }

    /// Packets that a message of `len` bytes needs: at least one.
    pub const fn packets(self, len: u32) -> u32 {
        if len == 0 {
            1
        } else {
            ((len - 1) >> self.shift()) + 1
        }
    }

    /// The MTU with that code in subnet management, 1 for 256 bytes to 5 for 4096 (IBTA vol. 1, 14.2.5.6); `None`
    /// for other numbers.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u32 == code)
    }

    /// The largest path MTU whose RoCEv2 packets fit through a route or an interface with that MTU of IP, in bytes. Linux
    /// rxe calculates it the same way: 80 bytes are left for headers. A route with less than 336 bytes has the smallest
    /// one, whose packets do not fit.
    pub fn within_ip_mtu(bytes: u32) -> Self {
        let room = bytes.saturating_sub(80);
        let fits = Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room);
        fits.unwrap_or(Self::B256)
    }

    /// The MTU of that many bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `bytes` is 256, 512, 1024, 2048 or 4096.
    pub fn from_bytes(bytes: u32) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|mtu| mtu.bytes() == bytes)
            .ok_or(Error::Invalid {
                attr: Attr::PathMtu,
                got: bytes,
                max: 4096,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtus_within_a_route_are_those_of_rxe() {
        for (route, path) in [
            (0, 256),
            (591, 256),
            (592, 512),
            (1500, 1024),
            (4175, 2048),
            (4176, 4096),
            (65_536, 4096),
        ] {
            assert_eq!(Mtu::within_ip_mtu(route).bytes(), path, "{route}");
        }
    }

    #[test]
    fn psn_compares_by_half_circle() {
        let near_end = Psn::new(0xff_fffe);
        assert_eq!(near_end.add(3), Psn::new(1));
        assert_eq!(near_end.add(3).since(near_end), 3);
        assert_eq!(near_end.since(near_end.add(3)), -3);
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
    }

    #[test]
    fn keys_bump_their_byte_only() {
        assert_eq!(RKey::new(0x0001_23ff).next(), RKey::new(0x0001_2300));
        assert_eq!(RKey::new(0x0001_2305).index(), 0x123);
        assert_eq!(RKey::new(0x0001_2305).key_byte(), 5);
    }

    #[test]
    fn pkeys_match_by_partition_and_membership() {
        assert!(PKey::DEFAULT.matches(PKey(0x7fff)));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(
            !PKey(0x8000).matches(PKey(0x8000)),
            "partition 0 is invalid"
        );
        assert!(!PKey(0x8001).matches(PKey(0x8002)));
    }

    #[test]
    fn mtu_counts_packets() {
        assert_eq!(Mtu::B1024.packets(0), 1);
        assert_eq!(Mtu::B1024.packets(1024), 1);
        assert_eq!(Mtu::B1024.packets(1025), 2);
        assert_eq!(Mtu::from_bytes(2048), Ok(Mtu::B2048));
        assert!(Mtu::from_bytes(1500).is_err());
    }

    #[test]
    fn gids_print_like_ibv_devinfo() {
        let gid = Gid::from_parts(Gid::LINK_LOCAL_PREFIX, Guid(0x0002_c903_0001_0203));
        assert_eq!(gid.to_string(), "fe80:0000:0000:0000:0002:c903:0001:0203");
        assert_eq!(gid.interface_id().to_string(), "0002:c903:0001:0203");
        assert_eq!(
            Gid::from(Ipv4Addr::LOCALHOST).to_string(),
            "0000:0000:0000:0000:0000:ffff:7f00:0001"
        );
    }
}
