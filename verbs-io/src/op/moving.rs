//! Operations that move a buffer, and give it back when they have completed.

use std::task::{Context, Poll};

use verbs_core::task::OwnWaker;

use super::finished::{Finished, abandon};
use super::kind::{Checked, Kind};
use crate::buf::Buf;
use crate::error::{Error, Failed};
use crate::lane::Started;
use crate::lane::slot::{Fault, NONE};
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
    Refused(Fault),
    UnderWay,
    /// Others have their turn first.
    Yield,
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
        let begun = {
            let Self {
                conn,
                kind,
                buf,
                slot,
            } = self;
            let lent = buf.as_ref().expect("a future is not polled after its end");
            let (Ok(kind), true) = (kind, lent.is_of(conn.core())) else {
                return Poll::Ready(Err(self.wrong()));
            };
            let what = kind.what(Some((lent.sge(), lent.index())));
            let mut last = None;
            let begun = conn.core().with(|lane| {
                if lane.yields() {
                    return Begun::Yield;
                }
                match lane.start(conn.conn(), what, false) {
                    Started::Ready(_) => Begun::Ready,
                    Started::Refused(fault) => Begun::Refused(fault),
                    Started::UnderWay(taken) => {
                        *slot = taken;
                        last = buf.take().and_then(|buf| lane.keep(taken, buf));
                        Begun::UnderWay
                    }
                }
            });
            drop(last);
            begun
        };
        match begun {
            Begun::Ready => Poll::Ready(Ok(self.buf.take().expect("it was lent"))),
            Begun::UnderWay => self.again(cx),
            Begun::Refused(fault) => {
                let buf = self.buf.take();
                Poll::Ready(Err(self.conn.failed(fault, buf)))
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
        if !lent.is_of(conn.core()) {
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
            lane.finish(slot).or_else(|| {
                lane.reap();
                lane.finish(slot)
            })
        });
        if finished.is_none() {
            let mut waker = OwnWaker::of(cx.waker());
            finished = core.with(|lane| {
                let finished = lane.finish(slot);
                if finished.is_none() {
                    lane.park(slot, &mut waker);
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
