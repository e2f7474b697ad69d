//! Inputs from below, and what follows from every input.

use std::task::{Wake, Waker};

use verbs_core::mad::{Address, MadBytes};
use verbs_core::sync::{Arc, Weak};
use verbs_core::time::Instant;
use verbs_core::{Error, defer};

use crate::event::{ConnId, Event, QpChange};
use crate::hub::handler::{ConnHandler, Handler};
use crate::hub::{Hub, Inner};

/// Outputs of the state machine, with their receivers.
#[derive(Default)]
pub(super) struct Batch {
    mads: Vec<(Address, MadBytes)>,
    changes: Vec<(Arc<dyn ConnHandler>, QpChange)>,
    events: Vec<(Arc<dyn Handler>, Event)>,
}

/// A modify that another part is to carry out. For benchmarks, which compare the completions that
/// drive connections with a thread that waits.
pub struct Modify {
    hub: Arc<Hub>,
    handler: Arc<dyn ConnHandler>,
    change: QpChange,
}

impl Modify {
    /// Carries it out, blocking the thread until it is done.
    pub fn wait(self) {
        let Self {
            hub,
            handler,
            change,
        } = self;
        let done = handler.modify_and_wait(change.attr);
        hub.modified(change.conn, done);
    }
}

impl std::fmt::Debug for Modify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.change.fmt(f)
    }
}

impl Inner {
    /// Takes what waits; `None` when there is nothing. The memory of a batch that was given back is used again.
    fn outputs(&mut self) -> Option<Batch> {
        let mut batch = std::mem::take(&mut self.spare);
        batch
            .mads
            .extend(std::iter::from_fn(|| self.cm.poll_transmit()));
        while let Some(change) = self.cm.poll_qp_change() {
            if let Some(handler) = self.handler(change.conn) {
                batch.changes.push((handler, change));
            }
        }
        while let Some(event) = self.cm.poll_event() {
            if let Some(handler) = self.handler_of(&event) {
                batch.events.push((handler, event));
            }
        }
        if batch.mads.is_empty() && batch.changes.is_empty() && batch.events.is_empty() {
            self.spare = batch;
            return None;
        }
        Some(batch)
    }

    fn handler(&self, conn: ConnId) -> Option<Arc<dyn ConnHandler>> {
        self.conns.get(&conn).and_then(Weak::upgrade)
    }

    fn handler_of(&mut self, event: &Event) -> Option<Arc<dyn Handler>> {
        match *event {
            Event::ConnectRequest { listener, .. } | Event::ResolveRequest { listener, .. } => {
                self.listeners.get(&listener).and_then(Weak::upgrade)
            }
            Event::Resolved { resolution, .. }
            | Event::Unresolved { resolution }
            | Event::ResolveError { resolution, .. } => self.resolutions.remove(&resolution),
            _ => {
                let conn = event.conn()?;
                let handler = self
                    .handler(conn)
                    .map(|handler| handler as Arc<dyn Handler>);
                if matches!(
                    event,
                    Event::TimewaitExit { .. }
                        | Event::Rejected { .. }
                        | Event::Unreachable { .. }
                        | Event::ConnectError { .. }
                ) {
                    // Its last event.
                    self.conns.remove(&conn);
                }
                handler
            }
        }
    }
}

impl Hub {
    /// Handles the outputs until there are none. A thread that comes in the meantime leaves them to that
    /// one. Runs under NoBlock.
    pub(super) fn pump(self: &Arc<Self>) {
        loop {
            let mut batch = {
                let mut inner = self.inner.lock();
                if inner.busy {
                    return;
                }
                let Some(batch) = inner.outputs() else {
                    return self.set_alarm(&mut inner);
                };
                inner.busy = true;
                batch
            };
            if let Ok(agent) = &self.agent
                && !batch.mads.is_empty()
            {
                tracing::trace!(target: "verbs::cm", count = batch.mads.len(), "messages to send");
                agent.send(batch.mads.drain(..));
            }
            for (handler, change) in batch.changes.drain(..) {
                tracing::trace!(target: "verbs::cm", ?change, "queue pair");
                match self.modifier.get() {
                    None => handler.modify(self, change),
                    Some(modifier) => modifier(Modify {
                        hub: Arc::clone(self),
                        handler,
                        change,
                    }),
                }
            }
            for (handler, event) in batch.events.drain(..) {
                tracing::debug!(target: "verbs::cm", ?event);
                handler.event(event);
            }
            // Without an agent nothing is sent.
            batch.mads.clear();
            let mut inner = self.inner.lock();
            (inner.busy, inner.spare) = (false, batch);
        }
    }

    /// A modify has ended, which is an input of the machine.
    pub(crate) fn modified(self: &Arc<Self>, conn: ConnId, result: Result<(), Error>) {
        self.with(|inner, now| inner.cm.qp_modified(now, conn, result));
    }

    /// Has the timer wake us when the next thing is due.
    fn set_alarm(self: &Arc<Self>, inner: &mut Inner) {
        let (Some(due), Some(timer)) = (inner.cm.poll_timeout(), self.service.timer()) else {
            return;
        };
        if inner.alarm.is_some_and(|alarm| alarm <= due) {
            return;
        }
        inner.alarm = Some(due);
        timer.wake_at(due, Waker::from(Arc::new(Alarm(Arc::downgrade(self), due))));
    }

    fn timeout(self: &Arc<Self>, set: Instant) {
        self.with(|inner, now| {
            if inner.alarm == Some(set) {
                inner.alarm = None;
            }
            inner.cm.handle_timeout(now);
        });
    }
}

/// Wakes the connection manager; keeps it from nothing.
struct Alarm(Weak<Hub>, Instant);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(hub) = self.0.upgrade() {
            let set = self.1;
            defer(move || hub.timeout(set));
        }
    }
}
