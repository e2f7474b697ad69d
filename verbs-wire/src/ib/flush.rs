//! Extended headers of newer operations: the target of a FLUSH (IBTA vol. 1, annex A19), and the masks of a
//! masked atomic, which are this crate's own.

use std::fmt;

use verbs_core::Placement;

use crate::field::view;

view! {
    /// A FETH in bytes.
    pub FethView of Feth, 4 bytes
}

impl FethView<'_> {
    const fn bits(self) -> u32 {
        u32::from_be_bytes(*self.0)
    }

    /// Where the data must be placed.
    #[inline]
    pub const fn placement(self) -> Placement {
        Placement::from_bits_retain((self.bits() & 0xf) as u8)
    }

    /// What is flushed: 0 for the range of the RETH, 1 for the region of its key.
    #[inline]
    pub const fn selectivity(self) -> u8 {
        (self.bits() >> 4 & 0x3) as u8
    }

    /// The upper bits, which are unused.
    #[inline]
    pub const fn reserved(self) -> u32 {
        self.bits() >> 6
    }
}

impl fmt::Debug for FethView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Feth::parse(*self).fmt(f)
    }
}

/// The target of a FLUSH.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Feth {
    /// Where the data must be placed; the responder must refuse bits other than the two.
    pub placement: Placement,
    /// 0 for the range of the RETH, 1 for the region of its key; the responder must refuse other values.
    pub selectivity: u8,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = FethView::LEN;
    /// [`Feth::selectivity`] of a range.
    pub const RANGE: u8 = 0;
    /// [`Feth::selectivity`] of a whole region.
    pub const REGION: u8 = 1;

    /// The header in these bytes; every content is legal.
    #[inline]
    pub const fn parse(view: FethView<'_>) -> Self {
        Self {
            placement: view.placement(),
            selectivity: view.selectivity(),
        }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        let bits = (self.placement.bits() & 0xf) as u32 | (self.selectivity as u32 & 0x3) << 4;
        *out = bits.to_be_bytes();
    }
}

impl fmt::Debug for Feth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (placement, selectivity) = (self.placement.bits(), self.selectivity);
        write!(
            f,
            "FETH {{ placement: {placement:#x}, selectivity: {selectivity} }}"
        )
    }
}

view! {
    /// The masks of a masked atomic in bytes.
    pub MaskEthView of MaskEth, 16 bytes
}

impl MaskEthView<'_> {
    /// The bits that are swapped, or the highest bits of the fields that are added.
    #[inline]
    pub const fn swap_or_boundary(self) -> u64 {
        let &[a, b, c, d, e, g, h, i, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, g, h, i])
    }

    /// The bits that are compared.
    #[inline]
    pub const fn compare(self) -> u64 {
        let &[.., a, b, c, d, e, g, h, i] = self.0;
        u64::from_be_bytes([a, b, c, d, e, g, h, i])
    }
}

impl fmt::Debug for MaskEthView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        MaskEth::parse(*self).fmt(f)
    }
}

/// The masks of a masked atomic, after its AtomicETH. No specification defines them.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct MaskEth {
    /// COMPARE SWAP: the bits that are swapped. FETCH ADD: the highest bit of each field.
    pub swap_or_boundary: u64,
    /// COMPARE SWAP: the bits that are compared. FETCH ADD: ignored.
    pub compare: u64,
}

impl MaskEth {
    /// Bytes on the wire.
    pub const LEN: usize = MaskEthView::LEN;

    /// The header in these bytes; every content is legal.
    #[inline]
    pub const fn parse(view: MaskEthView<'_>) -> Self {
        Self {
            swap_or_boundary: view.swap_or_boundary(),
            compare: view.compare(),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[..8].copy_from_slice(&self.swap_or_boundary.to_be_bytes());
        out[8..].copy_from_slice(&self.compare.to_be_bytes());
    }
}

impl fmt::Debug for MaskEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            swap_or_boundary,
            compare,
        } = self;
        write!(
            f,
            "MaskETH {{ swap_or_boundary: {swap_or_boundary:#x}, compare: {compare:#x} }}"
        )
    }
}
