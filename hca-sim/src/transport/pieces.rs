//! The memory of work requests: checked, and copied from and to, a packet at a time.

use arrayvec::ArrayVec;
use verbs_core::mem::{Span, Who};
use verbs_core::{Access, Payload, SendWr, Sge};

use crate::queue::base::limits::MAX_SGE;
use crate::transport::Ends;

/// Why a piece may not be used, for `vendor_err`: 1 key, 2 protection domain, 3 right, 4 bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Refused(pub(in crate::transport) u32);

/// Where the bytes of a message come from, all of it checked.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one message; a box would allocate"
)]
pub(in crate::transport) enum Source<'p, 'w> {
    Pieces(ArrayVec<Span<'p>, MAX_SGE>),
    Inline(&'w [u8]),
}

impl<'p, 'w> Source<'p, 'w> {
    /// The memory of a work request, for a message that needs that right of it.
    ///
    /// # Errors
    /// [`Refused`], if any piece of it may not be used.
    pub(in crate::transport) fn check(
        ends: &Ends<'p>,
        wr: &SendWr<'w>,
        need: Access,
    ) -> Result<Self, Refused> {
        if let Payload::Inline(bytes) = wr.payload {
            return Ok(Self::Inline(bytes));
        }
        let pieces = sges(wr)
            .take(MAX_SGE)
            .map(|sge| check(ends, sge, ends.who(), need))
            .collect::<Result<_, _>>()?;
        Ok(Self::Pieces(pieces))
    }

    /// Fills `out` with the bytes from `offset` on.
    pub(in crate::transport) fn read(&self, offset: u32, out: &mut [u8]) {
        match self {
            Self::Inline(bytes) => {
                let from = bytes.get(offset as usize..).unwrap_or_default();
                let n = from.len().min(out.len());
                out[..n].copy_from_slice(&from[..n]);
            }
            Self::Pieces(pieces) => {
                let (mut skip, mut filled) = (offset, 0);
                for &piece in pieces {
                    let part = skip.min(piece.len());
                    skip -= part;
                    let rest = piece.part(part, piece.len() - part);
                    filled += rest.map_or(0, |rest| rest.read_into(&mut out[filled..])) as usize;
                    if filled == out.len() {
                        break;
                    }
                }
            }
        }
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

/// Writes `bytes` into memory from `offset` of its pieces on; those that it does not reach are not
/// looked at. What does not fit is left out.
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
        let room = sge.len - before;
        let n = u32::try_from(bytes.len()).map_or(room, |len| len.min(room));
        let part = Sge {
            addr: sge.addr.wrapping_add(u64::from(before)),
            len: n,
            ..sge
        };
        let span = check(ends, part, ends.who_in(pd), Access::LOCAL_WRITE)?;
        let written = span.write_from(bytes) as usize;
        bytes = &bytes[written..];
    }
    Ok(())
}

fn check<'p>(ends: &Ends<'p>, sge: Sge, who: Who, need: Access) -> Result<Span<'p>, Refused> {
    ends.mrs
        .find(ends.pin, sge.lkey.value(), sge.addr, sge.len, who, need)
        .ok_or_else(|| refused(ends))
}

/// Why the last check refused.
pub(in crate::transport) fn refused(ends: &Ends<'_>) -> Refused {
    Refused(ends.mrs.why(ends.pin) as u32 + 1)
}
