//! The verbs of address handles and multicast attachments.

use verbs_core::ah::{CreateAh, DestroyAh, ModifyAh, QueryAh};
use verbs_core::command::Command;
use verbs_core::mcast::AttachMcast;
use verbs_core::{Attr, Av, Error, Target, Why};

use crate::hca::Hca;
use crate::hca::device::check_port;
use crate::port::Port;

impl Hca {
    pub(super) fn create_ah(&self, command: Command<'_, CreateAh>) {
        let number =
            check(&command.av, &self.port).and_then(|()| self.tables.lock().ahs.insert(()));
        match number {
            Ok(number) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(number, Box::new(()))));
            }
            Err(error) => command.complete(Err(error)),
        }
    }

    pub(super) fn modify_ah(&self, command: Command<'_, ModifyAh>) {
        let answer = check(&command.av, &self.port);
        if answer.is_ok() {
            command.target().replace(command.av);
        }
        command.complete(answer);
    }

    pub(super) fn query_ah(command: Command<'_, QueryAh>) {
        let av = command.target().av();
        command.complete(Ok(av));
    }

    pub(super) fn destroy_ah(&self, command: Command<'_, DestroyAh>) {
        let number = command.target().base().id().number;
        self.tables.lock().ahs.remove(number);
        command.complete(Ok(()));
    }

    /// Only datagram queue pairs can be attached (IBTA vol. 1, 10.5.2.1), and there are none yet.
    pub(super) fn attach_mcast(command: Command<'_, AttachMcast>) {
        let error = Error::Mismatch {
            attr: Attr::QpType,
            why: Why::NotDatagram,
        };
        command.complete(Err(error));
    }
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
