//! Work requests of the services that are not reliable connections: how they are posted.

use std::ops::Range;

use verbs_core::{Dest, Payload, PostError, SendFlags, SendOp, SendWr, Sge};

use crate::sim::check::{Read, Rule, Sent};
use crate::sim::coverage::Operation;
use crate::sim::run::conn::Seen;
use crate::sim::run::posted::{Out, pieces};
use crate::sim::run::stand::{SLOT, Stand};
use crate::sim::run::world::World;
use crate::sim::{Draw, Ppm};

/// A work request that is to be posted.
pub(super) struct Parcel<'d> {
    pub(super) op: SendOp,
    pub(super) dest: Dest<'d>,
    pub(super) operation: Operation,
    pub(super) data: Data,
    pub(super) seq: u64,
    pub(super) to: usize,
    pub(super) receives: bool,
    /// It waits until the READs and atomics before it have ended.
    pub(super) fenced: bool,
    pub(super) read: Option<Read>,
    /// What had gone wrong by then where it goes.
    pub(super) seen: Seen,
}

/// The local side of a work request.
pub(super) enum Data {
    /// These bytes are sent.
    Bytes(Vec<u8>),
    /// The result goes there.
    Into(Range<usize>),
    /// A piece with a key that is none.
    Stranger,
    /// There is none.
    Nothing,
}

/// The local side of a work request, ready to be posted.
#[derive(Default)]
struct Packed {
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
    slot: Option<usize>,
    back: Option<Range<usize>>,
    flags: SendFlags,
}

impl Stand {
    /// Posts a work request; its number, if it was taken.
    pub(super) fn post(
        &mut self,
        world: &World,
        draw: &mut Draw,
        parcel: Parcel<'_>,
    ) -> Option<u64> {
        if world.is_spent() {
            return None;
        }
        let mut packed = self.pack(draw, parcel.data)?;
        if parcel.fenced {
            packed.flags |= SendFlags::FENCE;
        }
        let wr_id = (self.posted + 1) << 1;
        let sges = Payload::List(&packed.sges);
        let wr = SendWr {
            wr_id,
            op: parcel.op,
            flags: packed.flags,
            payload: packed.inline.as_deref().map_or(sges, Payload::Inline),
            dest: parcel.dest,
        };
        let waiting = self.sends.len();
        match self.qp.as_mut()?.post_send(wr) {
            Ok(()) => {}
            Err(PostError::Full { .. }) if waiting >= self.sizes.send_depth as usize => {
                return None;
            }
            Err(PostError::DeviceRemoved) if self.lease.removed.get() => return None,
            Err(error) => {
                let what =
                    format!("a post with {waiting} work requests waiting was refused: {error}");
                world.accuse(Rule::Post, what);
                return None;
            }
        }
        world.posted.set(world.posted.get() + 1);
        self.posted += 1;
        let signaled = packed.flags.contains(SendFlags::SIGNALED);
        self.quiet = if signaled { 0 } else { self.quiet + 1 };
        if packed.slot.is_some() {
            self.free[1].pop();
        }
        let what = Out {
            slot: packed.slot,
            operation: parcel.operation,
            seq: parcel.seq,
            to: parcel.to,
            receives: parcel.receives,
            read: packed.back.zip(parcel.read),
            seen: parcel.seen,
        };
        self.sends.post(Sent {
            wr_id,
            signaled,
            what,
        });
        Some(wr_id)
    }

    /// Puts what is sent into a place of its own; `None` if there is none.
    fn pack(&mut self, draw: &mut Draw, data: Data) -> Option<Packed> {
        let mr = self.region.mr.as_ref()?;
        let max = self.sizes.sges;
        let mut packed = Packed::default();
        match data {
            Data::Bytes(bytes)
                if bytes.len() <= self.sizes.inline as usize && draw.chance(Ppm::percent(50)) =>
            {
                packed.flags |= SendFlags::INLINE;
                packed.inline = Some(bytes);
            }
            Data::Bytes(bytes) => {
                let slot = *self.free[1].last()?;
                let at = slot * SLOT;
                self.region.model.store(at, &bytes);
                packed.sges = pieces(draw, mr, at..at + bytes.len(), max);
                packed.slot = Some(slot);
            }
            Data::Into(range) => {
                packed.sges = pieces(draw, mr, range.clone(), max);
                packed.flags |= SendFlags::SIGNALED;
                packed.back = Some(range);
            }
            Data::Stranger => {
                let piece = mr.slice(0..8);
                let lkey = piece.lkey.next();
                packed.sges.push(Sge { lkey, ..piece });
                packed.flags |= SendFlags::SIGNALED;
            }
            Data::Nothing => {
                let fenced = draw.chance(Ppm::percent(20));
                packed.flags.set(SendFlags::FENCE, fenced);
            }
        }
        let is_last = self.quiet + 1 >= (self.sizes.send_depth as usize / 2).max(1);
        if is_last || draw.chance(Ppm::percent(70)) {
            packed.flags |= SendFlags::SIGNALED;
        }
        let solicits = packed.back.is_none() && draw.chance(Ppm::percent(20));
        packed.flags.set(SendFlags::SOLICITED, solicits);
        Some(packed)
    }
}
