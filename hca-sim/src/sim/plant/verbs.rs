//! Planted defects of a provider: one that stands in front of an HCA and does not do what it says.

use verbs_core::sync::{Arc, Mutex, Weak};
use verbs_core::{AnyCommand, Error, PendingCommand, Provider, QpState, RequestId, Target};

use crate::qp::QueuePair;
use crate::sim::plant::Plant;
use crate::sim::{Draw, Ppm};

/// How often a defect shows, of the verbs that it can concern.
const OFTEN: Ppm = Ppm::percent(25);

/// See the module's documentation.
pub(crate) struct Crooked {
    inner: Arc<dyn Provider>,
    plant: Plant,
    state: Mutex<State>,
}

struct State {
    draw: Draw,
    /// What is never answered.
    kept: Vec<PendingCommand>,
    /// Queue pairs that were seen.
    seen: Vec<Weak<QueuePair>>,
}

impl Crooked {
    pub(crate) fn new(inner: Arc<dyn Provider>, plant: Plant, draw: Draw) -> Self {
        let state = State {
            draw,
            kept: Vec::new(),
            seen: Vec::new(),
        };
        Self {
            inner,
            plant,
            state: Mutex::new(state),
        }
    }

    fn shows(&self) -> bool {
        self.state.lock().draw.chance(OFTEN)
    }

    /// Takes a queue pair down that nobody spoke of.
    fn destroy_another(&self, but: Option<&Arc<QueuePair>>) {
        let found = {
            let state = self.state.lock();
            let other = |qp: &Arc<QueuePair>| {
                qp.state() == QpState::Rts && !but.is_some_and(|but| Arc::ptr_eq(but, qp))
            };
            state.seen.iter().filter_map(Weak::upgrade).find(other)
        };
        if let Some(qp) = found {
            qp.fail();
        }
    }
}

impl Provider for Crooked {
    fn issue(&self, command: AnyCommand<'_>) {
        let queue_pair =
            |base: &verbs_core::object::Base| base.private::<Arc<QueuePair>>().cloned();
        match (self.plant, command) {
            (Plant::StaleKey, AnyCommand::DeregMr(command)) if self.shows() => {
                command.complete(Ok(()));
            }
            (Plant::LeakedObject, AnyCommand::DeallocPd(command)) if self.shows() => {
                command.complete(Ok(()));
            }
            (Plant::KeptWindow, AnyCommand::DeallocMw(command)) if self.shows() => {
                command.complete(Ok(()));
            }
            (Plant::LazyFlush, AnyCommand::FlushFmrPool(command)) if self.shows() => {
                command.complete(Ok(()));
            }
            (Plant::LostFlush, AnyCommand::ModifyQp(command))
                if command.attr.state == Some(QpState::Err) && self.shows() =>
            {
                command.complete(Ok(()));
            }
            (Plant::FalseBusy, command) if command.kind().destroys() && self.shows() => {
                command.refuse(Error::Busy);
            }
            (Plant::LateCancel, AnyCommand::QueryQp(command)) if self.shows() => {
                command.refuse(Error::Cancelled);
            }
            (Plant::LostCommand, AnyCommand::QueryPort(command)) if self.shows() => {
                if let Some((args, pending)) = command.pend() {
                    let command = PendingCommand::QueryPort(args, pending);
                    self.state.lock().kept.push(command);
                }
            }
            (Plant::DoubleDestroy, command) => {
                if let AnyCommand::ModifyQp(command) = &command {
                    let seen = queue_pair(command.target().base());
                    self.state
                        .lock()
                        .seen
                        .extend(seen.as_ref().map(Arc::downgrade));
                }
                let destroyed = match &command {
                    AnyCommand::DestroyQp(command) => Some(queue_pair(command.target().base())),
                    _ => None,
                };
                self.inner.issue(command);
                if let Some(destroyed) = destroyed
                    && self.shows()
                {
                    self.destroy_another(destroyed.as_ref());
                }
            }
            (_, command) => self.inner.issue(command),
        }
    }

    fn cancel(&self, id: RequestId) {
        self.inner.cancel(id);
    }
}
