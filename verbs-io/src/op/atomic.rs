//! Atomics: their result is a number.

use std::task::{Context, Poll};

use verbs_core::task::OwnWaker;

use super::finished::{Finished, abandon, finish};
use super::kind::Checked;
use crate::error::Error;
use crate::lane::Started;
use crate::lane::request::Kind;
use crate::lane::slot::{Fault, NONE};
use crate::lane::{reap, sleep};
use crate::link::Link;

/// The future of one.
pub(super) struct Atomic<'a, K> {
    conn: &'a Link,
    kind: Checked<K>,
    slot: u32,
}

enum Begun {
    Ready(u64),
    Refused(Fault),
    UnderWay(u32),
    /// Others have their turn first.
    Yield,
}

impl<'a, K: Kind> Atomic<'a, K> {
    pub(super) fn link(&self) -> &'a Link {
        self.conn
    }

    pub(super) fn new(conn: &'a Link, kind: Checked<K>) -> Self {
        Self {
            conn,
            kind,
            slot: NONE,
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, Error>> {
        if self.slot != NONE {
            return self.again(cx);
        }
        let kind = match &self.kind {
            Ok(kind) => kind,
            Err(error) => return Poll::Ready(Err((**error).clone())),
        };
        let begun = self.conn.core().with(|lane| {
            if lane.yields() {
                return Begun::Yield;
            }
            match lane.start(self.conn.conn(), kind, None, false) {
                Started::Ready(value) => Begun::Ready(value),
                Started::Refused => Begun::Refused(lane.refusal),
                Started::UnderWay(slot) => Begun::UnderWay(slot as u32),
            }
        });
        match begun {
            Begun::Ready(value) => Poll::Ready(Ok(value)),
            Begun::Refused(fault) => Poll::Ready(Err(self.conn.error_of(fault))),
            Begun::UnderWay(slot) => {
                self.slot = slot;
                self.again(cx)
            }
            Begun::Yield => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    /// It is in a slot.
    #[inline(never)]
    fn again(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, Error>> {
        let slot = self.slot;
        let mut waker = OwnWaker::of(cx.waker());
        let finished = self.conn.core().with(|lane| {
            let finished = finish(lane, slot).or_else(|| {
                reap::all(lane);
                finish(lane, slot)
            });
            if finished.is_none() {
                sleep::park(lane, slot, &mut waker);
            }
            finished
        });
        let Some(Finished { fault, value, .. }) = finished else {
            return Poll::Pending;
        };
        self.slot = NONE;
        Poll::Ready(match fault {
            None => Ok(value),
            Some(fault) => Err(self.conn.error_of(fault)),
        })
    }
}

impl<K> Drop for Atomic<'_, K> {
    fn drop(&mut self) {
        if self.slot != NONE {
            abandon(self.conn, self.slot);
        }
    }
}
