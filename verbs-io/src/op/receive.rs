//! Waiting for messages, and for buffers of pools.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use verbs_core::sync::Arc;
use verbs_core::task::OwnWaker;

use crate::buf::Buf;
use crate::core::Core;
use crate::error::Error;
use crate::lane::Lane;
use crate::lane::slot::{Fault, NONE, State};
use crate::link::Link;

/// The next message: [`Connection::recv`](crate::Connection::recv).
#[must_use = "nothing is received until it is awaited"]
pub struct Receiving<'a> {
    link: &'a Link,
    place: Place,
}

/// A buffer of a pool: [`Connection::buf`](crate::Connection::buf), [`Endpoint::buf`](crate::Endpoint::buf),
/// [`Pool::buf`](crate::Pool::buf).
#[must_use = "there is no buffer until it is awaited"]
pub struct Taking<'a> {
    core: &'a Arc<Core>,
    pool: u32,
    place: Place,
}

/// A place in a queue of tasks that wait for buffers. It is to be [left](Place::leave).
pub(crate) struct Place {
    slot: u32,
}

enum Turn {
    Got(Buf),
    Over(Fault),
    Waits,
    /// Others have their turn first.
    Yield,
}

impl Lane {
    /// What the slot of a future that waits for a buffer has got.
    fn collect(&mut self, slot: u32) -> (Turn, Option<Waker>) {
        let waiting = self.slots.get(slot);
        let (state, buf, len) = (waiting.state, waiting.buf, waiting.len);
        let turn = match state {
            State::Received => Turn::Got(self.loans.lend(buf, len)),
            State::Done => Turn::Over(waiting.fault.unwrap_or(Fault::Over)),
            _ => return (Turn::Waits, None),
        };
        (turn, self.slots.release(slot))
    }
}

impl Place {
    /// None yet.
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self { slot: NONE }
    }

    /// The next message; `None` when the connection was closed in order.
    #[inline(always)]
    pub(crate) fn poll_message(
        &mut self,
        link: &Link,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Buf>, Error>> {
        let mut turn = Turn::Waits;
        if self.slot == NONE {
            turn = self.begin(link);
        }
        if matches!(turn, Turn::Waits) {
            turn = self.again(link, cx);
        }
        match turn {
            Turn::Got(buf) => Poll::Ready(Ok(Some(buf))),
            Turn::Over(fault) => Poll::Ready(over(link, fault)),
            Turn::Waits => Poll::Pending,
            Turn::Yield => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    #[inline(always)]
    fn begin(&mut self, link: &Link) -> Turn {
        let conn = link.conn();
        link.core().with(|lane| {
            if lane.yields() {
                return Turn::Yield;
            }
            match lane.message(conn) {
                Some((buf, len)) => Turn::Got(lane.loans.lend(buf, len)),
                None if lane.ends[conn as usize].is_over => Turn::Over(Fault::Over),
                None => {
                    self.slot = lane.wait(conn);
                    Turn::Waits
                }
            }
        })
    }

    /// Looks once more, and sleeps.
    #[inline(never)]
    fn again(&mut self, link: &Link, cx: &Context<'_>) -> Turn {
        let slot = self.slot;
        let mut waker = OwnWaker::of(cx.waker());
        let (turn, old) = link.core().with(|lane| {
            lane.reap();
            let looked = lane.collect(slot);
            if matches!(looked.0, Turn::Waits) {
                lane.park(slot, &mut waker);
            }
            looked
        });
        drop(old);
        if !matches!(turn, Turn::Waits) {
            self.slot = NONE;
        }
        turn
    }

    /// A buffer of that pool.
    pub(crate) fn poll_buf(&mut self, core: &Core, pool: u32, cx: &mut Context<'_>) -> Poll<Buf> {
        let slot = self.slot;
        let mut waker = OwnWaker::of(cx.waker());
        let (turn, slot, old) = core.with(|lane| {
            if slot == NONE
                && let Some(buf) = lane.take_full(pool)
            {
                return (Turn::Got(buf), NONE, None);
            }
            let slot = match slot {
                NONE => lane.wait(pool),
                slot => slot,
            };
            // Buffers of operations that have completed may be among those to reap.
            lane.reap();
            match lane.collect(slot) {
                (Turn::Waits, old) => {
                    lane.park(slot, &mut waker);
                    (Turn::Waits, slot, old)
                }
                (turn, old) => (turn, NONE, old),
            }
        });
        drop(old);
        self.slot = slot;
        match turn {
            Turn::Got(buf) => Poll::Ready(buf),
            _ => Poll::Pending,
        }
    }

    /// Gives the place up; what it had been given goes to the next.
    #[inline(always)]
    pub(crate) fn leave(&mut self, core: &Core) {
        if self.slot != NONE {
            forget(core, std::mem::replace(&mut self.slot, NONE));
        }
    }
}

#[cold]
fn forget(core: &Core, slot: u32) {
    let waker = core.with(|lane| lane.forget(slot));
    drop(waker);
}

#[cold]
fn over(link: &Link, fault: Fault) -> Result<Option<Buf>, Error> {
    match link.error_of(fault) {
        Error::Closed { .. } => Ok(None),
        error => Err(error),
    }
}

impl<'a> Receiving<'a> {
    #[inline(always)]
    pub(crate) fn new(link: &'a Link) -> Self {
        Self {
            link,
            place: Place::new(),
        }
    }
}

impl Future for Receiving<'_> {
    type Output = Result<Option<Buf>, Error>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let link = self.link;
        self.place.poll_message(link, cx)
    }
}

impl<'a> Taking<'a> {
    pub(crate) fn new(core: &'a Arc<Core>, pool: u32) -> Self {
        Self {
            core,
            pool,
            place: Place::new(),
        }
    }
}

impl Future for Taking<'_> {
    type Output = Buf;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Buf> {
        let (core, pool) = (self.core, self.pool);
        self.place.poll_buf(core, pool, cx)
    }
}

impl Drop for Receiving<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.place.leave(self.link.core());
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.place.leave(self.core);
    }
}

impl fmt::Debug for Receiving<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiving").finish_non_exhaustive()
    }
}

impl fmt::Debug for Taking<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taking").finish_non_exhaustive()
    }
}
