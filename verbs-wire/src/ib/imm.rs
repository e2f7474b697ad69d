//! Immediate data and the invalidate extended header (IBTA vol. 1, 9.3).

use std::fmt;

use verbs_core::addr::RKey;

use crate::field::view;

view! {
    /// Immediate data in bytes.
    pub ImmDtView of ImmDt, 4 bytes
}

impl ImmDtView<'_> {
    /// The immediate data, with the first byte on the wire as the highest.
    #[inline]
    pub const fn imm(self) -> u32 {
        u32::from_be_bytes(*self.0)
    }
}

impl fmt::Debug for ImmDtView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ImmDt::parse(*self).fmt(f)
    }
}

/// Immediate data: 32 bits that the transport carries from consumer to consumer.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct ImmDt {
    /// The immediate data, with the first byte on the wire as the highest.
    pub imm: u32,
}

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = ImmDtView::LEN;

    /// The header in these bytes; every content is legal.
    #[inline]
    pub const fn parse(view: ImmDtView<'_>) -> Self {
        Self { imm: view.imm() }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.imm.to_be_bytes();
    }
}

impl fmt::Debug for ImmDt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImmDt {{ imm: {:#010x} }}", self.imm)
    }
}

view! {
    /// An IETH in bytes.
    pub IethView of Ieth, 4 bytes
}

impl IethView<'_> {
    /// The key to invalidate at the responder.
    #[inline]
    pub const fn rkey(self) -> RKey {
        RKey::new(u32::from_be_bytes(*self.0))
    }
}

impl fmt::Debug for IethView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ieth::parse(*self).fmt(f)
    }
}

/// The key that a SEND with Invalidate invalidates.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Ieth {
    /// Remote key of a region or window at the responder.
    pub rkey: RKey,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = IethView::LEN;

    /// The header in these bytes; every content is legal.
    #[inline]
    pub const fn parse(view: IethView<'_>) -> Self {
        Self { rkey: view.rkey() }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.rkey.value().to_be_bytes();
    }
}

impl fmt::Debug for Ieth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IETH {{ rkey: {} }}", self.rkey)
    }
}
