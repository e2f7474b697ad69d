//! Injected defects of the services other than reliable connections.

use std::collections::BTreeMap;

use verbs_core::addr::{QKey, Qpn, Srqn};
use verbs_wire::{Deth, Extended, Head, Message, Role, Service, XrcEth};

use crate::mutant::Mutant;

/// What the defects of these services need to know.
#[derive(Default)]
pub(super) struct Services {
    /// The keys of queue pairs for datagrams.
    pub(super) keys: BTreeMap<Qpn, QKey>,
    /// The queues that requests to a target may name.
    pub(super) queues: BTreeMap<Qpn, Vec<Srqn>>,
    /// The payload of the last packet to each queue pair that a defect applies to.
    last: BTreeMap<Qpn, Vec<u8>>,
}

impl Services {
    /// Changes a packet as the defect requires; `None` if the defect does not apply to it.
    pub(super) fn change(
        &mut self,
        mutant: Mutant,
        head: &Head,
        ext: &mut Extended,
        payload: &mut Vec<u8>,
    ) -> Option<()> {
        let facts = head.opcode().operation().facts();
        let (service, to) = (head.opcode().service(), head.bth().dest_qpn);
        let place = facts.place;
        match mutant {
            Mutant::ForeignKey => {
                let deth = ext.deth?;
                let qkey = *self.keys.get(&to)?;
                ext.deth = (qkey != deth.qkey).then_some(Deth { qkey, ..deth });
                ext.deth.map(drop)
            }
            Mutant::WrongSource => {
                let deth = ext.deth?;
                let src_qpn = Qpn::new(deth.src_qpn.value() ^ 1);
                ext.deth = Some(Deth { src_qpn, ..deth });
                Some(())
            }
            Mutant::StaleDatagram if service == Service::Ud => {
                let last = self.last.insert(to, payload.clone())?;
                *payload = last;
                Some(())
            }
            Mutant::GluedMessage
                if service == Service::Uc
                    && facts.message == Message::Send
                    && !place.is_first() =>
            {
                let last = self.last.insert(to, payload.clone())?;
                let len = last.len().min(payload.len());
                payload[..len].copy_from_slice(&last[..len]);
                (len != 0).then_some(())
            }
            Mutant::WrongQueue
                if service == Service::Xrc
                    && facts.role == Role::Request
                    && facts.message == Message::Send
                    && place.is_first()
                    && place.is_last() =>
            {
                let named = ext.xrceth?.srqn;
                let srqn = *self.queues.get(&to)?.iter().find(|&&srqn| srqn != named)?;
                ext.xrceth = Some(XrcEth { srqn });
                Some(())
            }
            _ => None,
        }
    }
}
