//! Injected defects of a provider: it stands in front of an HCA and does not do what it reports.

use hca_sim::Hca;
use verbs_core::extension::ExtensionInfo;
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{
    AnyCommand, Error, PendingCommand, Provider, ProviderAttr, QpState, Qpn, RequestId,
};

use crate::mutant::Mutant;
use crate::{Draw, Ppm};

/// How often a defect shows, of the verbs that it can concern.
const OFTEN: Ppm = Ppm::percent(25);

/// See the module's documentation.
pub(crate) struct FaultyProvider {
    inner: Arc<dyn Provider>,
    /// The HCA behind it.
    hca: Arc<Hca>,
    mutant: Mutant,
    state: Mutex<State>,
}

struct State {
    draw: Draw,
    /// Commands that are never answered.
    kept: Vec<PendingCommand>,
    /// Queue pairs that have been taken to RTS, oldest first.
    seen: Vec<Qpn>,
}

impl FaultyProvider {
    pub(crate) fn new(inner: Arc<dyn Provider>, hca: Arc<Hca>, mutant: Mutant, draw: Draw) -> Self {
        let state = State {
            draw,
            kept: Vec::new(),
            seen: Vec::new(),
        };
        Self {
            inner,
            hca,
            mutant,
            state: Mutex::new(state),
        }
    }

    fn shows(&self) -> bool {
        self.state.lock().draw.chance(OFTEN)
    }

    /// Takes down a queue pair that the command does not concern.
    fn destroy_another(&self, but: Qpn) {
        let seen = self.state.lock().seen.clone();
        for qpn in seen.into_iter().filter(|qpn| *qpn != but) {
            if self.hca.fail_qp(qpn) {
                return;
            }
        }
    }
}

impl Provider for FaultyProvider {
    fn issue(&self, command: AnyCommand<'_>) {
        match (self.mutant, command) {
            (Mutant::StaleKey, AnyCommand::DeregMr(command)) if self.shows() => {
                command.complete(Ok(()));
            }
            (Mutant::LeakedObject, AnyCommand::DeallocPd(command)) if self.shows() => {
                command.complete(Ok(()));
            }
            (Mutant::KeptWindow, AnyCommand::DeallocMw(command)) if self.shows() => {
                command.complete(Ok(()));
            }
            (Mutant::LazyFlush, AnyCommand::FlushFmrPool(command)) if self.shows() => {
                command.complete(Ok(()));
            }
            (Mutant::LostFlush, AnyCommand::ModifyQp(command))
                if command.attr.state == Some(QpState::Err) && self.shows() =>
            {
                command.complete(Ok(()));
            }
            (Mutant::FalseBusy, command) if command.kind().destroys() && self.shows() => {
                command.refuse(Error::Busy);
            }
            (Mutant::LateCancel, AnyCommand::QueryQp(command)) if self.shows() => {
                command.refuse(Error::Cancelled);
            }
            (Mutant::LostCommand, AnyCommand::QueryPort(command)) if self.shows() => {
                if let Some((args, pending)) = command.pend() {
                    let command = PendingCommand::QueryPort(args, pending);
                    self.state.lock().kept.push(command);
                }
            }
            (Mutant::DoubleDestroy, command) => {
                if let AnyCommand::ModifyQp(command) = &command
                    && command.attr.state == Some(QpState::Rts)
                {
                    self.state.lock().seen.push(command.target().qpn());
                }
                let destroyed = match &command {
                    AnyCommand::DestroyQp(command) => Some(command.target().qpn()),
                    _ => None,
                };
                self.inner.issue(command);
                if let Some(destroyed) = destroyed {
                    self.state.lock().seen.retain(|qpn| *qpn != destroyed);
                    if self.shows() {
                        self.destroy_another(destroyed);
                    }
                }
            }
            (_, command) => self.inner.issue(command),
        }
    }

    fn cancel(&self, id: RequestId) {
        self.inner.cancel(id);
    }

    fn extensions(&self) -> &[ExtensionInfo] {
        self.inner.extensions()
    }

    fn query_provider(&self, port: u8) -> ProviderAttr {
        self.inner.query_provider(port)
    }
}
