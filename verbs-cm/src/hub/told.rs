//! Who is told of what the machine says: connections, with their modifies, listeners and questions.

use verbs_core::event::{EventType, Subject};
use verbs_core::sync::{Arc, Weak};
use verbs_core::time::Instant;
use verbs_core::{AsyncEvent, ObjectKind};

use crate::event::{ConnId, Event, QpChange};
use crate::hub::handler::{ConnHandler, Handler};
use crate::hub::{Hub, Inner, Kept};
use crate::table::driver::{Driver, Owner};

/// An output of the state machine, with its receiver.
#[expect(
    clippy::large_enum_variant,
    reason = "the driver's memory for them is used again and again, and a box would not be"
)]
pub(crate) enum Told {
    Change(Arc<dyn ConnHandler>, QpChange),
    Event(Arc<dyn Handler>, Event),
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

impl Owner for Hub {
    type Kept = Kept;
    type Output = Told;

    fn driver(&self) -> &Driver<Self> {
        &self.driver
    }

    fn take(inner: &mut Inner, _now: Instant, told: &mut Vec<Told>) {
        while let Some(change) = inner.cm.poll_qp_change() {
            let handler = inner.kept.handler(change.conn);
            told.extend(handler.map(|handler| Told::Change(handler, change)));
        }
        while let Some(event) = inner.cm.poll_event() {
            let handler = inner.kept.handler_of(&event);
            told.extend(handler.map(|handler| Told::Event(handler, event)));
        }
    }

    fn tell(self: &Arc<Self>, told: Told) {
        match told {
            Told::Change(handler, change) => {
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
            Told::Event(handler, event) => {
                tracing::debug!(target: "verbs::cm", ?event);
                handler.event(event);
            }
        }
    }

    /// Data has overtaken an RTU; the port has changed.
    fn event(self: &Arc<Self>, event: AsyncEvent) {
        match (event.event, event.subject) {
            (EventType::CommEst, Subject::Object(id)) if id.kind == ObjectKind::Qp => {
                self.with(|inner, now| {
                    if let Some(&conn) = inner.kept.by_qpn.get(&id.number) {
                        // In a state that waits for no RTU this does no harm.
                        let _ = inner.cm.communication_established(now, conn);
                    }
                });
            }
            (
                EventType::GidChange
                | EventType::LidChange
                | EventType::PortErr
                | EventType::PortActive,
                _,
            ) => self.resolver().invalidate(),
            _ => {}
        }
    }
}

impl Kept {
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
