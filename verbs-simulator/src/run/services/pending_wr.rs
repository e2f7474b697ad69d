//! How work requests of the services other than reliable connections are posted.

use std::ops::Range;

use verbs_core::{Dest, Payload, PostError, SendFlags, SendOp, SendWr, Sge};

use crate::check::{Read, Rule, Sent};
use crate::coverage::Operation;
use crate::run::conn::Seen;
use crate::run::endpoint::{Endpoint, SLOT};
use crate::run::posted::{Out, pieces};
use crate::run::world::World;
use crate::{Draw, Ppm};

/// A work request to be posted.
pub(crate) struct PendingWr<'d> {
    pub(crate) op: SendOp,
    pub(crate) dest: Dest<'d>,
    pub(crate) operation: Operation,
    pub(crate) data: Data,
    pub(crate) seq: u64,
    pub(crate) to: usize,
    pub(crate) receives: bool,
    /// It waits until the READs and atomics before it have ended.
    pub(crate) fenced: bool,
    pub(crate) read: Option<Read>,
    /// The faults that had occurred by then on its path.
    pub(crate) seen: Seen,
}

/// The local side of a work request.
pub(crate) enum Data {
    /// These bytes are sent.
    Bytes(Vec<u8>),
    /// The result is written there.
    Into(Range<usize>),
    /// A scatter/gather element with an invalid key.
    WrongLkey,
    /// There is none.
    Nothing,
}

/// The local side of a work request, ready to be posted.
#[derive(Default)]
struct LocalSide {
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
    slot: Option<usize>,
    back: Option<Range<usize>>,
    flags: SendFlags,
}

impl Endpoint {
    /// Posts a work request. Returns its number, if it was accepted.
    pub(crate) fn post(
        &mut self,
        world: &World,
        draw: &mut Draw,
        pending: PendingWr<'_>,
    ) -> Option<u64> {
        if world.is_spent() {
            return None;
        }
        let mut local = self.local_side(draw, pending.data)?;
        if pending.fenced {
            local.flags |= SendFlags::FENCE;
        }
        let wr_id = (self.posted + 1) << 1;
        let sges = Payload::List(&local.sges);
        let wr = SendWr {
            wr_id,
            op: pending.op,
            flags: local.flags,
            payload: local.inline.as_deref().map_or(sges, Payload::Inline),
            dest: pending.dest,
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
                world.violated(Rule::Post, what);
                return None;
            }
        }
        world.posted.set(world.posted.get() + 1);
        self.posted += 1;
        let signaled = local.flags.contains(SendFlags::SIGNALED);
        self.quiet = if signaled { 0 } else { self.quiet + 1 };
        if local.slot.is_some() {
            self.free[1].pop();
        }
        let what = Out {
            slot: local.slot,
            operation: pending.operation,
            seq: pending.seq,
            to: pending.to,
            receives: pending.receives,
            read: local.back.zip(pending.read),
            seen: pending.seen,
        };
        self.sends.post(Sent {
            wr_id,
            signaled,
            what,
        });
        Some(wr_id)
    }

    /// Puts the bytes to send into a place of their own; `None` if there is none.
    fn local_side(&mut self, draw: &mut Draw, data: Data) -> Option<LocalSide> {
        let mr = self.region.mr.as_ref()?;
        let max = self.sizes.sges;
        let mut local = LocalSide::default();
        match data {
            Data::Bytes(bytes)
                if bytes.len() <= self.sizes.inline as usize && draw.chance(Ppm::percent(50)) =>
            {
                local.flags |= SendFlags::INLINE;
                local.inline = Some(bytes);
            }
            Data::Bytes(bytes) => {
                let slot = *self.free[1].last()?;
                let at = slot * SLOT;
                self.region.model.store(at, &bytes);
                local.sges = pieces(draw, mr, at..at + bytes.len(), max);
                local.slot = Some(slot);
            }
            Data::Into(range) => {
                local.sges = pieces(draw, mr, range.clone(), max);
                local.flags |= SendFlags::SIGNALED;
                local.back = Some(range);
            }
            Data::WrongLkey => {
                let piece = mr.slice(0..8);
                let lkey = piece.lkey.next();
                local.sges.push(Sge { lkey, ..piece });
                local.flags |= SendFlags::SIGNALED;
            }
            Data::Nothing => {
                let fenced = draw.chance(Ppm::percent(20));
                local.flags.set(SendFlags::FENCE, fenced);
            }
        }
        let is_last = self.quiet + 1 >= (self.sizes.send_depth as usize / 2).max(1);
        if is_last || draw.chance(Ppm::percent(70)) {
            local.flags |= SendFlags::SIGNALED;
        }
        let solicits = local.back.is_none() && draw.chance(Ppm::percent(20));
        local.flags.set(SendFlags::SOLICITED, solicits);
        Some(local)
    }
}
