//! The machine at a port's service for management datagrams, whatever implements that service.

use std::collections::BTreeMap;

use verbs_core::mad::{Address, Class, Delivery, MadBytes, Method, Retry, TransactionId, sa, sm};
use verbs_core::time::Instant;

use crate::manager::{Output, SubnetManager};

/// A manager's registrations: class, version, methods of the requests that it receives.
pub const CLASSES: [(Class, u8, &[Method]); 3] = [
    (
        Class::SUBN_LID,
        sm::CLASS_VERSION,
        &[Method::GET, Method::SET, Method::TRAP],
    ),
    (
        Class::SUBN_DIRECTED,
        sm::CLASS_VERSION,
        &[Method::GET, Method::SET],
    ),
    (
        Class::SA,
        sa::CLASS_VERSION,
        &[Method::GET, Method::SET, Method::GET_TABLE, Method::DELETE],
    ),
];

/// A port's service, as a manager uses it. It has registered for [`CLASSES`].
pub trait Port {
    /// Sends a request of one of the classes; `None`: it cannot be sent now.
    fn request(&mut self, to: Address, mad: &MadBytes, retry: Retry) -> Option<TransactionId>;
    /// Sends a datagram as it is.
    fn send(&mut self, to: Address, mad: &MadBytes);
    /// Sends an answer of any length. If it cannot be sent, it is lost: the requester repeats its request.
    fn respond(&mut self, to: Address, template: &MadBytes, payload: Vec<u8>);
    /// Sets whether the port announces a manager.
    fn is_sm(&mut self, is_here: bool);
}

/// A manager at a port.
#[derive(Debug)]
pub struct Seat {
    manager: SubnetManager,
    waiting: BTreeMap<TransactionId, u64>,
}

impl Seat {
    /// Attaches a manager.
    pub fn new(manager: SubnetManager) -> Self {
        Self {
            manager,
            waiting: BTreeMap::new(),
        }
    }

    /// The manager.
    pub fn manager(&self) -> &SubnetManager {
        &self.manager
    }

    /// Calls the manager, and carries out its outputs.
    pub fn with<R>(
        &mut self,
        now: Instant,
        port: &mut impl Port,
        call: impl FnOnce(&mut SubnetManager) -> R,
    ) -> R {
        let result = call(&mut self.manager);
        while let Some(output) = self.manager.poll_output() {
            match output {
                Output::Request { id, to, mad, retry } => match port.request(to, &mad, retry) {
                    Some(tid) => {
                        self.waiting.insert(tid, id);
                    }
                    None => self.manager.answered(now, id, None),
                },
                Output::Send { to, mad } => port.send(to, &mad),
                Output::Respond {
                    to,
                    template,
                    payload,
                } => port.respond(to, &template, payload),
                Output::IsSm(is_here) => port.is_sm(is_here),
            }
        }
        result
    }

    /// Handles a datagram for the manager.
    pub fn deliver(&mut self, now: Instant, port: &mut impl Port, delivery: &Delivery) {
        let (tid, answer) = match delivery {
            Delivery::Request { from, mad, .. } => {
                return self.with(now, port, |manager| manager.handle(now, *from, mad));
            }
            Delivery::Response { tid, mad, .. } => (tid, Some(mad)),
            Delivery::TimedOut { tid, .. } | Delivery::TransferFailed { tid, .. } => (tid, None),
            Delivery::Responded { .. } => return,
        };
        if let Some(id) = self.waiting.remove(tid) {
            self.with(now, port, |manager| manager.answered(now, id, answer));
        }
    }
}
