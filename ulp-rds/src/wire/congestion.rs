//! The congestion map: one bit for each port of an address.

use std::fmt;

/// Which ports of one address are congested.
#[derive(Clone, PartialEq, Eq)]
pub struct CongestionMap(Box<[u8; Self::LEN]>);

/// A map on the wire has another length than 8192 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a congestion map of {0} bytes; it has 8192")]
pub struct MapLength(pub usize);

impl CongestionMap {
    /// Bytes on the wire.
    pub const LEN: usize = 8192;

    /// Reads it; every content of the right length is legal.
    ///
    /// # Errors
    /// [`MapLength`].
    pub fn parse(bytes: &[u8]) -> Result<Self, MapLength> {
        let map = <[u8; Self::LEN]>::try_from(bytes).map_err(|_| MapLength(bytes.len()))?;
        Ok(Self(Box::new(map)))
    }

    /// As it is on the wire: port `n` is bit `n % 8`, counted from the least significant one, of byte `n / 8`.
    pub fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Whether the port is congested.
    #[inline]
    pub fn is_congested(&self, port: u16) -> bool {
        self.0[usize::from(port / 8)] & 1 << (port % 8) != 0
    }

    /// Says whether the port is congested. Returns whether that is new.
    pub fn set(&mut self, port: u16, congested: bool) -> bool {
        let was = self.is_congested(port);
        let bit = 1 << (port % 8);
        let byte = &mut self.0[usize::from(port / 8)];
        match congested {
            true => *byte |= bit,
            false => *byte &= !bit,
        }
        was != congested
    }

    /// Ports that are congested here and no longer in `newer`, as the groups that sockets monitor: bit
    /// `port % 64`.
    pub fn freed(&self, newer: &Self) -> u64 {
        let (old, new) = (self.0.as_chunks::<8>().0, newer.0.as_chunks::<8>().0);
        let pairs = old.iter().zip(new);
        pairs.fold(0, |freed, (old, new)| {
            freed | u64::from_le_bytes(*old) & !u64::from_le_bytes(*new)
        })
    }

    /// How many ports are congested.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|byte| byte.count_ones()).sum()
    }
}

impl Default for CongestionMap {
    /// No port is congested.
    fn default() -> Self {
        Self(Box::new([0; Self::LEN]))
    }
}

impl fmt::Debug for CongestionMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CongestionMap({} congested)", self.count())
    }
}
