//! The arguments and results of the fast paths of posting: values that are passed in registers.
//!
//! A [`Sge`] and a [`PostError`] are passed through memory, which costs more than the checks of an
//! 8-byte message.

use std::num::NonZeroU64;

use crate::addr::{LKey, RKey};
use crate::caps::Capability;
use crate::mem::Access;
use crate::qp_state::QpState;
use crate::queue::PostError;
use crate::wr::{Remote, SendFlags, Sge};

/// A [`Sge`] in two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// As [`Sge::addr`].
    pub addr: u64,
    /// The length in the lower half, the key in the upper one.
    pub len_key: u64,
}

impl Piece {
    /// Bytes.
    #[inline(always)]
    pub const fn len(self) -> u32 {
        self.len_key as u32
    }

    /// Whether there are no bytes.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The local key's number.
    #[inline(always)]
    pub const fn key(self) -> u32 {
        (self.len_key >> 32) as u32
    }
}

impl From<Sge> for Piece {
    #[inline(always)]
    fn from(sge: Sge) -> Self {
        Self {
            addr: sge.addr,
            len_key: u64::from(sge.lkey.value()) << 32 | u64::from(sge.len),
        }
    }
}

impl From<Piece> for Sge {
    #[inline(always)]
    fn from(piece: Piece) -> Self {
        Self {
            addr: piece.addr,
            len: piece.len(),
            lkey: LKey::new(piece.key()),
        }
    }
}

/// The remote key and the flags of a WRITE or READ, in one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How(u64);

impl How {
    #[inline(always)]
    pub(super) fn new(remote: Remote, flags: SendFlags) -> Self {
        Self(u64::from(remote.rkey.value()) << 32 | u64::from(flags.bits()))
    }

    /// The flags.
    #[inline(always)]
    pub const fn flags(self) -> SendFlags {
        SendFlags::from_bits_retain(self.0 as u32)
    }

    /// The remote key's number.
    #[inline(always)]
    pub const fn key(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The remote memory at that address.
    #[inline(always)]
    pub const fn remote(self, addr: u64) -> Remote {
        Remote {
            addr,
            rkey: RKey::new(self.key()),
        }
    }
}

/// A [`PostError`] in two registers, with the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostCode {
    /// The error's number in the lower half, its first value in the upper one.
    which: NonZeroU64,
    second: u64,
}

/// Numbers of the errors, from 1.
mod which {
    pub(super) const FULL: u32 = 1;
    pub(super) const STATE: u32 = 2;
    pub(super) const TOO_MANY_SGES: u32 = 3;
    pub(super) const INLINE_TOO_LONG: u32 = 4;
    pub(super) const TOO_LONG: u32 = 5;
    pub(super) const UNSUPPORTED: u32 = 6;
    pub(super) const ATOMIC_SIZE: u32 = 7;
    pub(super) const ATOMIC_ALIGNMENT: u32 = 8;
    pub(super) const USES_SRQ: u32 = 9;
    pub(super) const SPLIT: u32 = 10;
    pub(super) const DESTROYED: u32 = 11;
    pub(super) const DEVICE_REMOVED: u32 = 12;
    pub(super) const NO_DESTINATION: u32 = 13;
    pub(super) const DESTINATION: u32 = 14;
    pub(super) const NO_SRQ: u32 = 15;
    pub(super) const UNREACHABLE: u32 = 16;
    pub(super) const READ_SINK: u32 = 17;
    pub(super) const KEY: u32 = 18;
    pub(super) const NO_CAPABILITY: u32 = 19;
}

impl From<PostError> for PostCode {
    #[cold]
    #[inline(never)]
    fn from(error: PostError) -> Self {
        let (which, first, second) = match error {
            PostError::Full { depth } => (which::FULL, depth, 0),
            PostError::State(state) => (which::STATE, state as u32, 0),
            PostError::TooManySges { got, max } => (which::TOO_MANY_SGES, got, max),
            PostError::InlineTooLong { got, max } => (which::INLINE_TOO_LONG, got, max),
            PostError::TooLong { max } => (which::TOO_LONG, max, 0),
            PostError::Unsupported => (which::UNSUPPORTED, 0, 0),
            PostError::AtomicSize { got } => (which::ATOMIC_SIZE, got, 0),
            PostError::AtomicAlignment => (which::ATOMIC_ALIGNMENT, 0, 0),
            PostError::UsesSrq => (which::USES_SRQ, 0, 0),
            PostError::Split => (which::SPLIT, 0, 0),
            PostError::Destroyed => (which::DESTROYED, 0, 0),
            PostError::DeviceRemoved => (which::DEVICE_REMOVED, 0, 0),
            PostError::NoDestination => (which::NO_DESTINATION, 0, 0),
            PostError::Destination => (which::DESTINATION, 0, 0),
            PostError::NoSrq => (which::NO_SRQ, 0, 0),
            PostError::Unreachable => (which::UNREACHABLE, 0, 0),
            PostError::Key(key) => (which::KEY, key, 0),
            PostError::NoCapability(missing) => {
                (which::NO_CAPABILITY, u32::from(missing.number()), 0)
            }
            PostError::ReadSink { lkey, missing } => {
                (which::READ_SINK, lkey.value(), missing.bits())
            }
        };
        Self {
            which: NonZeroU64::MIN.saturating_add(u64::from(which - 1) | u64::from(first) << 32),
            second: u64::from(second),
        }
    }
}

impl From<PostCode> for PostError {
    #[cold]
    #[inline(never)]
    fn from(code: PostCode) -> Self {
        let (which, second) = (code.which.get() as u32, code.second as u32);
        let first = (code.which.get() >> 32) as u32;
        match which {
            which::FULL => Self::Full { depth: first },
            which::STATE => {
                let state = QpState::ALL.get(first as usize).copied();
                Self::State(state.unwrap_or(QpState::Err))
            }
            which::TOO_MANY_SGES => Self::TooManySges {
                got: first,
                max: second,
            },
            which::INLINE_TOO_LONG => Self::InlineTooLong {
                got: first,
                max: second,
            },
            which::TOO_LONG => Self::TooLong { max: first },
            which::ATOMIC_SIZE => Self::AtomicSize { got: first },
            which::ATOMIC_ALIGNMENT => Self::AtomicAlignment,
            which::USES_SRQ => Self::UsesSrq,
            which::SPLIT => Self::Split,
            which::DESTROYED => Self::Destroyed,
            which::DEVICE_REMOVED => Self::DeviceRemoved,
            which::NO_DESTINATION => Self::NoDestination,
            which::DESTINATION => Self::Destination,
            which::NO_SRQ => Self::NoSrq,
            which::UNREACHABLE => Self::Unreachable,
            which::KEY => Self::Key(first),
            which::NO_CAPABILITY => {
                let missing = Capability::from_number(first as u8);
                missing.map_or(Self::Unsupported, Self::NoCapability)
            }
            which::READ_SINK => Self::ReadSink {
                lkey: LKey::new(first),
                missing: Access::from_bits_retain(second),
            },
            _ => Self::Unsupported,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_comes_back_as_it_was() {
        let (got, max) = (u32::MAX, u32::MAX - 1);
        let mut errors = vec![
            PostError::Full { depth: max },
            PostError::TooManySges { got, max },
            PostError::InlineTooLong { got, max },
            PostError::TooLong { max },
            PostError::Unsupported,
            PostError::AtomicSize { got },
            PostError::AtomicAlignment,
            PostError::UsesSrq,
            PostError::Split,
            PostError::Destroyed,
            PostError::DeviceRemoved,
            PostError::NoDestination,
            PostError::Destination,
            PostError::NoSrq,
            PostError::Unreachable,
            PostError::Key(got),
            PostError::NoCapability(Capability::MASKED_ATOMICS),
            PostError::ReadSink {
                lkey: LKey::new(got),
                missing: Access::REMOTE_WRITE,
            },
        ];
        errors.extend(QpState::ALL.iter().map(|&state| PostError::State(state)));
        for error in errors {
            assert_eq!(PostError::from(PostCode::from(error)), error);
        }
    }

    #[test]
    fn parts_come_back_as_they_were() {
        let (addr, lkey) = (u64::MAX, LKey::new(u32::MAX - 1));
        let sge = Sge { addr, len: 7, lkey };
        assert_eq!(Sge::from(Piece::from(sge)), sge);
        let rkey = RKey::new(u32::MAX);
        let (remote, flags) = (Remote { addr, rkey }, SendFlags::all());
        let how = How::new(remote, flags);
        assert_eq!((how.remote(addr), how.flags()), (remote, flags));
    }

    /// The purpose of these types.
    #[test]
    fn an_answer_fits_two_registers() {
        assert!(size_of::<Result<(), PostCode>>() <= 16);
        assert!(size_of::<Piece>() <= 16);
    }
}
