//! Planted defects of the services besides reliable connections.

use std::collections::BTreeMap;

use verbs_core::addr::{QKey, Qpn, Srqn};

use crate::sim::plant::Plant;
use crate::wire::{Deth, Extended, Head, Message, Role, Service, XrcEth};

/// What defects of these services go by.
#[derive(Default)]
pub(super) struct Services {
    /// The keys of queue pairs for datagrams.
    pub(super) keys: BTreeMap<Qpn, QKey>,
    /// The queues that requests to a target may name.
    pub(super) queues: BTreeMap<Qpn, Vec<Srqn>>,
    /// The payload of the last packet to each queue pair that a defect concerns.
    last: BTreeMap<Qpn, Vec<u8>>,
}

impl Services {
    /// Changes a packet as the defect has it; `None` if it is none that it concerns.
    pub(super) fn change(
        &mut self,
        plant: Plant,
        head: &Head,
        ext: &mut Extended,
        payload: &mut Vec<u8>,
    ) -> Option<()> {
        let facts = head.opcode().operation().facts();
        let (service, to) = (head.opcode().service(), head.bth().dest_qpn);
        let place = facts.place;
        match plant {
            Plant::ForeignKey => {
                let deth = ext.deth?;
                let qkey = *self.keys.get(&to)?;
                ext.deth = (qkey != deth.qkey).then_some(Deth { qkey, ..deth });
                ext.deth.map(drop)
            }
            Plant::WrongSource => {
                let deth = ext.deth?;
                let src_qpn = Qpn::new(deth.src_qpn.value() ^ 1);
                ext.deth = Some(Deth { src_qpn, ..deth });
                Some(())
            }
            Plant::StaleDatagram if service == Service::Ud => {
                let last = self.last.insert(to, payload.clone())?;
                *payload = last;
                Some(())
            }
            Plant::GluedMessage
                if service == Service::Uc
                    && facts.message == Message::Send
                    && !place.is_first() =>
            {
                let last = self.last.insert(to, payload.clone())?;
                let len = last.len().min(payload.len());
                payload[..len].copy_from_slice(&last[..len]);
                (len != 0).then_some(())
            }
            Plant::WrongQueue
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
