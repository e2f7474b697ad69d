//! Extended headers of atomics: the request and the returned value (IBTA vol. 1, 9.3).

use std::fmt;

use verbs_core::addr::RKey;

use crate::field::view;

view! {
    /// An AtomicETH in bytes.
    pub AtomicEthView of AtomicEth, 28 bytes
}

impl AtomicEthView<'_> {
    /// Virtual address at the responder.
    #[inline]
    pub const fn addr(self) -> u64 {
        let &[a, b, c, d, e, g, h, i, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, g, h, i])
    }

    /// Remote key.
    #[inline]
    pub const fn rkey(self) -> RKey {
        let &[_, _, _, _, _, _, _, _, a, b, c, d, ..] = self.0;
        RKey::new(u32::from_be_bytes([a, b, c, d]))
    }

    /// The value to swap in, or to add.
    #[inline]
    pub const fn swap_or_add(self) -> u64 {
        let &[.., a, b, c, d, e, g, h, i, _, _, _, _, _, _, _, _] = self.0;
        u64::from_be_bytes([a, b, c, d, e, g, h, i])
    }

    /// The value to compare with; arbitrary in a FETCH ADD.
    #[inline]
    pub const fn compare(self) -> u64 {
        let &[.., a, b, c, d, e, g, h, i] = self.0;
        u64::from_be_bytes([a, b, c, d, e, g, h, i])
    }
}

impl fmt::Debug for AtomicEthView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        AtomicEth::parse(*self).fmt(f)
    }
}

/// What an atomic does at the responder.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AtomicEth {
    /// Virtual address at the responder, a multiple of 8 (the responder checks).
    pub addr: u64,
    /// Remote key of the region or window.
    pub rkey: RKey,
    /// COMPARE SWAP: the new value. FETCH ADD: the number to add.
    pub swap_or_add: u64,
    /// COMPARE SWAP: the expected value. FETCH ADD: ignored; some senders leave arbitrary bits in it.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = AtomicEthView::LEN;

    /// The header in these bytes; every content is legal.
    #[inline]
    pub const fn parse(view: AtomicEthView<'_>) -> Self {
        Self {
            addr: view.addr(),
            rkey: view.rkey(),
            swap_or_add: view.swap_or_add(),
            compare: view.compare(),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.value().to_be_bytes());
        out[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        out[20..].copy_from_slice(&self.compare.to_be_bytes());
    }
}

impl fmt::Debug for AtomicEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "AtomicETH {{ addr: {:#x}, rkey: {}, swap_or_add: {:#x}, compare: {:#x} }}",
            self.addr, self.rkey, self.swap_or_add, self.compare
        )
    }
}

view! {
    /// An AtomicAckETH in bytes.
    pub AtomicAckEthView of AtomicAckEth, 8 bytes
}

impl AtomicAckEthView<'_> {
    /// The value before the atomic.
    #[inline]
    pub const fn original(self) -> u64 {
        u64::from_be_bytes(*self.0)
    }
}

impl fmt::Debug for AtomicAckEthView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        AtomicAckEth::parse(*self).fmt(f)
    }
}

/// The value at the responder's address before the atomic.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AtomicAckEth {
    /// The value, as a number of the responder's host.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = AtomicAckEthView::LEN;

    /// The header in these bytes; every content is legal.
    #[inline]
    pub const fn parse(view: AtomicAckEthView<'_>) -> Self {
        Self {
            original: view.original(),
        }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.original.to_be_bytes();
    }
}

impl fmt::Debug for AtomicAckEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AtomicAckETH {{ original: {:#x} }}", self.original)
    }
}
