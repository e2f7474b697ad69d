//! Operations that move a buffer, and give it back when they have completed.

use std::task::{Context, Poll};

use verbs_core::Piece;
use verbs_core::task::OwnWaker;

use super::finished::{Finished, abandon, finish};
use super::kind::Checked;
use super::posting::Posting;
use crate::buf::Buf;
use crate::core::Core;
use crate::error::{Error, Failed};
use crate::lane::Started;
use crate::lane::request::Kind;
use crate::lane::slot::{Fault, NONE, State};
use crate::lane::{reap, sleep};
use crate::link::Link;

/// The future of one.
pub(super) struct Moving<'a, K> {
    conn: &'a Link,
    kind: Checked<K>,
    /// Until it is under way.
    buf: Option<Buf>,
    slot: u32,
}

enum Begun {
    Ready,
    Refused,
    /// In that slot, which has the buffer.
    UnderWay(u32),
    /// Others have their turn first.
    Yield,
}

/// Begins an operation of a lent buffer. A call, whose arguments and result travel in registers.
#[inline(never)]
fn begin<K: Kind>(
    core: &Core,
    conn: u32,
    kind: &K,
    piece: Piece,
    buf: u32,
    fault: &mut Option<Fault>,
) -> Begun {
    core.with(|lane| {
        if lane.yields() {
            return Begun::Yield;
        }
        match lane.start(conn, kind, Some((piece.into(), buf)), false) {
            Started::Ready(_) => Begun::Ready,
            Started::Refused => {
                *fault = Some(lane.refusal);
                Begun::Refused
            }
            Started::UnderWay(slot) => {
                let slot = slot as u32;
                lane.slots.get(slot).len = piece.len();
                let last = lane.loans.returned(buf);
                debug_assert!(last.is_none(), "the connection keeps the lender");
                Begun::UnderWay(slot)
            }
        }
    })
}

impl<'a, K: Kind> Moving<'a, K> {
    #[inline(always)]
    pub(super) fn new(conn: &'a Link, kind: Checked<K>, buf: Buf) -> Self {
        Self {
            conn,
            kind,
            buf: Some(buf),
            slot: NONE,
        }
    }

    #[inline(always)]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Buf, Failed>> {
        if self.slot != NONE {
            return self.again(cx);
        }
        let Self {
            conn, kind, buf, ..
        } = &*self;
        let lent = buf.as_ref().expect("a future is not polled after its end");
        let Ok(kind) = kind else {
            return Poll::Ready(Err(self.wrong()));
        };
        if !lent.is_of::<Core>(conn.core()) {
            return Poll::Ready(Err(self.wrong()));
        }
        let mut fault = None;
        let begun = begin(
            conn.core(),
            conn.conn(),
            kind,
            lent.sge().into(),
            lent.index(),
            &mut fault,
        );
        if let Begun::Ready = begun {
            return Poll::Ready(Ok(self.buf.take().expect("it was lent")));
        }
        self.go_on(cx, begun, fault)
    }

    /// It has not completed at once.
    #[cold]
    #[inline(never)]
    fn go_on(
        &mut self,
        cx: &mut Context<'_>,
        begun: Begun,
        fault: Option<Fault>,
    ) -> Poll<Result<Buf, Failed>> {
        match begun {
            Begun::Ready | Begun::Refused => {
                let (fault, buf) = (fault.unwrap_or(Fault::Over), self.buf.take());
                Poll::Ready(Err(self.conn.failed(fault, buf)))
            }
            Begun::UnderWay(slot) => {
                self.slot = slot;
                if let Some(buf) = self.buf.take() {
                    buf.forget();
                }
                self.again(cx)
            }
            Begun::Yield => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    /// Queues it, to be posted with others. What is wrong with it is said when it is polled.
    pub(super) fn queue(&mut self) {
        let Self {
            conn,
            kind,
            buf,
            slot,
        } = self;
        let (Ok(kind), Some(lent)) = (kind, buf.as_ref()) else {
            return;
        };
        if !lent.is_of::<Core>(conn.core()) {
            return;
        }
        let what = kind.what(Some((lent.sge(), lent.index())));
        let last = conn.core().with(|lane| {
            let taken = lane.queue(conn.conn(), what, false)?;
            *slot = taken;
            buf.take().and_then(|buf| lane.keep(taken, buf))
        });
        drop(last);
    }

    /// The same, ending when it is posted. What has not been queued begins when it is polled.
    pub(super) fn posted(mut self) -> Posting<'a, K>
    where
        K: Copy,
    {
        let slot = std::mem::replace(&mut self.slot, NONE);
        if slot == NONE {
            let (conn, kind, buf) = self.into_parts();
            return Posting::new(conn, kind, buf);
        }
        let (id, waker) = self.conn.core().with(|lane| {
            let id = lane.slots.id(slot);
            let queued = lane.slots.get(slot);
            let waker = match (queued.state, queued.fault) {
                (State::Waiting, _) => {
                    queued.detached = true;
                    None
                }
                // Its future tells.
                (State::Done, Some(_)) => None,
                _ => lane.forget(slot),
            };
            (id, waker)
        });
        drop(waker);
        Posting::queued(self.conn, self.kind.clone(), id)
    }

    /// It was wrong from the start.
    #[cold]
    fn wrong(&mut self) -> Failed {
        let error = match &self.kind {
            Err(error) => (**error).clone(),
            Ok(_) => Error::OtherEndpoint,
        };
        let buf = self.buf.take();
        Failed { error, buf }
    }

    /// It is in a slot.
    #[inline(never)]
    fn again(&mut self, cx: &mut Context<'_>) -> Poll<Result<Buf, Failed>> {
        let slot = self.slot;
        let core = self.conn.core();
        let mut finished = core.with(|lane| {
            finish(lane, slot).or_else(|| {
                reap::all(lane);
                finish(lane, slot)
            })
        });
        if finished.is_none() {
            let mut waker = OwnWaker::of(cx.waker());
            finished = core.with(|lane| {
                let finished = finish(lane, slot);
                if finished.is_none() {
                    sleep::park(lane, slot, &mut waker);
                }
                finished
            });
        }
        match finished {
            None => Poll::Pending,
            Some(finished) => {
                self.slot = NONE;
                Poll::Ready(self.result(finished))
            }
        }
    }

    fn result(&self, finished: Finished) -> Result<Buf, Failed> {
        match (finished.fault, finished.buf) {
            (None, Some(buf)) => Ok(buf),
            (None, None) => unreachable!("what has completed has its buffer"),
            (Some(fault), buf) => Err(self.conn.failed(fault, buf)),
        }
    }
}

impl<'a, K> Moving<'a, K> {
    pub(super) fn link(&self) -> &'a Link {
        self.conn
    }

    /// Its parts, before it has begun.
    pub(super) fn into_parts(mut self) -> (&'a Link, Checked<K>, Buf)
    where
        K: Copy,
    {
        let buf = self.buf.take().expect("it has not begun");
        (self.conn, self.kind.clone(), buf)
    }
}

impl<K> Drop for Moving<'_, K> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.slot != NONE {
            abandon(self.conn, self.slot);
        }
    }
}
