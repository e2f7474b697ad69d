//! Waiting for messages, and for buffers of pools.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use verbs_core::task::OwnWaker;

use super::within::Within;
use crate::buf::Buf;
use crate::core::{Core, Handle};
use crate::error::Error;
use crate::lane::Lane;
use crate::lane::slot::{Fault, NONE, State};
use crate::lane::{reap, sleep};
use crate::link::Link;

/// Receives the next message: [`Connection::recv`](crate::Connection::recv).
#[must_use = "nothing is received until it is awaited"]
pub struct Recv<'a> {
    link: &'a Link,
    place: Place,
}

/// Takes a buffer of a pool, or waits until there is one: [`Connection::buf`](crate::Connection::buf),
/// [`Endpoint::buf`](crate::Endpoint::buf), [`Pool::buf`](crate::Pool::buf).
#[must_use = "there is no buffer until it is awaited"]
pub struct TakeBuf<'a> {
    core: &'a Handle,
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

/// The next message, if it is there and others need not have their turn first. A call, whose arguments and result
/// travel in registers.
#[inline(never)]
fn message(core: &Core, conn: u32) -> Option<Buf> {
    core.with(|lane| {
        if lane.yields() {
            return None;
        }
        let (buf, len) = lane.message(conn)?;
        Some(lane.loans.lend(buf, len))
    })
}

/// What the slot of a future that waits for a buffer has got.
fn collect(lane: &mut Lane, slot: u32) -> (Turn, Option<Waker>) {
    let waiting = lane.slots.get(slot);
    let (state, buf, len) = (waiting.state, waiting.buf, waiting.len);
    let turn = match state {
        State::Received => Turn::Got(lane.loans.lend(buf, len)),
        State::Done => Turn::Over(waiting.fault.unwrap_or(Fault::Over)),
        _ => return (Turn::Waits, None),
    };
    (turn, lane.slots.release(slot))
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
        if self.slot == NONE {
            return match message(link.core(), link.conn()) {
                Some(buf) => Poll::Ready(Ok(Some(buf))),
                None => self.not_yet(link, cx),
            };
        }
        self.again(link, cx)
    }

    /// There was none, or others are to have their turn.
    #[inline(never)]
    fn not_yet(&mut self, link: &Link, cx: &mut Context<'_>) -> Poll<Result<Option<Buf>, Error>> {
        let mut waker = OwnWaker::of(cx.waker());
        let conn = link.conn();
        let turn = link.core().with(|lane| {
            if lane.has_yielded() {
                return Turn::Yield;
            }
            // Another thread may have been inside.
            let end = &mut lane.ends[conn as usize];
            if let Some((buf, len)) = end.inbox.pop_front() {
                return Turn::Got(lane.loans.lend(buf, len));
            }
            if end.is_over {
                return Turn::Over(Fault::Over);
            }
            self.slot = lane.wait(conn);
            sleep::park(lane, self.slot, &mut waker);
            Turn::Waits
        });
        if matches!(turn, Turn::Yield) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.answer(link, turn)
    }

    /// It waits in a slot.
    #[inline(never)]
    fn again(&mut self, link: &Link, cx: &Context<'_>) -> Poll<Result<Option<Buf>, Error>> {
        let slot = self.slot;
        let (mut turn, mut old) = link.core().with(|lane| collect(lane, slot));
        if matches!(turn, Turn::Waits) {
            let mut waker = OwnWaker::of(cx.waker());
            (turn, old) = link.core().with(|lane| {
                reap::all(lane);
                let looked = collect(lane, slot);
                if matches!(looked.0, Turn::Waits) {
                    sleep::park(lane, slot, &mut waker);
                }
                looked
            });
        }
        drop(old);
        self.answer(link, turn)
    }

    #[inline(always)]
    fn answer(&mut self, link: &Link, turn: Turn) -> Poll<Result<Option<Buf>, Error>> {
        if !matches!(turn, Turn::Waits) {
            self.slot = NONE;
        }
        match turn {
            Turn::Over(fault) => Poll::Ready(over(link, fault)),
            Turn::Got(buf) => Poll::Ready(Ok(Some(buf))),
            Turn::Waits | Turn::Yield => Poll::Pending,
        }
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
            reap::all(lane);
            match collect(lane, slot) {
                (Turn::Waits, old) => {
                    sleep::park(lane, slot, &mut waker);
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

impl<'a> Recv<'a> {
    #[inline(always)]
    pub(crate) fn new(link: &'a Link) -> Self {
        Self {
            link,
            place: Place::new(),
        }
    }

    /// Gives up when no message has come after that time, by the device's clock, from its first poll on.
    ///
    /// # Errors
    /// Those of [`Connection::recv`](crate::Connection::recv), and [`Error::TimedOut`], which leaves the connection as it is.
    ///
    /// # Cancel safety
    /// As [`Connection::recv`](crate::Connection::recv): no message is lost.
    pub fn within(self, time: Duration) -> Within<'a, Self> {
        Within::new(self.link, self, time)
    }
}

impl Future for Recv<'_> {
    type Output = Result<Option<Buf>, Error>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let link = self.link;
        self.place.poll_message(link, cx)
    }
}

impl<'a> TakeBuf<'a> {
    pub(crate) fn new(core: &'a Handle, pool: u32) -> Self {
        Self {
            core,
            pool,
            place: Place::new(),
        }
    }
}

impl Future for TakeBuf<'_> {
    type Output = Buf;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Buf> {
        let (core, pool) = (self.core, self.pool);
        self.place.poll_buf(core, pool, cx)
    }
}

impl Drop for Recv<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.place.leave(self.link.core());
    }
}

impl Drop for TakeBuf<'_> {
    fn drop(&mut self) {
        self.place.leave(self.core);
    }
}

impl fmt::Debug for Recv<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recv").finish_non_exhaustive()
    }
}

impl fmt::Debug for TakeBuf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakeBuf").finish_non_exhaustive()
    }
}
