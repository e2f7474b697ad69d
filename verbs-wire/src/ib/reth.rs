//! RDMA extended header: the remote memory of a WRITE or READ (IBTA vol. 1, 9.3).

use std::fmt;

use verbs_core::addr::RKey;

use crate::field::view;

view! {
    /// A RETH in bytes.
    pub RethView of Reth, 16 bytes
}

impl RethView<'_> {
    /// Virtual address at the responder.
    #[inline]
    pub const fn addr(self) -> u64 {
        let &[a, b, c, d, e, g, h, i, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, g, h, i])
    }

    /// Remote key.
    #[inline]
    pub const fn rkey(self) -> RKey {
        let &[.., a, b, c, d, _, _, _, _] = self.0;
        RKey::new(u32::from_be_bytes([a, b, c, d]))
    }

    /// Bytes of the whole message.
    #[inline]
    pub const fn dma_len(self) -> u32 {
        let &[.., a, b, c, d] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Debug for RethView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Reth::parse(*self).fmt(f)
    }
}

/// The responder's memory for a WRITE or READ.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Reth {
    /// Virtual address at the responder.
    pub addr: u64,
    /// Remote key of the region or window.
    pub rkey: RKey,
    /// Bytes of the whole message, not of this packet; the responder refuses more than 2^31.
    pub dma_len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = RethView::LEN;

    /// The header in these bytes; every content is legal.
    #[inline]
    pub const fn parse(view: RethView<'_>) -> Self {
        Self {
            addr: view.addr(),
            rkey: view.rkey(),
            dma_len: view.dma_len(),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.value().to_be_bytes());
        out[12..].copy_from_slice(&self.dma_len.to_be_bytes());
    }
}

impl fmt::Debug for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RETH {{ addr: {:#x}, rkey: {}, dma_len: {} }}",
            self.addr, self.rkey, self.dma_len
        )
    }
}
