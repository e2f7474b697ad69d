//! Names of objects: kind and number.

use std::fmt;

use crate::sync::plain::{AtomicU32, Ordering::Relaxed};

/// The kinds of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum ObjectKind {
    /// Device.
    Device,
    /// Protection domain.
    Pd,
    /// Completion queue.
    Cq,
    /// Queue pair.
    Qp,
    /// Shared receive queue.
    Srq,
    /// Memory region.
    Mr,
    /// Memory window.
    Mw,
    /// Address handle.
    Ah,
    /// XRC domain.
    Xrcd,
    /// Attachment of a queue pair to a multicast group.
    Mcast,
    /// Endpoint of the connection manager.
    CmEndpoint,
    /// Pool of fast memory regions.
    FmrPool,
}

impl ObjectKind {
    /// How many kinds there are.
    pub const COUNT: usize = 12;

    /// Every kind.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Device,
        Self::Pd,
        Self::Cq,
        Self::Qp,
        Self::Srq,
        Self::Mr,
        Self::Mw,
        Self::Ah,
        Self::Xrcd,
        Self::Mcast,
        Self::CmEndpoint,
        Self::FmrPool,
    ];
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Pd => "PD",
            Self::Cq => "CQ",
            Self::Qp => "QP",
            Self::Srq => "SRQ",
            Self::Mr => "MR",
            Self::Mw => "MW",
            Self::Ah => "AH",
            Self::Xrcd => "XRCD",
            Self::Mcast => "multicast attachment",
            Self::CmEndpoint => "CM endpoint",
            Self::FmrPool => "FMR pool",
        })
    }
}

/// Names an object in lists and logs: its kind and the provider's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// Kind.
    pub kind: ObjectKind,
    /// The provider's number for it: QPN, key, PD number.
    pub number: u32,
}

impl ObjectId {
    pub(crate) fn word(self) -> u64 {
        (self.kind as u64) << 32 | u64::from(self.number)
    }

    pub(crate) fn from_word(word: u64) -> Self {
        let kind = ObjectKind::ALL
            .get((word >> 32) as usize)
            .copied()
            .unwrap_or(ObjectKind::Device);
        Self {
            kind,
            number: (word & 0xffff_ffff) as u32,
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}", self.kind, self.number)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// On whose behalf an object was made, as the word of an origin; a trusted one until it is set.
#[derive(Debug, Default)]
pub(crate) struct Owner(AtomicU32);

impl Owner {
    /// Set before the result of the create is delivered, with which it is passed on.
    pub(crate) fn set(&self, word: u32) {
        self.0.store(word, Relaxed);
    }

    pub(crate) fn word(&self) -> u32 {
        self.0.load(Relaxed)
    }
}
