//! When completion queues are armed.
//!
//! An event costs more than a datagram. A completion queue is armed, so that its connection's driver answers a peer whose program
//! does not look; but while programs of this node look by themselves, and none of them sleeps, the queue is left to them. The
//! driver looks from time to time, and whether they still do. A task that goes to sleep arms all queues that were left.

use std::task::{Context, Poll};
use std::time::Duration;

use verbs_core::sync::atomic::Ordering::Release;
use verbs_core::task::OwnWaker;
use verbs_core::time::Instant;

use super::State;
use super::receive;
use crate::node::id::{LinkId, SocketId};
use crate::node::queues::BATCH;

/// How long a peer waits at most, for an acknowledgement or a pong for instance, when programs have stopped looking.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Rounds of one turn of a driver; then others have theirs.
const ROUNDS_MAX: usize = 64;

/// What a driver does when it has looked.
pub(in crate::node) enum Turn {
    /// The queue pair is taken down.
    Over,
    /// It waits for an event, or for a timer that was set before.
    Waits,
    /// It looks again at that time.
    Later(Instant),
    /// There is more to be done.
    Again,
}

/// The turn of a connection's driver: what has come is taken, what is due is posted. A queue pair that fails, whoever ended the
/// connection, flushes its receives, so that this hears of it.
pub(in crate::node) fn turn(
    state: &mut State,
    id: LinkId,
    now: Instant,
    cx: &mut Context<'_>,
) -> Turn {
    for _ in 0..ROUNDS_MAX {
        // What a node that is closed has not read is not acknowledged.
        if state.closed {
            return Turn::Over;
        }
        let any = receive::look(state, id, BATCH, None);
        if !any {
            // A map of congestion may have to be sent, for instance.
            receive::after(state, id);
        }
        let Some(link) = state.links.get_mut(id) else {
            return Turn::Over;
        };
        if !link.is_up() {
            return Turn::Over;
        }
        if any {
            continue;
        }
        if link.is_looked_at(now) && !state.due.has_sleepers() {
            return leave(state, id, now);
        }
        match arm(state, id, cx) {
            Poll::Ready(Some(())) => {}
            Poll::Ready(None) => return Turn::Over,
            Poll::Pending => return Turn::Waits,
        }
    }
    Turn::Again
}

/// Leaves a completion queue to programs that look by themselves.
fn leave(state: &mut State, id: LinkId, now: Instant) -> Turn {
    let Some(link) = state.links.get_mut(id) else {
        return Turn::Over;
    };
    if !link.is_left {
        link.is_left = true;
        state.unarmed.push(id);
        state.is_polled.store(true, Release);
    }
    if link.look_at.is_some_and(|at| now < at) {
        return Turn::Waits;
    }
    let at = now + LOOK_AGAIN;
    link.look_at = Some(at);
    Turn::Later(at)
}

/// Arms a connection's completion queue: pending until there is something to poll. `None` if there never will be.
fn arm(state: &mut State, id: LinkId, cx: &mut Context<'_>) -> Poll<Option<()>> {
    let Some(queues) = state
        .links
        .get_mut(id)
        .and_then(|link| link.queues.as_mut())
    else {
        return Poll::Ready(None);
    };
    let armed = queues.poll_ready(cx);
    if armed.is_pending() {
        is_armed(state, id);
    }
    armed
}

/// A completion queue is armed, or will be no more.
pub(super) fn is_armed(state: &mut State, id: LinkId) {
    if let Some(link) = state.links.get_mut(id)
        && std::mem::take(&mut link.is_left)
    {
        state.unarmed.retain(|unarmed| *unarmed != id);
        state.is_polled.store(!state.unarmed.is_empty(), Release);
    }
}

/// A task is about to sleep: what has come is taken, and all completion queues are armed.
#[inline]
pub(crate) fn watch(state: &mut State) {
    for at in (0..state.unarmed.len()).rev() {
        if let Some(id) = state.unarmed.get(at) {
            watch_one(state, *id);
        }
    }
}

#[inline(never)]
fn watch_one(state: &mut State, id: LinkId) {
    let Some(driver) = state.links.get_mut(id).and_then(|link| link.driver.clone()) else {
        return;
    };
    for _ in 0..ROUNDS_MAX {
        receive::look(state, id, BATCH, None);
        if arm(state, id, &mut Context::from_waker(&driver)).is_pending() {
            return;
        }
    }
    // The driver goes on, and arms it then.
    state.due.wakes.push(driver);
}

/// A task sleeps until something comes for a socket.
pub(crate) fn sleep_for_news(state: &mut State, at: SocketId, waker: &mut OwnWaker) {
    if let Some(socket) = state.sockets.get_mut(at) {
        state.due.sleep(waker, &mut socket.readers);
    }
}

/// A task sleeps until a socket may have room.
pub(crate) fn sleep_for_room(state: &mut State, at: SocketId, waker: &mut OwnWaker) {
    if let Some(socket) = state.sockets.get_mut(at) {
        state.due.sleep(waker, &mut socket.writers);
    }
}
