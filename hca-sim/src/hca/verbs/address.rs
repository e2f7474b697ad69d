//! The verbs of address handles and multicast attachments.

use verbs_core::ah::{CreateAh, DestroyAh, ModifyAh, QueryAh};
use verbs_core::command::Command;
use verbs_core::mcast::{AttachMcast, DetachMcast};
use verbs_core::{Attr, Av, Error, QpType, Target, Why};

use crate::hca::Hca;
use crate::hca::verbs::device::check_port;
use crate::hca::verbs::qp::queue_pair;
use crate::port::Port;

pub(super) fn create_ah(hca: &Hca, command: Command<'_, CreateAh>) {
    let number = check(&command.av, &hca.port).and_then(|()| hca.tables.lock().ahs.insert(()));
    match number {
        Ok(number) => {
            let (args, reply) = command.split();
            reply.complete(Ok(args.build(number, Box::new(()))));
        }
        Err(error) => command.complete(Err(error)),
    }
}

pub(super) fn modify_ah(hca: &Hca, command: Command<'_, ModifyAh>) {
    let answer = check(&command.av, &hca.port);
    if answer.is_ok() {
        command.target().replace(command.av);
    }
    command.complete(answer);
}

pub(super) fn query_ah(command: Command<'_, QueryAh>) {
    let av = command.target().av();
    command.complete(Ok(av));
}

pub(super) fn destroy_ah(hca: &Hca, command: Command<'_, DestroyAh>) {
    let number = command.target().base().id().number;
    hca.tables.lock().ahs.remove(number);
    command.complete(Ok(()));
}

pub(super) fn attach_mcast(hca: &Hca, command: Command<'_, AttachMcast>) {
    match attach(hca, &command) {
        Ok(()) => {
            let (args, reply) = command.split();
            reply.complete(Ok(args.build(0, Box::new(()))));
        }
        Err(error) => command.complete(Err(error)),
    }
}

/// Only datagram queue pairs can be attached (IBTA vol. 1, 10.5.2.1).
fn attach(hca: &Hca, command: &Command<'_, AttachMcast>) -> Result<(), Error> {
    let (qp, driver) = queue_pair(command.target().base())
        .zip(hca.port.driver())
        .filter(|(qp, _)| qp.qp_type == QpType::Ud)
        .ok_or(Error::Mismatch {
            attr: Attr::QpType,
            why: Why::NotDatagram,
        })?;
    let join = |group| driver.join(group);
    hca.port.groups.attach(command.mgid, qp, join)
}

pub(super) fn detach_mcast(hca: &Hca, command: Command<'_, DetachMcast>) {
    let core = command.target();
    let qp = queue_pair(core.qp().base());
    if let Some((qp, driver)) = qp.zip(hca.port.driver()) {
        let group = core.mgid();
        if hca.port.groups.detach(group, qp) {
            driver.leave(group.into());
        }
    }
    command.complete(Ok(()));
}

/// Whether the port has what an address names.
fn check(av: &Av, port: &Port) -> Result<(), Error> {
    check_port(av.port)?;
    let last = port.gid_count().saturating_sub(1);
    let sgid_index = av.global.map_or(0, |global| u32::from(global.sgid_index));
    let values = [
        (Attr::GidIndex, sgid_index, last),
        (Attr::Av, u32::from(av.sl), 15),
    ];
    match values.into_iter().find(|&(_, got, max)| got > max) {
        Some((attr, got, max)) => Err(Error::Invalid { attr, got, max }),
        None => Ok(()),
    }
}
