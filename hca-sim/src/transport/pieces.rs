//! The memory of work requests: checked, and copied from and to, one packet at a time.

use arrayvec::ArrayVec;
use verbs_core::mem::{Span, Unmapped, Who};
use verbs_core::{Access, Payload, SendWr, Sge, WcCause};

use crate::queue::base::limits::MAX_SGE;
use crate::transport::Ends;

/// Why a piece may not be used, for `vendor_err`: the code of a [`WcCause`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Refused(pub(in crate::transport) u32);

impl From<Unmapped> for Refused {
    #[cold]
    fn from(_: Unmapped) -> Self {
        Self(WcCause::Unmapped.code())
    }
}

/// Room for the pieces of a message, which stays where it is: it is large, and most messages do not use it.
pub(in crate::transport) type Pieces<'p> = ArrayVec<Span<'p>, MAX_SGE>;

/// The source of the bytes of a message, all of it checked.
pub(in crate::transport) enum Source<'p, 'w> {
    /// Most messages have one piece.
    One(Span<'p>),
    Pieces(&'w [Span<'p>]),
    Inline(&'w [u8]),
}

impl<'p, 'w> Source<'p, 'w> {
    /// Checks the memory of a work request, for a message that needs that right to it.
    ///
    /// # Errors
    /// [`Refused`], if any piece of it may not be used.
    #[inline]
    pub(in crate::transport) fn check(
        ends: &Ends<'p>,
        wr: &SendWr<'w>,
        need: Access,
        room: &'w mut Pieces<'p>,
    ) -> Result<Self, Refused> {
        if let Payload::Inline(bytes) = wr.payload {
            return Ok(Self::Inline(bytes));
        }
        if let Payload::One(sge) = wr.payload {
            return check(ends, sge, ends.who(), need).map(Self::One);
        }
        room.clear();
        for sge in sges(wr).take(MAX_SGE) {
            room.push(check(ends, sge, ends.who(), need)?);
        }
        Ok(Self::Pieces(room))
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`Unmapped`], if some of them are gone.
    pub(in crate::transport) fn read(&self, offset: u32, out: &mut [u8]) -> Result<(), Unmapped> {
        match self {
            Self::Inline(bytes) => {
                let from = bytes.get(offset as usize..).unwrap_or_default();
                let n = from.len().min(out.len());
                out[..n].copy_from_slice(&from[..n]);
            }
            Self::One(piece) if offset == 0 => {
                piece.read_into(out)?;
            }
            Self::One(piece) => {
                let rest = piece.part(offset, piece.len().saturating_sub(offset));
                if let Some(rest) = rest {
                    rest.read_into(out)?;
                }
            }
            Self::Pieces(pieces) => {
                let (mut skip, mut filled) = (offset, 0);
                for &piece in *pieces {
                    let part = skip.min(piece.len());
                    skip -= part;
                    let rest = piece.part(part, piece.len() - part);
                    if let Some(rest) = rest {
                        filled += rest.read_into(&mut out[filled..])? as usize;
                    }
                    if filled == out.len() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The pieces of a work request that has no inline bytes.
pub(in crate::transport) fn sges<'w>(wr: &SendWr<'w>) -> impl Iterator<Item = Sge> + 'w {
    let (one, list): (_, &'w [Sge]) = match wr.payload {
        Payload::One(sge) => (Some(sge), &[]),
        Payload::List(list) => (None, list),
        Payload::Inline(_) => (None, &[]),
    };
    one.into_iter().chain(list.iter().copied())
}

/// Writes `bytes` into memory from `offset` of its pieces on; pieces that the bytes do not reach are not checked. What
/// does not fit is left out.
///
/// # Errors
/// [`Refused`], if a piece that is reached may not be written; those before it have been.
pub(in crate::transport) fn scatter(
    ends: &Ends<'_>,
    pieces: impl Iterator<Item = Sge>,
    pd: u32,
    offset: u32,
    mut bytes: &[u8],
) -> Result<(), Refused> {
    let mut skip = offset;
    for sge in pieces {
        if bytes.is_empty() {
            break;
        }
        let before = skip.min(sge.len);
        skip -= before;
        let written = place(ends, sge, pd, before, bytes)? as usize;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Writes `bytes` into a piece from `offset`, which is not behind it, on: as many as fit. Returns how many.
///
/// # Errors
/// [`Refused`], if it may not be written.
pub(in crate::transport) fn place(
    ends: &Ends<'_>,
    sge: Sge,
    pd: u32,
    offset: u32,
    bytes: &[u8],
) -> Result<u32, Refused> {
    let room = sge.len - offset;
    let n = u32::try_from(bytes.len()).map_or(room, |len| len.min(room));
    let part = Sge {
        addr: sge.addr.wrapping_add(u64::from(offset)),
        len: n,
        ..sge
    };
    let span = check(ends, part, ends.who_in(pd), Access::LOCAL_WRITE)?;
    Ok(span.write_from(bytes)?)
}

#[inline]
fn check<'p>(ends: &Ends<'p>, sge: Sge, who: Who, need: Access) -> Result<Span<'p>, Refused> {
    ends.mrs
        .find(ends.pin, sge.lkey.value(), sge.addr, sge.len, who, need)
        .ok_or_else(|| refused(ends))
}

/// Why the last check refused.
pub(in crate::transport) fn refused(ends: &Ends<'_>) -> Refused {
    Refused(WcCause::from(ends.mrs.why(ends.pin)).code())
}
