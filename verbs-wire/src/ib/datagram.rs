//! Extended headers that depend on the service and not on the operation: DETH on every datagram (IBTA vol. 1,
//! 9.3), XRCETH on every XRC request (annex A14).

use std::fmt;

use verbs_core::addr::{QKey, Qpn, Srqn};

use crate::field::{u24, u24_bytes, view};

view! {
    /// A DETH in bytes.
    pub DethView of Deth, 8 bytes
}

impl DethView<'_> {
    /// Queue key.
    #[inline]
    pub const fn qkey(self) -> QKey {
        let &[a, b, c, d, ..] = self.0;
        QKey(u32::from_be_bytes([a, b, c, d]))
    }

    /// The reserved byte.
    #[inline]
    pub const fn reserved(self) -> u8 {
        self.0[4]
    }

    /// The sender's queue pair.
    #[inline]
    pub const fn src_qpn(self) -> Qpn {
        let &[.., a, b, c] = self.0;
        Qpn::new(u24([a, b, c]))
    }
}

impl fmt::Debug for DethView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Deth::parse(*self).fmt(f)
    }
}

/// The sender of a datagram, and the key that admits it.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Deth {
    /// Queue key, which must be that of the receiving queue pair.
    pub qkey: QKey,
    /// The sender's queue pair.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = DethView::LEN;

    /// The header in these bytes; the reserved byte is ignored.
    #[inline]
    pub const fn parse(view: DethView<'_>) -> Self {
        Self {
            qkey: view.qkey(),
            src_qpn: view.src_qpn(),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[..4].copy_from_slice(&self.qkey.0.to_be_bytes());
        out[4] = 0;
        out[5..].copy_from_slice(&u24_bytes(self.src_qpn.value()));
    }
}

impl fmt::Debug for Deth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DETH {{ qkey: {:#010x}, src_qpn: {} }}",
            self.qkey.0, self.src_qpn
        )
    }
}

view! {
    /// An XRCETH in bytes.
    pub XrcEthView of XrcEth, 4 bytes
}

impl XrcEthView<'_> {
    /// The reserved byte.
    #[inline]
    pub const fn reserved(self) -> u8 {
        self.0[0]
    }

    /// The shared receive queue at the responder.
    #[inline]
    pub const fn srqn(self) -> Srqn {
        let &[_, a, b, c] = self.0;
        Srqn::new(u24([a, b, c]))
    }
}

impl fmt::Debug for XrcEthView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        XrcEth::parse(*self).fmt(f)
    }
}

/// The shared receive queue of an XRC request.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct XrcEth {
    /// Number of the queue at the responder.
    pub srqn: Srqn,
}

impl XrcEth {
    /// Bytes on the wire.
    pub const LEN: usize = XrcEthView::LEN;

    /// The header in these bytes; the reserved byte is ignored.
    #[inline]
    pub const fn parse(view: XrcEthView<'_>) -> Self {
        Self { srqn: view.srqn() }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.srqn.value().to_be_bytes();
    }
}

impl fmt::Debug for XrcEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XRCETH {{ srqn: {} }}", self.srqn)
    }
}
