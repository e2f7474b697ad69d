//! The memory of work requests: checked, and copied from and to, one packet at a time. And the payload of a packet.

use arrayvec::ArrayVec;
use verbs_core::mem::{Span, Unmapped, Who, Window};
use verbs_core::{Access, Mtu, Payload, SendWr, Sge, WcCause};

use crate::queue::base::limits::MAX_SGE;
use crate::transport::{Ends, Fill, Outlet};
use crate::wire::{Head, Message, Role};

/// The payload of a packet, without pad: private bytes, or the window of a [long packet](crate::link::LongPacket). That is
/// memory that its sender can still change: it is copied once, and nothing is decided by it.
pub(crate) trait Body: Copy {
    /// How many bytes there are.
    fn len(self) -> usize;

    /// The bytes, unless it is that of a long packet.
    fn bytes<'b>(self) -> Option<&'b [u8]>
    where
        Self: 'b;

    /// The numbers that its packet takes.
    fn packets(self, mtu: Mtu) -> u32;

    /// Whether a packet with those headers may have it.
    fn fits(self, head: &Head, mtu: Mtu) -> bool;

    /// Copies it into memory that has been checked: as much as fits. Returns how many bytes that is.
    ///
    /// # Errors
    /// [`Unmapped`], if some of the memory is gone.
    fn write_to(self, span: Span<'_>) -> Result<u32, Unmapped>;

    /// What is behind the first `len` bytes, of which there are at least as many.
    fn after(self, len: u32) -> Self;
}

impl Body for &[u8] {
    #[inline(always)]
    fn len(self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn bytes<'b>(self) -> Option<&'b [u8]>
    where
        Self: 'b,
    {
        Some(self)
    }

    #[inline(always)]
    fn packets(self, _: Mtu) -> u32 {
        1
    }

    #[inline(always)]
    fn fits(self, head: &Head, mtu: Mtu) -> bool {
        head.opcode().check_payload(self.len(), mtu).is_ok()
    }

    #[inline(always)]
    fn write_to(self, span: Span<'_>) -> Result<u32, Unmapped> {
        span.write_from(self)
    }

    #[inline(always)]
    fn after(self, len: u32) -> Self {
        &self[len as usize..]
    }
}

impl Body for Window<'_> {
    fn len(self) -> usize {
        Self::len(self) as usize
    }

    fn bytes<'b>(self) -> Option<&'b [u8]>
    where
        Self: 'b,
    {
        None
    }

    fn packets(self, mtu: Mtu) -> u32 {
        mtu.packets(Self::len(self))
    }

    /// It stands for whole packets of the message, unless the message ends with it.
    fn fits(self, head: &Head, mtu: Mtu) -> bool {
        let facts = head.opcode().facts();
        let has_data = match facts.role {
            Role::Request => matches!(facts.message, Message::Send | Message::Write),
            Role::Response => facts.message == Message::Read,
            Role::Notice => false,
        };
        let is_whole = Self::len(self).is_multiple_of(mtu.bytes());
        has_data && !self.is_empty() && (facts.place.is_last() || is_whole)
    }

    fn write_to(self, span: Span<'_>) -> Result<u32, Unmapped> {
        span.copy_from(self)
    }

    fn after(self, len: u32) -> Self {
        let rest = self.part(len, Self::len(self).saturating_sub(len));
        rest.unwrap_or(Window::empty())
    }
}

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

    /// Puts out the packet with those headers, whose payload is `len` bytes from `offset` on; as a long one if `is_long`.
    /// `again`: it was sent before. `false`: there is no room for a long one now.
    ///
    /// # Errors
    /// [`Unmapped`], if some of the bytes are gone.
    #[inline(always)]
    pub(in crate::transport) fn put(
        &self,
        outlet: &mut dyn Outlet,
        (head, again): (&Head, bool),
        (offset, len): (u32, usize),
        is_long: bool,
    ) -> Result<bool, Unmapped> {
        if is_long {
            return outlet.put_long(head, len, &mut |out| self.copy_to(offset, out));
        }
        let fill: Fill<'_> = &mut |out| self.read(offset, out);
        outlet.put(head, len, again, fill).map(|()| true)
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`Unmapped`], if some of them are gone.
    #[inline]
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

    /// Fills a window with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`Unmapped`], if some of them are gone.
    pub(in crate::transport) fn copy_to(
        &self,
        offset: u32,
        out: Window<'_>,
    ) -> Result<(), Unmapped> {
        let pieces = match self {
            Self::Inline(bytes) => {
                let from = bytes.get(offset as usize..).unwrap_or_default();
                return out.write_from(from).map(drop);
            }
            Self::One(piece) => std::slice::from_ref(piece),
            Self::Pieces(pieces) => pieces,
        };
        let (mut skip, mut filled) = (offset, 0);
        for &piece in pieces {
            let before = skip.min(piece.len());
            skip -= before;
            let rest = piece.part(before, piece.len() - before);
            let room = out.part(filled, out.len() - filled);
            if let Some((rest, room)) = rest.zip(room) {
                filled += rest.copy_to(room)?;
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

/// Writes a payload into memory from `offset` of its pieces on; pieces that it does not reach are not checked. What
/// does not fit is left out.
///
/// # Errors
/// [`Refused`], if a piece that is reached may not be written; those before it have been.
pub(in crate::transport) fn scatter(
    ends: &Ends<'_>,
    pieces: impl Iterator<Item = Sge>,
    pd: u32,
    offset: u32,
    mut body: impl Body,
) -> Result<(), Refused> {
    let mut skip = offset;
    for sge in pieces {
        if body.len() == 0 {
            break;
        }
        let before = skip.min(sge.len);
        skip -= before;
        body = body.after(place(ends, sge, pd, before, body)?);
    }
    Ok(())
}

/// Writes a payload into a piece from `offset`, which is not behind it, on: as much as fits. Returns how many bytes.
///
/// # Errors
/// [`Refused`], if it may not be written.
pub(in crate::transport) fn place(
    ends: &Ends<'_>,
    sge: Sge,
    pd: u32,
    offset: u32,
    body: impl Body,
) -> Result<u32, Refused> {
    let room = sge.len - offset;
    let n = u32::try_from(body.len()).map_or(room, |len| len.min(room));
    let part = Sge {
        addr: sge.addr.wrapping_add(u64::from(offset)),
        len: n,
        ..sge
    };
    let span = check(ends, part, ends.who_in(pd), Access::LOCAL_WRITE)?;
    Ok(body.write_to(span)?)
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
