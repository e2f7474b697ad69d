//! Operations that end when they are posted.

use std::task::{Context, Poll};

use verbs_core::task::OwnWaker;

use super::finished::{abandon, finish};
use super::kind::Checked;
use crate::buf::Buf;
use crate::core::Core;
use crate::error::{Error, Failed};
use crate::lane::request::Kind;
use crate::lane::slot::{Fault, State};
use crate::lane::{Lane, Started};
use crate::lane::{reap, sleep};
use crate::link::Link;

/// The future of one.
pub(super) struct Posting<'a, K> {
    link: &'a Link,
    kind: Checked<K>,
    post: Post,
}

/// One, apart from its connection. It is to be [left](Post::leave).
pub(crate) struct Post {
    /// Until it is begun.
    buf: Option<Buf>,
    /// Of the slot that waits for room.
    id: Option<u64>,
}

enum Turn {
    Posted,
    Failed(Fault, Option<Buf>),
    Waits(u64),
    /// Others have their turn first.
    Yield,
}

impl Post {
    pub(crate) fn new(buf: Buf) -> Self {
        Self {
            buf: Some(buf),
            id: None,
        }
    }

    pub(crate) fn poll<K: Kind>(
        &mut self,
        link: &Link,
        kind: &Checked<K>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failed>> {
        let turn = match self.id {
            Some(id) => link.core().with(|lane| {
                reap::all(lane);
                look(lane, id)
            }),
            None => match self.begin(link, kind) {
                Ok(turn) => turn,
                Err(failed) => return Poll::Ready(Err(failed)),
            },
        };
        let turn = match turn {
            Turn::Waits(id) => {
                self.id = Some(id);
                let mut waker = OwnWaker::of(cx.waker());
                link.core().with(|lane| {
                    let turn = look(lane, id);
                    if matches!(turn, Turn::Waits(_)) {
                        sleep::park(lane, id as u32, &mut waker);
                    }
                    turn
                })
            }
            turn => turn,
        };
        match turn {
            Turn::Waits(_) => return Poll::Pending,
            Turn::Yield => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Turn::Posted | Turn::Failed(..) => self.id = None,
        }
        Poll::Ready(match turn {
            Turn::Failed(fault, buf) => Err(link.failed(fault, buf)),
            _ => Ok(()),
        })
    }

    fn begin<K: Kind>(&mut self, link: &Link, kind: &Checked<K>) -> Result<Turn, Failed> {
        let buf = &mut self.buf;
        let is_ours = buf
            .as_ref()
            .is_none_or(|buf| buf.is_of::<Core>(link.core()));
        let wrong = match kind {
            Ok(_) if is_ours => None,
            Ok(_) => Some(Error::OtherEndpoint),
            Err(error) => Some((**error).clone()),
        };
        let (Ok(kind), None) = (kind, &wrong) else {
            let error = wrong.unwrap_or(Error::OtherEndpoint);
            let buf = buf.take();
            return Err(Failed { error, buf });
        };
        let mut last = None;
        let turn = link.core().with(|lane| {
            if lane.yields() {
                return Turn::Yield;
            }
            let buf = buf.take().expect("a future is not polled after its end");
            let (sge, len) = (buf.sge(), buf.len() as u32);
            let index;
            (index, last) = lane.loans.take_in(buf);
            match lane.start(link.conn(), kind, Some((sge, index)), true) {
                Started::Ready(_) => {
                    lane.give_back(index);
                    Turn::Posted
                }
                Started::Refused => Turn::Failed(lane.refusal, Some(lane.loans.lend(index, len))),
                Started::UnderWay(slot) => {
                    let slot = slot as u32;
                    lane.slots.get(slot).len = len;
                    look(lane, lane.slots.id(slot))
                }
            }
        });
        drop(last);
        Ok(turn)
    }

    /// Gives it up: what waits for room is not posted.
    pub(crate) fn leave(&mut self, link: &Link) {
        let Some(id) = self.id.take() else { return };
        let waits = link.core().with(|lane| {
            let slot = lane.slots.of_id(id)?;
            let state = lane.slots.get(slot).state;
            matches!(state, State::Waiting | State::Done).then_some(slot)
        });
        if let Some(slot) = waits {
            abandon(link, slot);
        }
    }
}

/// Where one is that had no room at first.
fn look(lane: &mut Lane, id: u64) -> Turn {
    let Some(slot) = lane.slots.of_id(id) else {
        return Turn::Posted;
    };
    match lane.slots.get(slot).state {
        State::Waiting => Turn::Waits(id),
        State::Done => match finish(lane, slot) {
            Some(finished) => match finished.fault {
                Some(fault) => Turn::Failed(fault, finished.buf),
                None => Turn::Posted,
            },
            None => Turn::Posted,
        },
        _ => Turn::Posted,
    }
}

impl<'a, K: Kind> Posting<'a, K> {
    pub(super) fn link(&self) -> &'a Link {
        self.link
    }

    pub(super) fn new(link: &'a Link, kind: Checked<K>, buf: Buf) -> Self {
        let post = Post::new(buf);
        Self { link, kind, post }
    }

    /// One that is in a slot of that id, or was.
    pub(super) fn queued(link: &'a Link, kind: Checked<K>, id: u64) -> Self {
        let post = Post {
            buf: None,
            id: Some(id),
        };
        Self { link, kind, post }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.post.poll(self.link, &self.kind, cx)
    }
}

impl<K> Drop for Posting<'_, K> {
    fn drop(&mut self) {
        self.post.leave(self.link);
    }
}
