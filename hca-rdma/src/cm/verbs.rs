//! The verbs of connections, and the steps between them; all on the command thread.

use std::net::SocketAddr;

use verbs_core::cm::{AcceptCm, BindCm, CmCore, ConnectCm, ListenCm, RejectCm};
use verbs_core::qp::QpCore;
use verbs_core::sync::Arc;
use verbs_core::{
    Attr, CmEndpoint, CmEvent, CmLimits, CmParam, CmRequest, Error, Pending, QpType, TransportType,
    Why,
};

use super::address::{bound, connections, misplaced, unusable};
use super::endpoint::{Endpoint, Outcome, state_of};
use super::machine::State;
use super::table::{Connections, Step};
use crate::command::pair;
use crate::shared::Shared;
use crate::sys::Arrival;

fn endpoint(core: &CmCore) -> Result<&Endpoint, Error> {
    state_of(core).ok_or(Error::Closing)
}

/// Checks that connections are possible, with a queue pair of that type.
pub(crate) fn check(nic: &Shared, qp: Option<&QpCore>) -> Result<(), Error> {
    connections(nic)?;
    match qp.map(QpCore::qp_type) {
        None | Some(QpType::Rc) => Ok(()),
        // By address, librdmacm makes only reliable connections.
        Some(_) => Err(Error::Unsupported(Attr::QpType)),
    }
}

/// The limits of connections: those of InfiniBand's messages, the shortest of which has the least room for private
/// data, or those of librdmacm's parameters.
pub(crate) fn limits(nic: &Shared) -> CmLimits {
    CmLimits {
        private_data: match nic.transport {
            TransportType::Iwarp => u8::MAX.into(),
            _ => 56,
        },
        max_ird: nic.attr.max_qp_rd_atom,
        max_ord: nic.attr.max_qp_init_rd_atom,
    }
}

pub(crate) fn bind(nic: &Shared, args: BindCm) -> Result<CmEndpoint, Error> {
    let number = nic.number();
    let id = bound(nic, number, args.local)?;
    let local = id.local().unwrap_or(args.local);
    let state = Endpoint::new(number, id, State::Bound);
    let endpoint = args.build(number as u32, local, Box::new(state));
    connections(nic)?.add(number, endpoint.target());
    nic.counts.endpoints.up();
    Ok(endpoint)
}

pub(crate) fn unbind(nic: &Shared, core: &CmCore) {
    if let Ok(endpoint) = endpoint(core) {
        let mut inner = endpoint.lock();
        if let Some(cm) = &nic.cm {
            cm.remove(inner.number);
        }
        inner.unbind(core);
    }
    nic.counts.endpoints.down();
}

pub(crate) fn listen(args: &ListenCm, core: &CmCore) -> Result<(), Error> {
    let mut inner = endpoint(core)?.lock();
    let id = match (inner.state, &inner.id) {
        // The system keeps the backlog that it was given first.
        (State::Listening, _) => return Ok(()),
        (State::Bound, Some(id)) => id,
        _ => return Err(misplaced(Why::State)),
    };
    id.listen(args.backlog)
        .map_err(|errno| unusable(errno, core.local()))?;
    inner.state = State::Listening;
    Ok(())
}

pub(crate) fn connect(nic: &Shared, args: ConnectCm, pending: Pending<ConnectCm>) {
    let core = Arc::clone(pending.target());
    match endpoint(&core) {
        Ok(endpoint) => {
            let outcome = endpoint.lock().connect(nic, &core, args, pending);
            outcome.tell(&core);
        }
        Err(error) => pending.complete(Err(error)),
    }
}

pub(crate) fn accept(nic: &Shared, args: &AcceptCm, pending: Pending<AcceptCm>) {
    let core = Arc::clone(pending.target());
    match endpoint(&core) {
        Ok(endpoint) => {
            let outcome = endpoint.lock().accept(nic, &core, args, pending);
            outcome.tell(&core);
        }
        Err(error) => pending.complete(Err(error)),
    }
}

pub(crate) fn reject(args: &RejectCm, core: &CmCore) -> Result<(), Error> {
    endpoint(core)?.lock().reject(&args.private_data)
}

/// A queue pair's user has moved it to a state in which nothing is sent: its connection ends, if it has one.
pub(crate) fn left(qp: &QpCore) {
    let core = pair::endpoint(qp);
    if let Some(endpoint) = core.as_deref().and_then(state_of) {
        endpoint.lock().leave();
    }
}

/// Does the pending work between verbs.
pub(crate) fn step(nic: &Shared, step: Step) {
    let Some(cm) = &nic.cm else { return };
    match step {
        Step::Event(arrival) if arrival.request.is_some() => requested(nic, cm, arrival),
        Step::Event(arrival) => {
            let core = cm.find(arrival.number);
            let happened = core.as_ref().and_then(|core| {
                let outcome = state_of(core)?.lock().happened(nic, core, arrival)?;
                Some((core, outcome))
            });
            match happened {
                Some((core, outcome)) => outcome.tell(core),
                None => cm.count_late(),
            }
        }
        Step::Cancel(request) => {
            for core in cm.all() {
                let cancelled = state_of(&core).and_then(|state| state.lock().cancel(request));
                if let Some(outcome) = cancelled {
                    return outcome.tell(&core);
                }
            }
        }
        Step::DataCame(address) => {
            for core in cm.all() {
                let is_it = |qp: Arc<QpCore>| pair::address(&qp) == Some(address);
                if let (true, Some(state)) = (core.qp().is_some_and(is_it), state_of(&core)) {
                    state.lock().data_came();
                }
            }
        }
        Step::Removed => {
            for core in cm.all() {
                let outcome: Option<Outcome> = state_of(&core).map(|state| state.lock().removed());
                if let Some(outcome) = outcome {
                    outcome.tell(&core);
                }
            }
        }
    }
}

/// A request has arrived for a listener. If the listener no longer exists, or listens at all addresses and the request
/// is for another device, the request is left to be rejected.
fn requested(nic: &Shared, cm: &Connections, mut arrival: Arrival) {
    let Some((number, id)) = arrival.request.take() else {
        return;
    };
    let listener = cm.find(arrival.number);
    let (Some(listener), false) = (listener, nic.is_removed()) else {
        return cm.count_late();
    };
    if id.device().is_none_or(|name| name != nic.attr.name) {
        let _ = id.reject(&[]);
        return;
    }
    let (local, remote) = (id.local().unwrap_or(listener.local()), id.remote());
    let state = Endpoint::new(number, id, State::Asked);
    let endpoint = listener.spawn(number as u32, local, Box::new(state));
    cm.add(number, endpoint.target());
    nic.counts.endpoints.up();
    listener.raise(CmEvent::ConnectRequest(CmRequest {
        endpoint,
        remote: remote.unwrap_or_else(|| SocketAddr::new([0; 4].into(), 0)),
        param: CmParam {
            // As the peer sees them: the two values are exchanged.
            responder_resources: arrival.initiator_depth,
            initiator_depth: arrival.responder_resources,
            retry_count: arrival.retry_count,
            rnr_retry_count: arrival.rnr_retry_count,
            ..CmParam::default()
        },
        private_data: arrival.private_data,
    }));
}
