//! The verbs of connections, on a port with streams; elsewhere there are none.

use verbs_core::cm::{AcceptCm, BindCm, CmCore, ConnectCm, ListenCm, RejectCm, UnbindCm};
use verbs_core::command::{Command, RequestId};
use verbs_core::sync::Arc;
use verbs_core::{Attr, Error, QpState, QpType, Target, Why};

use crate::hca::verbs::qp::queue_pair;
use crate::port::Port;
use crate::port::streams::endpoint::CmEnd;
use crate::qp::QueuePair;
use crate::queue::base::events::Job;

pub(super) fn bind_cm(port: &Port, command: Command<'_, BindCm>) {
    let Some(streams) = &port.streams else {
        return command.refuse(Error::Unsupported(Attr::Verb));
    };
    let bound = match streams.link.bind(command.local) {
        Ok(bound) => bound,
        Err(error) => {
            tracing::debug!(%error, "not bound");
            return command.refuse(Error::from(&error));
        }
    };
    let local = bound.local();
    let end = CmEnd::bound(streams, bound);
    let (args, reply) = command.split();
    let endpoint = args.build(streams.number(), local, Box::new(Arc::clone(&end)));
    end.set_core(endpoint.target());
    reply.complete(Ok(endpoint));
}

pub(super) fn listen_cm(command: Command<'_, ListenCm>) {
    let listening = end_of(command.target()).and_then(|end| end.listen(command.backlog));
    command.complete(listening);
}

pub(super) fn connect_cm(command: Command<'_, ConnectCm>) {
    let ends = end_of(command.target())
        .and_then(|end| Ok((Arc::clone(end), connectable(command.target())?)));
    let (end, qp) = match ends {
        Ok(ends) => ends,
        Err(error) => return command.complete(Err(error)),
    };
    let Some((args, pending)) = command.pend() else {
        return;
    };
    let mut after = Vec::new();
    end.connect(qp, &args, pending, &mut after);
    run(after);
}

pub(super) fn accept_cm(command: Command<'_, AcceptCm>) {
    let accepted = end_of(command.target()).and_then(|end| {
        let qp = connectable(command.target())?;
        end.accept(&qp, command.param, &command.private_data)
    });
    command.complete(accepted);
}

pub(super) fn reject_cm(command: Command<'_, RejectCm>) {
    let rejected = end_of(command.target()).and_then(|end| end.reject(&command.private_data));
    command.complete(rejected);
}

pub(super) fn unbind_cm(command: Command<'_, UnbindCm>) {
    let mut after = Vec::new();
    if let Ok(end) = end_of(command.target()) {
        end.unbind(&mut after);
    }
    run(after);
    command.complete(Ok(()));
}

/// Ends the request early, if it is a connect.
pub(in crate::hca) fn cancel(port: &Port, id: RequestId) {
    let mut after = Vec::new();
    if let Some(streams) = &port.streams {
        streams.cancel(id, &mut after);
    }
    run(after);
}

/// Runs what a verb has left to do, outside of locks.
fn run(after: Vec<Job>) {
    after.into_iter().for_each(|job| job());
}

fn end_of(core: &CmCore) -> Result<&Arc<CmEnd<QueuePair>>, Error> {
    let end = core.base().private::<Arc<CmEnd<QueuePair>>>();
    end.ok_or(Error::Unsupported(Attr::Verb))
}

/// The queue pair of a connect or an accept, if it can be connected.
fn connectable(core: &CmCore) -> Result<Arc<QueuePair>, Error> {
    let wrong = |why| Error::Mismatch {
        attr: Attr::Qp,
        why,
    };
    let held = core.qp().ok_or(wrong(Why::Missing))?;
    let qp = queue_pair(held.base()).ok_or(wrong(Why::OtherDevice))?;
    if qp.qp_type != QpType::Rc {
        return Err(Error::Unsupported(Attr::QpType));
    }
    if !matches!(qp.state(), QpState::Reset | QpState::Init) {
        return Err(wrong(Why::State));
    }
    Ok(Arc::clone(qp))
}
